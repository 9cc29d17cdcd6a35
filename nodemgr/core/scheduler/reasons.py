"""The one line about a waiting request, for people: its place, its need, the holders.

Knows: English. Must not know: how a shortage was found (requests/matching.py), nor any clock:
times are those of the rows, in UTC, so that the line changes only when the world does.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from client_plugin.messages.form import MessageLine, Part
from nodemgr.core.model import messages
from nodemgr.core.model.entities import (
    BY_MANAGER,
    MS,
    OF_COMPUTE,
    WHOLE_PERCENT,
    Attempt,
    Cause,
    DenyCode,
    Gpu,
    GpuRecord,
    Job,
    JobState,
    Offence,
    QueueRow,
    Request,
    RunSpec,
    Suspension,
    Task,
    TaskState,
    Uuid,
    Violation,
)
from nodemgr.core.scheduler import placement
from nodemgr.core.scheduler.allocator import Ask, Candidate, Shortage, has_compute, qualifies
from nodemgr.core.state import accounting, compute
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.host_use import Bound

SHOWN_HOLDERS = 3
DAY_S = 86_400
GIB = 1 << 30


def line(queue: str, position: int, ahead: int, why: str) -> str:
    """`ahead`: how many in other queues go before it."""
    if ahead:
        return messages.PLACE_AFTER(position=position, queue=queue, ahead=ahead, why=why)
    return messages.PLACE(position=position, queue=queue, why=why)


def of_shortage(
    draft: Draft, request: Request, shortage: Shortage, ask: Ask, rows: Sequence[Candidate],
    reserved: Mapping[Uuid, Request], fewer: int | None,
) -> str:  # fmt: skip
    """Why the GPUs that there are do not do.

    `fewer`: a number of GPUs that would; None where none is known.
    """
    instead: list[str] = [] if fewer is None else [messages.FEWER_WOULD_START(gpus=fewer)]
    if request.compute_percent is not None:
        rows = [_with_reserved_compute(draft, request, row) for row in rows]
    short: str
    match shortage:
        case Shortage.QUOTA_MEMORY:
            left_bytes = max(0, ask.quota_remaining_bytes or 0)
            needs = [row.need_bytes for row in rows if not row.used and row.need_bytes]
            too_much = [need for need in needs if need > left_bytes]  # none: together they are
            need_bytes = min(too_much or needs, default=0)
            short = messages.NEEDS_QUOTA_MEMORY(
                need=gib(need_bytes), env=request.env, left=gib(left_bytes),
                holders=_holders_of_quota(draft, request.env),
            )  # fmt: skip
            who = _next_known_end(draft, draft.env_tasks.members(request.env))
        case Shortage.LEDGER:
            short, barred = _short_of_own_memory(draft, request, rows)
            who = _holders(draft, barred, reserved)
        case Shortage.COMPUTE:
            short, barred = _short_of_own_compute(request, ask, rows)
            who = _holders(draft, barred, reserved)
        case Shortage.OWN_GPUS:
            short = _short_of_own_gpus(draft, request, ask, rows)
            if request.memory_bytes is None and ask.reuse_below == 1 < ask.max_tasks_per_gpu:
                instead.append(messages.MEMORY_WOULD_SHARE())
            who = _next_known_end(draft, draft.env_tasks.members(request.env))
        case Shortage.NODE:
            free = sum(qualifies(row, ask) and not row.reserved for row in rows)
            short = _short_of_gpus(request, ask, rows, free)
            who = _on_the_node(draft, request, ask, rows, reserved)
    # the most helpful part first: a terminal cuts the end off
    return "; ".join([short, *instead, *who])


def _holders_of_quota(draft: Draft, env: str) -> str:
    """Tasks or exported memory, which have the memory of its quota."""
    exported = [
        f"{gib(row.memory_bytes)} of {numbered([draft.gpus[row.uuid].index])}"
        for row in draft.unreclaimed.values()
        if row.env == env and row.is_exported
    ]
    holders = [f"{', '.join(exported)} that its ended processes exported"] if exported else []
    if not exported or draft.env_tasks.count(env):
        holders = ["its own tasks", *holders]
    return " and for ".join(holders)


def _short_of_own_compute(
    request: Request, ask: Ask, rows: Sequence[Candidate]
) -> tuple[str, set[Uuid]]:
    """The words for what is missing, and the GPUs whose compute an earlier entry keeps."""
    own = [row for row in rows if row.used]
    barred = {row.uuid for row in own if row.reserved and has_compute(row, ask)}
    if barred:
        return messages.NEEDS_RESERVED_COMPUTE(percent=ask.percent, env=request.env), barred
    most = max((row.free_percent for row in own if not row.reserved), default=0)
    return (
        messages.NEEDS_COMPUTE_ON_OWN_GPU(percent=ask.percent, env=request.env, free=most),
        barred,
    )


def _on_the_node(
    draft: Draft,
    request: Request,
    ask: Ask,
    rows: Sequence[Candidate],
    reserved: Mapping[Uuid, Request],
) -> list[str]:
    """The next known end, who holds the GPUs that the request may not have, and those it avoids."""
    fitting = [row for row in rows if qualifies(row, ask)]
    passed = {row.uuid for row in rows if row.used} | {
        row.uuid for row in fitting if not row.reserved
    }
    spared = {row.uuid: reserved[row.uuid] for row in fitting if row.reserved}
    in_the_way = {
        task_id
        for row in rows
        if row.uuid not in passed
        for task_id in draft.gpu_tasks.members(row.uuid)
    }
    avoided = placement.avoided(draft, request)
    failed = {
        gpu.uuid: gpu.index for gpu in draft.gpus.values() if gpu.usable and gpu.uuid in avoided
    }
    others = {uuid for uuid in draft.gpus if uuid not in passed | failed.keys()}
    said = [*_next_known_end(draft, in_the_way), *_holders(draft, others, spared)]
    if failed:
        said.append(messages.GPU_FAILED_JOB(gpus=numbered(sorted(failed.values()))))
    return said


def _with_reserved_compute(draft: Draft, request: Request, row: Candidate) -> Candidate:
    """The row with the compute that an earlier request keeps from this one."""
    if not row.reserved:
        return row
    return row._replace(free_percent=compute.free_percent(draft, row.uuid, plain=False))


def _short_of_own_memory(
    draft: Draft, request: Request, rows: Sequence[Candidate]
) -> tuple[MessageLine, set[Uuid]]:
    """The beginning of the line, and the GPUs where others have the room of suspended tasks."""
    asked = "its share" if request.memory_bytes is None else gib(request.memory_bytes)
    lacking = [row for row in rows if not row.has_free]
    parked = {
        row.uuid: row.number for row in lacking if row.used and _has_no_room(draft, request, row)
    }
    if parked:
        where = numbered(sorted(parked.values()))
        short = messages.NEEDS_ROOM_OF_SUSPENDED(need=asked, env=request.env, gpus=where)
        return short, set(parked)
    if any(row.used for row in lacking):
        return messages.NEEDS_ROOM_ON_OWN_GPU(need=asked, env=request.env), set()
    where = numbered(sorted(row.number for row in lacking))
    return messages.NEEDS_ROOM_OF_LEFT(need=asked, env=request.env, gpus=where), set()


def _has_no_room(draft: Draft, request: Request, row: Candidate) -> bool:
    """Whether its env's tasks on the GPU are suspended, and have no room to come back."""
    grant = draft.grants.get((request.env, row.uuid))
    return (
        grant is not None
        and accounting.is_parked(grant)
        and (row.reserved or accounting.return_bytes(draft, grant) > row.remaining_bytes)
    )


def _short_of_own_gpus(
    draft: Draft, request: Request, ask: Ask, rows: Sequence[Candidate]
) -> MessageLine:
    """The beginning of the line: a drained GPU that it would share, or all of its quota in use."""
    left = max(0, ask.quota_gpus - sum(row.used for row in rows))
    quota = ask.quota_gpus + ask.elsewhere
    shared = sum(row.used and row.tasks < ask.reuse_below for row in rows)
    drained = [
        gpu.index
        for gpu in accounting.used_gpus(draft, request.env)
        if ask.elsewhere and gpu.drained
    ]
    if ask.reuse_below > 1 and drained and request.gpus <= left + shared + len(drained):
        return messages.NEEDS_DRAINED_GPU(
            gpus=gpus(request.gpus),
            env=request.env,
            quota=quota,
            drained=numbered(sorted(drained)),
            index=min(drained),
        )
    return messages.NEEDS_QUOTA_GPUS(
        gpus=gpus(request.gpus), quota=quota, env=request.env, left=left
    )


def _short_of_gpus(request: Request, ask: Ask, rows: Sequence[Candidate], free: int) -> MessageLine:
    """The beginning of the line: short of compute alone, or of GPUs."""
    else_fit = [row for row in rows if qualifies(row._replace(free_percent=WHOLE_PERCENT), ask)]
    lacks_compute = sum(qualifies(row, ask) for row in rows) < request.gpus <= len(else_fit)
    if not lacks_compute:
        return messages.NEEDS_FREE_GPUS(gpus=gpus(request.gpus), free=free)
    most = max((row.free_percent for row in else_fit if not row.reserved), default=0)
    if most >= ask.percent:
        return messages.NEEDS_COMPUTE_ON_MORE_GPUS(
            gpus=gpus(request.gpus), percent=ask.percent, fitting=gpus(free)
        )
    return messages.NEEDS_COMPUTE(gpus=gpus(request.gpus), percent=ask.percent, free=most)


def of_resume(
    draft: Draft, request: Request, rows: Sequence[Candidate], reserved: Mapping[Uuid, Request]
) -> str:
    """The line of a suspended task that waits for its memory on its GPUs."""
    assert request.resumes is not None
    task = draft.tasks[request.resumes]
    if task.suspension is not Suspension.SUSPENDED:
        return messages.RESUME_AFTER_SUSPENSION(task=task.task_id)
    limit = draft.config.max_tasks_per_gpu
    lost = [row.number for row in rows if not draft.gpus[row.uuid].healthy]
    if lost:
        return messages.RESUME_NEEDS_GPU(task=task.task_id, gpus=numbered(lost))
    roomless = [
        row
        for row in rows
        if row.tasks >= limit
        or row.reserved
        or (not row.used and row.need_bytes > row.remaining_bytes)
    ]
    short = roomless or [row for row in rows if not placement.has_share(draft, task, row)]
    if not short:
        return messages.RESUME_AT_ONCE(task=task.task_id)
    names = numbered(row.number for row in short)
    needs = (
        messages.RESUME_NEEDS_ROOM(
            task=task.task_id,
            gpus=names,
            need=gib(max(row.need_bytes for row in short)),
            free=gib(max(0, min(row.remaining_bytes for row in short))),
        )
        if roomless
        else messages.RESUME_NEEDS_COMPUTE(
            task=task.task_id, gpus=names, percent=task.granted_percent or WHOLE_PERCENT
        )
    )
    return "; ".join([needs, *_holders(draft, {row.uuid for row in short}, reserved)])


def behind(request: Request, before: Request) -> str:
    return messages.BEHIND_OWN(gpus=gpus(request.gpus), before=before.job_id or before.request_id)


def nowhere(request: Request, why: str) -> str:
    """The line of a job with a launch host that is down."""
    return messages.PLACE_DOWN(gpus=gpus(request.gpus), why=why) if request.gpus else why


def head_of(job: Job) -> str:
    """The name of the head that assigned it."""
    return job.assigned.partition("/")[0]


def of_head(job: Job) -> str:
    """The refusal of an order that its head alone gives."""
    return messages.JOB_OF_HEAD(job=job.job_id, head=head_of(job))


def above_quota(request: Request, quota_gpus: int, limit_bytes: int) -> str:
    """The line of a request that waited before its env's quota fell below its need."""
    if request.gpus > quota_gpus:
        return messages.ABOVE_QUOTA(gpus=gpus(request.gpus), env=request.env, quota=quota_gpus)
    return messages.ABOVE_MEMORY(
        need=gib(request.memory_bytes or 0), env=request.env, limit=gib(limit_bytes)
    )


def above_node(draft: Draft, request: Request) -> str:
    """The line of a request that needs more GPUs than are in service."""
    quota, named_bytes = draft.envs[request.env].quota, request.memory_bytes or 0
    of_lines: dict[Part, list[int]] = {}
    for gpu in sorted(draft.gpus.values(), key=lambda gpu: gpu.index):
        if named_bytes > accounting.full_grant(quota, gpu):
            of_lines.setdefault(messages.TOO_SMALL, []).append(gpu.index)
        elif not gpu.usable:
            row = messages.GPU_DRAINED if gpu.healthy else messages.GPU_LOST
            of_lines.setdefault(row, []).append(gpu.index)
    out = sum(map(len, of_lines.values()))
    return messages.ABOVE_NODE(
        gpus=gpus(request.gpus),
        fitting=len(draft.gpus) - out,
        others="; ".join(row(gpus=numbered(indices)) for row, indices in of_lines.items()),
    )


def share_above_quota(refusal: str) -> str:
    """The line of a request that waited before its env's class or share fell below its own."""
    return messages.SHARE_ABOVE_QUOTA(refusal=refusal)


def at_once(request: Request) -> str:
    return messages.TURN_AT_ONCE(gpus=gpus(request.gpus))


def away(request: Request) -> str:
    return messages.DISCONNECTED(gpus=gpus(request.gpus))


def refusal(code: DenyCode, env: str, quota_gpus: int, asked: int, node_gpus: int) -> str:
    """Why a request can never be served as it stands: the limit, its owner, the remedy."""
    match code:
        case DenyCode.OVER_QUOTA:
            return messages.OVER_QUOTA(gpus=gpus(asked), env=env, quota=quota_gpus)
        case DenyCode.MORE_THAN_NODE:
            return messages.MORE_THAN_NODE_HAS(gpus=gpus(asked), node_gpus=node_gpus)
        case _:
            if node_gpus == 0:
                return messages.NODE_WITHOUT_GPU()
            return messages.QUOTA_IS_ZERO(env=env) if quota_gpus == 0 else messages.NO_GPU_ASKED()


def memory_above_limit(env: str, memory_bytes: int, limit_bytes: int) -> str:
    return messages.MEMORY_ABOVE_LIMIT(need=gib(memory_bytes), env=env, limit=gib(limit_bytes))


def would_not_wait(waiting_line: str) -> str:
    return messages.WOULD_WAIT(waiting=waiting_line)


def waited_in_vain(waited_ns: int, waiting_line: str) -> str:
    return messages.WAITED_IN_VAIN(seconds=round(waited_ns / 1e9), waiting=waiting_line)


def not_resumed(draft: Draft, task: Task) -> str:
    """Why a stalled task cannot go on with its lease."""
    lost = [gpu.index for uuid in task.gpus if not (gpu := draft.gpus[uuid]).healthy]
    if lost:
        return messages.GPU_LOST_WHILE_STOPPED(gpus=numbered(lost))
    return messages.GPUS_WENT(gpus=numbered(draft.gpus[uuid].index for uuid in task.gpus))


def taken_back(by: str) -> str:
    return messages.TAKEN_BACK(by=by)


def taken_out(by: str) -> str:
    return messages.TAKEN_OUT(by=by)


def no_quota(env: str) -> str:
    return messages.ENV_WITHOUT_QUOTA(env=env)


def queue_full(name: str, waiting: int, cap: int) -> str:
    if cap == 0:
        return messages.QUEUE_CLOSED(queue=name)
    return messages.QUEUE_FULL(waiting=waiting, queue=name, cap=cap)


def no_queue(name: str, known: Iterable[str], meant: str = "") -> MessageLine:
    """`meant`: the end of the line, a guess at the name that was meant."""
    return messages.NO_QUEUE(queue=name, known=", ".join(known), meant=meant)


def queue_above(env: str, row: QueueRow, limit: QueueRow | None) -> str:
    """The refusal of a queue that the env's users may not ask for."""
    if limit is None:
        return messages.ABOVE_OWN_QUEUE(queue=row.name, env=env)
    return messages.ABOVE_HIGHEST_QUEUE(
        queue=row.name, rank=row.rank, env=env, highest=limit.name, highest_rank=limit.rank
    )


def queue_of_others(row: QueueRow) -> str:
    """The refusal of a queue that names its users, for another user."""
    named = ", ".join([*row.users, *(f"@{group}" for group in row.groups)])
    return messages.QUEUE_OF_OTHERS(queue=row.name, users=named)


def no_job(name: str, env: str | None = None) -> str:
    if env is None:
        return messages.NO_SUCH_JOB(job=name)
    return messages.NO_JOB_TO_WAIT_FOR(env=env, job=name)


def too_many_jobs(whose: str, there: int, limit: int) -> str:
    return messages.MANY_JOBS_THERE(owner=whose, there=there, limit=limit)


def too_large_jobs(env: str, there_bytes: int, added_bytes: int, limit_bytes: int) -> str:
    return messages.JOBS_TOO_LARGE(
        env=env, there=mib(there_bytes), added=mib(added_bytes), limit=mib(limit_bytes)
    )


def cpu_jobs(whose: str, running: int, setting: str) -> str:
    return messages.CPU_JOBS(running=running, owner=whose, setting=setting)


def _size(size_bytes: int) -> str:
    """In the largest unit of which there is one: `8 GiB`, `1.5 GiB`, `12 MiB`."""
    power = 4 if size_bytes >= 1 << 40 else 3 if size_bytes >= GIB else 2
    return f"{round(size_bytes / (1 << 10 * power), 1):g} {'KMGT'[power - 1]}iB"


def _host(bound: Bound, amount: int | None) -> str:
    """`4 CPUs`, `8 GiB of host memory`."""
    if bound.is_memory:
        return messages.OF_HOST_MEMORY(size=_size(amount or 0))
    return "1 CPU" if amount == 1 else messages.OF_CPUS(count=amount or 0)


def host_above(run: RunSpec, bound: Bound) -> str:
    """The refusal of a job that fits in the bound beside no other job either."""
    asked = _host(bound, run.host_memory_bytes if bound.is_memory else run.cpus)
    option = "--host-memory" if bound.is_memory else "--cpus"
    limit = _host(bound, bound.most)
    if bound.env:
        return messages.HOST_ABOVE_QUOTA(asked=asked, env=bound.env, limit=limit, option=option)
    return messages.HOST_ABOVE_NODE(asked=asked, limit=limit, option=option)


def short_of_host(request: Request, bound: Bound) -> str:
    asked = _host(bound, request.host_memory_bytes if bound.is_memory else request.cpus)
    return messages.HOST_SHORT(
        asked=asked,
        used=_host(bound, bound.used),
        limit=_host(bound, bound.most),
        owner=bound.env or "this node",
    )


def behind_for_host(before: Request) -> str:
    return messages.BEHIND_FOR_HOST(job=before.job_id)


def held_by(by: str) -> str:
    return messages.HELD_BY(by=by)


def in_vain(awaited: str, how: JobState) -> str:
    """The reason of a job that waited for another one."""
    if how is JobState.WITHDRAWN:
        return messages.AWAITED_WITHDRAWN(job=awaited)
    return messages.AWAITED_FAILED(job=awaited)


def job_is_under_way(job: Job) -> str:
    doing = "being ended" if job.state is JobState.STOPPING else job.state.value
    return messages.JOB_UNDER_WAY(job=job.job_id, state=doing)


def interrupted(draft: Draft, attempt: Attempt) -> str:
    """Why an attempt ended that is not its job's fault."""
    if attempt.cause is not Cause.GPU_LOST or attempt.lost_gpu is None:
        return attempt.why
    gpu = draft.gpus.get(attempt.lost_gpu)
    if gpu is None:
        return messages.LOST_GPU_UNKNOWN(why=attempt.why)
    return messages.LOST_GPU_WHILE_RUN(index=gpu.index, why=attempt.why)


def awaits_gpu_report(job: Job) -> bool:
    """Whether the driver may still report that the GPU of its failed attempt was at fault."""
    if job.state is not JobState.PAUSED or not job.attempts:
        return False
    last = job.attempts[-1]
    return last.number == job.attempt and last.cause is Cause.OWN


def paused(job: Job) -> str:
    """The line of a job that is to be queued again, or to be judged."""
    until = clock_s(job.resumes_wall_ns or 0)
    if awaits_gpu_report(job):
        return messages.AWAITS_GPU_REPORT(until=until, why=job.why)
    if job.interruptions > 1:
        return messages.PAUSED_AGAIN(
            until=until, why=job.why, times=job.interruptions, job=job.job_id
        )
    return messages.PAUSED(until=until, why=job.why, job=job.job_id)


def gpu_health(gpu: Gpu) -> str:
    if gpu.healthy:
        return messages.GPU_IS_BACK(index=gpu.index, name=gpu.name)
    return messages.GPU_IS_LOST(index=gpu.index, name=gpu.name)


def gpu_warning(gpu: Gpu, record: GpuRecord | None) -> str:
    """Why the GPU is drained, lost or to be drained, and the remedy; empty: it serves well."""
    if gpu.drained and record is not None:
        if record.drained_by == BY_MANAGER:
            return messages.GPU_DRAINED_BY_MANAGER(index=gpu.index, why=record.why)
        note = record.why and f": {record.why}"
        return messages.GPU_DRAINED_BY_ORDER(index=gpu.index, by=record.drained_by, note=note)
    if not gpu.healthy:
        return messages.GPU_IS_MISSING(index=gpu.index)
    if record is not None and record.flapped:
        return messages.GPU_STAYS_IN_USE(index=gpu.index)
    return ""


def violation(gpu: Gpu, row: Violation) -> str:
    """The audit's finding about a process."""
    owner = (
        messages.OWNER_UNKNOWN()
        if row.env is None
        else messages.OWNER_ENV(env=row.env)
        if row.task_id is None
        else messages.OWNER_TASK(env=row.env, task=row.task_id)
    )
    if row.offence is Offence.OVER_SHARE:
        return messages.USES_MORE_COMPUTE(
            pid=row.pid, owner=owner, index=gpu.index,
            used=row.used_percent, allowed=row.allowed_percent,
        )  # fmt: skip
    if row.offence is Offence.GARBLED_GATE:
        return messages.GARBLES_GATE(pid=row.pid, owner=owner, index=gpu.index)
    size = gib(row.memory_bytes)
    if row.offence is Offence.NO_LEASE:
        return messages.USES_WITHOUT_LEASE(pid=row.pid, owner=owner, size=size, index=gpu.index)
    return messages.USES_TOO_MUCH(
        pid=row.pid, owner=owner, size=size, index=gpu.index, env=row.env,
        allowed=gib(row.allowed_bytes),
    )  # fmt: skip


def audit_note(draft: Draft, row: Violation) -> str:
    """The same for the process itself."""
    if row.offence in OF_COMPUTE:
        return messages.COMPUTE_FINDING(finding=violation(draft.gpus[row.uuid], row))
    return messages.AUDIT_FINDING(finding=violation(draft.gpus[row.uuid], row))


def _holders(draft: Draft, barred: Container[Uuid], spared: Mapping[Uuid, Request]) -> list[str]:
    """The holders of the GPUs that the request cannot have, each once, with its GPUs."""
    held: dict[str, tuple[Gpu, list[int]]] = {}
    for gpu in sorted(draft.gpus.values(), key=lambda gpu: gpu.index):
        if gpu.uuid in barred:
            same = _holder(draft, gpu, spared.get(gpu.uuid), "")
            held.setdefault(same, (gpu, []))[1].append(gpu.index)
    lines: list[str] = [
        _holder(draft, gpu, spared.get(gpu.uuid), numbered(indices))
        for gpu, indices in held.values()
    ]
    more = len(lines) - SHOWN_HOLDERS
    return lines if more <= 0 else [*lines[:SHOWN_HOLDERS], messages.MORE_HOLDERS(count=more)]


def _next_known_end(draft: Draft, task_ids: Iterable[str]) -> list[str]:
    """The first known end of these tasks, by their time limits; empty: none is known."""
    ends = [
        (task.since_wall_ns + limit_ms * MS, task)
        for task in map(draft.tasks.__getitem__, task_ids)
        if (limit_ms := task.extended_limit_ms) is not None and task.state is TaskState.RUNNING
    ]
    if not ends:
        return []
    end_wall_ns, task = min(ends, key=lambda end: end[0])
    job = None if task.job_id is None else draft.jobs.get(task.job_id)
    return [
        messages.NEXT_KNOWN_END(
            clock=clock(end_wall_ns),
            env=task.env,
            job=task.task_id if job is None else job.name or job.job_id,
        )
    ]


def _holder(draft: Draft, gpu: Gpu, before: Request | None, names: str) -> str:
    """`before`: the request for which this GPU is reserved; `names`: of GPUs with one holder."""
    if before is not None:
        return messages.RESERVED_FOR(
            gpus=names, env=before.env, task=before.job_id or before.request_id
        )
    if not gpu.healthy:
        return messages.GPU_LOST(gpus=names)
    if gpu.drained:
        return messages.GPU_DRAINED(gpus=names)
    there = [draft.tasks[task_id] for task_id in draft.gpu_tasks.members(gpu.uuid)]
    task = next((task for task in there if task.suspension is not Suspension.SUSPENDED), None)
    if task is not None:
        name, since = task.job_id or task.task_id, clock(task.since_wall_ns)
        if task.state is TaskState.STALLED:
            parted = [draft.parted.get(key) for key in task.processes]
            known = [wall_ns for wall_ns in parted if wall_ns is not None]
            if known and len(known) == len(parted):
                return messages.RUNS_ANOTHER(
                    env=task.env, task=name, gpus=names, clock=since, since=clock(max(known))
                )
            return messages.SILENT_ON(env=task.env, task=name, gpus=names, clock=since)
        if task.task_id in draft.silent_jobs:
            return messages.SILENT_ON(env=task.env, task=name, gpus=names, clock=since)
        return messages.HOLDS(env=task.env, task=name, gpus=names, clock=since)
    if draft.charged.get(gpu.uuid):
        return messages.FORMER_MEMORY(gpus=names)
    if draft.unbooked.get(gpu.uuid):
        return messages.USED_WITHOUT_LEASE(gpus=names)
    return messages.TOO_SMALL(gpus=names)


def gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def numbered(indices: Iterable[int]) -> str:
    """`GPU 0`, `GPUs 0, 1 and 3`."""
    names = [str(index) for index in indices]
    return f"GPU {names[0]}" if len(names) == 1 else f"GPUs {', '.join(names[:-1])} and {names[-1]}"


def gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB"


def mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"


def clock_s(wall_ns: int) -> str:
    """`14:05:10 UTC` of a wall time."""
    second = wall_ns // 1_000_000_000 % DAY_S
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} UTC"


def clock(wall_ns: int) -> str:
    """`14:05 UTC` of a wall time."""
    minute = wall_ns // 1_000_000_000 % DAY_S // 60
    return f"{minute // 60:02}:{minute % 60:02} UTC"
