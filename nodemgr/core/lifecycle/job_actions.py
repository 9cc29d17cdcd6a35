"""Orders of users about jobs: withdraw, hold, unhold, move, requeue.

Knows: which order is valid in which state, and reports that before it is given (`objection`). Must
not know: the rights of users. An order to an array is an order to each of its elements for which it
is valid. Those that wait as one row (model/array_rows.py) are one job here, and named as `j12.*`;
one of them that is named alone gets a row of its own first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from client_plugin.messages.form import Part, stated
from nodemgr.core.lifecycle import jobs, queue_settings, submissions
from nodemgr.core.model import array_rows, job_ids
from nodemgr.core.model.entities import (
    FINAL,
    HELD_OR_DEPENDENT,
    DenyCode,
    Ended,
    Job,
    JobSpec,
    JobState,
)
from nodemgr.core.model.events import HoldJob, MoveJob, RequeueJob, UnholdJob, WithdrawJob
from nodemgr.core.model.transitions import JobEvent
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler import reasons
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

JobAction = WithdrawJob | HoldJob | UnholdJob | RequeueJob | MoveJob

WAITING = HELD_OR_DEPENDENT | {JobState.QUEUED}


def living(state: State | Draft, name: str) -> list[Job]:
    members = (
        state.elements.members(name) if isinstance(state, Draft) else state.elements.get(name, ())
    )
    return array_rows.living(name, [state.jobs[job_id] for job_id in members], state.jobs)


def objection(state: State | Draft, event: JobAction) -> str | None:
    """Why the order makes no sense as things are, in one line; then it does nothing."""
    found = living(state, event.job_id)
    if not found:
        if isinstance(event, RequeueJob) and event.job is not None and event.spec is not None:
            return _not_again(state, event.job, event.spec)
        return reasons.no_job(event.job_id)
    said = [_against(job, event) for job in found]
    if None not in said:
        return said[0]
    entering = sum(
        job.size
        for job, why in zip(found, said, strict=True)
        if why is None and _enters(job, event)
    )
    target = event.queue if isinstance(event, MoveJob) else None
    if target is not None and target not in (known := queue_settings.rows(state)):
        return reasons.no_queue(target, known)
    return queue_settings.full(state, target or found[0].priority, entering) if entering else None


def _enters(job: Job, event: JobAction) -> bool:
    """Will there be one more in the queue?"""
    if isinstance(event, MoveJob):
        return job.state is JobState.QUEUED and event.queue not in (None, job.priority)
    return isinstance(event, UnholdJob) and not job.after


def _not_again(state: State | Draft, job: Job, spec: JobSpec) -> str | None:
    """Why a job that has ended cannot be run again."""
    if job.state not in FINAL:
        return stated(
            f"{job.job_id} has not ended", "withdraw it first, or wait for its end", "refused"
        )
    if job.assigned:
        return reasons.of_head(job)
    env = state.envs.get(job.env)
    if env is None:
        return reasons.no_quota(job.env)
    there, limit = state.env_jobs.get(job.env) or 0, state.config.max_env_jobs
    if there + job.size > limit:
        return reasons.too_many_jobs(job.env, there, limit)
    if (
        full := submissions.too_large(state, job.env, job.row_bytes + spec.payload_bytes)
    ) is not None:
        return full
    if job.run.gpus > len(state.gpus):  # a quota can be raised, the node stays as it is
        return reasons.refusal(
            DenyCode.MORE_THAN_NODE, job.env, env.quota.gpus, job.run.gpus, len(state.gpus)
        )
    return None if job.after else queue_settings.full(state, job.priority, job.size)


# The reasons against each order.


def _being_ended(job: Job, _event: JobAction) -> str | None:
    is_over_soon = job.state is JobState.STOPPING and job.then in FINAL
    return reasons.job_is_being_ended(job) if is_over_soon else None


def _not_waiting(job: Job, _event: JobAction) -> str | None:
    if job.state is JobState.HELD:
        return stated(
            f"{job.job_id} is held already",
            f"`nodemgr queue unhold {job.job_id}` lets it start",
            "refused",
        )
    return None if job.state in WAITING else reasons.job_is_under_way(job)


def _not_held(job: Job, _event: JobAction) -> str | None:
    return (
        None
        if job.state in (JobState.HELD, JobState.PAUSED)
        else stated(
            f"{job.job_id} is not held", f"it is {job.state.value}, and needs no unhold", "refused"
        )
    )


def _waits(job: Job, _event: JobAction) -> str | None:
    if job.state in WAITING:
        return stated(
            f"{job.job_id} waits already ({job.state.value})",
            f"`nodemgr queue position {job.job_id}` says why",
            "refused",
        )
    return reasons.job_is_being_ended(job) if job.state is JobState.STOPPING else None


def _immovable(job: Job, event: MoveJob) -> str | None:
    if job.state not in WAITING:
        return reasons.job_is_under_way(job)
    if event.queue is None and not event.first:
        return stated(
            "the job's new place is missing", "name a queue, or the front of its own", "usage"
        )
    if event.first and job.state is JobState.DEPENDENCY:
        return stated(
            f"{job.job_id} is in no queue, since it waits for other jobs (--after)",
            "move it when they have ended well",
            "refused",
        )
    if event.first and job.state is not JobState.QUEUED:
        return stated(
            f"{job.job_id} is in no queue, since it is {job.state.value}",
            "unhold it first",
            "refused",
        )
    return None


def _against(job: Job, event: JobAction) -> str | None:
    is_taken = isinstance(event, RequeueJob) and event.node_taken
    if job.assigned and not (is_taken or isinstance(event, WithdrawJob)):
        return reasons.of_head(job)
    return _AGAINST[type(event)](job, event)


_AGAINST: dict[type, Callable[[Job, Any], str | None]] = {
    WithdrawJob: _being_ended,
    HoldJob: _not_waiting,
    UnholdJob: _not_held,
    RequeueJob: _waits,
    MoveJob: _immovable,
}


# The orders.


def _concerned(draft: Draft, event: JobAction) -> list[Job]:
    """The jobs that the order is for, each with a row."""
    if objection(draft, event) is not None:
        return []
    found = [job for job in living(draft, event.job_id) if _against(job, event) is None]
    return [job if job.job_id in draft.jobs else _split_off(draft, job) for job in found]


def _split_off(draft: Draft, element: Job) -> Job:
    if element.state is JobState.QUEUED:
        draft.wake_scheduler()
    return draft.split_off(draft.jobs[job_ids.array_of(element.job_id) or ""], element.job_id)


def withdraw(draft: Draft, event: WithdrawJob) -> None:
    for job in _concerned(draft, event):
        withdraw_one(draft, job, event.by)


def withdraw_one(draft: Draft, job: Job, by: str) -> None:
    job = jobs.noted(job, draft.wall_ns, by, "withdrawn")
    why = f"{by} withdrew it"
    if job.state in WAITING:
        jobs.finish(draft, job, JobEvent.WITHDRAW, JobState.WITHDRAWN, why)
    else:
        jobs.stop(draft, job, JobState.WITHDRAWN, why)


def hold(draft: Draft, event: HoldJob) -> None:
    for concerned in _concerned(draft, event):
        job = jobs.judged(draft, concerned, JobEvent.PAUSE_OVER)
        if job is None:
            continue
        held = jobs.noted(jobs.dequeue(draft, job), event.wall_ns, event.by, "held")
        why = reasons.held_by(event.by)
        draft.put_job(
            jobs.changed(
                draft,
                held,
                JobEvent.HOLD,
                JobState.HELD,
                why=why,
                resumes_wall_ns=None,
                resumes_ns=None,
            )
        )
        draft.publish("job.held", {**jobs.facts(job), "by": event.by})


def unhold(draft: Draft, event: UnholdJob) -> None:
    for job in _concerned(draft, event):
        if job.state is JobState.PAUSED:
            draft.put_job(jobs.noted(job, event.wall_ns, event.by, "unheld: its pause ends"))
            jobs.resume(draft, job.job_id, JobEvent.UNHOLD)
            continue
        unheld = replace(jobs.noted(job, event.wall_ns, event.by, "unheld"), why="")
        if unheld.after:
            draft.put_job(jobs.changed(draft, unheld, JobEvent.UNHOLD, JobState.DEPENDENCY))
            draft.publish("job.freed", {**jobs.facts(job), "by": event.by, "position": None})
        else:
            _into_queue(draft, unheld, JobEvent.UNHOLD, "job.freed", event.by)


def _into_queue(
    draft: Draft,
    job: Job,
    event: JobEvent,
    name: str,
    by: str,
    queued_ns: int | None = None,
    **more: object,
) -> None:
    queued = jobs.enqueue(draft, job, event, queued_ns)
    jobs.publish_queued(draft, queued, queued.why, name=name, by=by, **more)


def move(draft: Draft, event: MoveJob) -> None:
    moved = _concerned(draft, event)
    if not moved:
        return
    queue = moved[0].priority if event.queue is None else event.queue
    front_ns = draft.front_ns(queue) if event.first else 0
    front_ns -= sum(job.size for job in moved)
    for job in moved:
        row = Part("moved to the front of {queue}") if event.first else Part("moved to {queue}")
        after = jobs.noted(
            replace(jobs.dequeue(draft, job), priority=queue),
            event.wall_ns,
            event.by,
            row(queue=queue),
        )
        draft.put_job(after)
        if job.state is JobState.QUEUED:
            queued_ns = front_ns if event.first else None
            front_ns += job.size
            _into_queue(
                draft, after, JobEvent.MOVE, "job.moved", event.by, queued_ns, first=event.first
            )
        else:
            if job.state is JobState.PAUSED:
                draft.put_job(replace(after, queued_ns=draft.stamp()))
            draft.publish(
                "job.moved", {**jobs.facts(after), "by": event.by, "first": False, "position": None}
            )


def requeue(draft: Draft, event: RequeueJob) -> None:
    if not living(draft, event.job_id) and objection(draft, event) is None:
        _run_again(draft, event)
    for job in _concerned(draft, event):
        noted = jobs.noted(job, event.wall_ns, event.by, "requeued")
        then = JobState.PAUSED if event.by_admin else JobState.QUEUED
        jobs.stop(draft, noted, then, f"{event.by} requeued it")
        draft.publish("job.requeued", {**jobs.facts(job), "by": event.by, "position": None})


def _run_again(draft: Draft, event: RequeueJob) -> None:
    """A job that had ended, under its old name; the history's row of it goes."""
    job, spec = event.job, event.spec
    assert job is not None
    assert spec is not None
    if job.priority not in queue_settings.rows(draft):
        job = replace(job, priority=draft.envs[job.env].quota.priority)
    draft.specs.put(spec.spec_id, spec)
    if event.row is None:
        draft.history[job.job_id] = None
    else:
        rest = array_rows.split(event.row, job.job_id)[1]
        draft.history[event.row.job_id] = None if rest is None else Ended(rest, spec)
    job = replace(
        jobs.noted(job, event.wall_ns, event.by, "requeued"),
        why="",
        restarts=0,
        interruptions=0,
        after=tuple([name for name in job.after if submissions.lives(draft, job.env, name)]),
    )
    if job.after:
        draft.put_job(jobs.changed(draft, job, JobEvent.RUN_AGAIN, JobState.DEPENDENCY))
        draft.publish("job.requeued", {**jobs.facts(job), "by": event.by, "position": None})
        return
    _into_queue(draft, job, JobEvent.RUN_AGAIN, "job.requeued", event.by)


def environment_removed(draft: Draft, env: str, reason: str) -> None:
    """Withdraws the jobs of a removed env; the leases of running ones are taken already.

    The last one first: each has this reason, and none the end of another that it waited for.
    """
    theirs = [job.job_id for job in draft.jobs.values() if job.env == env]
    for job_id in sorted(theirs, key=job_ids.order, reverse=True):
        job = draft.jobs[job_id]
        if job.state in WAITING:
            event = JobEvent.ENV_REMOVED
            jobs.finish(draft, job, event, JobState.WITHDRAWN, reason)
        else:
            jobs.stop(draft, replace(job, task_id=None), JobState.WITHDRAWN, reason)
