"""The suspension of a task: its device memory goes to host memory, and comes back.

Knows: the states of a suspension (model/transitions.py), the charge of each, the request by which a
suspended task waits for its room. Must not know: the policy that asked for it (idle_policy.py,
preemption.py), the driver's calls.

A suspended task keeps its GPUs and its memory in its env's quota. A grant belongs to an env: its
memory leaves the GPU's charge while all its tasks are suspended (accounting.is_parked). A resume is
a request in the queue. When its turn comes, the whole grant is charged again, and then the memory
is brought back. In all other states the memory is charged, since it may be there.

The time limit and the deadline of a suspended task stand still until it goes on.
"""

from __future__ import annotations

from client_plugin.messages.form import Message, Notice, notice, stated
from nodemgr.core.leases import answers, begins, ends, memory_grants
from nodemgr.core.lifecycle import administration
from nodemgr.core.model import effects
from nodemgr.core.model.entities import (
    MS,
    Request,
    RunSpec,
    Suspension,
    Task,
    TaskClass,
    TaskState,
)
from nodemgr.core.model.events import (
    Resumed,
    ResumeFailed,
    ResumeTask,
    Suspended,
    SuspendFailed,
    SuspendTask,
    SuspensionMeasured,
)
from nodemgr.core.model.schema import Figures
from nodemgr.core.model.values import maker, replace
from nodemgr.core.state import compute, elastic_leases
from nodemgr.core.state.draft import Draft

_request, _run = maker(Request), maker(RunSpec)


def can_suspend(draft: Draft, task: Task) -> bool:
    """Whether its processes are known to run on this node, and may have device memory.

    An elastic task is never suspended: it gives GPUs back by recalls.
    """
    return (
        task.state is TaskState.RUNNING
        and task.suspension is Suspension.NONE
        and bool(task.processes)
        and all(draft.processes[key].pid is not None for key in task.processes)
        and elastic_leases.of_task(draft, task.task_id) is None
    )


def named(draft: Draft, event: SuspendTask | ResumeTask) -> Task | None:
    """The task of an order, if its env may give the order."""
    task = draft.tasks.get(administration.present_id(draft, event.task_id))
    return task if task is not None and event.env in (None, task.env) else None


def suspend(draft: Draft, event: SuspendTask) -> None:
    """A resume that waits is given up. Nothing happens to a task that cannot be suspended."""
    task = named(draft, event)
    if task is None:
        return
    waiting = draft.requests.get(ends.resume_id(task.task_id))
    if waiting is not None and waiting.resumes is not None and not waiting.askers:
        draft.drop_request(waiting)
        draft.wake_scheduler()
    if can_suspend(draft, task):
        begin(draft, task)


def begin(draft: Draft, task: Task) -> None:
    """Its memory is to go to the host. The caller has asked `can_suspend`.

    With its room other tasks may suffice for a request that waits: those have to go, too.
    """
    draft.wake_scheduler()
    draft.put_task(replace(task, suspension=Suspension.SUSPENDING, suspension_fault=""))
    draft.emit(effects.SuspendProcesses(task.task_id, task.processes))


def wish_resume(draft: Draft, task: Task) -> Request:
    """The request by which it waits for its room; a new one if there is none."""
    request_id = ends.resume_id(task.task_id)
    waiting = draft.requests.get(request_id)
    if waiting is not None:
        return waiting
    job = None if task.job_id is None else draft.jobs[task.job_id]
    request = _request(
        request_id=request_id,
        env=task.env,
        token="",
        run=_run(
            task.run.command,
            len(task.gpus),
            None,
            None,
            task_class=task.run.task_class,
            compute_percent=task.run.compute_percent,
        ),
        priority=draft.envs[task.env].quota.priority if job is None else job.priority,
        sequence=begins.record_id(task.task_id),
        since_ns=draft.now_ns,
        since_wall_ns=draft.wall_ns,
        wait_ms=None,
        askers=(),
        queued_ns=draft.stamp(),
        resumes=task.task_id,
    )
    draft.put_request(request)
    return request


def serve(draft: Draft, request: Request, figures: Figures) -> None:
    """The turn of a resume has come, and the pass found room: its memory is charged first."""
    assert request.resumes is not None
    task = draft.tasks[request.resumes]
    _count(draft, task, -1)
    if task.run.task_class is TaskClass.LATENCY_SENSITIVE and task.run.compute_percent is not None:
        begins.take_compute(draft, task.granted_percent or 0, task.gpus)
    if task.run.task_class is TaskClass.BEST_EFFORT and task.run.compute_percent is not None:
        free = [compute.free_percent(draft, uuid, plain=False) for uuid in task.gpus]
        task = replace(task, granted_percent=min(task.run.compute_percent, *free))
    task = replace(task, suspension=Suspension.RESUMING)
    draft.put_task(task)
    # A task that began meanwhile has named memory in the grant, too.
    memory_grants.raise_pending(draft)
    draft.emit(effects.ResumeProcesses(task.task_id, task.processes))
    if request.askers:
        begins.admit(draft, task, request.askers, figures)


def measured(draft: Draft, event: SuspensionMeasured) -> None:
    """Stored before a limit is raised by it: the next manager knows how far to lower it."""
    task = draft.tasks.get(event.task_id)
    if task is None or task.suspension is not Suspension.SUSPENDING:
        return
    draft.put_task(replace(task, suspended_bytes=event.memory_bytes))
    draft.emit(effects.SuspendProcesses(task.task_id, task.processes, event.memory_bytes))


def suspended(draft: Draft, event: Suspended) -> None:
    task = draft.tasks.get(event.task_id)
    if task is None or task.suspension is not Suspension.SUSPENDING:
        return
    _goes_out(draft, task)
    answers.send_note(
        draft,
        task,
        notice(
            f"the GPU memory of {task.task_id} is in host memory now, because another task waits "
            "or by `nodemgr suspend`; nothing is lost, and the next use of the GPU or `nodemgr "
            f"resume {task.task_id}` brings it back"
        ),
    )


def suspend_failed(draft: Draft, event: SuspendFailed) -> None:
    task = draft.tasks.get(event.task_id)
    if task is None or task.suspension is not Suspension.SUSPENDING:
        return
    reason = stated(
        f"{task.task_id} is not suspended and goes on: {event.reason}",
        f"`nodemgr release {task.task_id}` takes its GPUs back",
    )
    _publish_failed(draft, task, event.reason)
    if event.is_out:
        _goes_out(draft, replace(task, suspension_fault=event.reason))
        return
    _goes_on(draft, replace(task, suspension_fault=event.reason))
    answers.send_note(draft, task, reason)


def resumed(draft: Draft, event: Resumed) -> None:
    task = draft.tasks.get(event.task_id)
    if task is None or task.suspension is not Suspension.RESUMING:
        return
    _goes_on(draft, task)
    draft.publish("task.restored", _facts(draft, task))


def resume_failed(draft: Draft, event: ResumeFailed) -> None:
    """Memory that may be on the GPU stays charged: then the task counts as running.

    Where no call was made for lack of room, it waits in the queue again; one line says so.
    """
    task = draft.tasks.get(event.task_id)
    if task is None or task.suspension is not Suspension.RESUMING:
        return
    is_news = not event.again or task.suspension_fault != event.reason
    if is_news:
        _publish_failed(draft, task, event.reason)
    changed = replace(task, suspension_fault=event.reason)
    if event.is_out:
        _goes_out(draft, changed)
    else:
        _goes_on(draft, changed)
    if event.again:
        wish_resume(draft, draft.tasks[task.task_id])
    if is_news:
        row = (
            Notice("{task} is not resumed yet: {reason}")
            if event.again
            else Message(
                "the GPU memory of {task} did not come back: {reason}",
                "try `nodemgr resume {task}` once more, else end its processes",
            )
        )
        answers.send_note(draft, task, row(task=task.task_id, reason=event.reason))


def _goes_out(draft: Draft, task: Task) -> None:
    """No process has device memory: others may have the room. Its clocks stand still."""
    _count(draft, task, 1)
    since_ns = draft.now_ns if task.suspended_since_ns is None else task.suspended_since_ns
    task = replace(task, suspension=Suspension.SUSPENDED, suspended_since_ns=since_ns)
    draft.put_task(task)
    _limit_job(draft, task)
    draft.publish("task.suspended", _facts(draft, task))
    draft.wake_scheduler()


def _goes_on(draft: Draft, task: Task) -> None:
    request = draft.requests.get(ends.resume_id(task.task_id))
    task = replace(task, suspension=Suspension.NONE, suspended_bytes=None)
    if task.suspended_since_ns is not None:
        away_ms = max(0, draft.now_ns - task.suspended_since_ns) // MS
        more_ms = task.suspended_ms + away_ms
        task = replace(
            task, suspended_since_ns=None, suspended_ms=more_ms, restored_ns=draft.now_ns
        )
        _limit_job(draft, task)
    draft.put_task(task)
    if request is not None:  # of a suspension that failed
        draft.drop_request(request)
        begins.admit(draft, task, request.askers, {})
    draft.at_latest("silence", draft.now_ns + draft.config.timeout_ms * MS)
    draft.wake_scheduler()


def _limit_job(draft: Draft, task: Task) -> None:
    """The supervisor of a job stops its clock, or goes on with the rest of its time."""
    if task.job_id is not None and task.run.time_limit_ms is not None:
        attempt = draft.jobs[task.job_id].attempt
        draft.emit(effects.LimitJob(task.job_id, attempt, task.extended_limit_ms))


def _count(draft: Draft, task: Task, more: int) -> None:
    for uuid in task.gpus:
        grant = draft.grants[task.env, uuid]
        draft.put_grant(replace(grant, suspended_tasks=grant.suspended_tasks + more))


def _publish_failed(draft: Draft, task: Task, reason: str) -> None:
    draft.publish("task.suspension_failed", {**_facts(draft, task), "reason": reason})


def _facts(draft: Draft, task: Task) -> dict[str, object]:
    return {"env": task.env, "task": task.task_id, **answers.named_gpus(draft, task.gpus)}
