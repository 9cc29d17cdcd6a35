"""The sums that decisions rest on: memory and GPUs used, promised, remaining.

Each reads a State or a Draft alike.

Knows: how grants and unreclaimed memory are charged to GPUs and to quotas. Must not know: its
callers and their purposes.
"""

from __future__ import annotations

from nodemgr.core.model.entities import (
    Gpu,
    Grant,
    Process,
    Quota,
    UnreclaimedMemory,
    Uuid,
)
from nodemgr.core.model.values import replace
from nodemgr.core.state.node_state import State


def active_tasks(grant: Grant | None) -> int:
    """Tasks that are not stalled."""
    return 0 if grant is None else grant.tasks - grant.stalled_tasks


def present_tasks(grant: Grant | None) -> int:
    """Tasks that are neither stalled nor suspended: they may use the GPU now."""
    return 0 if grant is None else grant.tasks - grant.stalled_tasks - grant.suspended_tasks


def is_parked(grant: Grant | None) -> bool:
    """Whether all its tasks are suspended: its memory is on the host."""
    return grant is not None and 0 < grant.suspended_tasks == grant.tasks


def on_gpu(grant: Grant | None) -> int:
    """The bytes of a grant that its GPU is charged."""
    if grant is None or (grant.suspended_tasks and is_parked(grant)):
        return 0
    return grant.memory_bytes


def used_gpus(book: State, env: str) -> list[Gpu]:
    """The GPUs with `is_used` true: each counts against the env's quota."""
    grant_of = book.grants.get
    return [
        gpu
        for gpu in book.gpus.values()
        if (grant := grant_of((env, gpu.uuid))) is not None
        and grant.tasks > grant.stalled_tasks
        and gpu.healthy
    ]


def is_used(book: State, env: str, uuid: Uuid) -> bool:
    """Whether the GPU is healthy and the env holds it through a task that is not stalled.

    This is `used` in docs/allocation.md. A drained GPU is used until its tasks end. A lost one is
    not: its tasks cannot compute on it.
    """
    return book.gpus[uuid].healthy and active_tasks(book.grants.get((env, uuid))) > 0


def full_grant(quota: Quota, gpu: Gpu) -> int:
    """A fresh GPU's grant: `memory_per_gpu`, else the whole GPU; at most the GPU's size."""
    per_gpu_bytes = quota.memory_per_gpu_bytes
    return (
        gpu.memory_total_bytes
        if per_gpu_bytes is None
        else min(per_gpu_bytes, gpu.memory_total_bytes)
    )


def least_of(quota: Quota, gpu: Gpu, memory_bytes: int | None, most_bytes: int | None) -> int:
    """A fresh GPU's grant for a task: the least of its range of memory, else the quota's."""
    full_bytes = full_grant(quota, gpu)
    return full_bytes if most_bytes is None else min(full_bytes, memory_bytes or 0)


def least(book: State, grant: Grant) -> int:
    """The promised part of a grant: the least memory of its tasks if all have a range.

    With any other task, it is the quota's.
    """
    return _least_of_quota(book.envs[grant.env].quota, book.gpus[grant.uuid], grant)


def _least_of_quota(quota: Quota, gpu: Gpu, grant: Grant) -> int:
    full_bytes = full_grant(quota, gpu)
    if grant.elastic_tasks and grant.elastic_tasks == grant.tasks:
        return min(full_bytes, grant.kept_bytes)
    return grant.memory_bytes if quota.gpus == 0 else full_bytes


def target(book: State, grant: Grant) -> int:
    """The size that a grant should have: 0 without an active task, else the promised part.

    An elastic one keeps what it has beyond. A quota that was lowered to no GPU at all takes nothing
    away.
    """
    env = book.envs.get(grant.env)
    return target_of(None if env is None else env.quota, book.gpus.get(grant.uuid), grant)


def target_of(quota: Quota | None, gpu: Gpu | None, grant: Grant) -> int:
    if active_tasks(grant) == 0:
        return 0
    if quota is None or quota.gpus == 0:
        return grant.memory_bytes
    assert gpu is not None, "a grant's GPU has a row"
    if not grant.most_bytes:
        return full_grant(quota, gpu)
    return max(grant.memory_bytes, _least_of_quota(quota, gpu, grant))


def with_task(grant: Grant, kept_bytes: int, most_bytes: int | None) -> Grant:
    """The grant with one task more; `most_bytes`: where the task's range of memory ends."""
    has_ended = most_bytes is not None and not grant.elastic_tasks
    return replace(
        grant,
        tasks=grant.tasks + 1,
        kept_bytes=grant.kept_bytes + kept_bytes,
        elastic_tasks=grant.elastic_tasks + (most_bytes is not None),
        most_bytes=(0 if has_ended else grant.most_bytes) + (most_bytes or 0),
    )


def charge(book: State, env: str, uuid: Uuid) -> int:
    """An env's charge for a GPU, in bytes of the env's quota.

    The grant contains the memory of lost but living processes, since the env's ledger sums it.
    Memory that the driver still reports for dead ones is added (promise 5).
    """
    grant = book.grants.get((env, uuid))
    alive_bytes = book.unreclaimed_alive.get((env, uuid)) or 0
    dead_bytes = book.unreclaimed_dead.get((env, uuid)) or 0
    return max(0 if grant is None else grant.memory_bytes, alive_bytes) + dead_bytes


def gpu_charge(book: State, env: str, uuid: Uuid) -> int:
    """The same in bytes of the GPU's memory: the grant of suspended tasks takes none."""
    alive_bytes = book.unreclaimed_alive.get((env, uuid)) or 0
    dead_bytes = book.unreclaimed_dead.get((env, uuid)) or 0
    return max(on_gpu(book.grants.get((env, uuid))), alive_bytes) + dead_bytes


def return_bytes(book: State, grant: Grant) -> int:
    """The growth of the GPU's charge if one of the grant's suspended tasks came back."""
    alive_bytes = book.unreclaimed_alive.get((grant.env, grant.uuid)) or 0
    return max(0, grant.memory_bytes - max(on_gpu(grant), alive_bytes))


def need(book: State, env: str, uuid: Uuid, grant: Grant | None, memory_bytes: int) -> int:
    """The growth of an env's charge on a GPU if its grant there were `memory_bytes`."""
    held_bytes = 0 if grant is None else grant.memory_bytes
    alive_bytes = book.unreclaimed_alive.get((env, uuid))
    if alive_bytes is not None:
        memory_bytes, held_bytes = max(memory_bytes, alive_bytes), max(held_bytes, alive_bytes)
    return max(0, memory_bytes - held_bytes)


def most(book: State, grant: Grant) -> int:
    """The largest grant that the room in its GPU and in its env's quota allows."""
    room_bytes = gpu_room(book, book.gpus[grant.uuid])
    quota_bytes = quota_room(book, grant.env)
    if quota_bytes is not None:
        room_bytes = min(room_bytes, quota_bytes)
    alive_bytes = book.unreclaimed_alive.get((grant.env, grant.uuid)) or 0
    return (
        max(grant.memory_bytes, alive_bytes) + room_bytes if room_bytes > 0 else grant.memory_bytes
    )


def capacity(book: State, gpu: Gpu) -> int:
    """The bytes of a GPU that may be promised (promise 1)."""
    return int(gpu.memory_total_bytes * book.config.memory_overcommit)


def gpu_room(book: State, gpu: Gpu) -> int:
    """A GPU's bytes that are neither promised nor taken by others.

    The number is below zero if lost processes hold more than the GPU has to spare. Then not even a
    grant that needs nothing more is made there.
    """
    return (
        capacity(book, gpu) - (book.charged.get(gpu.uuid) or 0) - (book.unbooked.get(gpu.uuid) or 0)
    )


def quota_room(book: State, env: str) -> int | None:
    """The rest of an env's memory quota, below zero after it was lowered; None without one."""
    quota = book.envs[env].quota
    return (
        None
        if quota.memory_bytes is None
        else quota.memory_bytes - (book.env_charged.get(env) or 0)
    )


def gpu_remaining(book: State, gpu: Gpu) -> int:
    """`gpu_room` as reported: at least 0."""
    return max(0, gpu_room(book, gpu))


def env_remaining(book: State, env: str) -> int | None:
    """`quota_room` as reported: at least 0."""
    room_bytes = quota_room(book, env)
    return None if room_bytes is None else max(0, room_bytes)


def unreclaimed_of(
    process: Process, pid: int, uuid: Uuid, memory_bytes: int, *, alive: bool
) -> UnreclaimedMemory:
    return UnreclaimedMemory(process.env, uuid, process.key, pid, memory_bytes, alive)
