"""A node's words about itself: its GPUs, what holds them, its answers to assignments.

Knows: the state. Must not know: the link, the head's rules.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from nodemgr.core.model.entities import Gpu, TaskClass, TaskState
from nodemgr.core.model.schema import assigned_below
from nodemgr.core.state import accounting, compute
from nodemgr.core.state.node_state import State
from nodemgr.core.views import assigned

NEEDED = (
    "key", "number", "env", "job", "state", "over", "began", "confirmed", "acknowledged", "reason",
    "cause", "exit_code", "signal", "started_wall_ns", "ended_wall_ns",
)  # fmt: skip
"""The fields of an answer that a head reads from every one, also of a node with 2 000."""
MAX_TOLD = 500
"""Answers in one report; the next one has the others."""
MAX_SHARED_GPUS = 128
"""A node of more GPUs reports none by itself: the head gives it jobs of whole GPUs."""
MAX_REASON, REASONS_BYTES = 200, 160_000
"""Of one answer, and of all in a frame: 2 000 answers without a reason have 800 kB at most."""


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


def shares(state: State, envs: Collection[str], head: str) -> dict[str, Any]:
    """Of each GPU what is left there, for jobs that share GPUs.

    One out of service is full, and so is one that a request of this node's own keeps.
    """
    if len(state.gpus) > MAX_SHARED_GPUS:
        return {}
    return {"shares": [_of_gpu(state, envs, head, gpu) for gpu in state.gpus.values()]}


def _of_gpu(state: State, envs: Collection[str], head: str, gpu: Gpu) -> dict[str, Any]:
    is_open = gpu.usable and gpu.uuid not in state.reserved
    tasks = [state.tasks[task_id] for task_id in state.gpu_tasks.get(gpu.uuid, ())]
    tasks = [task for task in tasks if task.state is TaskState.RUNNING]
    named: dict[str, bool] = {}
    keys = []
    for task in tasks:
        named[task.env] = named.get(task.env, True) and task.run.memory_bytes is not None
        job = state.jobs.get(task.job_id or "")
        row = None if job is None else state.assignments.get(job.assigned)
        keys += [] if row is None or row.head != head else [row.number]
    free: dict[str, int] = {}
    for env, is_named in named.items():
        grant, name = state.grants[env, gpu.uuid], env if env in envs else ""
        more = max(0, grant.limit_bytes - grant.kept_bytes) if is_named and is_open else 0
        free[name] = more if name else 0
    plain = [task for task in tasks if task.is_plain and compute.computes(task)]
    is_plain = bool(plain) and not state.config.plain_tasks_share
    said = {
        "memory": gpu.memory_total_bytes, "room": accounting.gpu_remaining(state, gpu),
        "percent": state.compute.get(gpu.uuid, 0), "plain": is_plain,
        "best_effort": sum(
            task.granted_percent or 0
            for task in tasks
            if task.run.task_class is TaskClass.BEST_EFFORT and compute.computes(task)
        ),
        "tasks": len(tasks), "envs": [*map(list, sorted(free.items()))], "numbers": keys,
        "most": state.config.max_tasks_per_gpu,
    }  # fmt: skip
    if not is_open:
        said |= {"room": 0, "plain": True, "tasks": max(1, len(tasks))}
    return {key: value for key, value in said.items() if value or key in ("memory", "room")}


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
        return self.fresh(len(self._state.assignments))

    def fresh(self, most: int) -> list[dict[str, Any]]:
        """Those that have changed since they were told."""
        state, rows, left = self._state, list[dict[str, Any]](), REASONS_BYTES
        for key, answer in state.assignments.items():
            if answer.head != self._head or len(rows) >= most:
                continue
            now = answer, state.jobs.get(answer.job_id), answer.job_id in state.unconfirmed
            before = self._told.get(key)
            if before is None or any(a is not b for a, b in zip(before, now, strict=True)):
                self._told[key] = now
                row = assigned.row(state, answer)
                reason = row["reason"][:MAX_REASON]
                left -= len(json.dumps(reason))
                told = {**row, "reason": reason if left > 0 else ""}
                rows.append({name: told[name] for name in NEEDED if told[name] is not None})
        for key in self._told.keys() - state.assignments.keys():
            del self._told[key]
        return rows
