"""A lease begins: its task, grants, record and members, and the answers to them; compute taken.

Knows: the effect on tasks, grants, processes and records. Must not know: the event that asked for
it, and the choice of GPUs (scheduler/allocator.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from client_plugin.messages.form import Message, stated
from nodemgr.core.leases import answers, ends
from nodemgr.core.model import effects
from nodemgr.core.model.causes import LeaseEnd
from nodemgr.core.model.entities import (
    MS,
    WHOLE_PERCENT,
    Asker,
    DenyCode,
    ElasticLease,
    Grant,
    PredictedRun,
    Process,
    ProcessKey,
    Record,
    Request,
    RunSpec,
    Task,
    TaskClass,
    TaskState,
    Transport,
    Uuid,
)
from nodemgr.core.model.schema import Figures
from nodemgr.core.model.transitions import TASK_TRANSITIONS, TaskEvent, checked
from nodemgr.core.model.values import maker, replace
from nodemgr.core.scheduler import preference
from nodemgr.core.scheduler.allocator import Choice
from nodemgr.core.state import accounting, compute, elastic_grants, elastic_leases, members
from nodemgr.core.state.draft import Draft

_task = maker(Task)


REFUSED_MEMBERS = {
    DenyCode.TOO_MANY_PROCESSES: Message(
        "{env} has as many processes with CUDA as its ledger has room for", "end some of them"
    ),
    DenyCode.MEMORY_ABOVE_LIMIT: Message(
        "the memory of {env} on its GPUs is given away as fixed caps or in use",
        "name less with --memory",
    ),
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
    run, steps = _expected(draft, request, choice)
    granted_percent = percent = run.compute_percent
    if percent is not None and run.task_class is TaskClass.LATENCY_SENSITIVE:
        granted_percent = max(percent, _needed_for_deadline(draft, request, choice))
        take_compute(draft, granted_percent, [*fresh, *reused])
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
        run=run,
        since_ns=draft.now_ns,
        since_wall_ns=draft.wall_ns,
        processes=tuple([asker.process for asker in request.askers]),
        kept_bytes=(run.memory_bytes or 0) if over_unix or is_job else 0,
        world=request.world,
        job_id=request.job_id,
        expected_steps=steps,
        granted_percent=granted_percent,
    )
    if run.gpu_range is not None and run.gpu_range.is_elastic:
        draft.put_task(task)  # its grants may have a range too, and count the GPUs to come
        _begin_elastic(draft, task, request)
    given_bytes = hold_all(draft, task, figures)
    used = choice.used + len(fresh)
    chosen = _chosen(draft, request, choice)
    open_record(draft, task, request, reused, given_bytes, used, chosen)
    if not is_job:
        heard_just_now = request.since_ns == draft.now_ns
        silence_ms = draft.config.timeout_ms if heard_just_now else draft.config.beat_ms
        draft.at_latest("silence", draft.now_ns + silence_ms * MS)
    task = _admit(draft, task, request.askers, figures)
    if task.processes or is_job:
        _publish_granted(draft, task, request, given_bytes, chosen)
    else:
        why = stated("no process of the task could be given a place", "run it again")
        ends.end(draft, task, LeaseEnd.NO_SLOT, why)
    return task


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
    run = request.run
    assert run.gpu_range is not None
    leader = request.askers[0].process if request.askers else ""
    most = max(run.gpu_range.most, run.gpus)
    draft.put_elastic(ElasticLease(task.task_id, run.gpus, most, task.gpus, leader))
    draft.wake_scheduler()  # idle GPUs are counted from now on


def _expected(draft: Draft, request: Request, choice: Choice) -> tuple[RunSpec, int | None]:
    """The run with the share and time that the forecast has for the chosen GPUs' models.

    And the expected steps.
    """
    run, row = request.run, _forecast(draft, request, choice)
    if row is None:
        return run, None
    if run.compute_percent is not None and run.gpus == 1 and row.share_percent is not None:
        run = replace(run, compute_percent=row.share_percent)
    if row.expected_ms is not None:
        run = replace(run, expected_ms=row.expected_ms)
    return run, row.steps


def _forecast(draft: Draft, request: Request, choice: Choice) -> PredictedRun | None:
    """On the chosen GPUs, if they are of one model that has a forecast."""
    if not request.run.predicted:
        return None
    names = {draft.gpus[gpu.uuid].name for gpu in choice.fresh + choice.reused}
    return request.predicted_on(names.pop()) if len(names) == 1 else None


def _needed_for_deadline(draft: Draft, request: Request, choice: Choice) -> int:
    """The share with which runs have shown that the deadline is kept; at most what can be had.

    The pace is taken to follow the share. Steps correct it (sharing/progress.py).
    """
    row, deadline_ms = _forecast(draft, request, choice), request.run.deadline_ms
    if row is None or row.most_ms is None or not deadline_ms:
        return 0
    available = [
        compute.free_percent(draft, gpu.uuid, plain=False)
        + compute.best_effort_percent(draft, gpu.uuid)
        for gpu in choice.fresh + choice.reused
    ]
    return min(-(-row.most_ms * WHOLE_PERCENT // deadline_ms), WHOLE_PERCENT, *available)


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
            **answers.named_gpus(draft, task.gpus),
            "class": task.run.task_class.value,
            "compute_percent": task.run.compute_percent,
            "granted_percent": percent,
        },
    )
    return changed


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
    answers.send_deny(draft, draft.connections.get(asker.process), asker.rid, code, reason)
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
            **answers.named_gpus(draft, task.gpus),
            "fresh_gpus": list(task.fresh),
            "chosen": preference.chosen_line(chosen, is_fresh=bool(task.fresh)),
            "memory_bytes": list(given_bytes.values()),
            "waited_ns": draft.now_ns - request.since_ns,
            "pids": [asker.pid for asker in askers if asker.pid is not None],
            "user": askers[0].user if request.job_id is None else draft.jobs[request.job_id].user,
            "command": task.run.command,
            **({} if request.job_id is None else {"job": request.job_id}),
        },
    )


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


def hold_all(draft: Draft, task: Task, figures: Figures) -> dict[Uuid, int]:
    """The task's grants begin; returns the bytes of each."""
    for uuid in task.gpus:
        hold(draft, task, uuid, figures)
    if task.run.memory_most_bytes is not None:
        elastic_grants.begin(draft, task)
    return {uuid: draft.grants[task.env, uuid].memory_bytes for uuid in task.gpus}


def hold(draft: Draft, task: Task, uuid: Uuid, figures: Figures) -> None:
    """Add one task to this grant.

    A fresh grant is made, or grown again from the rest that stalled tasks left of it.
    """
    grant = draft.grants.get((task.env, uuid))
    if grant is not None and uuid not in task.fresh:
        if task.run.memory_most_bytes is None and not grant.most_bytes:
            draft.share_grant(grant, task.kept_bytes)
        else:
            elastic_grants.share(draft, grant, task, figures)
        return
    if grant is None:
        figures[task.env, uuid] = draft.unreclaimed_alive.get((task.env, uuid)) or 0
        if task.run.memory_most_bytes is None:
            full_bytes = accounting.full_grant(draft.envs[task.env].quota, draft.gpus[uuid])
            draft.put_grant(Grant(task.env, uuid, full_bytes, full_bytes, 1, 0, 0, task.kept_bytes))
            return
        grant = Grant(task.env, uuid, 0, 0, 0)
    else:
        figures.setdefault((task.env, uuid), members.unkept_at_most(grant))
    held = accounting.with_task(grant, task.kept_bytes, task.run.memory_most_bytes)
    memory_bytes = max(grant.memory_bytes, accounting.least(draft, held))
    draft.put_grant(replace(held, memory_bytes=memory_bytes))


def record_id(task_id: str) -> int:
    """`t17` is 17."""
    return int(task_id[1:])


def open_record(
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
        command=task.run.command,
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


_record = maker(Record)
