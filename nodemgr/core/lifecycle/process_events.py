"""Events of processes after they asked: return, sign of life, cancel, leave, death.

Knows: which of these ends or keeps a lease or a place in the queue. Must not know: how leases and
grants are kept.
"""

from __future__ import annotations

from client_plugin.messages.form import stated
from nodemgr.core.leases import answers, begins, ends, stalls
from nodemgr.core.lifecycle import resizing, waiting
from nodemgr.core.model import effects
from nodemgr.core.model.causes import LeaseEnd
from nodemgr.core.model.entities import DenyCode, Process, Task, TaskState
from nodemgr.core.model.events import (
    Beat,
    Caller,
    Cancel,
    Disconnected,
    GateMissed,
    Heard,
    ProcessGone,
    Rejoin,
    Release,
    UnreclaimedChanged,
)
from nodemgr.core.model.values import replace
from nodemgr.core.state import elastic_leases, members
from nodemgr.core.state.draft import Draft

NOT_A_MEMBER, PROCESS_ENDED = (
    stated(
        "this process holds no lease any more, which ended or was taken back while it was silent",
        "run it again",
    ),
    "its process ended",
)


def held(draft: Draft, caller: Caller) -> tuple[Process, Task] | None:
    """The caller as a member of its task."""
    process = draft.processes.get(caller.process)
    return None if process is None or process.fenced else (process, draft.tasks[process.task_id])


def rejoin(draft: Draft, event: Rejoin) -> None:
    """After a lost connection or a restart of the manager: the same lease, or a fence."""
    found = held(draft, event.caller)
    if found is None or not _is_his(found[0], event):
        _not_a_member(draft, event.caller, event.task_id, event.rid)
        return
    process, task = found
    draft.connect(process.key, event.caller.connection)
    stalls.job_heard(draft, task)
    running: Task | None = task
    if task.state is not TaskState.RUNNING:
        running = stalls.wake(draft, task, process.key)
    if running is not None:
        begins.send_grant(draft, process, running, event.rid)
        lease = elastic_leases.of_task(draft, running.task_id)
        if lease is not None and lease.leader == process.key:
            resizing.say_again(draft, lease)
            draft.wake_scheduler()


def _is_his(process: Process, event: Rejoin) -> bool:
    """Whether the event names the lease that the process has.

    (Over UDP there is no slot, and so no generation.)
    """
    same_generation = process.slot is None or process.generation == event.generation
    return (process.task_id, process.slot) == (event.task_id, event.slot) and same_generation


def _not_a_member(draft: Draft, caller: Caller, task_id: str, rid: str | None) -> None:
    draft.emit(effects.SendFence(caller.connection, task_id, NOT_A_MEMBER, rid))


def beat(draft: Draft, event: Beat) -> None:
    found = held(draft, event.caller)
    if found is None:
        process = draft.processes.get(event.caller.process)
        _not_a_member(draft, event.caller, "" if process is None else process.task_id, event.rid)
        return
    process, task = found
    draft.connect(process.key, event.caller.connection)
    stalls.job_heard(draft, task)
    if task.state is TaskState.STALLED:
        resumed = stalls.wake(draft, task, process.key)
        if resumed is not None:
            rid = process.rid if event.rid is None else event.rid
            begins.send_grant(draft, process, resumed, rid)
    elif event.rid is not None:
        draft.emit(effects.SendAck(event.caller.connection, event.rid))


def heard(draft: Draft, event: Heard) -> None:
    process = draft.processes.get(event.process)
    task = None if process is None or process.fenced else draft.tasks[process.task_id]
    if process is None or task is None:
        return
    stalls.job_heard(draft, task)
    if task.state is not TaskState.STALLED:
        return
    resumed = stalls.wake(draft, task, process.key)
    if resumed is not None:
        begins.send_grant(draft, process, resumed, process.rid)


def cancel(draft: Draft, event: Cancel) -> None:
    """Gives up waiting. A grant of the same rid that crossed this on its way is given back."""
    caller = event.caller
    request_id = draft.request_of.get(caller.process)
    found = held(draft, caller)
    if request_id is not None:
        asked = (
            asker.rid
            for asker in draft.requests[request_id].askers
            if asker.process == caller.process
        )
        if event.rid in asked:
            waiting.leave(draft, caller.process, "cancelled")
    elif found is not None and found[0].rid == event.rid:
        _leave(draft, *found, LeaseEnd.CANCELLED, "cancelled", 0)
    answers.send_deny(
        draft, caller.connection, event.rid, DenyCode.CANCELLED, "the request was cancelled"
    )


def release(draft: Draft, event: Release) -> None:
    found = held(draft, event.caller)
    waiting.leave(draft, event.caller.process, "released")
    if found is not None:
        end = LeaseEnd.RELEASED, "released"
        _leave(draft, *found, *end, event.peak_bytes)
    draft.emit(effects.SendAck(event.caller.connection, event.rid))


def _leave(
    draft: Draft, process: Process, task: Task, cause: LeaseEnd, why: str, peak_bytes: int | None
) -> None:
    task = members.depart(draft, task, process)
    ends.lose_member(draft, task, process, cause, why, peak_bytes)


def disconnected(draft: Draft, event: Disconnected) -> None:
    """A hint only: a holder keeps its lease, a waiter has `timeout_ms` to come back."""
    process = draft.process_of_connection.get(event.connection)
    if process is None:
        return
    draft.disconnect(process)
    if process in draft.processes:
        draft.parted.put(process, event.wall_ns)
    if process in draft.request_of:
        draft.go_away(process)


def gone(draft: Draft, event: ProcessGone) -> None:
    """The kernel reports a death: the process leaves its request and lease, its slot is free."""
    waiting.leave(draft, event.process, PROCESS_ENDED)
    process = draft.processes.get(event.process)
    if process is None:
        return
    task = None if process.fenced else draft.tasks[process.task_id]
    draft.wake_scheduler()
    left = members.bury(draft, task, process, event.unreclaimed_bytes)
    if left is not None:
        end = LeaseEnd.PROCESS_ENDED, PROCESS_ENDED
        ends.lose_member(draft, left, process, *end, event.peak_bytes)
        return
    former = draft.tasks.get(process.task_id)
    if former is not None and former.job_id is not None:
        draft.put_task(ends.with_peak(former, event.peak_bytes))


def gate_missed(draft: Draft, event: GateMissed) -> None:
    """Its launches pass at once, so its task's share is not kept: its user reads why."""
    process = draft.processes.get(event.process)
    if process is None or not process.gated:
        return
    draft.put_process(replace(process, gated=False))
    task = None if process.fenced else draft.tasks.get(process.task_id)
    connection = draft.connections.get(process.key)
    if task is not None:
        draft.put_task(replace(task))  # a view of the task shows its gate
    if connection is not None:
        note = stated(
            f"the launches of this process pass no gate, so the share of {process.task_id} is not "
            f"kept: {event.reason}",
            "end processes of this GPU, then start this one again",
        )
        draft.emit(effects.SendNote(connection, note))


def unreclaimed_changed(draft: Draft, event: UnreclaimedChanged) -> None:
    """A reading of the driver: the memory that a lost process still has."""
    unreclaimed = draft.unreclaimed.get((event.process, event.uuid))
    changed = unreclaimed is not None and unreclaimed.memory_bytes != event.memory_bytes
    if unreclaimed is None or (unreclaimed.told and not changed):
        return
    if event.memory_bytes < unreclaimed.memory_bytes:
        draft.wake_scheduler()
    members.set_unreclaimed(draft, unreclaimed, event.memory_bytes)
    if unreclaimed.told or event.memory_bytes > 0:
        where = answers.named_gpus(draft, [unreclaimed.uuid])
        draft.publish(
            "memory.residue",
            {
                "env": unreclaimed.env,
                **where,
                "pid": unreclaimed.pid,
                "memory_bytes": event.memory_bytes,
            },
        )
