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
from nodemgr.core.placement.orders import SPREAD
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


def give(draft: Draft, reserved: Collection[Uuid], waiting_envs: Collection[str]) -> None:
    """Offers each GPU that is idle for long enough.

    `reserved`: GPUs of waiting requests. `waiting_envs`: envs with requests that wait for their own
    tasks; their tasks get no more.
    """
    idle = [gpu for gpu in draft.gpus.values() if gpu.uuid not in reserved and _is_idle(draft, gpu)]
    _note_calm(draft, dict.fromkeys(gpu.uuid for gpu in idle))
    hungry = _hungry(draft, waiting_envs) if idle else []
    if hungry:
        idle.sort(key=lambda gpu: _preference(draft, gpu))
    calm_ns = draft.config.offer_calm_ms * MS
    found: dict[int, Hungry | None] = {}
    """By the size of an idle GPU, which is all that matters; until one is given."""
    for gpu in idle if hungry else ():
        size_bytes = gpu.memory_total_bytes
        if size_bytes not in found:
            able = (each for each in hungry if _may_have(draft, each.task, gpu))
            found[size_bytes] = min(able, key=Hungry.order, default=None)
        chosen = found[size_bytes]
        if chosen is None:
            continue
        ripe_ns = draft.calm_since[gpu.uuid] + calm_ns
        if ripe_ns > draft.now_ns:
            draft.at_latest(RESIZES, ripe_ns)
        else:
            draft.calm_since.drop(gpu.uuid)
            resizing.grow(draft, chosen.task, gpu.uuid)
            hungry, found = _after(draft, hungry, chosen.task.env), {}
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


def _note_calm(draft: Draft, idle: Collection[Uuid]) -> None:
    for uuid in [uuid for uuid in draft.calm_since if uuid not in idle]:
        draft.calm_since.drop(uuid)
    for uuid in idle:
        if uuid not in draft.calm_since:
            draft.calm_since.put(uuid, draft.now_ns)


def _preference(draft: Draft, gpu: Gpu) -> tuple[float, ...]:
    room_bytes = accounting.gpu_room(draft, gpu)
    return SPREAD(Candidate(gpu.uuid, gpu.index, False, 0, room_bytes, 0))


def _hungry(draft: Draft, waiting_envs: Collection[str]) -> list[Hungry]:
    """The tasks that may have one more GPU, if it has the memory that they need."""
    found = [Hungry(draft.tasks[lease.task_id], lease) for lease in draft.elastics.values()]
    able = [
        hungry
        for hungry in found
        if hungry.task.env not in waiting_envs and _wants_more(draft, hungry)
    ]
    below_quota = {env for env in {hungry.task.env for hungry in able} if _has_quota(draft, env)}
    return [hungry for hungry in able if hungry.task.env in below_quota]


def _after(draft: Draft, hungry: list[Hungry], env: str) -> list[Hungry]:
    """The same once a task of this env has got a GPU."""
    others = [each for each in hungry if each.task.env != env]
    if not _has_quota(draft, env):
        return others
    ids = [each.task.task_id for each in hungry if each.task.env == env]
    own = [Hungry(draft.tasks[task_id], draft.elastics[task_id]) for task_id in ids]
    return others + [each for each in own if _wants_more(draft, each)]


def _has_quota(draft: Draft, env: str) -> bool:
    """Whether the quota of GPUs, or what it lets the env borrow, has room for one more."""
    quota = draft.envs[env].quota
    return len(accounting.used_gpus(draft, env)) < quota.gpus + quota.borrow


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
    """Whether GPU and quota, or what it lets the env borrow, have room for the task's memory."""
    quota = draft.envs[task.env].quota
    fresh_bytes = accounting.least_of(quota, gpu, task.run.memory_bytes, task.run.memory_most_bytes)
    if (task.run.memory_bytes or 0) > fresh_bytes or fresh_bytes > accounting.gpu_room(draft, gpu):
        return False
    room_bytes = accounting.quota_room(draft, task.env)
    return room_bytes is None or fresh_bytes <= room_bytes + quota.borrowed_bytes
