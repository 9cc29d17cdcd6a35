"""Processes of a task: how one gets its place in the ledger, and what stays charged when it leaves.

Knows: slots, generations, UDP caps, unreclaimed memory. Must not know: why a process joins or
leaves. A slot is its process's own until the process is dead, also after it left its task: what it
still has allocated stays in the ledger's words, and what it frees is counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodemgr.core.model import effects
from nodemgr.core.model.entities import (
    GENERATIONS,
    Asker,
    DenyCode,
    Gpu,
    Grant,
    Process,
    Suspension,
    Task,
    Transport,
    UnreclaimedMemory,
    Uuid,
)
from nodemgr.core.model.schema import GENERATION, Figures
from nodemgr.core.model.values import replace
from nodemgr.core.state import accounting
from nodemgr.core.state.draft import Draft


def admit(draft: Draft, task: Task, asker: Asker, figures: Figures) -> Process | DenyCode:
    """Makes the asker a member of the task, or returns the reason against it.

    The task's row is the caller's to write.
    """
    process = (
        _by_cap(draft, task, asker, figures)
        if asker.transport is Transport.UDP
        else _by_slot(draft, task, asker)
    )
    if isinstance(process, Process):
        draft.put_process(process)
    return process


def _by_slot(draft: Draft, task: Task, asker: Asker) -> Process | DenyCode:
    before = draft.processes.get(asker.process)
    if before is not None:
        return _revived(draft, task, before, asker)
    slot = draft.free_slot(task.env)
    if slot is None:
        return DenyCode.TOO_MANY_PROCESSES
    generation = draft.count(GENERATION) % GENERATIONS
    draft.emit(effects.BeginSlot(task.env, slot, generation, capped(task)))
    return Process(
        asker.process,
        task.env,
        task.task_id,
        asker.transport,
        asker.pid,
        asker.user,
        slot,
        generation,
        asker.rid,
        gated=asker.gated,
        starts=asker.starts,
    )


def capped(task: Task) -> str:
    """The task with the cap of its processes: itself; empty: they have none."""
    return task.task_id if task.kept_bytes else ""


def _revived(draft: Draft, task: Task, process: Process, asker: Asker) -> Process:
    """A process that left a lease and asks anew: its slot lives again, with its memory."""
    for uuid in task.gpus:
        unreclaimed = draft.unreclaimed.get((process.key, uuid))
        if unreclaimed is not None:
            draft.drop_unreclaimed(unreclaimed)
            # the charge may fall: another grant may grow, another request may be served
            draft.wake_scheduler()
    if process.slot is not None:
        draft.emit(
            effects.SetSlot(process.env, process.slot, process.generation, "live", capped(task))
        )
    return replace(
        process,
        task_id=task.task_id,
        rid=asker.rid,
        user=asker.user,
        fenced=False,
        gated=asker.gated,
        starts=asker.starts,
    )


def _by_cap(draft: Draft, task: Task, asker: Asker, figures: Figures) -> Process | DenyCode:
    """Over UDP there is no ledger: a fixed share of each grant.

    The ledger gives the others that much less.
    """
    cap_bytes = min(
        share(draft, task.env, draft.gpus[uuid], task.run.memory_bytes, task.world)
        for uuid in task.gpus
    )
    for uuid in task.gpus:
        free_bytes = ledger_free(draft.grants[task.env, uuid], figures)
        if free_bytes is None or free_bytes < cap_bytes:
            return DenyCode.MEMORY_ABOVE_LIMIT
    for uuid in task.gpus:
        grant = draft.grants[task.env, uuid]
        draft.put_grant(replace(grant, caps_bytes=grant.caps_bytes + cap_bytes))
    return Process(
        asker.process,
        task.env,
        task.task_id,
        asker.transport,
        None,
        asker.user,
        None,
        0,
        asker.rid,
        cap_bytes=cap_bytes,
        gated=asker.gated,
    )


def share(draft: Draft, env: str, gpu: Gpu, memory_bytes: int | None, world: int) -> int:
    """The part of a grant that a process over UDP takes.

    It is the named memory, else an equal part among the announced processes.
    """
    if memory_bytes is not None:
        return memory_bytes
    grant = draft.grants.get((env, gpu.uuid))
    if grant is None or accounting.active_tasks(grant) == 0:
        return accounting.full_grant(draft.envs[env].quota, gpu) // max(1, world)
    return min(grant.memory_bytes, accounting.target(draft, grant)) // max(1, world)


def ledger_free(grant: Grant, figures: Figures) -> int | None:
    """The bytes of a grant that are not used, not kept for a task, and not given away as caps.

    None: the step has no figure of it.
    """
    unkept_bytes = figures.get((grant.env, grant.uuid))
    if unkept_bytes is None:
        return None
    return max(0, grant.limit_bytes - grant.kept_bytes - unkept_bytes)


def has_free(
    draft: Draft,
    env: str,
    gpu: Gpu,
    wanted_bytes: int,
    figures: Figures,
    fresh_bytes: int,
    growth_bytes: int | None,
) -> bool:
    """Whether a task of the env would find this much free in its grant on the GPU.

    The grant may be held already or fresh. `fresh_bytes`: the size that it would be made or grown
    to; `growth_bytes`: the most by which one in use would grow for the task (None: it is not
    elastic, and never grows so).
    """
    grant = draft.grants.get((env, gpu.uuid))
    if grant is None:
        return fresh_bytes - (draft.unreclaimed_alive.get((env, gpu.uuid)) or 0) >= wanted_bytes
    if accounting.active_tasks(grant) == 0:
        # As it would be, grown again. A request that could be served would else be overtaken.
        unkept_bytes = figures.get((env, gpu.uuid), unkept_at_most(grant))
        return fresh_bytes - grant.kept_bytes - unkept_bytes >= wanted_bytes
    if growth_bytes is None:
        free_bytes = ledger_free(grant, figures)
        return free_bytes is not None and free_bytes >= wanted_bytes
    full_bytes = accounting.full_grant(draft.envs[env].quota, gpu)
    grown_bytes = min(full_bytes, grant.memory_bytes + growth_bytes)
    unkept_bytes = figures.get((env, gpu.uuid), full_bytes)
    return grown_bytes - grant.caps_bytes - grant.kept_bytes - unkept_bytes >= wanted_bytes


def unkept_at_most(grant: Grant) -> int:
    """The figure of a grant whose tasks are stalled, where the step has none.

    No more is in use than the grant takes, and all of it may be memory that no task has named: a
    stalled task may use nothing of its own.
    """
    return grant.memory_bytes


def depart(
    draft: Draft, task: Task, process: Process, gpus: tuple[Uuid, ...] | None = None
) -> Task:
    """Take a living process out of its task.

    `gpus`: those that it may have memory on; None: all of the task's. Returns the task without it,
    which the caller writes or ends.
    """
    _give_back_cap(draft, task, process)
    if process.pid is None:
        _forget(draft, process)
    else:
        draft.put_process(replace(process, fenced=True))
        if process.slot is not None:
            draft.emit(effects.SetSlot(process.env, process.slot, process.generation, "fenced"))
        if task.suspension is not Suspension.SUSPENDED:
            for uuid in task.gpus if gpus is None else gpus:
                charge_unreclaimed(draft, process, uuid)
    return _without(task, process)


def charge_unreclaimed(draft: Draft, process: Process, uuid: Uuid) -> None:
    """A living process loses the GPU: it may have the whole grant until the driver is read."""
    at_most_bytes = draft.grants[process.env, uuid].memory_bytes
    if at_most_bytes > 0 and process.pid is not None:
        draft.put_unreclaimed(
            accounting.unreclaimed_of(process, process.pid, uuid, at_most_bytes, alive=True)
        )
        draft.emit(effects.WatchUnreclaimed(process.key, process.pid, uuid))


def bury(
    draft: Draft, task: Task | None, process: Process, unreclaimed_bytes: Mapping[Uuid, int]
) -> Task | None:
    """A process is dead: its slot is free, what the driver still shows of it stays charged.

    Returns its task without it.
    """
    if task is not None:
        _give_back_cap(draft, task, process)
    for uuid in draft.gpus:
        unreclaimed = draft.unreclaimed.get((process.key, uuid))
        if unreclaimed is not None:
            draft.drop_unreclaimed(unreclaimed)
        if process.pid is not None and unreclaimed_bytes.get(uuid, 0) > 0:
            draft.put_unreclaimed(
                accounting.unreclaimed_of(
                    process, process.pid, uuid, unreclaimed_bytes[uuid], alive=False
                )
            )
            draft.emit(effects.WatchUnreclaimed(process.key, process.pid, uuid))
    _forget(draft, process)
    return None if task is None else _without(task, process)


def _without(task: Task, process: Process) -> Task:
    return replace(task, processes=tuple(key for key in task.processes if key != process.key))


def _give_back_cap(draft: Draft, task: Task, process: Process) -> None:
    if process.cap_bytes is None:
        return
    for uuid in task.gpus:
        grant = draft.grants[task.env, uuid]
        left_bytes = max(accounting.target(draft, grant), grant.memory_bytes - process.cap_bytes)
        # less, if the quota was lowered: this part is unused
        memory_bytes = min(grant.memory_bytes, left_bytes)
        if memory_bytes < grant.memory_bytes:  # another env's request may be served with the rest
            draft.wake_scheduler()
        draft.put_grant(
            replace(
                grant, memory_bytes=memory_bytes, caps_bytes=grant.caps_bytes - process.cap_bytes
            )
        )


def _forget(draft: Draft, process: Process) -> None:
    draft.drop_process(process)
    draft.disconnect(process.key)
    if process.key in draft.parted:
        draft.parted.drop(process.key)
    if process.slot is not None:
        draft.emit(effects.ClearSlot(process.env, process.slot, process.generation))


def set_unreclaimed(draft: Draft, unreclaimed: UnreclaimedMemory, memory_bytes: int) -> None:
    """Set the driver's reading of unreclaimed memory; zero bytes end it."""
    if memory_bytes > 0:
        draft.put_unreclaimed(replace(unreclaimed, memory_bytes=memory_bytes, told=True))
    else:
        draft.drop_unreclaimed(unreclaimed)
