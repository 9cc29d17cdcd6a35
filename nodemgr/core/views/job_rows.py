"""Waiting, running and ended jobs as rows of `nodemgr queue --json` and `nodemgr history --json`.

Knows: the keys that people and scripts read. Must not know: clocks, the store. Bytes and seconds
are integers, times are seconds since the epoch; GPUs are UUIDs, with their indices beside them. The
variables of a job's program are in no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from client_plugin.messages.form import Reason, reason_fields, reason_of
from nodemgr.core.model import array_rows, job_ids
from nodemgr.core.model.causes import Standing
from nodemgr.core.model.entities import (
    MS,
    UNDER_WAY,
    Attempt,
    HostFigures,
    Job,
    JobState,
    PredictedRun,
    Request,
    Resize,
    RunSpec,
    Suspension,
    Task,
    TaskState,
)
from nodemgr.core.model.schema import RECALL, Deadline, recall_key
from nodemgr.core.requests import notify
from nodemgr.core.scheduler import reasons
from nodemgr.core.scheduler.start_estimates import StartEstimate
from nodemgr.core.state.draft import Draft, line_of
from nodemgr.core.state.node_state import State

SECOND_NS = 1_000_000_000

JobRow = dict[str, Any]


def unplaced_for(reason: str | None) -> JobRow:
    """The standing of an entry that stands in no queue."""
    return {"position": None, "ahead": None, "cause": None, **reason_fields(reason)}


def waiting(state: State, request: Request, placed: Standing, now_ns: int) -> JobRow:
    """A row of the queue: an interactive request, or a job's."""
    job = None if request.job_id is None else state.jobs.get(request.job_id)
    present = (
        job is not None
        or request.resumes is not None
        or any(asker.process not in state.away for asker in request.askers)
    )
    return {
        "id": request.request_id if job is None else array_rows.waiting(job),
        "request": request.request_id,
        "job": None if job is None else job.job_id,
        **_elements(job),
        "name": None if job is None else job.name,
        "env": request.env,
        **_wish(request.run),
        "priority": request.priority,
        **placed.row,
        "state": job.state.value if job is not None else "waiting" if present else "away",
        "pids": [asker.pid for asker in request.askers if asker.pid is not None],
        "users": sorted({asker.user for asker in request.askers}) if job is None else [job.user],
        "since": request.since_wall_ns // SECOND_NS,
        "waited_seconds": max(0, now_ns - request.since_ns) // SECOND_NS,
        "after": [],
        "restarts": 0 if job is None else job.restarts,
        "interruptions": 0 if job is None else job.interruptions,
        "resumes": None,
        "receives": _receives(state, request.request_id, now_ns),
    }


def _receives(state: State, request_id: str, now_ns: int) -> list[JobRow]:
    """The recalled GPUs that the request gets once they are left, and when at the latest."""
    found = [
        (state.tasks[lease.task_id], recall.uuid)
        for lease in state.elastics.values()
        for recall in lease.recalls
        if recall.receiver == request_id
    ]
    return [
        {
            "gpu": uuid,
            "gpu_index": state.gpus[uuid].index,
            "task": task.task_id,
            "env": task.env,
            "within_seconds": _within_s(state, (RECALL, recall_key(task.task_id, uuid)), now_ns),
        }
        for task, uuid in found
    ]


def _within_s(state: State, deadline: Deadline, now_ns: int) -> int:
    left_ns = max(0, state.agenda.get(deadline, now_ns) - now_ns)
    return -(-left_ns // SECOND_NS)


def _wish(of: RunSpec) -> JobRow:
    """The resources that were asked for; None: no range of GPUs, or of memory."""
    gpus, most_bytes = of.gpu_range, of.memory_most_bytes
    return {
        "command": of.command,
        "gpus": of.gpus,
        "gpus_min": None if gpus is None else of.gpus,
        "gpus_max": None if gpus is None else max(of.gpus, gpus.most),
        "elastic": gpus is not None and gpus.is_elastic,
        "memory_named_bytes": of.memory_bytes,
        "memory_min_bytes": None if most_bytes is None else of.memory_bytes,
        "memory_max_bytes": most_bytes,
        "class": of.task_class.value,
        "compute_percent": of.compute_percent,
        "cpus": of.cpus,
        "host_memory_bytes": of.host_memory_bytes,
        "time_limit_seconds": _seconds_of_ms(of.time_limit_ms),
        "predicted": predicted(of.predicted),
        "place": of.place or None,
    }


def expectation(expected: StartEstimate | None, now_ns: int, wall_ns: int) -> JobRow:
    """The start estimate of a waiting request. All None if nothing is known."""
    if expected is None:
        return dict.fromkeys(
            (
                "expected_start",
                "expected_start_low",
                "expected_start_high",
                "expected_spread_seconds",
                "expected_by",
            )
        )
    low, likely, high = (
        (wall_ns + time_ns - now_ns) // SECOND_NS
        for time_ns in (expected.low_ns, expected.likely_ns, expected.high_ns)
    )
    return {
        "expected_start": likely,
        "expected_start_low": low,
        "expected_start_high": high,
        "expected_spread_seconds": max(likely - low, high - likely),
        "expected_by": "history" if expected.by_history else "time limits",
    }


def job_state(state: State, job: Job) -> str:
    """The state of a job as people see it: that of its task while it is suspended or stalled."""
    task = state.tasks.get(job.task_id or "")
    if job.state is not JobState.RUNNING or task is None:
        return job.state.value
    return task_state(state, task)


def task_state(state: State, task: Task) -> str:
    """The state of a task as people see it."""
    if task.suspension is not Suspension.NONE:
        return task.suspension.value
    return (TaskState.STALLED if task.task_id in state.silent_jobs else task.state).value


def unplaced(state: State, job: Job) -> JobRow:
    """The same of a job that stands in no queue: held, waiting for others, or under way."""
    since_ns = (
        job.started_wall_ns
        if job.state in UNDER_WAY and job.started_wall_ns
        else job.submitted_wall_ns
    )
    return {
        "id": array_rows.waiting(job),
        "request": None,
        "job": job.job_id,
        **_elements(job),
        "name": job.name,
        "env": job.env,
        **_wish(job.run),
        "priority": job.priority,
        **unplaced_for(_reason(state, job)),
        "state": job_state(state, job),
        "pids": [],
        "users": [job.user],
        "since": since_ns // SECOND_NS,
        "waited_seconds": None,
        "after": list(job.after),
        "restarts": job.restarts,
        "interruptions": job.interruptions,
        "resumes": _seconds(job.resumes_wall_ns),
        "receives": [],
    }


def _elements(job: Job | None) -> JobRow:
    """Of an array's row: how many jobs wait in it, and their indices."""
    if job is None or not job.indices:
        return {"jobs": 1, "indices": None}
    return {"jobs": job.size, "indices": array_rows.shown(job.indices)}


def _fraction_of_ms(time_ms: int | None) -> float | None:
    """A predicted run may take less than a second."""
    return None if time_ms is None else time_ms / 1_000


def predicted(rows: Iterable[PredictedRun]) -> list[JobRow]:
    """The forecast of a run on each GPU model of the node; empty: none was asked for."""
    return [
        {
            "gpu_model": row.gpu_model,
            "memory_bytes": row.memory_bytes,
            "utilization_percent": row.percent,
            "step_seconds": None if row.step_ns is None else row.step_ns / SECOND_NS,
            "run_seconds": _fraction_of_ms(row.run_ms),
            "expected_seconds": _fraction_of_ms(row.expected_ms),
        }
        for row in rows
    ]


def held(job_id: str, why: str) -> Reason:
    return reason_of("{why} (nodemgr queue unhold {entry})", why=why, entry=job_id)


SHOWN_DEPENDENCIES = 5


def _reason(state: State, job: Job) -> str:
    """Why it stands where it stands; of a job that runs, nothing, unless it is stalled."""
    match job.state:
        case JobState.RUNNING if (silence := state.silent_jobs.get(job.task_id or "")) is not None:
            return reasons.stalled(silence[1])
        case JobState.DEPENDENCY:
            named = ", ".join(job.after[:SHOWN_DEPENDENCIES])
            more = len(job.after) - SHOWN_DEPENDENCIES
            if more > 0:
                return f"waits for {named} and {more} more to end well"
            return f"waits for {named} to end well"
        case JobState.PAUSED:
            return reasons.paused(job)
        case JobState.HELD:
            return held(job.job_id, job.why or "held")
        case JobState.STOPPING:
            return job.why
        case _:
            return ""


class Cursor(NamedTuple):
    """The place in the whole list at which a page ended."""

    stage: str
    """One of STAGES."""
    queue: str = ""
    """The line of a waiting entry in its queue, and its place there:"""
    queued_ns: int = 0
    number: tuple[int, int] = (-1, -1)
    """The number of a job that is in no queue."""


STAGES = ("queued", "apart", "under way")
"""The order of a list: jobs in the queues, jobs that wait outside them, jobs under way."""
BEGINNING = Cursor("queued")


def page(
    state: Draft,
    now_ns: int,
    *,
    env: str | None,
    after: Cursor = BEGINNING,
    limit: int,
    enough: Callable[[], bool],
) -> tuple[list[JobRow], Cursor | None]:
    """At most `limit` rows behind a place of the list, and their end; None: there are no more.

    Fewer when they are `enough`, but at least one where an end was given. An entry that waits while
    the pages are asked for, one after the other, and is not moved meanwhile, is on exactly one of
    them: a cursor is a place in the order of service, not a count.
    """
    rows: list[JobRow] = []
    end: Cursor | None = None
    for cursor, row in _behind(state, now_ns, env, after):
        if end is not None:
            return rows, end
        rows.append(row)
        if len(rows) == limit or enough():
            end = cursor
    return rows, None


def _behind(
    state: Draft, now_ns: int, env: str | None, after: Cursor
) -> Iterator[tuple[Cursor, JobRow]]:
    """All behind it, each with its place."""
    if after.stage == "queued":
        behind = (after.queue, after.queued_ns) if after.queue else None
        for request, placed in notify.listing(state, now_ns, env, behind):
            cursor = Cursor("queued", line_of(request), request.queued_ns)
            yield cursor, waiting(state, request, placed, now_ns)
    for stage, index in (("apart", state.held_or_dependent), ("under way", state.under_way)):
        if STAGES.index(stage) >= STAGES.index(after.stage):
            number = after.number if stage == after.stage else BEGINNING.number
            for job_id in index.behind(env, number):
                row = unplaced(state, state.jobs[job_id])
                yield Cursor(stage, number=job_ids.listed(job_id)), row


def queue(state: Draft, now_ns: int, *, env: str | None, limit: int) -> list[JobRow]:
    """The beginning of all that waits."""
    rows = [
        waiting(state, *row, now_ns) for row in islice(notify.listing(state, now_ns, env), limit)
    ]
    outside = islice(state.held_or_dependent.behind(env), limit - len(rows))
    return rows + [unplaced(state, state.jobs[job_id]) for job_id in outside]


def under_way(state: State, env: str | None, limit: int) -> list[JobRow]:
    """Jobs that have left their queue and not ended, the first of them."""
    jobs = islice(state.under_way.behind(env), limit)
    return [unplaced(state, state.jobs[job_id]) for job_id in jobs]


def place(state: State, standings: notify.Standings, job: Job) -> JobRow:
    """Its standing, and why it waits.

    An element within its array's row stands behind those before it, and waits for what they do.
    """
    request = state.requests.get(job.request_id or "")
    if request is None:
        return unplaced_for(_reason(state, job))
    placed = standings.of(request)
    return {**placed.row, "position": placed.position + job.queued_ns - request.queued_ns}


IsLeast = Callable[[int, int], bool]
"""Whether more time passed between two times of the node's clock than it measured."""


def duration(name: str, from_ns: int | None, to_ns: int | None, is_least: IsLeast) -> JobRow:
    """The seconds between, and whether they are the least that it can have been."""
    if from_ns is None or to_ns is None or to_ns < from_ns:
        return {f"{name}_seconds": None, f"{name}_at_least": False}
    at_least = is_least(from_ns, to_ns)
    return {f"{name}_seconds": (to_ns - from_ns) // MS / 1_000, f"{name}_at_least": at_least}


def told(
    job: Job, cwd: str | None, index_of: Mapping[str, int], is_least: IsLeast, *, tails: bool
) -> JobRow:
    """All known facts of a job.

    `cwd`: its directory, if the store still has it. `tails`: also the last lines that its attempts
    wrote.
    """
    last, early = last_attempt(job), job.run.signal
    started_ns, ended_ns = (None, None) if last is None else (last.started_ns, last.ended_ns)
    return {
        "job": job.job_id,
        **_elements(job),
        "env": job.env,
        "name": job.name,
        "user": job.user,
        "state": job.state.value,
        "exit_code": None if last is None else last.exit_code,
        "signal": None if last is None else last.signal,
        "why": job.why,
        **_wish(job.run),
        "priority": job.priority,
        "after": list(job.after),
        "restarts": job.restarts,
        "max_restarts": job.max_restarts,
        "interruptions": job.interruptions,
        "resumes": _seconds(job.resumes_wall_ns),
        "submitted": job.submitted_wall_ns // SECOND_NS,
        "entered": _seconds(job.entered_wall_ns),
        "started": _seconds(job.started_wall_ns),
        "ended": _seconds(job.ended_wall_ns),
        **duration("waited", job.entered_ns, started_ns, is_least),
        **duration("ran", started_ns, ended_ns, is_least),
        "cwd": cwd,
        "early_signal": None if early is None else f"{early.name}@{early.before_ms / 1_000:g}s",
        "peak_bytes": max([one.peak_bytes or 0 for one in job.attempts], default=0) or None,
        "attempts": [_attempt(attempt, index_of, is_least, tails) for attempt in job.attempts],
        "deeds": [
            {"time": entry.wall_ns // SECOND_NS, "who": entry.who, "what": entry.what}
            for entry in job.deeds
        ],
    }


def last_attempt(job: Job) -> Attempt | None:
    return job.attempts[-1] if job.attempts else None


def _attempt(
    attempt: Attempt, index_of: Mapping[str, int], is_least: IsLeast, tails: bool
) -> JobRow:
    row = {
        "number": attempt.number,
        "started": _seconds(attempt.started_wall_ns),
        "ended": _seconds(attempt.ended_wall_ns),
        **duration("ran", attempt.started_ns, attempt.ended_ns, is_least),
        "gpus": list(attempt.gpus),
        "gpu_indices": [index_of.get(uuid) for uuid in attempt.gpus],
        "chosen": attempt.chosen or None,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "why": attempt.why,
        "cause": None if attempt.ended_wall_ns is None else attempt.cause.value,
        "resizes": resizes(attempt.resizes, index_of),
        "peak_bytes": attempt.peak_bytes,
        **_host(attempt.host),
    }
    return {**row, "log_tail": attempt.log_tail} if tails else row


def _host(host: HostFigures | None) -> JobRow:
    """The use of the host; null where it is not known."""
    return {
        "cpu_seconds": None if host is None else host.cpu_ms / 1_000,
        "host_peak_bytes": None if host is None else host.memory_bytes,
        "read_bytes": None if host is None else host.read_bytes,
        "written_bytes": None if host is None else host.written_bytes,
    }


def resizes(rows: Iterable[Resize], index_of: Mapping[str, int]) -> list[JobRow]:
    """The resizes of an elastic task, the oldest first."""
    return [
        {
            "time": row.wall_ns // SECOND_NS,
            "gpu": row.uuid,
            "gpu_index": index_of.get(row.uuid),
            "from": row.before,
            "to": row.after,
            "why": row.why,
        }
        for row in rows
    ]


def exit_of(state: str, exit_code: int | None, signal: int | None) -> int:
    """The exit code of `nodemgr wait` for a final job, by the end of its last attempt."""
    if state == JobState.DONE:
        return 0
    if state == JobState.WITHDRAWN:
        return WITHDRAWN_EXIT
    return 128 + signal if signal else exit_code or 1


WITHDRAWN_EXIT = 77


def any_living(state: State, name: str) -> Job | None:
    """A job that has not ended: the one of that name, or some row of the array."""
    job_id = name if name in state.jobs else next(iter(state.elements.get(name, ())), None)
    if job_id is not None:
        return state.jobs[job_id]
    return array_rows.within(state.jobs.get(job_ids.array_of(name) or ""), name)


def _seconds(wall_ns: int | None) -> int | None:
    return None if wall_ns is None else wall_ns // SECOND_NS


def _seconds_of_ms(duration_ms: int | None) -> int | None:
    return None if duration_ms is None else duration_ms // 1_000
