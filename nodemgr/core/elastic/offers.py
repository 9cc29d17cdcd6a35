"""Idle GPUs that no request waits for go to elastic tasks, after a calm.

Knows: the GPUs that a scheduling pass leaves over, how long each has been idle, and the tasks that
may have more. Must not know: how a GPU joins a lease (lifecycle/resizing.py).

The task with the least part of its greatest number comes first; of equal ones, the oldest. It stays
within its env's quota, and beyond it only as far as the quota lets the env borrow.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from nodemgr.core.lifecycle import resizing
from nodemgr.core.model.entities import MS, ElasticLease, Gpu, Task, Uuid
from nodemgr.core.model.schema import RESIZES
from nodemgr.core.placement.policies import ORDERS
from nodemgr.core.scheduler.allocator import Candidate
from nodemgr.core.state import accounting, elastic_leases
from nodemgr.core.state.draft import Draft

DECLINED_MS = 60_000
"""A task that gave a GPU back by itself is offered none for this time."""


class Hungry(NamedTuple):
    """A task that may have one more GPU."""

    task: Task
    lease: ElasticLease

    def order(self) -> tuple[float, int, int]:
        part = len(self.task.gpus) / self.lease.most
        return part, self.task.since_ns, int(self.task.task_id[1:])


def give(
    draft: Draft, reserved: Collection[Uuid], waiting_envs: Collection[str], wall_ns: int
) -> None:
    """Offers each GPU that is idle for long enough.

    `reserved`: GPUs of waiting requests. `waiting_envs`: envs with requests that wait for their own
    tasks; their tasks get no more.
    """
    idle = [gpu for gpu in draft.gpus.values() if gpu.uuid not in reserved and _is_idle(draft, gpu)]
    _note_calm(draft, [gpu.uuid for gpu in idle])
    calm_ns = draft.config.offer_calm_ms * MS
    for gpu in sorted(idle, key=lambda gpu: _preference(draft, gpu)):
        ripe_ns = draft.calm_since[gpu.uuid] + calm_ns
        hungry = _hungriest(draft, gpu, waiting_envs)
        if hungry is None:
            continue
        if ripe_ns > draft.now_ns:
            draft.at_latest(RESIZES, ripe_ns)
        else:
            draft.calm_since.drop(gpu.uuid)
            resizing.grow(draft, hungry.task, gpu.uuid, wall_ns)
    if any(uuid in draft.calm_since for uuid in draft.gpus):
        for task_id in draft.elastics:
            until_ns = draft.declined_until.get(task_id)
            if until_ns is not None and until_ns > draft.now_ns:
                draft.at_latest(RESIZES, until_ns)


def _is_idle(draft: Draft, gpu: Gpu) -> bool:
    """Whether no task and no lost process has anything of the GPU."""
    return (
        gpu.healthy
        and not gpu.drained
        and not draft.gpu_tasks.count(gpu.uuid)
        and not draft.charged.get(gpu.uuid)
        and not draft.unbooked.get(gpu.uuid)
    )


def _note_calm(draft: Draft, idle: list[Uuid]) -> None:
    for uuid in [uuid for uuid in draft.calm_since if uuid not in idle]:
        draft.calm_since.drop(uuid)
    for uuid in idle:
        if uuid not in draft.calm_since:
            draft.calm_since.put(uuid, draft.now_ns)


def _preference(draft: Draft, gpu: Gpu) -> tuple[float, ...]:
    room_bytes = accounting.gpu_room(draft, gpu)
    return ORDERS["spread"](Candidate(gpu.uuid, gpu.index, False, 0, room_bytes, 0))


def _hungriest(draft: Draft, gpu: Gpu, waiting_envs: Collection[str]) -> Hungry | None:
    found = [Hungry(draft.tasks[task_id], lease) for task_id, lease in _leases(draft)]
    able = [
        hungry
        for hungry in found
        if hungry.task.env not in waiting_envs
        and _wants_more(draft, hungry)
        and _may_have(draft, hungry.task, gpu)
    ]
    return min(able, key=Hungry.order, default=None)


def _leases(draft: Draft) -> list[tuple[str, ElasticLease]]:
    return [(lease.task_id, lease) for lease in draft.elastics.values()]


def _wants_more(draft: Draft, hungry: Hungry) -> bool:
    task, lease = hungry
    return (
        len(task.gpus) < lease.most
        and not lease.recalls
        and elastic_leases.is_active(task)
        and lease.leader in draft.connections
        and (draft.declined_until.get(task.task_id) or 0) <= draft.now_ns
    )


def _may_have(draft: Draft, task: Task, gpu: Gpu) -> bool:
    """Whether the quota, or what it lets the env borrow, has room for the GPU and its memory."""
    quota = draft.envs[task.env].quota
    if len(accounting.used_gpus(draft, task.env)) >= quota.gpus + quota.borrow:
        return False
    fresh_bytes = accounting.least_of(quota, gpu, task.memory_bytes, task.memory_most_bytes)
    if (task.memory_bytes or 0) > fresh_bytes or fresh_bytes > accounting.gpu_room(draft, gpu):
        return False
    room_bytes = accounting.quota_room(draft, task.env)
    return room_bytes is None or fresh_bytes <= room_bytes + quota.borrowed_bytes
