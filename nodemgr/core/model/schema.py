"""Which tables a state has, and which of them are stored. Each list once.

Knows: names, and how keys are written. Must not know: what is done with rows (state/draft.py),
where they are kept (state/node_state.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodemgr.core.model.entities import Uuid

EnvGpu = tuple[str, Uuid]
Figures = dict[EnvGpu, int]
"""Bytes in use in each grant, as far as a step knows them. A new grant adds its own."""
Deadline = tuple[str, str]
"""What is due, and for whom: ("wait", request), ("away", process), ("kill", task), (PAUSE, job)."""
PAUSE = "pause"

STORED: dict[str, tuple[str, Callable[[Any], str]]] = {
    "gpus": ("gpu", str),
    "envs": ("env", str),
    "tasks": ("task", str),
    "processes": ("process", str),
    "grants": ("grant", "/".join),
    "requests": ("request", str),
    "unreclaimed": ("residue", "/".join),
    "records": ("record", str),
    "queues": ("queue", str),
    "specs": ("spec", str),
    "jobs": ("job", str),
    "counters": ("counter", str),
}
"""Each stored table: its kind in the store, and the function that writes a key there.

The tables are restored in this order.
"""

FOLLOWING = (
    "connections", "process_of_connection", "away", "reasons", "positions", "timers", "agenda",
    "task_of_token", "request_of_token", "request_of", "process_of_pid", "slots", "members",
    "charged", "env_charged", "active", "unreclaimed_alive", "unreclaimed_dead",
    "stalled", "unsettled", "udp_askers", "wants_figures", "gpu_tasks", "env_tasks", "violations",
    "unbooked",
    "job_of_key", "elements", "dependents", "spec_jobs", "job_bytes", "env_jobs", "cpu_jobs",
    "queued", "launch_hosts", "held_or_dependent", "under_way",
)  # fmt: skip
"""The tables that follow from stored ones, or that a restart forgets."""

TABLES = (*STORED, *FOLLOWING)

IDS = "ids"
GENERATION = "generation"
JOBS = "jobs"
"""The counters: ids of tasks and requests, generations of ledger slots, ids of jobs and specs."""
