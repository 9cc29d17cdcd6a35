"""The words about a waiting request, for people: its need, the holders.

Knows: English. Must not know: how a shortage was found (requests/matching.py), nor any clock:
times are those of the rows, so that a reason changes only when the world does.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from client_plugin.messages.form import Reason, joined_reasons, notice, reason_of, stated, utc
from nodemgr.core.model.causes import Standing
from nodemgr.core.model.entities import (
    BY_LENDER,
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
GIB = 1 << 30
S = 1_000_000_000
TOO_SMALL = "{gpus} too small, or without memory to spare"
HOLDS = "{env}/{task} holds {gpus} since {since_minute}"
SILENT = f"{HOLDS} and is silent: it is stopped, or runs another program"
PARTED = f"{HOLDS}, and runs another program since {{parted_minute}}"


def of_shortage(
    draft: Draft, request: Request, shortage: Shortage, ask: Ask, rows: Sequence[Candidate],
    reserved: Mapping[Uuid, Request], fewer: int | None,
) -> Reason:  # fmt: skip
    """Why the GPUs that there are do not do.

    `fewer`: a number of GPUs that would; None where none is known.
    """
    instead = [] if fewer is None else [reason_of("`--gpus {fewer}` would start now", fewer=fewer)]
    if request.run.compute_percent is not None:
        rows = [_with_reserved_compute(draft, request, row) for row in rows]
    match shortage:
        case Shortage.QUOTA_MEMORY:
            left_bytes = max(0, ask.quota_remaining_bytes or 0)
            needs = [row.need_bytes for row in rows if not row.used and row.need_bytes]
            too_much = [need for need in needs if need > left_bytes]  # none: together they are
            need_bytes = min(too_much or needs, default=0)
            short = reason_of(
                "needs {need} of {env}'s memory quota per GPU, {left} left: waits for {holders}",
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
            if request.run.memory_bytes is None and ask.reuse_below == 1 < ask.max_tasks_per_gpu:
                instead.append(reason_of("`--memory SIZE` would share a GPU where SIZE is free"))
            who = _next_known_end(draft, draft.env_tasks.members(request.env))
        case Shortage.NODE:
            free = sum(qualifies(row, ask) and not row.reserved for row in rows)
            short = _short_of_gpus(request, ask, rows, free)
            who = _on_the_node(draft, request, ask, rows, reserved)
    # the most helpful part first: a terminal cuts the end off
    return joined_reasons([short, *instead, *who])


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
) -> tuple[Reason, set[Uuid]]:
    """The reason, and the GPUs whose compute an earlier entry keeps."""
    own = [row for row in rows if row.used]
    barred = {row.uuid for row in own if row.reserved and has_compute(row, ask)}
    most = max((row.free_percent for row in own if not row.reserved), default=0)
    form = "needs {percent} % of the compute of GPUs that {env} holds"
    if not barred:
        form += ", {most} % free: waits for the tasks there"
    return reason_of(form, percent=ask.percent, env=request.env, most=most), barred


def _on_the_node(
    draft: Draft,
    request: Request,
    ask: Ask,
    rows: Sequence[Candidate],
    reserved: Mapping[Uuid, Request],
) -> list[Reason]:
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
    found = [*_next_known_end(draft, in_the_way), *_holders(draft, others, spared)]
    if failed:
        where = numbered(sorted(failed.values()))
        found.append(reason_of("{gpus} failed under an earlier attempt of this job", gpus=where))
    return found


def _with_reserved_compute(draft: Draft, request: Request, row: Candidate) -> Candidate:
    """The row with the compute that an earlier request keeps from this one."""
    if not row.reserved:
        return row
    return row._replace(free_percent=compute.free_percent(draft, row.uuid, plain=False))


def _short_of_own_memory(
    draft: Draft, request: Request, rows: Sequence[Candidate]
) -> tuple[Reason, set[Uuid]]:
    """The beginning of the line, and the GPUs where others have the room of suspended tasks."""
    asked = "its share" if request.run.memory_bytes is None else gib(request.run.memory_bytes)
    lacking = [row for row in rows if not row.has_free]
    parked = {
        row.uuid: row.number for row in lacking if row.used and _has_no_room(draft, request, row)
    }
    if parked:
        where = numbered(sorted(parked.values()))
        form = "needs {memory} on {gpus}, where {env}'s suspended tasks gave their room to others"
    elif any(row.used for row in lacking):
        where = ""
        form = (
            "needs {memory} free on a GPU that {env} holds: waits for its own tasks to free memory"
        )
    else:
        where = numbered(sorted(row.number for row in lacking))
        form = (
            "needs {memory} free on {gpus}, where processes of {env} that left their tasks still "
            "have memory"
        )
    return reason_of(form, memory=asked, gpus=where, env=request.env), set(parked)


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
) -> Reason:
    """The beginning of the line: a drained GPU that it would share, or all of its quota in use."""
    left = max(0, ask.quota_gpus - sum(row.used for row in rows))
    quota = ask.quota_gpus + ask.elsewhere
    shared = sum(row.used and row.tasks < ask.reuse_below for row in rows)
    drained = [
        gpu.index
        for gpu in accounting.used_gpus(draft, request.env)
        if ask.elsewhere and gpu.drained
    ]
    if ask.reuse_below > 1 and drained and request.run.gpus <= left + shared + len(drained):
        return _needs(
            request,
            "; {env}'s quota of {quota} includes {drained} (drained, no new task): waits for the "
            "tasks there, or an administrator runs `nodemgr gpu resume {first}` or raises the "
            "quota",
            env=request.env, quota=quota, drained=numbered(sorted(drained)), first=min(drained),
        )  # fmt: skip
    form = " of the {quota} in {env}'s quota, {left} left: waits for its own tasks"
    return _needs(request, form, quota=quota, env=request.env, left=left)


def _short_of_gpus(
    request: Request, ask: Ask, rows: Sequence[Candidate], free: int
) -> Reason:
    """The beginning of the line: short of compute alone, or of GPUs."""
    else_fit = [row for row in rows if qualifies(row._replace(free_percent=WHOLE_PERCENT), ask)]
    lacks_compute = sum(qualifies(row, ask) for row in rows) < request.run.gpus <= len(else_fit)
    if not lacks_compute:
        return _needs(request, ", {free} free", free=free)
    most = max((row.free_percent for row in else_fit if not row.reserved), default=0)
    more = ", at most {most} % free on any GPU"
    if most >= ask.percent:
        more = " on each, and finds {found}"
    form = f" with {{percent}} % of the compute free{more}"
    return _needs(request, form, percent=ask.percent, found=gpus(free), most=most)


def _needs(request: Request, form: str, **fields: object) -> Reason:
    return reason_of("needs {need}" + form, need=gpus(request.run.gpus), **fields)


def of_resume(
    draft: Draft, request: Request, rows: Sequence[Candidate], reserved: Mapping[Uuid, Request]
) -> Reason:
    """The line of a suspended task that waits for its memory on its GPUs."""
    assert request.resumes is not None
    task = draft.tasks[request.resumes]
    if task.suspension is not Suspension.SUSPENDED:
        return reason_of("{task} is resumed when its suspension has ended", task=task.task_id)
    limit = draft.config.max_tasks_per_gpu
    lost = [row.number for row in rows if not draft.gpus[row.uuid].healthy]
    if lost:
        form = "{task} is suspended and waits for {gpus}, which the node has lost"
        return reason_of(form, task=task.task_id, gpus=numbered(lost))
    roomless = [
        row
        for row in rows
        if row.tasks >= limit
        or row.reserved
        or (not row.used and row.need_bytes > row.remaining_bytes)
    ]
    short = roomless or [row for row in rows if not placement.has_share(draft, task, row)]
    if not short:
        return reason_of("{task} is resumed at once", task=task.task_id)
    names = numbered(row.number for row in short)
    needs = (
        reason_of(
            "{task} is suspended and needs {need} again on {gpus}, {free} free",
            task=task.task_id,
            gpus=names,
            need=gib(max(row.need_bytes for row in short)),
            free=gib(max(0, min(row.remaining_bytes for row in short))),
        )
        if roomless
        else reason_of(
            "{task} is suspended and needs {percent} % of the compute of {gpus} again",
            task=task.task_id,
            gpus=names,
            percent=task.granted_percent or WHOLE_PERCENT,
        )
    )
    return joined_reasons([needs, *_holders(draft, {row.uuid for row in short}, reserved)])


def behind(request: Request, before: Request) -> Reason:
    first = before.job_id or before.request_id
    return _needs(request, "; {first} of its own environment comes first", first=first)


def nowhere(request: Request, why: str) -> Reason:
    """Of a job with a launch host that is down."""
    return _needs(request, "; {why}", why=why) if request.run.gpus else reason_of("{why}", why=why)


def head_of(job: Job) -> str:
    """The name of the head that assigned it."""
    return job.assigned.partition("/")[0]


def of_head(job: Job) -> str:
    """The refusal of an order that its head alone gives."""
    return stated(
        f"{job.job_id} is a job of the cluster of {head_of(job)}, which orders it",
        f"give the order there; `nodemgr queue withdraw {job.job_id}` ends it here",
        "refused",
    )


def above_quota(request: Request, quota_gpus: int, limit_bytes: int) -> Reason:
    """Of a request that waited before its env's quota fell below its need."""
    if request.run.gpus > quota_gpus:
        form = ", but the quota of {env} is {quota} now: waits until an admin raises it"
        return _needs(request, form, env=request.env, quota=quota_gpus)
    return reason_of(
        "needs {need} per GPU, but {env} may have at most {most} now: waits until an admin raises "
        "its quota",
        need=gib(request.run.memory_bytes or 0), env=request.env, most=gib(limit_bytes),
    )  # fmt: skip


def above_node(draft: Draft, request: Request) -> Reason:
    """Of a request that needs more GPUs than are in service."""
    quota, named_bytes = draft.envs[request.env].quota, request.run.memory_bytes or 0
    out: dict[Reason, list[int]] = {}
    for gpu in sorted(draft.gpus.values(), key=lambda gpu: gpu.index):
        if named_bytes > accounting.full_grant(quota, gpu):
            out.setdefault(reason_of(TOO_SMALL, gpus=""), []).append(gpu.index)
        elif not gpu.usable:
            out.setdefault(_out_of_service(draft, gpu), []).append(gpu.index)
    return _needs(
        request,
        ", but the node has {fitting} in service for it ({others}): keeps no GPU, and takes its "
        "place again when enough are back",
        fitting=len(draft.gpus) - sum(map(len, out.values())),
        others=joined_reasons(_of_gpus(out)),
    )


def _out_of_service(draft: Draft, gpu: Gpu) -> Reason:
    form = "{gpus} drained{note}" if gpu.healthy else "{gpus} lost{note}"
    return reason_of(form, gpus="", note=lent_note(draft, gpu))


def _of_gpus(rows: Mapping[Reason, Sequence[int]]) -> list[Reason]:
    """Each reason with the names of its GPUs."""
    return [
        reason_of(form, **{**fields, "gpus": numbered(indices)})
        for reason, indices in rows.items()
        for form, fields in reason.clauses
    ]


def lent_note(draft: Draft, gpu: Gpu) -> str:
    """Behind the word drained or lost, where Slurm has closed it, not a person."""
    record = draft.gpu_records.get(gpu.uuid)
    is_lent = gpu.drained and record is not None and record.drained_by == BY_LENDER
    return f": {record.why}" if is_lent and record is not None else ""


def at_once(request: Request) -> Reason:
    return _needs(request, "; has its turn at once")


def away(request: Request) -> Reason:
    return _needs(request, "; its process is disconnected")


def refusal(code: DenyCode, env: str, quota_gpus: int, asked: int, node_gpus: int) -> str:
    """Why a request can never be served as it stands: the limit, its owner, the remedy."""
    match code:
        case DenyCode.OVER_QUOTA:
            return stated(
                f"{gpus(asked)} asked, but the quota of {env} is {quota_gpus}",
                f"ask for at most {quota_gpus}",
                "quota",
            )
        case DenyCode.MORE_THAN_NODE:
            return stated(
                f"{gpus(asked)} asked, but this node has {node_gpus}",
                f"ask for at most {node_gpus}",
                "quota",
            )
        case _:
            if node_gpus == 0:
                return stated(
                    "this node has no GPU",
                    "ask an admin, or run it without one (--gpus 0)",
                    "quota",
                )
            return (
                stated(
                    f"the quota of {env} is 0 GPUs",
                    f"an admin raises it (nodemgr quota set {env} --gpus N)",
                    "quota",
                )
                if quota_gpus == 0
                else stated("no GPU was asked for", "ask for at least one (--gpus 1)", "quota")
            )


def memory_above_limit(env: str, memory_bytes: int, limit_bytes: int) -> str:
    return stated(
        f"{gib(memory_bytes)} per GPU asked, but {env} may have at most {gib(limit_bytes)}",
        "ask for less with --memory",
        "quota",
    )


def would_not_wait(standing: Standing) -> str:
    return stated(
        f"not available at once: {standing.line}", "wait for it (nodemgr run --wait 10min)"
    )


def waited_in_vain(waited_ns: int, standing: Standing | None) -> str:
    why = "" if standing is None else standing.line
    return stated(
        f"timed out after {round(waited_ns / 1000000000.0)} s: {why}",
        "wait longer (nodemgr run --wait), or ask for less",
    )


def not_resumed(draft: Draft, task: Task) -> str:
    """Why a stalled task cannot go on with its lease."""
    lost = [gpu.index for uuid in task.gpus if not (gpu := draft.gpus[uuid]).healthy]
    if lost:
        return stated(f"{numbered(lost)} was lost while the task was stopped", "run it again")
    went = numbered(draft.gpus[uuid].index for uuid in task.gpus)
    return stated(f"{went} went to others while the task was stopped", "run it again")


def taken_back(by: str) -> str:
    return stated(f"{by} took this task's GPUs back (nodemgr release)", "run it again to ask anew")


def taken_out(by: str) -> str:
    return stated(
        f"{by} took this request out of the queue (nodemgr release)", "run it again to ask anew"
    )


def no_quota(env: str) -> str:
    return stated(
        f"environment {env} has no quota on this node",
        f"ask an admin (nodemgr quota set {env} --gpus N)",
        "quota",
    )


def queue_full(name: str, waiting: int, cap: int) -> str:
    if cap == 0:
        return stated(
            f"queue {name} takes nothing at present, its cap is 0", "name another queue", "refused"
        )
    return stated(
        f"queue {name} is full: {waiting} waiting, its cap is {cap}",
        "try again later, or name another queue",
        "refused",
    )


def no_queue(name: str, known: Iterable[str], meant: str = "") -> str:
    """`meant`: the end of the line, a guess at the name that was meant."""
    return stated(f"there is no queue {name}", f"there are {', '.join(known)}{meant}", "not_found")


def queue_above(env: str, row: QueueRow, limit: QueueRow | None) -> str:
    """The refusal of a queue that the env's users may not ask for."""
    if limit is None:
        return stated(
            f"queue {row.name} is above what {env} may ask for",
            f"ask an admin (nodemgr quota set {env} --max-priority {row.name})",
            "quota",
        )
    return stated(
        f"queue {row.name} has rank {row.rank}, and the highest that {env} may ask for is "
        f"{limit.name} with rank {limit.rank}",
        f"name that or a lower one, or ask an admin (nodemgr quota set {env} --max-priority "
        f"{row.name})",
        "quota",
    )


def queue_of_others(row: QueueRow) -> str:
    """The refusal of a queue that names its users, for another user."""
    named = ", ".join([*row.users, *(f"@{group}" for group in row.groups)])
    return stated(
        f"queue {row.name} is for {named} alone",
        "name another queue, or ask an admin (nodemgr queue create --user)",
        "quota",
    )


def no_job(name: str, env: str | None = None) -> str:
    if env is None:
        return stated(f"no job {name} waits or runs", "`nodemgr queue` shows them", "refused")
    return stated(
        f"{env} has no job {name}",
        "name a job that waits, runs or has ended well (nodemgr queue, nodemgr history)",
        "not_found",
    )


def too_many_jobs(whose: str, there: int, limit: int) -> str:
    return stated(
        f"{whose} has {there} jobs that wait or run, and {limit} are the most",
        "wait for some to end",
        "refused",
    )


def too_large_jobs(env: str, there_bytes: int, added_bytes: int, limit_bytes: int) -> str:
    return stated(
        f"the jobs of {env} that wait or run take {mib(there_bytes)} in the manager's store, this "
        f"adds {mib(added_bytes)}, and {mib(limit_bytes)} are the most (max_env_job_bytes)",
        "wait for some to end, withdraw some, or submit with fewer variables (env -i)",
        "refused",
    )


def cpu_jobs(whose: str, running: int, setting: str) -> Reason:
    return reason_of(
        "jobs of {whose} without a GPU: {running} run, as many as may ({setting}); waits for one "
        "of them to end",
        whose=whose, running=running, setting=setting,
    )  # fmt: skip


def _size(size_bytes: int) -> str:
    """In the largest unit of which there is one: `8 GiB`, `1.5 GiB`, `12 MiB`."""
    power = 4 if size_bytes >= 1 << 40 else 3 if size_bytes >= GIB else 2
    return f"{round(size_bytes / (1 << 10 * power), 1):g} {'KMGT'[power - 1]}iB"


def _host(bound: Bound, amount: int | None) -> str:
    """`4 CPUs`, `8 GiB of host memory`."""
    if bound.is_memory:
        return f"{_size(amount or 0)} of host memory"
    return "1 CPU" if amount == 1 else f"{amount or 0} CPUs"


def host_above(run: RunSpec, bound: Bound) -> str:
    """The refusal of a job that fits in the bound beside no other job either."""
    asked = _host(bound, run.host_memory_bytes if bound.is_memory else run.cpus)
    option = "--host-memory" if bound.is_memory else "--cpus"
    limit = _host(bound, bound.most)
    if bound.env:
        return stated(
            f"{asked} asked, but all jobs of {bound.env} together may have {limit}",
            f"ask for less with {option}, or an admin for more (nodemgr quota set {bound.env} "
            f"{option})",
            "quota",
        )
    return stated(
        f"{asked} asked, but this node has {limit}", f"ask for less with {option}", "quota"
    )


def short_of_host(request: Request, bound: Bound) -> Reason:
    more = (
        ", and suspended tasks have {suspended} of GPU memory there; waits for a job to end or a "
        "task to resume"
        if bound.suspended_bytes
        else "; waits for one of them to end"
    )
    return reason_of(
        "needs {need}; jobs of {whose} reserve {used} of {most}" + more,
        need=_host(bound, request.run.host_memory_bytes if bound.is_memory else request.run.cpus),
        whose=bound.env or "this node",
        used=_host(bound, bound.used - bound.suspended_bytes),
        most=_host(bound, bound.most),
        suspended=_size(bound.suspended_bytes),
    )


def held_by(by: str) -> str:
    return f"held by {by}"


def in_vain(awaited: str, how: JobState) -> str:
    """The reason of a job that waited for another one."""
    if how is JobState.WITHDRAWN:
        return stated(
            f"{awaited}, which it waits for, was withdrawn",
            "submit it again, without that one or with a new one",
            "not_found",
        )
    return stated(
        f"{awaited}, which it waits for, failed", "mend that one and submit both again", "not_found"
    )


def job_is_being_ended(job: Job) -> str:
    remedy = f"wait for its end (nodemgr wait {job.job_id})"
    return stated(f"{job.job_id} is being ended already", remedy, "refused")


def job_is_under_way(job: Job) -> str:
    doing = "being ended" if job.state is JobState.STOPPING else job.state.value
    return stated(f"{job.job_id} is {doing}", "withdraw it, or requeue it", "refused")


def interrupted(draft: Draft, attempt: Attempt) -> str:
    """Why an attempt ended that is not its job's fault."""
    if attempt.cause is not Cause.GPU_LOST or attempt.lost_gpu is None:
        return attempt.why
    gpu = draft.gpus.get(attempt.lost_gpu)
    if gpu is None:
        return f"its GPU was lost or failed while it ran ({attempt.why})"
    return f"GPU {gpu.index} was lost or failed while it ran ({attempt.why})"


def lacked_memory(said: str) -> str:
    """Of a job that had the memory of earlier runs."""
    return f"it needed more GPU memory than its earlier runs ({said}): that figure is left out now"


def awaits_gpu_report(job: Job) -> bool:
    """Whether the driver may still report that the GPU of its failed attempt was at fault."""
    if job.state is not JobState.PAUSED or not job.attempts:
        return False
    last = job.attempts[-1]
    return last.number == job.attempt and last.cause is Cause.OWN


def paused(job: Job) -> Reason:
    """Of a job that is to be queued again, or to be judged."""
    again = ", interruption {count} in a row" if job.interruptions > 1 else ""
    form = (
        "{why}: counts as the job's own failure at {until_second}, unless the driver reports a GPU "
        "fault"
        if awaits_gpu_report(job)
        else "paused until {until_second}, then back at its place: {why}" + again
        + " (nodemgr queue unhold {entry} ends the pause)"
    )  # fmt: skip
    return reason_of(
        form, why=job.why, until_second=(job.resumes_wall_ns or 0) // S, entry=job.job_id,
        count=job.interruptions,
    )  # fmt: skip


def killed_as_stalled(since_wall_ns: int) -> str:
    """Why a job was ended: stored as text."""
    since = utc(since_wall_ns // S, to_seconds=True)
    return f"all its processes were silent since {since}, and `stalled` is `kill`"


def stalled(since_wall_ns: int) -> Reason:
    """Why a job that runs does nothing."""
    return reason_of(
        "stalled since {since_second}: its processes are stopped or frozen; it keeps its GPUs",
        since_second=since_wall_ns // S,
    )


def gpu_health(gpu: Gpu) -> str:
    if gpu.healthy:
        return notice(f"GPU {gpu.index} ({gpu.name}) is back")
    return stated(
        f"GPU {gpu.index} ({gpu.name}) is lost: what runs on it will fail",
        "end the task and run it again",
    )


def gpu_warning(gpu: Gpu, record: GpuRecord | None) -> str:
    """Why the GPU is drained, lost or to be drained, and the remedy; empty: it serves well."""
    if gpu.drained and record is not None:
        if record.drained_by == BY_MANAGER:
            return stated(
                f"GPU {gpu.index} is drained ({record.why})",
                f"nodemgr gpu repaired {gpu.index} brings it back after a repair",
            )
        if record.drained_by == BY_LENDER:
            return stated(
                f"GPU {gpu.index} is closed: {record.why}",
                "it opens when the head of the cluster holds this node again",
            )
        note = record.why and f": {record.why}"
        return stated(
            f"GPU {gpu.index} is drained (by order of {record.drained_by}{note})",
            f"nodemgr gpu resume {gpu.index} ends that, nodemgr gpu repaired {gpu.index} after a "
            "repair",
        )
    if not gpu.healthy:
        return stated(
            f"GPU {gpu.index} is lost, the driver does not show it or shows it as ill",
            "nvidia-smi and dmesg have more",
        )
    if record is not None and record.flapped:
        return stated(
            f"GPU {gpu.index} fails again and again and stays in use as the last one",
            f"nodemgr gpu drain {gpu.index} takes it out, nodemgr gpu repaired {gpu.index} follows "
            "a repair",
        )
    return ""


def violation(gpu: Gpu, row: Violation) -> str:
    """The audit's finding about a process."""
    owner = (
        "of no known environment"
        if row.env is None
        else f"of {row.env}"
        if row.task_id is None
        else f"of {row.env}/{row.task_id}"
    )
    if row.offence is Offence.OVER_SHARE:
        return (
            f"process {row.pid} {owner} uses {row.used_percent} % of GPU {gpu.index}'s compute "
            f"while its gate is closed; its share is {row.allowed_percent} %"
        )  # fmt: skip
    if row.offence is Offence.GARBLED_GATE:
        return (
            f"process {row.pid} {owner}, or another one of its env, has written impossible words "
            f"into the launch gate of GPU {gpu.index}"
        )
    size = gib(row.memory_bytes)
    if row.offence is Offence.NO_LEASE:
        return f"process {row.pid} {owner} uses {size} of GPU {gpu.index} without a lease"
    return (
        f"process {row.pid} {owner} uses {size} of GPU {gpu.index} beyond its charges; {row.env} "
        f"may use {gib(row.allowed_bytes)} there"
    )  # fmt: skip


def audit_note(draft: Draft, row: Violation) -> str:
    """The same for the process itself."""
    if row.offence in OF_COMPUTE:
        return stated(
            f"by the launch gate, {violation(draft.gpus[row.uuid], row)}",
            "run the program with the nodemgr library as it is, or ask an admin for a larger share "
            "(nodemgr quota set --compute)",
        )
    return stated(
        f"by the driver's figures, {violation(draft.gpus[row.uuid], row)}",
        "free it, or ask an admin for more (nodemgr quota set)",
    )


def _holders(
    draft: Draft, barred: Container[Uuid], spared: Mapping[Uuid, Request]
) -> list[Reason]:
    """The holders of the GPUs that the request cannot have, each once, with its GPUs."""
    held: dict[Reason, list[int]] = {}
    for gpu in sorted(draft.gpus.values(), key=lambda gpu: gpu.index):
        if gpu.uuid in barred:
            held.setdefault(_holder(draft, gpu, spared.get(gpu.uuid)), []).append(gpu.index)
    found, more = _of_gpus(held), len(held) - SHOWN_HOLDERS
    return found if more <= 0 else [*found[:SHOWN_HOLDERS], reason_of("and {more} more", more=more)]


def _next_known_end(draft: Draft, task_ids: Iterable[str]) -> list[Reason]:
    """The first known end of these tasks, by their time limits; empty: none is known."""
    ends = [
        (task.since_wall_ns + limit_ms * MS, task)
        for task in map(draft.tasks.__getitem__, task_ids)
        if (limit_ms := task.extended_limit_ms) is not None and task.state is TaskState.RUNNING
    ]
    if not ends:
        return []
    # Of equal ends always the same one: another at each pass would change the line for nothing.
    end_wall_ns, task = min(ends, key=lambda end: (end[0], end[1].task_id))
    job = None if task.job_id is None else draft.jobs.get(task.job_id)
    name = task.task_id if job is None else job.name or job.job_id
    form = "next known end {end_minute}: {env}/{task}, time limit"
    return [reason_of(form, end_minute=end_wall_ns // S, env=task.env, task=name)]


def _holder(draft: Draft, gpu: Gpu, before: Request | None) -> Reason:
    """`before`: the request for which this GPU is reserved. The names of the GPUs are left out."""
    if before is not None:
        first = before.job_id or before.request_id
        return reason_of("{gpus} kept for {env}/{first}", gpus="", env=before.env, first=first)
    if not gpu.usable:
        return _out_of_service(draft, gpu)
    there = [draft.tasks[task_id] for task_id in draft.gpu_tasks.members(gpu.uuid)]
    task = next((task for task in there if task.suspension is not Suspension.SUSPENDED), None)
    if task is not None:
        fields: dict[str, object] = {
            "env": task.env, "task": task.job_id or task.task_id, "gpus": "",
            "since_minute": task.since_wall_ns // S,
        }  # fmt: skip
        if task.state is TaskState.STALLED:
            parted = [draft.parted.get(key) or 0 for key in task.processes]
            if parted and all(parted):
                return reason_of(PARTED, **fields, parted_minute=max(parted) // S)
            return reason_of(SILENT, **fields)
        return reason_of(SILENT if task.task_id in draft.silent_jobs else HOLDS, **fields)
    if draft.charged.get(gpu.uuid):
        return reason_of("{gpus} not yet free of a former task's memory", gpus="")
    if draft.unbooked.get(gpu.uuid):
        return reason_of("{gpus} in use by programs without a lease", gpus="")
    return reason_of(TOO_SMALL, gpus="")


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
