"""A node's words about itself: its GPUs, what holds them, its answers to assignments.

Knows: the state. Must not know: the link, the head's rules.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from nodemgr.core.model.schema import assigned_below
from nodemgr.core.state.node_state import State
from nodemgr.core.views import assigned

NEEDED = (
    "key", "number", "env", "job", "state", "over", "began", "confirmed", "acknowledged", "reason",
    "cause", "exit_code", "signal",
)  # fmt: skip
"""The fields of an answer that a head reads from every one, also of a node with 2 000."""
MAX_REASON = 200


def summary(state: State, envs: Collection[str]) -> dict[str, Any]:
    """The GPUs in service, and those that tasks without an assignment hold.

    `envs`: the environments of the cluster; all others count together.
    """
    usable = {uuid for uuid, gpu in state.gpus.items() if gpu.usable}
    given: set[str] = set()
    others: dict[str, set[str]] = {}
    for task in state.tasks.values():
        job = state.jobs.get(task.job_id or "")
        if job is not None and job.assigned:
            given.update(task.gpus)
        else:
            others.setdefault(task.env if task.env in envs else "", set()).update(task.gpus)
    counted, left = [], usable - given
    for env in sorted(others):
        mine = others[env] & left
        left -= mine
        if mine:
            counted.append([env, len(mine)])
    return {"gpus": len(usable), "others": counted}


def below(state: State, head: str) -> int:
    return state.counters.get(assigned_below(head), 0)


class Answers:
    """The answers to one head, and which of them the present session has heard."""

    def __init__(self, state: State, head: str) -> None:
        self._state, self._head = state, head
        self._told: dict[str, tuple[object, object, bool]] = {}

    def every(self) -> list[dict[str, Any]]:
        """All that are kept, for a new session."""
        self._told = {}
        return self.fresh()

    def fresh(self) -> list[dict[str, Any]]:
        """Those that have changed since they were told."""
        state, rows = self._state, []
        for key, answer in state.assignments.items():
            if answer.head != self._head:
                continue
            now = answer, state.jobs.get(answer.job_id), answer.job_id in state.unconfirmed
            before = self._told.get(key)
            if before is None or any(a is not b for a, b in zip(before, now, strict=True)):
                self._told[key] = now
                row = assigned.row(state, answer)
                rows.append({name: row[name] for name in NEEDED} | {
                    "reason": row["reason"][:MAX_REASON]
                })  # fmt: skip
        for key in self._told.keys() - state.assignments.keys():
            del self._told[key]
        return rows
