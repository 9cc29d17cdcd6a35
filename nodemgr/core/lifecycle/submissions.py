"""Submission of jobs: the refusals of a job, and its first state.

Knows: limits, quotas, queues, possible dependencies. Must not know: how a job is started or ends
(jobs.py). A submission that is sent again under its key is the same job: its answer was lost, not
the job.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from client_plugin.messages.form import Message, stated
from nodemgr.core.lifecycle import assignments, jobs, queue_settings
from nodemgr.core.model import array_rows, effects, job_ids
from nodemgr.core.model.entities import (
    AWAITED_BYTES,
    JOB_ROW_BYTES,
    DenyCode,
    HistoryEntry,
    Job,
    JobState,
    Ranges,
    RunSpec,
)
from nodemgr.core.model.events import NamesTaken, Submission, SubmitJobs
from nodemgr.core.model.schema import JOBS
from nodemgr.core.model.transitions import JobEvent
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler import admission, reasons, shares
from nodemgr.core.scheduler.admission import Refusal
from nodemgr.core.state import host_use
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State, first

MAX_AWAITED = 100_000
"""Elements of an array, each with so many jobs that it waits for: each such pair is remembered."""


def submit(draft: Draft, event: SubmitJobs) -> None:
    for submission in event.submissions:
        answer = _take if submission.assigned is None else _assign
        job_id, refusal = answer(draft, submission)
        code, reason = refusal or (None, "")
        draft.emit(effects.SubmitAnswered(submission.ref, job_id, code, reason))


Taken = tuple[str | None, Refusal | None]
"""The job or array, or the refusal."""


def _take(draft: Draft, submission: Submission) -> Taken:
    known = draft.job_of_key.get((submission.env, submission.key)) if submission.key else None
    refusal = None if known is not None else _refused(draft, submission)
    if known is not None or refusal is not None:
        return known, refusal
    return _enter(draft, submission), None


def _assign(draft: Draft, submission: Submission) -> Taken:
    """A head's assignment: its key has one answer, which is stored with it."""
    assigned = submission.assigned
    assert assigned is not None
    row = draft.assignments.get(assigned.key)
    if row is not None:
        assignments.confirm(draft, row)
        return row.job_id or None, None if row.job_id else (DenyCode.BAD_REQUEST, row.why)
    if (refusal := assignments.late(draft, assigned)) is not None:
        return None, refusal
    refusal = (DenyCode.BAD_REQUEST, assigned.refusal) if assigned.refusal else None
    if (refusal := refusal or _refused(draft, submission)) is not None:
        assignments.refuse(draft, assigned, submission.env, refusal[1])
        return None, refusal
    job_id = _enter(draft, submission)
    assignments.take(draft, assigned, submission.env, job_id)
    return job_id, None


def names_taken(draft: Draft, event: NamesTaken) -> None:
    """A job of that name would be taken for the one that has run."""
    if event.number > (draft.counters.get(JOBS) or 0):
        draft.counters.put(JOBS, event.number)


def _refused(draft: Draft, submission: Submission) -> Refusal | None:
    checks = (
        _without_sense,
        _without_env,
        _beyond_quota,
        _beyond_host,
        _too_many,
        _no_room_in_queue,
        _waits_in_vain,
    )
    return next(
        (refusal for check in checks if (refusal := check(draft, submission)) is not None), None
    )


SENSELESS: tuple[tuple[Message, Callable[[Submission, RunSpec], bool]], ...] = (
    (
        Message("an array's indices must be different numbers from 0 on", code="usage"),
        lambda submission, _: not _is_set(submission.array),
    ),
    (
        Message("a number of GPUs must be 0 or more", code="usage"),
        lambda submission, run: not submission.is_default and run.gpus < 0,
    ),
    (
        Message("a range of GPUs must begin with 1 or more, and end no lower", code="usage"),
        lambda _, run: run.gpu_range is not None and not 1 <= run.gpus <= run.gpu_range.most,
    ),
    (
        Message(
            "memory is per GPU, and a job without a GPU has none",
            "ask for a GPU, or leave --memory out",
            "usage",
        ),
        lambda submission, run: run.memory_bytes is not None and _needs_no_gpu(submission),
    ),
    (
        Message(
            "a class and a share are of GPUs, and a job without a GPU has none",
            "ask for a GPU, or leave --class and --compute out",
            "usage",
        ),
        lambda submission, _: (
            _needs_no_gpu(submission)
            and (submission.task_class, submission.compute_percent) != (None, None)
        ),
    ),
    (
        Message("memory must be more than nothing", code="usage"),
        lambda _, run: run.memory_bytes is not None and run.memory_bytes <= 0,
    ),
    (
        Message("a time limit must be more than nothing", code="usage"),
        lambda _, run: run.time_limit_ms is not None and run.time_limit_ms <= 0,
    ),
    (
        Message(
            "--signal is due before the job starts", "name a time shorter than --time", "usage"
        ),
        lambda _, run: (
            run.signal is not None
            and run.time_limit_ms is not None
            and run.signal.before_ms >= run.time_limit_ms
        ),
    ),
    (
        queue_settings.NEGATIVE_RESTARTS,
        lambda submission, _: submission.max_restarts is not None and submission.max_restarts < 0,
    ),
    (
        Message("the job must have a command", code="usage"),
        lambda submission, _: not submission.payload.argv,
    ),
)
"""The forms that no submission may have; the first that fits is the refusal."""


def _without_sense(_draft: Draft, submission: Submission) -> Refusal | None:
    if len(submission.array) > array_rows.MAX_RUNS:
        return DenyCode.BAD_REQUEST, stated(
            f"an array's indices are more than {array_rows.MAX_RUNS} separate runs of numbers",
            "submit several arrays",
            "usage",
        )
    if submission.size * len(submission.after) > MAX_AWAITED:
        return DenyCode.BAD_REQUEST, stated(
            f"more than {MAX_AWAITED} pairs of an element and a job it waits for",
            "let one job wait for them, and the array for that",
            "usage",
        )
    row = next((row for row, is_so in SENSELESS if is_so(submission, submission.run)), None)
    return None if row is None else (DenyCode.BAD_REQUEST, row())


def _is_set(array: Ranges) -> bool:
    """Whether each number stands once, in order."""
    end = array_rows.MAX_INDEX + 1
    ends = [(-1, -1), *array, (end, end)]
    return all(first <= last < following for (first, last), (following, _) in pairwise(ends))


def _without_env(draft: Draft, submission: Submission) -> Refusal | None:
    if submission.env in draft.envs:
        return None
    return DenyCode.UNKNOWN_ENV, reasons.no_quota(submission.env)


def _needs_no_gpu(submission: Submission) -> bool:
    return submission.run.gpus == 0 and not submission.is_default


def _gpus(draft: Draft, submission: Submission) -> int:
    return (
        admission.default_gpus(draft, draft.envs[submission.env].quota)
        if submission.is_default
        else submission.run.gpus
    )


def _beyond_host(draft: Draft, submission: Submission) -> Refusal | None:
    bound = host_use.short_of(draft, submission.env, submission.run, when_alone=True)
    if bound is None:
        return None
    code = DenyCode.OVER_QUOTA if bound.env else DenyCode.MORE_THAN_NODE
    return code, reasons.host_above(submission.run, bound)


def _beyond_quota(draft: Draft, submission: Submission) -> Refusal | None:
    if _needs_no_gpu(submission):
        return None
    quota = draft.envs[submission.env].quota
    return admission.refused(
        draft,
        submission.env,
        quota,
        _gpus(draft, submission),
        submission.run,
        explicit=not submission.is_default,
    ) or admission.refused_share(
        submission.env, quota, submission.task_class, submission.compute_percent
    )


def _too_many(draft: Draft, submission: Submission) -> Refusal | None:
    more = submission.size
    for whose, there, limit in (
        (submission.env, draft.env_jobs.get(submission.env) or 0, draft.config.max_env_jobs),
        # this step has only added some
        ("this node", sum(draft.env_jobs.values()), draft.config.max_jobs),
    ):
        if there + more > limit:
            return DenyCode.TOO_MANY_JOBS, reasons.too_many_jobs(whose, there, limit)
    added_bytes = submission.payload.size_bytes + more * (
        JOB_ROW_BYTES + AWAITED_BYTES * len(submission.after)
    )
    full = too_large(draft, submission.env, added_bytes)
    return None if full is None else (DenyCode.TOO_MANY_JOBS, full)


def too_large(book: Draft | State, env: str, added_bytes: int) -> str | None:
    """Why the store does not take so many more bytes of the env's jobs; None: it does."""
    there_bytes, limit_bytes = book.job_bytes.get(env) or 0, book.config.max_env_job_bytes
    return (
        reasons.too_large_jobs(env, there_bytes, added_bytes, limit_bytes)
        if there_bytes + added_bytes > limit_bytes
        else None
    )


def _queue(draft: Draft, submission: Submission) -> str:
    return (
        draft.envs[submission.env].quota.priority
        if submission.priority is None
        else submission.priority
    )


def _max_restarts(draft: Draft, submission: Submission) -> int:
    if submission.max_restarts is not None:
        return submission.max_restarts
    return queue_settings.rows(draft)[_queue(draft, submission)].max_restarts


def _no_room_in_queue(draft: Draft, submission: Submission) -> Refusal | None:
    name = _queue(draft, submission)
    if submission.priority is not None and name not in (known := queue_settings.rows(draft)):
        return DenyCode.UNKNOWN_QUEUE, reasons.no_queue(name, known)
    full = (
        None
        if submission.hold or submission.after
        else queue_settings.full(draft, name, submission.size)
    )
    return None if full is None else (DenyCode.QUEUE_FULL, full)


def _waits_in_vain(draft: Draft, submission: Submission) -> Refusal | None:
    for name in submission.after:
        ended = [how for job_id, how in submission.ended.items() if _is_or_is_of(job_id, name)]
        if not ended and not lives(draft, submission.env, name):
            return DenyCode.UNKNOWN_JOB, reasons.no_job(name, submission.env)
        lost = next((how for how in ended if how is not JobState.DONE), None)
        if lost is not None:
            return DenyCode.UNKNOWN_JOB, reasons.in_vain(name, lost)
    return None


def _is_or_is_of(job_id: str, name: str) -> bool:
    return name in (job_id, job_ids.array_of(job_id))


def lives(draft: Draft, env: str, name: str) -> bool:
    """The job of that name, or some element of the array, in this env."""
    job = draft.jobs.get(name if name in draft.jobs else first(draft.elements.members(name)) or "")
    if job is None:
        row = draft.jobs.get(job_ids.array_of(name) or "")
        job = None if row is None else array_rows.element(row, name)
    return job is not None and job.env == env


def _enter(draft: Draft, submission: Submission) -> str:
    """The id of the job or array that it is now."""
    number = draft.count(JOBS)
    job_id, spec_id = f"j{number}", f"s{number}"
    draft.specs.put(
        spec_id,
        replace(submission.spec, spec_id=spec_id, payload_bytes=submission.payload.size_bytes),
    )
    draft.payloads[spec_id] = submission.payload
    after = tuple(
        dict.fromkeys(name for name in submission.after if lives(draft, submission.env, name))
    )
    state = JobState.DEPENDENCY if after else JobState.QUEUED
    job = Job(
        job_id=job_id,
        env=submission.env,
        name=submission.name,
        run=_run(draft, submission),
        user=submission.spec.user,
        spec_id=spec_id,
        priority=_queue(draft, submission),
        submitted_wall_ns=draft.wall_ns,
        state=JobState.HELD if submission.hold else state,
        after=after,
        max_restarts=_max_restarts(draft, submission),
        key=submission.key,
        why=reasons.held_by(submission.by) if submission.hold else "",
        deeds=(HistoryEntry(draft.wall_ns, submission.by, _was_submitted(submission)),),
        indices=submission.array,
        assigned="" if submission.assigned is None else submission.assigned.key,
    )
    assigned, queued_ns = submission.assigned, None
    if assigned is not None:  # its time at the head counts
        queued_ns = draft.stamp() - assigned.waited_ns
    _submitted(draft, job, queued_ns)
    return job_id


def _run(draft: Draft, submission: Submission) -> RunSpec:
    """The job's demand, with its env's default for each figure that the submission leaves out."""
    gpus, quota = _gpus(draft, submission), draft.envs[submission.env].quota
    run = replace(
        submission.run,
        gpus=gpus,
        **host_use.with_defaults(submission.run, gpus, draft.config, quota),
    )
    if gpus == 0:
        return run
    task_class, compute_percent = shares.asked(
        quota, submission.task_class, submission.compute_percent
    )
    return replace(run, task_class=task_class, compute_percent=compute_percent)


def _was_submitted(submission: Submission) -> str:
    return "submitted, held" if submission.hold else "submitted"


def _submitted(draft: Draft, job: Job, queued_ns: int | None) -> None:
    if job.state is JobState.QUEUED:
        queued = jobs.enqueue(draft, job, JobEvent.SUBMIT, queued_ns)
    else:
        queued = jobs.changed(draft, job, JobEvent.SUBMIT, job.state)
        draft.put_job(queued)
    place = draft.queued.get(job.priority) if queued.state is JobState.QUEUED else None
    draft.publish(
        "job.submitted",
        {
            **jobs.facts(queued),
            "state": queued.state.value,
            "gpus_wanted": job.run.gpus,
            "position": place,
        },
    )
