"""A process asks for GPUs: its task, its right to them, its place in the queue.

Knows: holders, waiters, the rules to join a task, and the refusals of a request. Must not know:
which GPUs a request gets (matching.py, scheduler/allocator.py), the parts of a lease
(leases/begins.py).
"""

from __future__ import annotations

from client_plugin.messages.form import stated
from nodemgr.core.elastic import workers
from nodemgr.core.leases import answers, begins, stalls
from nodemgr.core.lifecycle import queue_settings, waiting
from nodemgr.core.model.entities import (
    MS,
    Asker,
    DenyCode,
    ProcessKey,
    Quota,
    Request,
    RunSpec,
    Suspension,
    Task,
    TaskState,
    Transport,
)
from nodemgr.core.model.events import Acquire, Caller, ResumeTask
from nodemgr.core.model.schema import IDS, Figures
from nodemgr.core.model.values import maker, replace
from nodemgr.core.requests import matching
from nodemgr.core.scheduler import (
    admission,
    passes,
    placement,
    reasons,
    shares,
    widening,
)
from nodemgr.core.scheduler.allocator import Choice, Shortage
from nodemgr.core.scheduler.set_aside import EntryFailed
from nodemgr.core.sharing import suspension
from nodemgr.core.state import elastic_leases
from nodemgr.core.state.draft import Draft

_request = maker(Request)
JOINED = "it joined a task that has a lease"


def acquire(draft: Draft, event: Acquire) -> None:
    caller = event.caller
    figures = {(caller.env, uuid): size_bytes for uuid, size_bytes in event.unkept_bytes.items()}
    env = draft.envs.get(caller.env)
    if env is None:
        _deny(
            draft,
            event,
            DenyCode.UNKNOWN_ENV,
            reasons.no_quota(caller.env),
        )
        return
    draft.connect(caller.process, caller.connection)
    kin = _kin(draft, caller)
    task = _task_of(draft, event, kin)
    against = _refused_as_elastic(draft, event, task)
    if against is not None:
        _deny(draft, event, DenyCode.BAD_REQUEST, against)
        return
    if task is not None:
        _join_task(draft, event, task, figures)
        return
    request_id = _request_of(draft, event, kin) if draft.requests else None
    gpus = _asked_gpus(draft, event, env.quota)
    refusal = admission.refused(
        draft,
        caller.env,
        env.quota,
        gpus,
        event.run,
        explicit=_is_explicit(event),
    ) or admission.refused_share(caller.env, env.quota, event.task_class, event.compute_percent)
    if request_id is not None:
        _ask_again(draft, event, draft.requests[request_id], gpus, refusal, figures)
    elif refusal is not None:
        _deny(draft, event, *refusal)
    else:
        _ask(draft, event, env.quota, gpus, figures)


def _refused_as_elastic(draft: Draft, event: Acquire, task: Task | None) -> str | None:
    """Why the process can be no part of an elastic task; None: it can, or asks for nothing so."""
    if event.run.memory_most_bytes is not None and event.caller.transport is Transport.UDP:
        return stated(
            "memory cannot grow and shrink over UDP, where each process has a fixed limit",
            "run it on the node itself, or name one size with --memory",
        )
    is_plain = event.worker_gpu is None and event.run.gpu_range is None
    if is_plain and (task is None or not elastic_leases.any_there(draft)):
        return None
    return workers.refused(draft, event, task)


def _deny(draft: Draft, event: Acquire, code: DenyCode, reason: str) -> None:
    caller = event.caller
    answers.send_deny(draft, caller.connection, event.rid, code, reason)
    draft.publish(
        "request.denied",
        {
            "env": caller.env,
            "code": code.value,
            "reason": reason,
            "pid": caller.pid,
            "user": caller.user,
            "command": event.run.command,
        },
    )
    if caller.process not in draft.processes and caller.process not in draft.request_of:
        draft.disconnect(caller.process)


def _task_of(draft: Draft, event: Acquire, kin: list[ProcessKey]) -> Task | None:
    """The task that the caller belongs to: by itself, its token, its kin, or its job.

    A stalled one is resumed, or else fenced; then the caller asks for a lease of its own.
    """
    caller = event.caller
    task = _held(draft, caller.process)
    if task is None:
        task_id = draft.task_of_token.get((caller.env, event.token))
        task = None if task_id is None else draft.tasks[task_id]
    if task is None and kin and (caller.env, event.token) not in draft.request_of_token:
        task = next((held for key in kin if (held := _held(draft, key)) is not None), None)
    if (
        task is None
        and caller.job_id is not None
        and (caller.env, event.token) not in draft.request_of_token
    ):
        task = _of_job(draft, caller.env, caller.job_id)
    if task is None or task.state is TaskState.RUNNING:
        if task is not None:
            stalls.job_heard(draft, task)
        return task
    return stalls.wake(draft, task, caller.process)


def _kin(draft: Draft, caller: Caller) -> list[ProcessKey]:
    """The caller's ancestors that hold or wait, the nearest first."""
    env, process_of_pid = caller.env, draft.process_of_pid.get
    return [key for pid in caller.ancestors if (key := process_of_pid((env, pid))) is not None]


def _of_job(draft: Draft, env: str, job_id: str) -> Task | None:
    """The task that the job holds.

    A job without a GPU has none; its processes ask like any other process.
    """
    job = draft.jobs.get(job_id)
    return (
        None if job is None or job.env != env or job.task_id is None else draft.tasks[job.task_id]
    )


def _held(draft: Draft, key: ProcessKey) -> Task | None:
    process = draft.processes.get(key)
    return None if process is None or process.fenced else draft.tasks[process.task_id]


def _join_task(draft: Draft, event: Acquire, task: Task, figures: Figures) -> None:
    caller = event.caller
    process = draft.processes.get(caller.process)
    if process is not None and not process.fenced:
        if process.rid != event.rid:
            if process.starts and not event.starts:  # the program beats from now on
                draft.at_latest("silence", draft.now_ns + draft.config.timeout_ms * MS)
            gated = event.gated if process.starts else process.gated
            process = replace(process, rid=event.rid, starts=event.starts, gated=gated)
            draft.put_process(process)
        begins.send_grant(draft, process, task, event.rid)
        if elastic_leases.any_there(draft):
            workers.joined(draft, event, task)
        return
    if task.suspension in (Suspension.SUSPENDING, Suspension.SUSPENDED):
        _wait_for_resume(draft, event, task, figures)
        return
    waiting.leave(draft, caller.process, JOINED)
    if elastic_leases.any_there(draft):
        workers.joins(draft, event, task)
    task = begins.join(draft, task, _asker(event), figures)
    if elastic_leases.any_there(draft):
        workers.joined(draft, event, task)
    if caller.process in task.processes:
        draft.at_latest("silence", draft.now_ns + draft.config.timeout_ms * MS)
        draft.publish(
            "task.joined",
            {
                "env": task.env,
                "task": task.task_id,
                "pid": caller.pid,
                "user": caller.user,
                "processes": len(task.processes),
            },
        )


def resume(draft: Draft, event: ResumeTask) -> None:
    """An order: the task waits in the queue for its room; served at once if it can be."""
    task = suspension.named(draft, event)
    if task is not None and task.suspension in (Suspension.SUSPENDING, Suspension.SUSPENDED):
        suspension.wish_resume(draft, task)
        matching.match(draft, {})


def _wait_for_resume(draft: Draft, event: Acquire, task: Task, figures: Figures) -> None:
    """A new process of a suspended task waits until its memory is on its GPUs again."""
    request = suspension.wish_resume(draft, task)
    process = event.caller.process
    others = tuple(asker for asker in request.askers if asker.process != process)
    if draft.request_of.get(process) not in (None, request.request_id):
        waiting.leave(draft, process, JOINED)
    draft.standings.drop(request.request_id)
    draft.put_request(replace(request, askers=(*others, _asker(event))))
    _match_now(draft, event, figures)


def _asker(event: Acquire) -> Asker:
    caller = event.caller
    return Asker(
        caller.process,
        event.rid,
        caller.transport,
        caller.pid,
        caller.user,
        event.gated,
        event.starts,
    )


def _request_of(draft: Draft, event: Acquire, kin: list[ProcessKey]) -> str | None:
    """The waiting request that the caller belongs to: its own, its token's, or its kin's."""
    caller = event.caller
    own = draft.request_of.get(caller.process) or draft.request_of_token.get(
        (caller.env, event.token)
    )
    if own is not None or not kin:
        return own
    return next((found for key in kin if (found := draft.request_of.get(key)) is not None), None)


def _is_explicit(event: Acquire) -> bool:
    """Does it say how many GPUs it needs?"""
    return not event.is_default or event.world > 1


def _asked_gpus(draft: Draft, event: Acquire, quota: Quota) -> int:
    """The `n` of docs/allocation.md before refusals; unnamed at least one per process."""
    if not event.is_default:
        return event.run.gpus
    return max(admission.default_gpus(draft, quota), event.world if event.world > 1 else 0)


def _ask(draft: Draft, event: Acquire, quota: Quota, gpus: int, figures: Figures) -> None:
    """A new request: served at once if it can be, else it waits."""
    number = draft.count(IDS)
    task_class, compute_percent = shares.asked(quota, event.task_class, event.compute_percent)
    request = _request(
        request_id=f"r{number}",
        env=event.caller.env,
        token=event.token,
        run=replace(
            event.run,
            gpus=gpus,
            memory_bytes=event.run.memory_bytes or None,
            task_class=task_class,
            compute_percent=compute_percent,
        ),
        priority=quota.priority,
        sequence=number,
        since_ns=draft.now_ns,
        since_wall_ns=event.wall_ns,
        wait_ms=event.wait_ms,
        askers=(_asker(event),),
        world=max(1, event.world),
        queued_ns=draft.stamp(),
        is_default=not _is_explicit(event),
    )
    if not (draft.requests.is_used() or draft.wakes_scheduler or draft.set_aside.is_used()):
        try:
            answer = placement.reuse(draft, request) or _placed(draft, request, figures)
            if isinstance(answer, Choice):
                begins.begin(draft, request, answer, figures)
                return
        except Exception as error:
            raise EntryFailed(request.request_id, error) from error
    draft.put_request(request)
    if event.wait_ms is not None:
        draft.schedule(("wait", request.request_id), draft.now_ns + event.wait_ms * MS)
    _match_now(draft, event, figures)


def _placed(draft: Draft, request: Request, figures: Figures) -> Choice | Shortage:
    """The result of a request that no other one waits beside."""
    result = placement.judge(draft, request, {}, figures)
    if request.run.gpu_range is not None and isinstance(result.answer, Choice):
        return widening.widest(draft, passes.SchedulingPass(), request, result, ())
    return result.answer


def _ask_again(
    draft: Draft,
    event: Acquire,
    request: Request,
    gpus: int,
    refusal: tuple[DenyCode, str] | None,
    figures: Figures,
) -> None:
    """A waiter sends its request again or comes back to its place.

    Or another process of the task begins to wait.
    """
    process = event.caller.process
    before = next((asker for asker in request.askers if asker.process == process), None)
    if before is not None:
        askers = tuple(_asker(event) if asker is before else asker for asker in request.askers)
        draft.put_request(replace(request, askers=askers))
        if draft.away.before(process) is not None:  # while it was away, passes skipped it
            matching.match(draft, figures)
        if draft.request_of.get(process) is not None:
            standing = draft.standings[request.request_id]
            answers.send_wait(draft, process, event.rid, standing)
    elif refusal is not None:
        _deny(draft, event, *refusal)
    else:
        draft.standings.drop(request.request_id)  # so that the new asker gets its standing, too
        joined = _joined(event, request, gpus)
        draft.put_request(joined)
        _put_off(draft, event, joined)
        _match_now(draft, event, figures)


def _joined(event: Acquire, request: Request, gpus: int) -> Request:
    """The request with one more asker: the largest demand and the longest timeout of all askers."""
    run = request.run
    return replace(
        request,
        askers=(*request.askers, _asker(event)),
        run=replace(
            run,
            gpus=max(run.gpus, gpus),
            memory_bytes=max(run.memory_bytes or 0, event.run.memory_bytes or 0) or None,
            memory_most_bytes=_joined_most(event.run, run),
        ),
        world=max(request.world, event.world),
        wait_ms=(
            None
            if request.wait_ms is None or event.wait_ms is None
            else max(request.wait_ms, event.wait_ms)
        ),
    )


def _joined_most(other: RunSpec, run: RunSpec) -> int | None:
    """The end of the joined range: the largest, if each asker that names its memory has a range."""
    if not other.memory_bytes:
        return run.memory_most_bytes
    if other.memory_most_bytes is None or run.memory_most_bytes is None:
        return other.memory_most_bytes if not run.memory_bytes else None
    return max(other.memory_most_bytes, run.memory_most_bytes)


def _put_off(draft: Draft, event: Acquire, request: Request) -> None:
    """The request's deadline, with one asker more: none, or the later one."""
    deadline = ("wait", request.request_id)
    before_ns = draft.agenda.get(deadline)
    if request.wait_ms is None:
        draft.schedule(deadline, None)
    elif before_ns is not None and event.wait_ms is not None:
        draft.schedule(deadline, max(before_ns, draft.now_ns + event.wait_ms * MS))


def _match_now(draft: Draft, event: Acquire, figures: Figures) -> None:
    """A new asker's first scheduling pass: a grant, the reason of its wait, or a refusal."""
    process = event.caller.process
    matching.match(draft, figures)
    request_id = draft.request_of.get(process)
    if request_id is None:
        return
    request, standing = draft.requests[request_id], draft.standings[request_id]
    if event.wait_ms == 0:
        waiting.remove(draft, request, process)
        _deny(draft, event, DenyCode.WAIT_TIMEOUT, reasons.would_not_wait(standing))
    elif (
        len(request.askers) == 1
        and request.resumes is None
        and (full := queue_settings.full(draft, request.priority, 0)) is not None
    ):
        waiting.remove(draft, request, process)
        _deny(draft, event, DenyCode.QUEUE_FULL, full)
    else:
        waiting.entered(draft, request, request.askers[-1])
