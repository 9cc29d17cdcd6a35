"""The one line about a waiting request, for people: its place, its need, the holders.

Knows: English. Must not know: how a shortage was found (lifecycle/matching.py), nor any clock:
times are those of the rows, in UTC, so that the line changes only when the world does.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from nodemgr.core.model.entities import (
    MS,
    Attempt,
    Cause,
    DenyCode,
    Gpu,
    Job,
    JobState,
    Offence,
    QueueRow,
    Request,
    Task,
    TaskState,
    Uuid,
    Violation,
)
from nodemgr.core.scheduler.allocator import Ask, Candidate, Shortage, qualifies
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import first

SHOWN_HOLDERS = 3
DAY_S = 86_400
GIB = 1 << 30


def line(queue: str, position: int, ahead: int, why: str) -> str:
    """`ahead`: how many in other queues go before it."""
    before = f" (after {ahead} in other queues)" if ahead else ""
    return f"place {position} in queue {queue}{before}: {why}"


def of_shortage(
    draft: Draft, request: Request, shortage: Shortage, ask: Ask, rows: Sequence[Candidate],
    reserved: Mapping[Uuid, Request], fewer: int | None,
) -> str:  # fmt: skip
    """Why the GPUs that there are do not do.

    `fewer`: a number of GPUs that would; None where none is known.
    """
    instead = [] if fewer is None else [f"`--gpus {fewer}` would start now"]
    match shortage:
        case Shortage.QUOTA_MEMORY:
            left_bytes = max(0, ask.quota_remaining_bytes or 0)
            need_bytes = min((row.need_bytes for row in rows if not row.used), default=0)
            short = (
                f"needs {gib(need_bytes)} of {request.env}'s memory quota per GPU,"
                f" {gib(left_bytes)} left: waits for its own tasks"
            )
            return "; ".join(
                [short, *instead, *_next_known_end(draft, draft.env_tasks.members(request.env))]
            )
        case Shortage.LEDGER:
            asked = "its share" if request.memory_bytes is None else gib(request.memory_bytes)
            short = (
                f"needs {asked} free on a GPU that {request.env} holds: waits for its own tasks to"
                " free memory"
            )
            return "; ".join([short, *instead])
        case Shortage.OWN_GPUS:
            left = max(0, ask.quota_gpus - sum(row.used for row in rows))
            short = (
                f"needs {gpus(request.gpus)} of the {ask.quota_gpus} in {request.env}'s quota,"
                f" {left} left: waits for its own tasks"
            )
            return "; ".join(
                [short, *instead, *_next_known_end(draft, draft.env_tasks.members(request.env))]
            )
        case Shortage.NODE:
            fitting = [row for row in rows if qualifies(row, ask)]
            free = sum(not row.reserved for row in fitting)
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
            # the most helpful part first: a terminal cuts the end off
            short = f"needs {gpus(request.gpus)}, {free} free"
            said = [
                short,
                *instead,
                *_next_known_end(draft, in_the_way),
                *_holders(draft, passed, spared),
            ]
            return "; ".join(said)


def behind(request: Request, before: Request) -> str:
    return (
        f"needs {gpus(request.gpus)}; {before.job_id or before.request_id} of its own environment"
        " comes first"
    )


def nowhere(request: Request, why: str) -> str:
    """The line of a job with a launch host that is down."""
    return f"needs {gpus(request.gpus)}; {why}" if request.gpus else why


def above_quota(request: Request, quota_gpus: int, limit_bytes: int) -> str:
    """The line of a request that waited before its env's quota fell below its need."""
    if request.gpus > quota_gpus:
        return (
            f"needs {gpus(request.gpus)}, but the quota of {request.env} is {quota_gpus} now: waits"
            " until an admin raises it"
        )
    asked = gib(request.memory_bytes or 0)
    return (
        f"needs {asked} per GPU, but {request.env} may have at most {gib(limit_bytes)} now: waits"
        " until an admin raises its quota"
    )


def at_once(request: Request) -> str:
    return f"needs {gpus(request.gpus)}; has its turn at once"


def away(request: Request) -> str:
    return f"needs {gpus(request.gpus)}; its process is disconnected"


def refusal(code: DenyCode, env: str, quota_gpus: int, asked: int, node_gpus: int) -> str:
    """Why a request can never be served as it stands: the limit, its owner, the remedy."""
    match code:
        case DenyCode.OVER_QUOTA:
            return (
                f"{gpus(asked)} asked, but the quota of {env} is {quota_gpus}: ask for at most"
                f" {quota_gpus}"
            )
        case DenyCode.MORE_THAN_NODE:
            return (
                f"{gpus(asked)} asked, but this node has {node_gpus}: ask for at most {node_gpus}"
            )
        case _:
            if node_gpus == 0:
                return "this node has no GPU"
            return (
                f"the quota of {env} is 0 GPUs: ask an admin for more"
                if quota_gpus == 0
                else "no GPU was asked for"
            )


def memory_above_limit(env: str, memory_bytes: int, limit_bytes: int) -> str:
    return (
        f"{gib(memory_bytes)} per GPU asked, but {env} may have at most {gib(limit_bytes)}: ask for"
        " less with --memory"
    )


def would_not_wait(waiting_line: str) -> str:
    return f"not to be had at once: {waiting_line}"


def waited_in_vain(waited_ns: int, waiting_line: str) -> str:
    return f"waited {waited_ns / 1e9:.0f} s in vain: {waiting_line}"


def not_resumed(draft: Draft, task: Task) -> str:
    """Why a stalled task cannot go on with its lease."""
    lost = [gpu.index for uuid in task.gpus if not (gpu := draft.gpus[uuid]).healthy]
    if lost:
        return f"{numbered(lost)} was lost while the task was stopped: run it again"
    names = numbered(draft.gpus[uuid].index for uuid in task.gpus)
    return f"{names} went to others while the task was stopped"


def taken_back(by: str) -> str:
    return f"{by} took this task's GPUs back (nodemgr release)"


def taken_out(by: str) -> str:
    return f"{by} took this request out of the queue (nodemgr release): run it again to ask anew"


def no_quota(env: str) -> str:
    return f"environment {env} has no quota on this node"


def queue_full(name: str, waiting: int, cap: int) -> str:
    if cap == 0:
        return f"queue {name} takes nothing at present, its cap is 0: name another queue"
    return (
        f"{waiting} wait in queue {name}, and its cap is {cap}: try again later, or name another"
        " queue"
    )


def no_queue(name: str, known: Iterable[str]) -> str:
    return f"there is no queue {name}: there are {', '.join(known)}"


def queue_above(env: str, row: QueueRow, limit: QueueRow | None) -> str:
    """The refusal of a queue that the env's users may not ask for."""
    admin = f"ask an admin (nodemgr quota set {env} --max-priority {row.name})"
    if limit is None:
        return f"queue {row.name} is above what {env} may ask for: {admin}"
    return (
        f"queue {row.name} has rank {row.rank}, and the highest that {env} may ask for is"
        f" {limit.name} with rank {limit.rank}: name that or a lower one, or {admin}"
    )


def queue_of_others(row: QueueRow) -> str:
    """The refusal of a queue that names its users, for another user."""
    named = ", ".join([*row.users, *(f"@{group}" for group in row.groups)])
    return (
        f"queue {row.name} is for {named} alone: name another queue, or ask an admin (nodemgr queue"
        " create --user)"
    )


def no_job(name: str, env: str | None = None) -> str:
    return f"no job {name} waits or runs" if env is None else f"{env} has no job {name}"


def too_many_jobs(whose: str, there: int, limit: int) -> str:
    return (
        f"{whose} has {there} jobs that wait or run, and {limit} are the most: wait for some to end"
    )


def too_large_jobs(env: str, there_bytes: int, added_bytes: int, limit_bytes: int) -> str:
    return (
        f"the jobs of {env} that wait or run take {mib(there_bytes)} in the manager's store, this"
        f" adds {mib(added_bytes)}, and {mib(limit_bytes)} are the most (max_env_job_bytes): wait"
        " for some to end, withdraw some, or submit with fewer variables (env -i)"
    )


def cpu_jobs(whose: str, running: int, setting: str) -> str:
    return (
        f"{running} jobs of {whose} without a GPU run, as many as may ({setting}): waits for one of"
        " them to end"
    )


def held_by(by: str) -> str:
    return f"held by {by}"


def in_vain(awaited: str, how: JobState) -> str:
    """The reason of a job that waited for another one."""
    return (
        f"{awaited}, which it waits for,"
        f" {'was withdrawn' if how is JobState.WITHDRAWN else 'failed'}"
    )


def job_is_under_way(job: Job) -> str:
    doing = "being ended" if job.state is JobState.STOPPING else job.state.value
    return f"{job.job_id} is {doing}: withdraw it, or requeue it"


def interrupted(draft: Draft, attempt: Attempt) -> str:
    """Why an attempt ended that is not its job's fault."""
    if attempt.cause is not Cause.GPU_LOST or attempt.lost_gpu is None:
        return attempt.why
    gpu = draft.gpus.get(attempt.lost_gpu)
    return (
        f"{'its GPU' if gpu is None else f'GPU {gpu.index}'} was lost while it ran ({attempt.why})"
    )


def paused(job: Job) -> str:
    """The line of a job that is to be queued again."""
    times = f", interruption {job.interruptions} in a row" if job.interruptions > 1 else ""
    until = clock_s(job.resumes_wall_ns or 0)
    return (
        f"paused until {until}, then back at its place: {job.why}{times} (nodemgr queue unhold"
        f" {job.job_id} ends the pause)"
    )


def gpu_health(gpu: Gpu) -> str:
    if gpu.healthy:
        return f"GPU {gpu.index} ({gpu.name}) is back"
    return (
        f"GPU {gpu.index} ({gpu.name}) is lost: what runs on it will fail; end the task and run it"
        " again"
    )


def violation(gpu: Gpu, row: Violation) -> str:
    """The audit's finding about a process."""
    whose = (
        "of no known environment"
        if row.env is None
        else f"of {row.env}"
        if row.task_id is None
        else f"of {row.env}/{row.task_id}"
    )
    uses = f"process {row.pid} {whose} uses {gib(row.memory_bytes)} of GPU {gpu.index}"
    if row.offence is Offence.NO_LEASE:
        return f"{uses} without a lease"
    return f"{uses} beyond its charges; {row.env} may use {gib(row.allowed_bytes)} there"


def audit_note(draft: Draft, row: Violation) -> str:
    """The same for the process itself."""
    found = violation(draft.gpus[row.uuid], row)
    return (
        f"by the driver's figures, {found}: free it, or ask an admin for more (nodemgr quota set)"
    )


def _holders(draft: Draft, passed: Container[Uuid], spared: Mapping[Uuid, Request]) -> list[str]:
    """The holders of the GPUs that the request cannot have, each once, with its GPUs."""
    held: dict[tuple[str, str], list[int]] = {}
    for gpu in sorted(draft.gpus.values(), key=lambda gpu: gpu.index):
        if gpu.uuid not in passed:
            before = spared.get(gpu.uuid)
            text = (
                _holder(draft, gpu)
                if before is None
                else ("", f"kept for {before.env}/{before.job_id or before.request_id}")
            )
            held.setdefault(text, []).append(gpu.index)
    lines = [f"{start}{numbered(indices)} {end}".strip() for (start, end), indices in held.items()]
    more = len(lines) - SHOWN_HOLDERS
    return lines if more <= 0 else [*lines[:SHOWN_HOLDERS], f"and {more} more"]


def _next_known_end(draft: Draft, task_ids: Iterable[str]) -> list[str]:
    """The first known end of these tasks, by their time limits; empty: none is known."""
    ends = [
        (task.since_wall_ns + task.time_limit_ms * MS, task)
        for task in map(draft.tasks.__getitem__, task_ids)
        if task.time_limit_ms is not None and task.state is TaskState.RUNNING
    ]
    if not ends:
        return []
    end_wall_ns, task = min(ends, key=lambda end: end[0])
    job = None if task.job_id is None else draft.jobs.get(task.job_id)
    return [
        f"next known end {clock(end_wall_ns)}:"
        f" {task.env}/{task.task_id if job is None else job.name or job.job_id}, time limit"
    ]


def _holder(draft: Draft, gpu: Gpu) -> tuple[str, str]:
    """The words before the GPU's name, and after it."""
    if not gpu.healthy:
        return "", "lost"
    task_id = first(draft.gpu_tasks.members(gpu.uuid))
    if task_id is not None:
        task = draft.tasks[task_id]
        doing = "is stopped on" if task.state is TaskState.STALLED else "holds"
        return (
            f"{task.env}/{task.job_id or task.task_id} {doing} ",
            f"since {clock(task.since_wall_ns)}",
        )
    if draft.charged.get(gpu.uuid):
        return "", "not yet free of a former task's memory"
    if draft.unbooked.get(gpu.uuid):
        return "", "is in use by programs without a lease"
    return "", "is too small or has no memory to spare"


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
