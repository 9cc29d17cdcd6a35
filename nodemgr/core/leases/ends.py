"""The end of a lease: its members leave it, or it is taken from them.

Knows: the effect on tasks, grants, processes and records. Must not know: the event that asked for
it.
"""

from __future__ import annotations

from client_plugin.messages.form import stated
from nodemgr.core.leases import answers
from nodemgr.core.model import effects
from nodemgr.core.model.causes import LeaseEnd
from nodemgr.core.model.entities import (
    MS,
    DenyCode,
    Process,
    ProcessKey,
    Suspension,
    Task,
    TaskState,
    Uuid,
)
from nodemgr.core.model.transitions import TASK_TRANSITIONS, TaskEvent, checked
from nodemgr.core.model.values import replace
from nodemgr.core.state import elastic_leases, members
from nodemgr.core.state.draft import Draft

RECLAIMED = "reclaimed: silent for too long"
"""The end of a lease over UDP with a silent holder: it cannot be known whether it lives."""


def lose_member(
    draft: Draft, task: Task, process: Process, cause: LeaseEnd, why: str, peak_bytes: int | None
) -> None:
    """Write the task that this process has left, or end it with its last process.

    `task` is already without the process (members.depart, members.bury). A job's task ends with the
    job. `peak_bytes` is that of ProcessGone.
    """
    draft.put_task(with_peak(task, peak_bytes))
    if elastic_leases.any_there(draft):
        _forget_worker(draft, task, process.key)
    if task.processes or task.job_id is not None:
        if process.pid is None:  # the task may be suspended now, if the others are on this node
            draft.wake_scheduler()
        if task.processes:  # they may have been silent for long
            draft.at_latest("silence", draft.now_ns + draft.config.beat_ms * MS)
        draft.publish(
            "task.left",
            {
                "env": task.env,
                "task": task.task_id,
                "pid": process.pid,
                "user": process.user,
                "why": why,
                "processes": len(task.processes),
            },
        )
    else:
        end(draft, task, cause, why)


def with_peak(task: Task, peak_bytes: int | None) -> Task:
    """A job's task with a further figure of its peak; once it is not known, it stays so."""
    if task.job_id is None or task.peak_bytes is None:
        return task
    peak_bytes = None if peak_bytes is None else max(task.peak_bytes, peak_bytes)
    return replace(task, peak_bytes=peak_bytes)


def _forget_worker(draft: Draft, task: Task, process: ProcessKey) -> None:
    lease = draft.elastics.get(task.task_id)
    if lease is not None:
        workers = tuple(worker for worker in lease.workers if worker.process != process)
        leader = "" if lease.leader == process else lease.leader
        draft.put_elastic(replace(lease, workers=workers, leader=leader))


def end(draft: Draft, task: Task, cause: LeaseEnd, why: str) -> None:
    """The lease is over: its grants end with the env's last task on each GPU.

    Its processes left it before.
    """
    checked(TASK_TRANSITIONS, task.state, TaskEvent.END, None)
    for uuid in task.gpus:
        leave_grant(draft, task, uuid)
    if task.suspension is not Suspension.NONE:
        _drop_resume(draft, task)
    draft.drop_task(task)
    close_record(draft, task, why)
    draft.wake_scheduler()
    draft.publish(
        "task.ended",
        {
            "env": task.env,
            "task": task.task_id,
            **answers.named_gpus(draft, task.gpus),
            "cause": cause,
            "why": why,
            "held_ns": draft.now_ns - task.since_ns,
            "command": task.run.command,
        },
    )


def resume_id(task_id: str) -> str:
    """The id of the request by which the suspended task t17 waits for its memory: r17."""
    return f"r{task_id[1:]}"


def _drop_resume(draft: Draft, task: Task) -> None:
    """Its processes that waited for the resume may ask for a lease of their own."""
    request = draft.requests.get(resume_id(task.task_id))
    if request is not None and request.resumes is not None:
        draft.drop_request(request)
        for asker in request.askers:
            connection = draft.connections.get(asker.process)
            reason = stated(
                f"the task {task.task_id} ended while it was suspended",
                "ask again for a lease of its own",
            )
            answers.send_deny(draft, connection, asker.rid, DenyCode.RELEASED, reason)
            if asker.process not in draft.processes:
                draft.disconnect(asker.process)


def fence(draft: Draft, task: Task, cause: LeaseEnd, reason: str, by: str | None = None) -> None:
    """Take the lease from processes that may live on.

    They get `reason`, and the memory that they hold stays charged. The processes of a suspended
    task are ended: without a lease their memory cannot come back, and their calls would never end.
    """
    is_out = task.suspension in (Suspension.SUSPENDING, Suspension.SUSPENDED)
    if is_out:
        reason = (
            f"{reason}; it was suspended, so its processes are ended: without a lease their GPU "
            "memory cannot come back"
        )
    fields = {
        "env": task.env,
        "task": task.task_id,
        **answers.named_gpus(draft, task.gpus),
        "reason": reason,
    }
    draft.publish("task.fenced", fields if by is None else {**fields, "by": by})
    for key in task.processes:
        answers.send_fence(draft, key, task.task_id, reason)
        pid = draft.processes[key].pid
        if is_out and pid is not None:
            draft.emit(effects.Kill(key, pid))
        task = members.depart(draft, task, draft.processes[key])
    draft.put_task(task)
    end(draft, task, cause, reason)


def end_of_job(draft: Draft, task: Task, cause: LeaseEnd, why: str) -> None:
    """The job's main process has ended: what is left of its processes holds nothing more."""
    if task.processes:
        fence(draft, task, cause, why)
    else:
        end(draft, task, cause, why)


def leave_grant(draft: Draft, task: Task, uuid: Uuid) -> None:
    """The task no longer holds this GPU: the grant has one task less, or ends."""
    grant = draft.grants[task.env, uuid]
    if grant.tasks == 1:
        draft.drop_grant(grant)
        return
    has_range = task.run.memory_most_bytes is not None
    is_last_range = has_range and grant.elastic_tasks == 1
    left = replace(
        grant,
        tasks=grant.tasks - 1,
        stalled_tasks=grant.stalled_tasks - (task.state is TaskState.STALLED),
        suspended_tasks=grant.suspended_tasks - (task.suspension is Suspension.SUSPENDED),
        kept_bytes=grant.kept_bytes - task.kept_bytes,
        elastic_tasks=grant.elastic_tasks - has_range,
        most_bytes=(
            grant.memory_bytes  # the other tasks may use all of it: the ledger lowers it
            if is_last_range
            else grant.most_bytes - (task.run.memory_most_bytes or 0)
        ),
    )
    draft.put_grant(left)


def close_record(draft: Draft, task: Task, why: str) -> None:
    record = draft.records.get(task.task_id)
    if record is not None:
        ended = replace(record, ended_wall_ns=draft.wall_ns, ended_ns=draft.now_ns, why=why)
        draft.records.put(task.task_id, ended)
