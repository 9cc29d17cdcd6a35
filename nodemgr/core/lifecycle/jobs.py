"""The life of a job: queued, started, ended, tried again, or over; and its dependents.

Knows: jobs, their requests and their leases. Must not know: the submission (submissions.py), the
rights to orders (job_actions.py), which GPUs a job gets (requests/matching.py), how a program is
run.

A job waits as a request without askers, and holds its GPUs by a task that lasts as long as the
attempt, even if processes join and leave. STARTING is stored before anything is run, so an attempt
runs at most once; JobEnded always reports its result.
"""

from __future__ import annotations

from nodemgr.core.leases import answers, begins, ends
from nodemgr.core.lifecycle import assignments, failure_rows
from nodemgr.core.model import array_rows, effects, endings, job_ids
from nodemgr.core.model.causes import LeaseEnd
from nodemgr.core.model.entities import (
    FINAL,
    LOG_TAIL_CHARACTERS,
    MS,
    RETAINED_ATTEMPTS,
    RETAINED_HISTORY_ENTRIES,
    UNDER_WAY,
    Attempt,
    Cause,
    Ended,
    HistoryEntry,
    Job,
    JobState,
    Request,
    Task,
    Uuid,
)
from nodemgr.core.model.events import JobEnded, JobRequeuedBeforeStart, JobStarted
from nodemgr.core.model.schema import IDS, PAUSE, Figures
from nodemgr.core.model.transitions import JOB_TRANSITIONS, JobEvent, checked
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler import reasons
from nodemgr.core.scheduler.allocator import Choice
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State


def facts(job: Job) -> dict[str, object]:
    """The fields of a job in each of its events; of an array's row also its indices."""
    named: dict[str, object] = {
        "env": job.env,
        "job": job.job_id,
        "user": job.user,
        "queue": job.priority,
        "command": job.run.command,
    }
    if job.assigned:
        named["assigned"] = job.assigned
    if not job.indices:
        return named
    return {**named, "jobs": job.size, "indices": array_rows.shown(job.indices)}


def noted(job: Job, wall_ns: int, who: str, what: str) -> Job:
    """The job, with one history entry more."""
    return replace(
        job, deeds=(*job.deeds, HistoryEntry(wall_ns, who, what))[-RETAINED_HISTORY_ENTRIES:]
    )


def changed(draft: Draft, job: Job, event: JobEvent, state: JobState, **fields: object) -> Job:
    """The job in its next state, with these fields. Its row is the caller's to write.

    The row in the draft has the state before; a job without a row is new. Raises
    TransitionRefused if JOB_TRANSITIONS lacks the change.
    """
    row = draft.jobs.get(job.job_id)
    checked(JOB_TRANSITIONS, None if row is None else row.state, event, state)
    return replace(job, state=state, **fields)


# Into the queue, and out of it.


def enqueue(
    draft: Draft,
    job: Job,
    event: JobEvent,
    queued_ns: int | None = None,
    since: tuple[int, int] | None = None,
) -> Job:
    """Put the job at the end of its queue, or at the place of `queued_ns`, and write its row.

    This holds also if its env's quota does not admit it now. It waits since now, or since the
    time `since` (ns, wall clock ns).
    """
    since_ns, since_wall_ns = since or (draft.now_ns, draft.wall_ns)
    number = draft.count(IDS)
    request = Request(
        request_id=f"r{number}",
        env=job.env,
        token="",
        run=job.run,
        priority=job.priority,
        sequence=number,
        since_ns=since_ns,
        since_wall_ns=since_wall_ns,
        wait_ms=None,
        askers=(),
        job_id=job.job_id,
        queued_ns=draft.stamp(job.size) if queued_ns is None else queued_ns,
        avoids=_avoided(draft, job),
        size=job.size,
        is_assigned=bool(job.assigned),
    )
    draft.put_request(request)
    job = changed(
        draft,
        job,
        event,
        JobState.QUEUED,
        request_id=request.request_id,
        entered_wall_ns=since_wall_ns,
        entered_ns=since_ns,
        queued_ns=request.queued_ns,
        resumes_wall_ns=None,
        resumes_ns=None,
    )
    draft.put_job(job)
    draft.wake_scheduler()
    return job


def _avoided(draft: Draft, job: Job) -> tuple[Uuid, ...]:
    """The GPUs with recorded failures under which attempts of the job ended."""
    lost = {attempt.lost_gpu for attempt in job.attempts if attempt.cause is Cause.GPU_LOST}
    if not lost:
        return ()
    known = {row.uuid for row in draft.failures.values()}
    return tuple(sorted(uuid for uuid in lost if uuid in known))


def dequeue(draft: Draft, job: Job) -> Job:
    """Takes the job out of its queue, if it is in one. The caller writes its row."""
    if job.request_id is None:
        return job
    draft.drop_request(draft.requests[job.request_id])
    draft.wake_scheduler()
    return replace(job, request_id=None)


def publish_queued(
    draft: Draft, job: Job, reason: str, *, name: str = "job.queued", **more: object
) -> None:
    """Publishes that the job entered the end of its queue."""
    place = draft.queued.get(job.priority) or 0
    draft.publish(
        name, {**facts(job), **more, "position": place, "restarts": job.restarts, "reason": reason}
    )


# An attempt.


def start(draft: Draft, request: Request, choice: Choice, figures: Figures) -> None:
    """Starts a job that has its turn; of an array's row its first element.

    The request's row goes, or becomes that of the rest.
    """
    job = draft.jobs[request.job_id or ""]
    if job.indices:
        job = draft.split_off(job, array_rows.first(job))
        number = draft.count(IDS)
        request = replace(
            request, request_id=f"r{number}", sequence=number, job_id=job.job_id, size=1
        )
    else:
        draft.drop_request(request)
    number = job.attempt + 1
    task = None
    attempt = Attempt(number, None, None, (), None, None, "", "")
    if choice.fresh or choice.reused:
        request = replace(request, token=_token(draft, job, number))
        task = begins.begin(draft, request, choice, figures)
        attempt = replace(attempt, gpus=task.gpus, chosen=begins.chosen_line(draft, task))
    job = changed(
        draft,
        job,
        JobEvent.START,
        JobState.STARTING,
        attempt=number,
        request_id=None,
        task_id=None if task is None else task.task_id,
        started_wall_ns=None,
        ended_wall_ns=None,
        attempts=(*job.attempts, attempt)[-RETAINED_ATTEMPTS:],
    )
    draft.put_job(job)
    draft.emit(start_of(draft, job))
    waited_ns = max(0, draft.now_ns - request.since_ns)
    draft.publish(
        "job.starting",
        {
            **facts(job),
            "attempt": number,
            **answers.named_gpus(draft, attempt.gpus),
            "waited_ns": waited_ns,
        },
    )


def _token(draft: Draft, job: Job, attempt: int) -> str:
    """The attempt's token, or another if a process of the env has guessed it."""
    salt = 0
    while (
        key := (job.env, job_ids.token(job.job_id, attempt, salt))
    ) in draft.task_of_token or key in draft.request_of_token:
        salt += 1
    return key[1]


def start_of(book: Draft | State, job: Job) -> effects.StartJob:
    """How the attempt under way is to be run."""
    task = None if job.task_id is None else book.tasks[job.task_id]
    return effects.StartJob(
        job_id=job.job_id,
        attempt=job.attempt,
        env=job.env,
        spec_id=job.spec_id,
        run=job.run,
        token=job_ids.token(job.job_id, job.attempt) if task is None else task.token,
        gpus=() if task is None else task.gpus,
        array_index=job_ids.index_of(job.assigned.split("/")[2] if job.assigned else job.job_id),
    )


def _under_way(draft: Draft, job_id: str, attempt: int) -> Job | None:
    """The job, if that attempt of it is under way."""
    job = draft.jobs.get(job_id)
    return job if job is not None and job.state in UNDER_WAY and job.attempt == attempt else None


def started(draft: Draft, event: JobStarted) -> None:
    job = _under_way(draft, event.job_id, event.attempt)
    if job is None or job.attempts[-1].started_wall_ns is not None:
        return  # told again, after a restart
    state = JobState.RUNNING if job.state is JobState.STARTING else job.state
    attempt = replace(
        job.attempts[-1],
        started_wall_ns=event.wall_ns,
        started_ns=_measured(event.at_ns, job.entered_ns, draft.now_ns),
    )
    draft.put_job(
        changed(
            draft,
            job,
            JobEvent.STARTED,
            state,
            started_wall_ns=event.wall_ns,
            attempts=(*job.attempts[:-1], attempt),
        )
    )
    gpus = answers.named_gpus(draft, attempt.gpus)
    draft.publish("job.started", {**facts(job), "attempt": job.attempt, "pid": event.pid, **gpus})


def stop(draft: Draft, job: Job, then: JobState, why: str, *, yields: bool = False) -> Job:
    """The attempt under way is ended; `then` is what the job is after that.

    `yields`: it is QUEUED at its old place, since it ends for another task.
    """
    job = changed(draft, job, JobEvent.STOP, JobState.STOPPING, then=then, why=why, yields=yields)
    draft.put_job(job)
    draft.emit(effects.StopJob(job.job_id, job.attempt, why, yields))
    draft.publish(
        "job.stopping", {**facts(job), "attempt": job.attempt, "then": then.value, "reason": why}
    )
    return job


def ended(draft: Draft, event: JobEnded) -> None:
    job = _under_way(draft, event.job_id, event.attempt)
    if job is None:
        return
    said = _said(event)
    cause = _cause(job, event, said)
    task = None if job.task_id is None else draft.tasks[job.task_id]
    job = _close(job, event, said, cause, task, draft.now_ns)
    had_process = task is not None and task.had_process
    if task is not None:
        why = said or "the job is done"
        ends.end_of_job(draft, task, LeaseEnd.JOB_ENDED, why)
        job = replace(job, task_id=None)
    then = job.then
    awaits_report = then is None and bool(said) and cause is Cause.OWN and had_process
    if job.assigned and not awaits_report:
        _assigned_ended(draft, job, said)
    elif then is not None:
        job = replace(job, then=None)
        _stopped(draft, job, JobEvent.END, then, said, ran_ns=_ran_ns(job))
    elif not said:
        finish(draft, job, JobEvent.END, JobState.DONE, "")
    elif endings.NEXT[cause] is endings.Next.PAUSE:
        _interrupted(draft, job, JobEvent.END)
    elif cause is Cause.GPU_MEMORY and job.run.is_memory_filled:
        _without_figure(draft, job, said)
    elif endings.NEXT[cause] is endings.Next.RETURN:
        job = _back(draft, replace(job, why=said), JobEvent.END)
        publish_queued(draft, job, said)
    elif awaits_report:
        _await_gpu_report(draft, job, said)
    else:
        _failed(draft, job, JobEvent.END)


def _assigned_ended(draft: Draft, job: Job, said: str) -> None:
    """A job that a head assigned has one attempt here; what follows is the head's to decide."""
    then, job = job.then, replace(job, then=None, yields=False)
    if then is None:
        state = JobState.FAILED if said else JobState.DONE
    else:
        state, said = then if then in FINAL else JobState.FAILED, job.why or said
    finish(draft, job, JobEvent.END, state, said)


def _interrupted(draft: Draft, job: Job, event: JobEvent) -> None:
    """Its last attempt ended through no fault of its own."""
    last = job.attempts[-1]
    if last.cause is Cause.GPU_LOST and last.lost_gpu is not None:
        failure_rows.beside(draft, last.lost_gpu, job.job_id, job.attempt)
    job = replace(job, why=reasons.interrupted(draft, last))
    if job.assigned:
        finish(draft, job, event, JobState.FAILED, job.why)
        return
    _pause(draft, job, event, last.cause, ran_ns=_ran_ns(job))


def _without_figure(draft: Draft, job: Job, said: str) -> None:
    """Its memory was that of earlier runs, and too little: back to its place without it."""
    run = replace(job.run, memory_bytes=None, memory_most_bytes=None, is_memory_filled=False)
    job = replace(job, run=run, why=reasons.lacked_memory(said))
    publish_queued(draft, _back(draft, job, JobEvent.END), job.why)


def _failed(draft: Draft, job: Job, event: JobEvent) -> None:
    """Its last attempt failed by its own fault: it is tried again, or is over."""
    last = job.attempts[-1]
    if endings.NEXT[last.cause] is endings.Next.FAIL or job.restarts >= job.max_restarts:
        finish(draft, job, event, JobState.FAILED, last.why)
    else:
        job = replace(job, restarts=job.restarts + 1, why=last.why)
        publish_queued(draft, enqueue(draft, job, event), last.why)


# An attempt that used a GPU may fail before the driver reports the GPU's fault.


def _await_gpu_report(draft: Draft, job: Job, said: str) -> None:
    """The job pauses for GPU_REPORT_NS; then the failure is its own, unless a GPU of it failed."""
    resumes = _resumes(draft.now_ns, draft.wall_ns, endings.GPU_REPORT_NS)
    draft.put_job(changed(draft, job, JobEvent.END, JobState.PAUSED, why=said, **resumes))
    draft.schedule((PAUSE, job.job_id), draft.now_ns + endings.GPU_REPORT_NS)


def blame(draft: Draft, uuid: Uuid) -> None:
    """The GPU has failed: attempts on it that await its report failed by it."""
    for what, job_id in list(draft.agenda):
        job = draft.jobs.get(job_id) if what == PAUSE else None
        if job is None or not reasons.awaits_gpu_report(job) or uuid not in job.attempts[-1].gpus:
            continue
        last = replace(job.attempts[-1], cause=Cause.GPU_LOST, lost_gpu=uuid)
        job = replace(job, attempts=(*job.attempts[:-1], last))
        _interrupted(draft, job, JobEvent.GPU_FAILED)


def judged(draft: Draft, job: Job, event: JobEvent) -> Job | None:
    """The job after its late report, if it awaits one: it is judged now. None: the job is over."""
    if reasons.awaits_gpu_report(job):
        _failed(draft, job, event)
    return draft.jobs.get(job.job_id)


def requeued_before_start(draft: Draft, event: JobRequeuedBeforeStart) -> None:
    """Back to their places, as if their turns had not come: they cost no try, and hold nothing."""
    for job_id, attempt in event.attempts:
        job = _under_way(draft, job_id, attempt)
        if job is None or job.attempts[-1].started_wall_ns is not None:
            continue
        if job.task_id is not None:
            task = draft.tasks[job.task_id]
            ends.end_of_job(draft, task, LeaseEnd.JOB_NOT_STARTED, event.why)
        job = replace(job, task_id=None, attempts=job.attempts[:-1])
        draft.publish("job.unbegun", {**facts(job), "attempt": attempt, "reason": event.why})
        then = job.then
        if then is not None:
            job = replace(job, then=None)
            _stopped(draft, job, JobEvent.REQUEUED_BEFORE_START, then, event.why, ran_ns=0)
        else:
            _back(draft, job, JobEvent.REQUEUED_BEFORE_START)


def _back(draft: Draft, job: Job, event: JobEvent) -> Job:
    """The job goes back to its old place, with its old stamp."""
    since = None
    if job.entered_wall_ns is not None and job.entered_ns is not None:
        since = min(draft.now_ns, job.entered_ns), job.entered_wall_ns
    return enqueue(draft, job, event, job.queued_ns, since)


def _said(event: JobEnded) -> str:
    """The failure in words; empty for a job that ended well."""
    if event.why:
        return event.why
    if event.signal is not None:
        return f"ended by signal {event.signal}"
    return (
        ""
        if event.exit_code == 0
        else "its end was not reported"
        if event.exit_code is None
        else f"exit code {event.exit_code}"
    )


def _cause(job: Job, event: JobEnded, said: str) -> Cause:
    """The listener knows all of them but three."""
    if event.cause is Cause.GPU_MEMORY and job.then is JobState.WITHDRAWN:
        return Cause.OWN
    if job.then is JobState.PAUSED or job.yields:
        return Cause.PREEMPTED
    if job.then is JobState.FAILED:
        return Cause.POLICY
    is_own = event.cause in (Cause.OWN, Cause.GPU_MEMORY)
    lost = said and is_own and job.attempts[-1].lost_gpu is not None
    return Cause.GPU_LOST if lost else event.cause


def gpu_lost(draft: Draft, job: Job, uuid: Uuid) -> None:
    """A GPU of the attempt under way. The attempt goes on; if it fails, this is why."""
    attempt = replace(job.attempts[-1], lost_gpu=uuid)
    draft.put_job(replace(job, attempts=(*job.attempts[:-1], attempt)))


def _measured(at_ns: int | None, least_ns: int | None, now_ns: int) -> int:
    """The time of a report, on the node's clock: at least the time of what came before it."""
    return now_ns if at_ns is None else min(max(at_ns, least_ns or 0), now_ns)


def _close(
    job: Job, event: JobEnded, said: str, cause: Cause, task: Task | None, now_ns: int
) -> Job:
    """`task`: its lease. A ledger without any memory of it did not see the program."""
    last = job.attempts[-1]
    peak_bytes = None if task is None else ends.with_peak(task, event.peak_bytes).peak_bytes
    started_wall_ns = (
        event.started_wall_ns if last.started_wall_ns is None else last.started_wall_ns
    )
    started_ns = last.started_ns
    if started_ns is None and started_wall_ns is not None:
        started_ns = _measured(event.started_ns, job.entered_ns, now_ns)
    attempt = replace(
        last,
        started_wall_ns=started_wall_ns,
        ended_wall_ns=event.wall_ns,
        started_ns=started_ns,
        ended_ns=_measured(event.at_ns, started_ns, now_ns),
        exit_code=event.exit_code,
        signal=event.signal,
        why=said,
        cause=cause,
        log_tail=event.log_tail[-LOG_TAIL_CHARACTERS:],
        peak_bytes=peak_bytes or None,
        host=event.host,
    )
    return replace(
        job,
        started_wall_ns=started_wall_ns,
        ended_wall_ns=event.wall_ns,
        attempts=(*job.attempts[:-1], attempt),
    )


def _ran_ns(job: Job) -> int:
    """How long its last attempt ran."""
    last = job.attempts[-1]
    return (
        0 if last.started_ns is None or last.ended_ns is None else last.ended_ns - last.started_ns
    )


def _stopped(
    draft: Draft, job: Job, event: JobEvent, then: JobState, said: str, *, ran_ns: int
) -> None:
    """The end of an attempt that was asked to end."""
    if then is JobState.PAUSED:
        _pause(draft, job, event, Cause.PREEMPTED, ran_ns=ran_ns)
        return
    if then in FINAL:
        finish(draft, job, event, then, job.why or said)
        return
    if job.yields:
        job = _back(draft, replace(job, yields=False), event)
        draft.publish("job.queued", {**facts(job), "position": None, "reason": job.why})
    else:
        publish_queued(draft, enqueue(draft, job, event), job.why)


# A pause, after an end that was not the job's fault.


def _pause(draft: Draft, job: Job, event: JobEvent, cause: Cause, *, ran_ns: int) -> None:
    """The job is in no queue and reserves nothing; `job.why` is the reason of its end."""
    count = endings.interruptions(draft.config, job.interruptions, ran_ns)
    pause_ns = endings.pause_ns(draft.config, count)
    resumes = _resumes(draft.now_ns, draft.wall_ns, pause_ns)
    job = changed(draft, job, event, JobState.PAUSED, interruptions=count, **resumes)
    draft.put_job(job)
    draft.schedule((PAUSE, job.job_id), draft.now_ns + pause_ns)
    more = {
        "cause": cause.value,
        "interruptions": count,
        "pause_ms": pause_ns // MS,
        "reason": job.why,
    }
    draft.publish("job.paused", {**facts(job), "attempt": job.attempt, **more})


def _resumes(now_ns: int, wall_ns: int, pause_ns: int) -> dict[str, int]:
    return {"resumes_wall_ns": wall_ns + pause_ns, "resumes_ns": now_ns + pause_ns}


def still_paused(draft: Draft, job: Job) -> None:
    """After a restart: pauses for the rest of the pause."""
    draft.schedule((PAUSE, job.job_id), max(draft.now_ns, job.resumes_ns or draft.now_ns))


def resume(draft: Draft, job_id: str, event: JobEvent = JobEvent.PAUSE_OVER) -> None:
    """Ends the pause: the job enters its queue again, at its old place."""
    draft.schedule((PAUSE, job_id), None)
    job = draft.jobs.get(job_id)
    if job is None or job.state is not JobState.PAUSED:
        return
    if reasons.awaits_gpu_report(job):
        _failed(draft, job, event)
        return
    again = enqueue(draft, job, event, job.queued_ns)
    publish_queued(draft, again, again.why)


# The end.


def finish(draft: Draft, job: Job, event: JobEvent, state: JobState, why: str) -> None:
    """The job is over; if it did not end well, its dependents end with it.

    A dependent without another dependency enters its queue. (One after the other, not one within
    the other: a chain may be long.)
    """
    ending = [(job, event, state, why)]
    doomed = {job.job_id}
    for over, cause, how, reason in ending:  # it grows
        _leave(draft, over, cause, how, reason)
        array = job_ids.array_of(over.job_id) or over.job_id
        others_left = how is JobState.DONE and bool(draft.elements.count(array))
        elements = draft.awaited.members(array)
        for awaited in array_rows.over_with(over, elements, others_left=others_left):
            waiters = [draft.jobs[name] for name in draft.dependents.members(awaited)]
            for each in sorted(waiters, key=array_rows.order):
                waiter = draft.jobs.get(each.job_id)
                if waiter is None or waiter.job_id in doomed:
                    continue  # it waited for another one of these, too
                if how is JobState.DONE:
                    _awaits_one_less(draft, waiter, awaited)
                else:
                    doomed.add(waiter.job_id)
                    vain = reasons.in_vain(over.job_id, how)
                    ending.append((waiter, JobEvent.DEPENDENCY_FAILED, JobState.WITHDRAWN, vain))


def _leave(draft: Draft, job: Job, event: JobEvent, state: JobState, why: str) -> None:
    """Moves the job from the state into the history."""
    job = changed(
        draft,
        dequeue(draft, job),
        event,
        state,
        then=None,
        why=why,
        ended_wall_ns=draft.wall_ns,
        resumes_wall_ns=None,
        resumes_ns=None,
    )
    draft.history[job.job_id] = Ended(job, draft.specs[job.spec_id])
    if job.assigned:
        assignments.ended(draft, job)
    draft.drop_job(job.job_id)
    draft.emit(effects.ForgetJob(job.job_id, job.env))
    last = job.attempts[-1] if job.attempts else None
    draft.publish(
        "job.withdrawn" if state is JobState.WITHDRAWN else "job.ended",
        {
            **facts(job),
            "state": state.value,
            "reason": why,
            "attempt": job.attempt,
            "exit_code": None if last is None else last.exit_code,
            "signal": None if last is None else last.signal,
        },
    )


def _awaits_one_less(draft: Draft, job: Job, awaited: str) -> None:
    job = replace(job, after=tuple(other for other in job.after if other != awaited))
    draft.put_job(job)
    if job.state is JobState.DEPENDENCY and not job.after:
        queued = enqueue(draft, job, JobEvent.DEPENDENCIES_MET)
        publish_queued(draft, queued, f"{awaited} ended well")
