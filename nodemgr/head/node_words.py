"""Frames of nodes as events of the core, and the core's words as frames.

Knows: the fields of a frame. Must not know: sockets, what follows from a word.

A node is trusted with its jobs, not with the head's life: a frame of another form is refused whole.
"""

from __future__ import annotations

import re
from typing import Any

from nodemgr.core.cluster import events
from nodemgr.core.cluster.events import NodeAnswer
from nodemgr.core.model.entities import MS, Cause, JobState
from nodemgr.edge.links.frames import Frame

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}/[0-9]{1,18}/c[0-9]{1,15}/[0-9]{1,10}", re.ASCII)
MAX_NUMBER = 2**62
MAX_GPUS = 1_024
MAX_ROWS = 4_000
"""Twice the answers that a node keeps."""
MAX_NAME_CHARS = 256


class BadFrame(ValueError):
    """The field that is wrong."""


def synced(node: str, session: int, said: Frame) -> events.Synced:
    """Raises BadFrame."""
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
    )


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
    began, ended = row.get("started_wall_ns"), row.get("ended_wall_ns")
    measured = isinstance(began, int) and isinstance(ended, int)
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
        max(0, ended - began) // MS if measured else None,  # type: ignore[operator]
    )


def _code(value: object) -> int | None:
    return value if isinstance(value, int) and abs(value) < 2**31 else None


def _others(said: Frame) -> tuple[tuple[str, int], ...]:
    found = {}
    for row in _list(said, "others", MAX_ROWS):
        if not isinstance(row, list) or len(row) != 2 or not isinstance(row[0], str):
            raise BadFrame("others")
        found[row[0][:MAX_NAME_CHARS]] = _number({"others": row[1]}, "others", MAX_GPUS)
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
