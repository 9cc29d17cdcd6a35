"""Frames of nodes as events of the core, and the core's words as frames.

Knows: the fields of a frame. Must not know: sockets, what follows from a word.

A node is trusted with its jobs, not with the head's life: a frame of another form is refused whole.
"""

from __future__ import annotations

import re
from typing import Any

from nodemgr.core.cluster import events
from nodemgr.core.cluster.entities import NodeGpu
from nodemgr.core.cluster.events import NodeAnswer
from nodemgr.core.model.entities import MS, WHOLE_PERCENT, Cause, JobState
from nodemgr.edge.links.frames import VERSION, Frame

_KEY = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}/[0-9]{1,18}/c[0-9]{1,15}(\.[0-9]{1,10})?/[0-9]{1,10}",
    re.ASCII,
)
MAX_NUMBER = 2**62
MAX_GPUS = 1_024
MAX_ROWS = 4_000
"""Twice the answers that a node keeps."""
MAX_NAME_CHARS = 256
MAX_SHARED = 1_024
"""Tasks on one GPU, and their environments."""


class BadFrame(ValueError):
    """The field that is wrong."""


def synced(node: str, session: int, said: Frame) -> events.Synced:
    """Raises BadFrame."""
    _number({"version": said.get("version", 1)}, "version", VERSION)
    return events.Synced(
        node,
        session,
        _text(said, "generation"),
        _text(said, "boot_id"),
        _number(said, "below", MAX_NUMBER),
        _number(said, "gpus", MAX_GPUS),
        _others(said),
        _answers(said),
        tuple(str(model)[:MAX_NAME_CHARS] for model in _list(said, "models", MAX_GPUS)),
        _lent(said),
        shares(said),
    )


def report(node: str, session: int, said: Frame) -> events.NodeReport:
    """Raises BadFrame."""
    return events.NodeReport(
        node,
        session,
        _number(said, "number", MAX_NUMBER),
        _number(said, "gpus", MAX_GPUS),
        _others(said),
        _answers(said),
        _lent(said),
        shares(said),
    )


def _lent(said: Frame) -> events.LentNode | None:
    pool = said.get("pool")
    if pool is None:
        return None
    if not isinstance(pool, dict):
        raise BadFrame("pool")
    left = None if pool.get("left_ms") is None else _number(pool, "left_ms", MAX_NUMBER // MS)
    return events.LentNode(_number(pool, "pilot", MAX_NUMBER), left, pool.get("waits") is True)


def shares(said: Frame) -> tuple[NodeGpu, ...] | None:
    if said.get("shares") is None:
        return None
    return tuple(map(_share, _list(said, "shares", MAX_GPUS)))


def _share(row: object) -> NodeGpu:
    if not isinstance(row, dict):
        raise BadFrame("shares")
    defaults = {"percent": 0, "best_effort": 0, "tasks": 0, "most": MAX_SHARED, **row}
    envs = dict(_pair(one, "envs", MAX_NUMBER) for one in _list(row, "envs", MAX_SHARED))
    return NodeGpu(
        _number(row, "memory", MAX_NUMBER), _number(row, "room", MAX_NUMBER),
        _number(defaults, "percent", WHOLE_PERCENT), row.get("plain") is True,
        _number(defaults, "best_effort", WHOLE_PERCENT), _number(defaults, "tasks", MAX_SHARED),
        tuple(sorted(envs.items())),
        tuple(
            _number({"numbers": one}, "numbers", MAX_NUMBER)
            for one in _list(row, "numbers", MAX_SHARED)
        ),
        _number(defaults, "most", MAX_SHARED),
    )  # fmt: skip


def _pair(row: object, name: str, most: int) -> tuple[str, int]:
    if not isinstance(row, list) or len(row) != 2 or not isinstance(row[0], str):
        raise BadFrame(name)
    return row[0][:MAX_NAME_CHARS], _number({name: row[1]}, name, most)


def _answers(said: Frame) -> tuple[NodeAnswer, ...]:
    return tuple(map(_answer, _list(said, "answers", MAX_ROWS)))


def _answer(row: object) -> NodeAnswer:
    if not isinstance(row, dict):
        raise BadFrame("answers")
    key = _text(row, "key")
    if _KEY.fullmatch(key) is None:
        raise BadFrame("key")
    try:
        state = JobState(str(row.get("state")))
        cause = None if row.get("cause") is None else Cause(str(row["cause"]))
    except ValueError:
        raise BadFrame("state or cause") from None
    began, ended = _time(row.get("started_wall_ns")), _time(row.get("ended_wall_ns"))
    return NodeAnswer(
        key,
        _number(row, "number", MAX_NUMBER),
        row.get("over") is True,
        row.get("began") is True,
        row.get("job") is None,
        row.get("confirmed") is not False,
        state,
        cause,
        _code(row.get("exit_code")),
        _code(row.get("signal")),
        str(row.get("reason") or "")[:MAX_NAME_CHARS],
        str(row.get("job") or "")[:MAX_NAME_CHARS],
        None if began is None or ended is None else max(0, ended - began) // MS,
        ended or 0,
    )


def _time(value: object) -> int | None:
    """None: it is not known, or no clock shows it."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER:
        return value
    return None


def _code(value: object) -> int | None:
    return value if isinstance(value, int) and abs(value) < 2**31 else None


def _others(said: Frame) -> tuple[tuple[str, int], ...]:
    found = dict(_pair(row, "others", MAX_GPUS) for row in _list(said, "others", MAX_ROWS))
    return tuple(sorted(found.items()))


def _list(said: Frame, name: str, most: int) -> list[Any]:
    value = said.get(name, [])
    if not isinstance(value, list) or len(value) > most:
        raise BadFrame(name)
    return value


def _number(said: Frame, name: str, most: int) -> int:
    value = said.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise BadFrame(name)
    return value


def _text(said: Frame, name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARS:
        raise BadFrame(name)
    return value
