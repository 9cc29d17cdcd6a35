"""The life of a lease: begun, joined, stalled, resumed, fenced, ended.

Also its grants, its record, and the answers to processes.

Knows: the effect of each on tasks, grants, processes and records, and the form of each answer. Must
not know: the event that asked for it, and the choice of GPUs (scheduler/allocator.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodemgr.core.model import effects, messages
from nodemgr.core.model.causes import LeaseEnd
from nodemgr.core.model.entities import (
    MS,
    WHOLE_PERCENT,
    Asker,
    ConnectionId,
    DenyCode,
    ElasticLease,
    Grant,
    Process,
    ProcessKey,
    Record,
    Request,
    Suspension,
    Task,
    TaskClass,
    TaskState,
    Transport,
    Uuid,
)
from nodemgr.core.model.schema import Figures
from nodemgr.core.model.transitions import TASK_TRANSITIONS, TaskEvent, checked
from nodemgr.core.model.values import maker, replace
from nodemgr.core.scheduler import preference, reasons
from nodemgr.core.scheduler.allocator import Choice
from nodemgr.core.state import accounting, compute, elastic_grants, elastic_leases, members
from nodemgr.core.state.draft import Draft

_task = maker(Task)
_record = maker(Record)

RECLAIMED = messages.RECLAIMED()
"""The end of a lease over UDP with a silent holder: it cannot be known whether it lives."""

REFUSED_MEMBERS = {
    DenyCode.TOO_MANY_PROCESSES: messages.LEDGER_FULL,
    DenyCode.MEMORY_ABOVE_LIMIT: messages.MEMORY_TAKEN,
}
"""Why a process cannot be a member of its own task."""


def begin(draft: Draft, request: Request, choice: Choice, figures: Figures) -> Task:
    """A lease for the request and all its askers: request r5 becomes task t5.

    The request's own row, if it has one, is the caller's to drop. Adds new grants to `figures`.
    """
    is_job = request.job_id is not None
    fresh, reused = (
        tuple([gpu.uuid for gpu in choice.fresh]),
        tuple([gpu.uuid for gpu in choice.reused]),
    )
    percent, expected_ms, steps = _expected(draft, request, choice)
    if percent is not None and request.task_class is TaskClass.LATENCY_SENSITIVE:
        take_compute(draft, percent, [*fresh, *reused])
    over_unix = Transport.UNIX in [asker.transport for asker in request.askers]
    task = _task(
        task_id=f"t{request.sequence}",
        env=request.env,
        token=request.token,
        gpus=tuple(
            [gpu.uuid for gpu in sorted(choice.fresh + choice.reused, key=lambda gpu: gpu.number)]
        ),
        fresh=fresh,
        state=checked(TASK_TRANSITIONS, None, TaskEvent.GRANT, TaskState.RUNNING),
        command=request.command,
        since_ns=draft.now_ns,
        since_wall_ns=draft.wall_ns,
        processes=tuple([asker.process for asker in request.askers]),
        memory_bytes=request.memory_bytes,
        kept_bytes=(request.memory_bytes or 0) if over_unix or is_job else 0,
        world=request.world,
        job_id=request.job_id,
        time_limit_ms=request.time_limit_ms,
        expected_ms=expected_ms,
        expected_steps=steps,
        task_class=request.task_class,
        compute_percent=percent,
        granted_percent=percent,
        deadline_ms=request.deadline_ms,
        memory_most_bytes=request.memory_most_bytes,
    )
    if request.gpu_range is not None and request.gpu_range.is_elastic:
        draft.put_task(task)  # its grants may have a range too, and count the GPUs to come
        _begin_elastic(draft, task, request)
    given_bytes = _hold_all(draft, task, figures)
    used = choice.used + len(fresh)
    chosen = _chosen(draft, request, choice)
    _open_record(draft, task, request, reused, given_bytes, used, chosen)
    if not is_job:
        heard_just_now = request.since_ns == draft.now_ns
        silence_ms = draft.config.timeout_ms if heard_just_now else draft.config.beat_ms
        draft.at_latest("silence", draft.now_ns + silence_ms * MS)
    task = _admit(draft, task, request.askers, figures)
    if task.processes or is_job:
        _publish_granted(draft, task, request, given_bytes, chosen)
    else:
        why = messages.NO_PROCESS_PLACED()
        end(draft, task, LeaseEnd.NO_SLOT, why)
    return task


def _hold_all(draft: Draft, task: Task, figures: Figures) -> dict[Uuid, int]:
    """The task's grants begin; returns the bytes of each."""
    for uuid in task.gpus:
        hold(draft, task, uuid, figures)
    if task.memory_most_bytes is not None:
        elastic_grants.begin(draft, task)
    return {uuid: draft.grants[task.env, uuid].memory_bytes for uuid in task.gpus}


def _chosen(draft: Draft, request: Request, choice: Choice) -> str:
    """Why the fresh GPUs were chosen, one line; empty: by the order `spread`, or none is fresh."""
    policy = preference.name_of(draft, request.env, request.priority)
    if policy == "spread" or not choice.fresh:
        return ""
    return preference.reason(draft, policy, request, choice.fresh)


def chosen_line(draft: Draft, task: Task) -> str:
    """Why the GPUs of a lease that has just begun were chosen, for people."""
    record = draft.records[task.task_id]
    return preference.chosen_line(record.chosen, is_fresh=bool(task.fresh))


def _begin_elastic(draft: Draft, task: Task, request: Request) -> None:
    """The lease grows and shrinks from now on. A job's leader is known when it asks."""
    assert request.gpu_range is not None
    leader = request.askers[0].process if request.askers else ""
    most = max(request.gpu_range.most, request.gpus)
    draft.put_elastic(ElasticLease(task.task_id, request.gpus, most, task.gpus, leader))
    draft.wake_scheduler()  # idle GPUs are counted from now on


def _expected(
    draft: Draft, request: Request, choice: Choice
) -> tuple[int | None, int | None, int | None]:
    """(share, expected time, expected steps), by the forecast for the chosen GPUs' models."""
    percent, expected_ms = request.compute_percent, request.expected_ms
    if not request.predicted:
        return percent, expected_ms, None
    names = {draft.gpus[gpu.uuid].name for gpu in choice.fresh + choice.reused}
    found = [row for name in names if (row := request.predicted_on(name)) is not None]
    if len(found) != 1 or len(names) != 1:
        return percent, expected_ms, None
    (row,) = found
    if percent is not None and request.gpus == 1 and row.share_percent is not None:
        percent = row.share_percent
    return percent, expected_ms if row.expected_ms is None else row.expected_ms, row.steps


def take_compute(draft: Draft, percent: int, uuids: Iterable[Uuid]) -> None:
    """Shrinks best-effort tasks on these GPUs, the youngest first, until so much is free."""
    for uuid in uuids:
        for task in compute.best_effort(draft, uuid):
            missing = percent - compute.free_percent(draft, uuid, plain=False)
            granted_percent = task.granted_percent or 0
            if missing > 0 and granted_percent > 0:
                set_share(draft, task, max(0, granted_percent - missing))


def set_share(draft: Draft, task: Task, percent: int) -> Task:
    """The task has this percent of each of its GPUs from now on."""
    changed = replace(task, granted_percent=percent)
    draft.put_task(changed)
    if percent < (task.granted_percent or 0):
        draft.wake_scheduler()
    draft.publish(
        "task.share",
        {
            "env": task.env,
            "task": task.task_id,
            **named_gpus(draft, task.gpus),
            "class": task.task_class.value,
            "compute_percent": task.compute_percent,
            "granted_percent": percent,
        },
    )
    return changed


def hold(draft: Draft, task: Task, uuid: Uuid, figures: Figures) -> None:
    """Add one task to this grant.

    A fresh grant is made, or grown again from the rest that stalled tasks left of it.
    """
    grant = draft.grants.get((task.env, uuid))
    if grant is not None and uuid not in task.fresh:
        if task.memory_most_bytes is None and not grant.most_bytes:
            draft.share_grant(grant, task.kept_bytes)
        else:
            elastic_grants.share(draft, grant, task, figures)
        return
    if grant is None:
        figures[task.env, uuid] = draft.unreclaimed_alive.get((task.env, uuid)) or 0
        if task.memory_most_bytes is None:
            full_bytes = accounting.full_grant(draft.envs[task.env].quota, draft.gpus[uuid])
            draft.put_grant(Grant(task.env, uuid, full_bytes, full_bytes, 1, 0, 0, task.kept_bytes))
            return
        grant = Grant(task.env, uuid, 0, 0, 0)
    else:
        figures.setdefault((task.env, uuid), members.unkept_at_most(grant))
    held = accounting.with_task(grant, task.kept_bytes, task.memory_most_bytes)
    memory_bytes = max(grant.memory_bytes, accounting.least(draft, held))
    draft.put_grant(replace(held, memory_bytes=memory_bytes))


def admit(draft: Draft, task: Task, askers: tuple[Asker, ...], figures: Figures) -> Task:
    """Adds these processes to the task, as `join` adds one."""
    joined = replace(task, processes=(*task.processes, *(asker.process for asker in askers)))
    return _admit(draft, joined, askers, figures)


def join(draft: Draft, task: Task, asker: Asker, figures: Figures) -> Task:
    """Adds a process to the task if the ledger has a slot for it, and sends it the answer.

    Returns the task as it is written.
    """
    joined = replace(task, processes=(*task.processes, asker.process))
    return _admit(draft, joined, (asker,), figures)


def _admit(draft: Draft, task: Task, askers: tuple[Asker, ...], figures: Figures) -> Task:
    """The new processes of the task: each becomes a member, or is refused and taken out again.

    All are answered.
    """
    admitted: list[tuple[Asker, Process]] = []
    refused: list[tuple[Asker, DenyCode]] = []
    for asker in askers:
        process = members.admit(draft, task, asker, figures)
        if isinstance(process, Process):
            admitted.append((asker, process))
        else:
            refused.append((asker, process))
    if refused:
        out = {asker.process for asker, _ in refused}
        task = replace(task, processes=tuple(key for key in task.processes if key not in out))
    if admitted and task.job_id is not None and not task.had_process:
        task = replace(task, had_process=True)
    draft.put_task(task)
    for asker, process in admitted:
        send_grant(draft, process, task, asker.rid)
    for asker, code in refused:
        _refuse(draft, task, asker, code)
    return task


def _refuse(draft: Draft, task: Task, asker: Asker, code: DenyCode) -> None:
    reason = REFUSED_MEMBERS[code](env=task.env)
    send_deny(draft, draft.connections.get(asker.process), asker.rid, code, reason)
    draft.publish(
        "request.denied",
        {
            "env": task.env,
            "task": task.task_id,
            "code": code.value,
            "reason": reason,
            "pid": asker.pid,
            "user": asker.user,
        },
    )
    if asker.process not in draft.processes:
        draft.disconnect(asker.process)


def _publish_granted(
    draft: Draft, task: Task, request: Request, given_bytes: Mapping[Uuid, int], chosen: str
) -> None:
    askers = [asker for asker in request.askers if asker.process in task.processes]
    draft.publish(
        "task.granted",
        {
            "env": task.env,
            "task": task.task_id,
            "request": request.request_id,
            **named_gpus(draft, task.gpus),
            "fresh_gpus": list(task.fresh),
            "chosen": preference.chosen_line(chosen, is_fresh=bool(task.fresh)),
            "memory_bytes": list(given_bytes.values()),
            "waited_ns": draft.now_ns - request.since_ns,
            "pids": [asker.pid for asker in askers if asker.pid is not None],
            "user": askers[0].user if request.job_id is None else draft.jobs[request.job_id].user,
            "command": task.command,
            **({} if request.job_id is None else {"job": request.job_id}),
        },
    )


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
    _close_record(draft, task, why)
    draft.wake_scheduler()
    draft.publish(
        "task.ended",
        {
            "env": task.env,
            "task": task.task_id,
            **named_gpus(draft, task.gpus),
            "cause": cause,
            "why": why,
            "held_ns": draft.now_ns - task.since_ns,
            "command": task.command,
        },
    )


def leave_grant(draft: Draft, task: Task, uuid: Uuid) -> None:
    """The task no longer holds this GPU: the grant has one task less, or ends."""
    grant = draft.grants[task.env, uuid]
    if grant.tasks == 1:
        draft.drop_grant(grant)
        return
    has_range = task.memory_most_bytes is not None
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
            else grant.most_bytes - (task.memory_most_bytes or 0)
        ),
    )
    draft.put_grant(left)


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
            reason = messages.ENDED_WHILE_SUSPENDED(task=task.task_id)
            send_deny(draft, connection, asker.rid, DenyCode.RELEASED, reason)
            if asker.process not in draft.processes:
                draft.disconnect(asker.process)


def fence(draft: Draft, task: Task, cause: LeaseEnd, reason: str, by: str | None = None) -> None:
    """Take the lease from processes that may live on.

    They get `reason`, and the memory that they hold stays charged. The processes of a suspended
    task are ended: without a lease their memory cannot come back, and their calls would never end.
    """
    is_out = task.suspension in (Suspension.SUSPENDING, Suspension.SUSPENDED)
    if is_out:
        reason = messages.FENCED_WHILE_SUSPENDED(reason=reason)
    fields = {
        "env": task.env,
        "task": task.task_id,
        **named_gpus(draft, task.gpus),
        "reason": reason,
    }
    draft.publish("task.fenced", fields if by is None else {**fields, "by": by})
    for key in task.processes:
        send_fence(draft, key, task.task_id, reason)
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


def stall(draft: Draft, task: Task) -> None:
    """All its processes are silent, and some of them alive: its GPUs are offered to others.

    Its memory stays charged.
    """
    state = checked(TASK_TRANSITIONS, task.state, TaskEvent.SILENCE, TaskState.STALLED)
    draft.put_task(replace(task, state=state, stalled_since_ns=draft.now_ns))
    for uuid in task.gpus:
        grant = draft.grants[task.env, uuid]
        draft.put_grant(replace(grant, stalled_tasks=grant.stalled_tasks + 1))
    _set_slots(draft, task, "stalled")
    draft.wake_scheduler()
    _publish_stalled(draft, task)


def stall_job(draft: Draft, task: Task) -> None:
    """All processes of a job are silent, and live: it is shown as stalled, and keeps its GPUs."""
    draft.silent_jobs.put(task.task_id, (draft.now_ns, draft.wall_ns))
    draft.put_task(replace(task))  # a view of the task shows it
    _publish_stalled(draft, task)


def job_heard(draft: Draft, task: Task) -> None:
    """A process of a job beats, or joins it: it is stalled no more, if it was."""
    since_ns, _ = draft.silent_jobs.get(task.task_id) or (None, None)
    if since_ns is not None:
        draft.drop_silence(task.task_id)
        draft.put_task(replace(task))  # a view of the task shows it
        _publish_resumed(draft, task, draft.now_ns - since_ns)


def _publish_stalled(draft: Draft, task: Task) -> None:
    """Publishes it, and sets the time at which it is ended, if the policy says so."""
    grace_ms = draft.config.stalled_grace_ms if draft.config.stalled == "kill" else None
    if grace_ms is not None:
        draft.schedule(("kill", task.task_id), draft.now_ns + grace_ms * MS)
    gpus = named_gpus(draft, task.gpus)
    draft.publish(
        "task.stalled", {"env": task.env, "task": task.task_id, **gpus, "grace_ms": grace_ms}
    )


def _publish_resumed(draft: Draft, task: Task, stalled_ns: int) -> None:
    fields = {"env": task.env, "task": task.task_id, **named_gpus(draft, task.gpus)}
    draft.publish("task.resumed", {**fields, "stalled_ns": stalled_ns})


def resume(draft: Draft, task: Task, heard: ProcessKey) -> Task | None:
    """A stalled task beats again: it keeps its lease, if no other task got what it needs.

    Returns None if another did. All its processes get a GRANT except `heard`, which the caller
    answers.
    """
    if not _has_room(draft, task):
        return None
    state = checked(TASK_TRANSITIONS, task.state, TaskEvent.HEARD, TaskState.RUNNING)
    if task.task_class is TaskClass.LATENCY_SENSITIVE:
        take_compute(draft, task.granted_percent or 0, task.gpus)
    resumed = replace(
        task,
        state=state,
        stalled_since_ns=None,
        granted_percent=_returning_percent(draft, task),
    )
    for uuid in task.gpus:
        grant = draft.grants[task.env, uuid]
        full_bytes = (
            grant.memory_bytes
            if accounting.is_used(draft, task.env, uuid)
            else _regrown(draft, grant)
        )
        draft.put_grant(
            replace(grant, memory_bytes=full_bytes, stalled_tasks=grant.stalled_tasks - 1)
        )
    draft.put_task(resumed)
    draft.wake_scheduler()  # its env's other requests may reuse what it holds again
    _set_slots(draft, resumed, "live")
    draft.at_latest("silence", draft.now_ns + draft.config.timeout_ms * MS)
    _publish_resumed(draft, task, draft.now_ns - (task.stalled_since_ns or draft.now_ns))
    for process in (draft.processes[key] for key in task.processes if key != heard):
        send_grant(draft, process, resumed, process.rid)
    return resumed


def _returning_percent(draft: Draft, task: Task) -> int | None:
    """The share with which a task comes back: best effort may have to do with less than before."""
    if task.granted_percent is None or task.task_class is not TaskClass.BEST_EFFORT:
        return task.granted_percent
    free = min([compute.free_percent(draft, uuid, plain=False) for uuid in task.gpus])
    return min(task.granted_percent, free)


def _has_compute(draft: Draft, task: Task) -> bool:
    """Whether a task that had none could compute on its GPUs again."""
    if task.task_class is TaskClass.BEST_EFFORT or not (
        task.granted_percent is not None or compute.in_use(draft)
    ):
        return True
    takes = task.task_class is TaskClass.LATENCY_SENSITIVE
    percent = WHOLE_PERCENT if task.granted_percent is None else task.granted_percent
    return all(
        compute.free_percent(draft, uuid, plain=task.is_plain)
        + (compute.best_effort_percent(draft, uuid) if takes else 0)
        >= percent
        for uuid in task.gpus
    )


def wake(draft: Draft, task: Task, heard: ProcessKey) -> Task | None:
    """A process of a stalled task beats again: resumes the task, or fences it and returns None."""
    resumed = resume(draft, task, heard)
    if resumed is None:
        why = reasons.not_resumed(draft, task)
        fence(draft, task, LeaseEnd.NOT_RESUMED, why)
    return resumed


def _regrown(draft: Draft, grant: Grant) -> int:
    return max(grant.memory_bytes, accounting.least(draft, grant))


def _has_room(draft: Draft, task: Task) -> bool:
    """Would all of its GPUs be this task's again within quota, memory, tasks and health?"""
    again = [uuid for uuid in task.gpus if not accounting.is_used(draft, task.env, uuid)]
    used = len(accounting.used_gpus(draft, task.env))
    quota = draft.envs[task.env].quota
    most = quota.gpus
    if elastic_leases.of_task(draft, task.task_id) is not None:
        most += quota.borrow
    if any(not draft.gpus[uuid].healthy for uuid in task.gpus) or (
        again and used + len(again) > most
    ):
        return False
    if any((draft.active.get(uuid) or 0) >= draft.config.max_tasks_per_gpu for uuid in again):
        return False
    if not _has_compute(draft, task):
        return False
    grown = {uuid: _regrown(draft, draft.grants[task.env, uuid]) for uuid in again}
    needs = {
        uuid: accounting.need(draft, task.env, uuid, grant, grown_bytes)
        for uuid, grown_bytes in grown.items()
        if grown_bytes > (grant := draft.grants[task.env, uuid]).memory_bytes
    }
    quota_bytes = accounting.quota_room(draft, task.env)
    if needs and quota_bytes is not None and sum(needs.values()) > quota_bytes:
        return False
    return all(
        need_bytes <= accounting.gpu_room(draft, draft.gpus[uuid])
        for uuid, need_bytes in needs.items()
    )


def set_memory(draft: Draft, grant: Grant, memory_bytes: int) -> None:
    """A grant grows or shrinks towards what it should be."""
    if memory_bytes != grant.memory_bytes:
        draft.put_grant(replace(grant, memory_bytes=memory_bytes))
        publish_grant(draft, grant.env, grant.uuid)


def raise_pending(draft: Draft) -> None:
    """Raises grants that are below the quota for lack of room, as far as the GPU has room now."""
    for env, uuid in sorted(draft.unsettled):
        grant = draft.grants[env, uuid]
        target_bytes = accounting.target(draft, grant)
        if grant.memory_bytes < target_bytes and not accounting.is_parked(grant):
            set_memory(draft, grant, min(target_bytes, accounting.most(draft, grant)))


def publish_grant(draft: Draft, env: str, uuid: Uuid) -> None:
    grant = draft.grants[env, uuid]
    draft.publish(
        "grant.changed",
        {
            "env": env,
            **named_gpus(draft, [uuid]),
            "memory_bytes": grant.memory_bytes,
            "limit_bytes": grant.limit_bytes,
            "pending_bytes": max(0, accounting.target(draft, grant) - grant.memory_bytes),
            "least_bytes": accounting.least(draft, grant),
        },
    )


def _set_slots(draft: Draft, task: Task, state: str) -> None:
    for key in task.processes:
        process = draft.processes[key]
        if process.slot is not None:
            slot = process.slot, process.generation
            draft.emit(effects.SetSlot(process.env, *slot, state, members.capped(task)))


# -- the record of an allocation: written with the lease, closed with its end


def record_id(task_id: str) -> int:
    """`t17` is 17."""
    return int(task_id[1:])


def _open_record(
    draft: Draft,
    task: Task,
    request: Request,
    reused: tuple[Uuid, ...],
    given_bytes: Mapping[Uuid, int],
    used: int,
    chosen: str,
) -> None:
    """Called after the grants of a new lease are booked (`given_bytes`).

    The env uses `used` GPUs now.
    """
    record = _record(
        record_id=record_id(task.task_id),
        env=task.env,
        task_id=task.task_id,
        command=task.command,
        gpus_new=task.fresh,
        gpus_reused=reused,
        grant_bytes=tuple([given_bytes[uuid] for uuid in (*task.fresh, *reused)]),
        remaining_gpus=max(0, draft.envs[task.env].quota.gpus - used),
        remaining_memory_bytes=accounting.env_remaining(draft, task.env),
        asked_wall_ns=request.since_wall_ns,
        granted_wall_ns=task.since_wall_ns,
        asked_ns=min(request.since_ns, task.since_ns),
        granted_ns=task.since_ns,
        user=_user(draft, request),
        job_id=request.job_id,
        chosen=chosen,
    )
    draft.records.put(task.task_id, record)


def _user(draft: Draft, request: Request) -> str:
    """The user of the job, or of the first process that asked."""
    if request.job_id is not None:
        return draft.jobs[request.job_id].user
    return request.askers[0].user


def _close_record(draft: Draft, task: Task, why: str) -> None:
    record = draft.records.get(task.task_id)
    if record is not None:
        ended = replace(record, ended_wall_ns=draft.wall_ns, ended_ns=draft.now_ns, why=why)
        draft.records.put(task.task_id, ended)


# -- answers to processes: one without a connection gets its answer when it comes back


def send_grant(draft: Draft, process: Process, task: Task, rid: str) -> None:
    connection = draft.connections.get(process.key)
    if connection is None:
        return
    if elastic_leases.any_there(draft):
        task = _as_bound(draft, task, process.key)
    if process.cap_bytes is None:
        limits = tuple([draft.grants[task.env, uuid].limit_bytes for uuid in task.gpus])
    else:
        limits = (process.cap_bytes,) * len(task.gpus)
    rows = tuple([draft.gpus[uuid].index for uuid in task.gpus])
    draft.emit(effects.SendGrant(connection, rid, task, process, rows, limits))


def _as_bound(draft: Draft, task: Task, process: ProcessKey) -> Task:
    """The task as a worker that is bound to one GPU gets it: with this GPU alone."""
    lease = draft.elastics.get(task.task_id)
    for worker in () if lease is None else lease.workers:
        if worker.process == process:
            return replace(task, gpus=(worker.uuid,))
    return task


def send_deny(
    draft: Draft, connection: ConnectionId | None, rid: str, code: DenyCode, reason: str
) -> None:
    if connection is not None:
        draft.emit(effects.SendDeny(connection, rid, code, reason))


def send_wait(draft: Draft, process: ProcessKey, rid: str, position: int, reason: str) -> None:
    connection = draft.connections.get(process)
    if connection is not None:
        draft.emit(effects.SendWait(connection, rid, position, reason))


def send_fence(
    draft: Draft, process: ProcessKey, task_id: str, reason: str, rid: str | None = None
) -> None:
    connection = draft.connections.get(process)
    if connection is not None:
        draft.emit(effects.SendFence(connection, task_id, reason, rid))


def send_note(draft: Draft, task: Task, text: str) -> None:
    for process in task.processes:
        connection = draft.connections.get(process)
        if connection is not None:
            draft.emit(effects.SendNote(connection, text))


def named_gpus(draft: Draft, uuids: Iterable[Uuid]) -> dict[str, object]:
    """GPUs as events carry them: UUIDs, and beside them the indices that people read."""
    uuids = tuple(uuids)
    return {"gpus": list(uuids), "gpu_indices": [draft.gpus[uuid].index for uuid in uuids]}
