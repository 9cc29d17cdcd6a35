"""Names and types of keys that several tables share (state/node_state.py declares the tables).

Must not know: rows, and what is done with them.
"""

from __future__ import annotations

from nodemgr.core.model.entities import Uuid

EnvGpu = tuple[str, Uuid]
Figures = dict[EnvGpu, int]
"""Bytes in use in each grant beyond what it keeps for tasks, as far as a step knows them.

A new grant adds its own.
"""
Deadline = tuple[str, str]
"""Kind and subject.

("wait", request), ("away", process), ("kill", task), (PAUSE, job), (RECALL, `recall_key`).
"""
PAUSE = "pause"
RECALL = "recall"
EXEMPT = "exempt"
"""The timer of the end of a best-effort task's time in which it is not preempted."""
RESIZES = "resizes"
"""The timer of the next offer to an elastic task."""
ASIDE = "aside"
"""The timer of the entry that was set aside first, when it may be tried again."""
GRANTS = "grants"
"""The timer of elastic grants: one may grow, or an order to lower one is given again."""


def recall_key(task_id: str, uuid: Uuid) -> str:
    """The subject of a recall's deadline."""
    return f"{task_id}/{uuid}"


IDS = "ids"
GENERATION = "generation"
JOBS = "jobs"
"""The counters: ids of tasks and requests, generations of ledger slots, ids of jobs and specs."""
FAILURES = "failures"
"""The counter of failures' ids."""


def assigned_below(head: str) -> str:
    """The counter of the number below which a head has no open assignment without a row."""
    return f"assigned/{head}"


SERVICE = "service"
"""The counter of the nanoseconds for which managers have run on this store."""
