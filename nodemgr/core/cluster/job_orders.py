"""Orders of people to a head about jobs: in and out, held, moved, run again; arrays, dependencies.

Knows: what an order does in each state of a job, and which makes no sense (`objection`). Must not
know: who may give it; how a node answers (answers.py).

An array waits as one row, as on a node (core/model/array_rows.py). An order to it is one to its row
and to each element that has a row of its own; an element that is named alone gets one first.
"""

from __future__ import annotations

from collections.abc import Callable

from client_plugin.messages.form import stated
from nodemgr.core.cluster import draining, events
from nodemgr.core.cluster.entities import (
    COMES_BACK,
    ClusterJob,
    ClusterStage,
    EndedJob,
    StageEvent,
)
from nodemgr.core.cluster.state import ClusterDraft, ClusterState, line_of
from nodemgr.core.model import array_rows
from nodemgr.core.model.values import replace

OUTSIDE = frozenset((ClusterStage.HELD, ClusterStage.DEPENDENCY))
WAITING = OUTSIDE | {ClusterStage.QUEUED, ClusterStage.PAUSED}
JobOrder = events.Withdraw | events.HoldWaiting | events.Unhold | events.Requeue | events.ToFront


def submit(draft: ClusterDraft, event: events.Submit) -> None:
    """The caller has judged each; its id is c and the head's count of jobs."""
    for job in event.jobs:
        number = draft.head.job + 1
        draft.put_head(replace(draft.head, job=number))
        after = tuple(dict.fromkeys(name for name in job.after if draft.living(name)))
        stage = job.stage
        if stage is not ClusterStage.HELD and after:
            stage = ClusterStage.DEPENDENCY
        new = replace(
            job, job_id=f"c{number}", stage=stage, after=after, queued_ns=draft.stamp(job.size)
        )
        draft.put_new_job(new)
        draft.submitted_ids.append(new.job_id)


# -- which order makes sense --


def objection(state: ClusterState, event: JobOrder) -> str | None:
    """Why the order makes no sense, in one line; then it does nothing."""
    found = [against(job, event) for job in state.living(event.job_id)]
    return found[0] if found and None not in found else None


def _under_way(job: ClusterJob) -> str:
    return stated(f"{job.job_id} is {job.stage.value}", "wait for its end, or cancel it", "refused")


def against(job: ClusterJob, event: JobOrder) -> str | None:
    """The same of one job, or of one row."""
    if job.stage is ClusterStage.STOPPING and job.then is ClusterStage.WITHDRAWN:
        return stated(f"{job.job_id} is being ended", "wait for its end", "refused")
    return _AGAINST[type(event)](job)


def _not_held(job: ClusterJob) -> str | None:
    if job.stage in (ClusterStage.HELD, ClusterStage.PAUSED) or job.then is ClusterStage.HELD:
        return None
    return stated(
        f"{job.job_id} is not held", f"it is {job.stage.value}, and needs no unhold", "refused"
    )


def _not_waiting(job: ClusterJob) -> str | None:
    if job.stage is ClusterStage.HELD or job.then is ClusterStage.HELD:
        return stated(
            f"{job.job_id} is held already",
            f"`nodemgr queue unhold {job.job_id}` lets it start",
            "refused",
        )
    may = job.stage in WAITING or job.stage is ClusterStage.ASSIGNED or job.then in COMES_BACK
    return None if may else _under_way(job)


def _waits(job: ClusterJob) -> str | None:
    if job.stage is ClusterStage.RUNNING:
        return None
    return stated(
        f"{job.job_id} does not run ({job.stage.value})", "its turn comes in its queue", "refused"
    )


def _not_queued(job: ClusterJob) -> str | None:
    if job.stage is ClusterStage.QUEUED:
        return None
    if job.stage in OUTSIDE:
        return stated(f"{job.job_id} is in no queue", "move it when it is in one", "refused")
    return _under_way(job)


_AGAINST: dict[type, Callable[[ClusterJob], str | None]] = {
    events.Withdraw: lambda job: None,
    events.HoldWaiting: _not_waiting,
    events.Unhold: _not_held,
    events.Requeue: _waits,
    events.ToFront: _not_queued,
}


def _concerned(draft: ClusterDraft, event: JobOrder) -> list[ClusterJob]:
    """The jobs that the order is for, each with a row."""
    found = [job for job in draft.living(event.job_id) if against(job, event) is None]
    return [draft.with_row(job) for job in found]


# -- the orders --


def withdraw(draft: ClusterDraft, event: events.Withdraw) -> None:
    for job in _concerned(draft, event):
        if job.assigned is not None:
            draft.move(job, StageEvent.STOP, ClusterStage.STOPPING, then=ClusterStage.WITHDRAWN)
        else:
            end_waiting(draft, job, StageEvent.WITHDRAW)


def end_waiting(draft: ClusterDraft, job: ClusterJob, event: StageEvent, why: str = "") -> None:
    """A job at no node is withdrawn."""
    over = replace(job, stage=ClusterStage.WITHDRAWN, resumes_ns=None)
    ended = EndedJob(over, "", None, None, why=why)
    draft.end(job, event, ClusterStage.WITHDRAWN, ended)


def hold(draft: ClusterDraft, event: events.HoldWaiting) -> None:
    for job in _concerned(draft, event):
        if job.stage in WAITING:
            draft.move(job, StageEvent.HOLD, ClusterStage.HELD, held_by=event.by, resumes_ns=None)
        else:  # its node has not begun it, as far as is known
            draining.ask_back(draft, replace(job, held_by=event.by), ClusterStage.HELD)


def unhold(draft: ClusterDraft, event: events.Unhold) -> None:
    for job in _concerned(draft, event):
        free = replace(job, held_by="")
        if job.stage is ClusterStage.STOPPING:
            draining.ask_back(draft, free)
        elif job.after:
            draft.move(free, StageEvent.UNHOLD, ClusterStage.DEPENDENCY)
        else:
            _into_queue(draft, free, StageEvent.UNHOLD)


def _into_queue(draft: ClusterDraft, job: ClusterJob, event: StageEvent) -> None:
    """At the end; a paused job has its place."""
    is_paused = job.stage is ClusterStage.PAUSED
    place = job.queued_ns if is_paused else draft.stamp(job.size)
    draft.move(job, event, ClusterStage.QUEUED, queued_ns=place, resumes_ns=None)


def requeue(draft: ClusterDraft, event: events.Requeue) -> None:
    for job in _concerned(draft, event):
        draft.move(job, StageEvent.STOP, ClusterStage.STOPPING, then=ClusterStage.PAUSED)


def to_front(draft: ClusterDraft, event: events.ToFront) -> None:
    jobs = _concerned(draft, event)
    front_ns = draft.queue.front(line_of(jobs[0])) if jobs else None
    if front_ns is None:
        return
    front_ns -= sum(job.size for job in jobs)
    for job in jobs:
        draft.jobs.put(job.job_id, replace(job, queued_ns=front_ns))
        front_ns += job.size


# -- jobs that wait for others --


def ended(draft: ClusterDraft, over: EndedJob) -> None:
    """Jobs that wait for it, or for its array, go on, or wait in vain and are withdrawn."""
    job = over.job
    is_done = job.stage is ClusterStage.DONE
    others_left = is_done and bool(draft.living(job.array))
    for name in array_rows.over_with(job, draft.awaited, others_left=others_left):
        for waiting in [draft.jobs[one] for one in draft.awaited.members(name)]:
            if not is_done:
                why = f"{over.job.job_id} {_HOW[job.stage]}, and it waited for {name}"
                end_waiting(draft, waiting, StageEvent.IN_VAIN, why)
                continue
            left = tuple(one for one in waiting.after if one != name)
            draft.put_after(waiting, left)
            free = draft.jobs[waiting.job_id]
            if not left and free.stage is ClusterStage.DEPENDENCY:
                _into_queue(draft, free, StageEvent.FREED)


_HOW = {ClusterStage.FAILED: "failed", ClusterStage.WITHDRAWN: "was withdrawn"}
