"""The tasks' rows of a status, as JSON text: thousands of them within a few turns of the loop.

Knows: which part of a row stays as long as its Task does, and is written once. Must not know: what the parts say (core's
snapshot), who asks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from nodemgr.core.lifecycle.records import record_id
from nodemgr.core.model.model import Task
from nodemgr.core.state.state import State
from nodemgr.core.views import snapshot
from nodemgr.core.views.snapshot import LastBeats, Share

_to_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class _Lasting(NamedTuple):
    task: Task
    number: int
    """Its place among the others."""
    facts: str
    """The open beginning of a JSON object."""
    share: Share


class TaskRows:
    """What was written for a status before is kept for the next."""

    def __init__(self, state: State, facts: Callable[[Task], dict[str, Any]]) -> None:
        """`facts`: all of a task's row that stays as long as the Task does."""
        self._state = state
        self._facts = facts
        self._kept: dict[str, _Lasting] = {}
        self._shares: dict[Share, Share] = {}
        """Those of the rows that are kept, each once."""

    def __len__(self) -> int:
        return len(self._kept)

    def texts(self, tasks: Iterable[Task], now_ns: int, last_beat_ns: LastBeats) -> list[str]:
        """One JSON object for each task, in the order of their ids."""
        state = self._state
        limits: dict[int, str] = {}
        rows = []
        for task in tasks:
            kept = self._kept.get(task.task_id)
            if kept is None or kept.task is not task:
                kept = self._keep(task)
            limit = limits.get(id(kept.share))
            if limit is None:
                limit = limits[id(kept.share)] = _to_text(snapshot.limits_bytes(state, kept.share))
            duration, age, connected = snapshot.task_now(state, task, now_ns, last_beat_ns)
            now = f'"duration_seconds":{duration},"last_beat_age_seconds":{"null" if age is None else age},"connected":{connected}'
            rows.append((kept.number, f'{kept.facts},{now},"memory_limit_bytes":{limit}}}'))
        rows.sort()
        return [text for _, text in rows]

    def _keep(self, task: Task) -> _Lasting:
        facts, share = _to_text(self._facts(task))[:-1], snapshot.share(self._state, task)
        share = self._shares.setdefault(share, share)
        kept = self._kept[task.task_id] = _Lasting(task, record_id(task.task_id), facts, share)
        if len(self._kept) > 2 * len(self._state.tasks):
            self._kept = {key: row for key, row in self._kept.items() if key in self._state.tasks}
            self._shares = {row.share: row.share for row in self._kept.values()}
        return kept
