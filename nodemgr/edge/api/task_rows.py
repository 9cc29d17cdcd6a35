"""The tasks' rows of a status, as JSON text: thousands of them within a few turns of the loop.

Knows: which part of a row stays as long as its Task does, and is written once. Must not know: the
meaning of the parts (core's snapshot), the asker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from nodemgr.core.lifecycle.leasing import record_id
from nodemgr.core.model.entities import Task
from nodemgr.core.state.node_state import State
from nodemgr.core.views import figures, snapshot
from nodemgr.core.views.figures import UNKNOWN, Readings, TaskFigures
from nodemgr.core.views.snapshot import LastBeats, TaskShare

FIGURE_KEYS = tuple(f'"{name}":' for name in TaskFigures._fields)

_to_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def figures_text(state: State, task: Task, readings: Readings) -> str:
    """A task's figures as the inner part of a JSON object."""
    if readings is UNKNOWN:
        return _unknown_text(len(task.gpus))
    return _figures_text(figures.of_task(state, task, readings))


@lru_cache
def _unknown_text(gpus: int) -> str:
    return _figures_text(figures.unknown(gpus))


def _figures_text(row: TaskFigures) -> str:
    """The JSON encoder would take twice as long."""
    parts = []
    for name, value in zip(FIGURE_KEYS, row, strict=True):
        if value is None:
            parts.append(f"{name}null")
        elif isinstance(value, int):
            parts.append(f"{name}{value}")
        elif isinstance(value, str):
            parts.append(f'{name}"{value}"')
        else:
            words = ["null" if item is None else str(item) for item in value]
            parts.append(f"{name}[{','.join(words)}]")
    return ",".join(parts)


class _Lasting(NamedTuple):
    task: Task
    number: int
    """Its place among the others."""
    facts: str
    """The open beginning of a JSON object."""
    share: TaskShare
    is_paused: bool


class TaskRows:
    """Texts of an earlier status are kept for the next."""

    def __init__(self, state: State, facts: Callable[[Task, bool], dict[str, Any]]) -> None:
        """`facts`: all of a task's row that stays as long as the Task and its pause do."""
        self._state = state
        self._facts = facts
        self._cached: dict[str, _Lasting] = {}
        self._shares: dict[TaskShare, TaskShare] = {}
        """The shares of the kept rows, each once."""

    def __len__(self) -> int:
        return len(self._cached)

    def texts(
        self, tasks: Iterable[Task], now_ns: int, last_beat_ns: LastBeats, readings: Readings
    ) -> list[str]:
        """One JSON object for each task, in the order of their ids."""
        state = self._state
        limits: dict[int, str] = {}
        rows = []
        for task in tasks:
            cached = self._cached.get(task.task_id)
            is_paused = task.task_id in readings.paused
            if cached is None or cached.task is not task or cached.is_paused is not is_paused:
                cached = self._cache(task, is_paused)
            limit = limits.get(id(cached.share))
            if limit is None:
                limit = limits[id(cached.share)] = _to_text(
                    snapshot.limits_bytes(state, cached.share)
                )
            duration, age, connected, progress, borrowed = snapshot.task_now(
                state, task, now_ns, last_beat_ns
            )
            now = (
                f'"duration_seconds":{duration},'
                f'"last_beat_age_seconds":{"null" if age is None else age},"connected":{connected}'
                f',"progress":{"null" if progress is None else _to_text(progress)}'
                f',"borrowed":{"null" if borrowed is None else borrowed}'
            )
            measured = figures_text(state, task, readings)
            text = f'{cached.facts},{now},"memory_limit_bytes":{limit},{measured}}}'
            rows.append((cached.number, text))
        rows.sort()
        return [text for _, text in rows]

    def _cache(self, task: Task, is_paused: bool) -> _Lasting:
        share = snapshot.share(self._state, task)
        cached = self._cached[task.task_id] = _Lasting(
            task,
            record_id(task.task_id),
            _to_text(self._facts(task, is_paused))[:-1],
            self._shares.setdefault(share, share),
            is_paused,
        )
        if len(self._cached) > 2 * len(self._state.tasks):
            self._cached = {
                key: row for key, row in self._cached.items() if key in self._state.tasks
            }
            self._shares = {row.share: row.share for row in self._cached.values()}
        return cached
