"""Jobs as people and scripts read them: the rows of `status`, `queue` and `queue show`.

Knows: the keys. Must not know: clocks, and where jobs that ended are kept: one of the history makes the same row.
Times are seconds since the Unix epoch, None for what has not been.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nodemgr.core import jobs
from nodemgr.core.job_ids import order
from nodemgr.core.model import Attempt, Job, JobState
from nodemgr.core.state import State

SECOND_NS = 1_000_000_000

Row = dict[str, Any]


def seconds(wall_ns: int | None) -> int | None:
    return None if wall_ns is None else wall_ns // SECOND_NS


def brief(job: Job) -> Row:
    """What each row says of a job."""
    return {"job": job.job_id, "name": job.name, "user": job.user, "attempt": job.attempt, "restarts": job.restarts}


def apart(state: State, env: str | None) -> Iterator[Row]:
    """Who is in no queue, and waits all the same: for an order, or for other jobs. Rows like those of the queue, without a place."""
    waiting = [job for job in state.jobs.values() if job.state in (JobState.HELD, JobState.AFTER) and env in (None, job.env)]
    for job in sorted(waiting, key=lambda job: order(job.job_id)):
        yield {
            "id": job.job_id,
            "env": job.env,
            "gpus": job.gpus,
            "priority": job.priority,
            "position": None,
            "reason": why_apart(job),
            "state": job.state.value,
            "memory_named_bytes": job.memory_bytes,
            "pids": [],
            "users": [job.user],
            "command": job.command,
            "since": seconds(job.submitted_wall_ns),
            "waited_seconds": None,
            **brief(job),
        }


def why_apart(job: Job) -> str:
    """Why it is in no queue."""
    if job.state is JobState.HELD:
        return job.why
    shown = ", ".join(job.after[:3])
    more = len(job.after) - 3
    return f"waits until {shown}{f' and {more} more' if more > 0 else ''} ended well"


def under_way(state: State, env: str | None) -> list[Row]:
    """The jobs that have left their queue and not ended, in the order of their ids."""
    found = [job for job in state.jobs.values() if job.state in jobs.UNDER_WAY and env in (None, job.env)]
    return [full(state, job) for job in sorted(found, key=lambda job: order(job.job_id))]


def full(state: State, job: Job) -> Row:
    """All of a job but what it runs: one that lives, or one that ended."""
    attempt = job.attempts[-1] if job.attempts else None
    return {
        "id": job.job_id,
        "env": job.env,
        **brief(job),
        "state": job.state.value,
        "then": None if job.then is None else job.then.value,
        "command": job.command,
        "gpus_wanted": job.gpus,
        "gpus": [] if attempt is None else list(attempt.gpus),
        "gpu_indices": [] if attempt is None else _indices(state, attempt),
        "memory_named_bytes": job.memory_bytes,
        "priority": job.priority,
        "time_limit_seconds": None if job.time_limit_ms is None else job.time_limit_ms // 1_000,
        "after": list(job.after),
        "max_restarts": job.max_restarts,
        "request": job.request_id,
        "task": job.task_id,
        "reason": job.why,
        "submitted": seconds(job.submitted_wall_ns),
        "entered": seconds(job.entered_wall_ns),
        "started": seconds(job.started_wall_ns),
        "ended": seconds(job.ended_wall_ns),
        "exit_code": None if attempt is None else attempt.exit_code,
        "signal": None if attempt is None else attempt.signal,
        "attempts": [_attempt(state, each) for each in job.attempts],
        "deeds": [{"time": seconds(deed.wall_ns), "by": deed.who, "what": deed.what} for deed in job.deeds],
    }


def _indices(state: State, attempt: Attempt) -> list[int]:
    """A GPU that is not known any more has none."""
    return [state.gpus[uuid].index for uuid in attempt.gpus if uuid in state.gpus]


def _attempt(state: State, attempt: Attempt) -> Row:
    return {
        "number": attempt.number,
        "started": seconds(attempt.started_wall_ns),
        "ended": seconds(attempt.ended_wall_ns),
        "gpus": list(attempt.gpus),
        "gpu_indices": _indices(state, attempt),
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "reason": attempt.why,
        "log_tail": attempt.log_tail,
    }
