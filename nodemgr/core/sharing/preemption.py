"""Best-effort tasks go, so that a latency-sensitive request gets its memory or task slot.

Knows: how a task is made to go. Must not know: which task (scheduler/victims.py).

The mildest means goes first. Compute is taken in the step that serves the request: a share shrinks,
at last to 0, which closes the gate. For memory or a task slot, tasks are suspended. A suspended
task waits in the queue for its memory from then on, and a job's process loses nothing. Where
suspensions alone do not suffice, jobs that cannot be suspended are ended with their grace time.
Such a job stands in its queue again at its old place, without a pause: it starts as soon as there
is room. A suspension that failed is not tried again: the next pass takes the next means.
No task goes within Config.preempt_exempt_ms of its start or return; a pass follows at its end.
"""

from __future__ import annotations

from functools import partial

from nodemgr.core.lifecycle import jobs
from nodemgr.core.model.entities import MS, UNDER_WAY, JobState, Request, Task, TaskClass
from nodemgr.core.model.schema import EXEMPT
from nodemgr.core.scheduler import victims
from nodemgr.core.scheduler.allocator import Shortage
from nodemgr.core.scheduler.placement import PlacementResult
from nodemgr.core.sharing import suspension
from nodemgr.core.state.draft import Draft

BY = "nodemgr"


def preempt(draft: Draft, request: Request, result: PlacementResult) -> None:
    """Makes tasks go for a latency-sensitive request that waits for the node's GPUs."""
    if result.answer is not Shortage.NODE:
        return
    for is_able in (_can_be_suspended, can_go):
        tasks = victims.victims(draft, result.ask, result.rows, partial(is_able, draft))
        for task in tasks:
            _make_go(draft, task, request)
        if tasks:
            return
    if draft.config.preempt_exempt_ms:
        ends_ns = [_exempt_until_ns(draft, task) for task in draft.tasks.values()]
        if later := [end_ns for end_ns in ends_ns if end_ns > draft.now_ns]:
            draft.at_latest(EXEMPT, min(later))


def _exempt_until_ns(draft: Draft, task: Task) -> int:
    """The end of the time in which a best-effort task does not go; 0: it has none."""
    if task.run.task_class is not TaskClass.BEST_EFFORT:
        return 0
    begin_ns = max(task.since_ns, task.restored_ns or 0)
    if begin_ns > draft.now_ns:  # after a boot the clock begins anew
        return 0
    return begin_ns + draft.config.preempt_exempt_ms * MS


def can_go(draft: Draft, task: Task) -> bool:
    """Whether the task is best effort, and loses nothing that it cannot have again."""
    if task.run.task_class is not TaskClass.BEST_EFFORT or is_exempt(draft, task):
        return False
    job = None if task.job_id is None else draft.jobs.get(task.job_id)
    return _can_be_suspended(draft, task) or (job is not None and job.state in UNDER_WAY)


def is_exempt(draft: Draft, task: Task) -> bool:
    return _exempt_until_ns(draft, task) > draft.now_ns


def _can_be_suspended(draft: Draft, task: Task) -> bool:
    return (
        task.run.task_class is TaskClass.BEST_EFFORT
        and not task.suspension_fault
        and not is_exempt(draft, task)
        and suspension.can_suspend(draft, task)
    )


def _make_go(draft: Draft, task: Task, request: Request) -> None:
    if task.job_id is None or _can_be_suspended(draft, task):
        suspension.begin(draft, task)
        suspension.wish_resume(draft, task)
        return
    job = draft.jobs[task.job_id]
    why = f"a latency-sensitive request of {request.env} needs the memory or the place of its GPU"
    if task.suspension_fault:
        why += f", and the job could not be suspended ({task.suspension_fault})"
    then = f"preempted for {request.job_id or request.request_id}"
    noted = jobs.noted(job, draft.wall_ns, BY, then)
    jobs.stop(draft, noted, JobState.QUEUED, why, yields=True)
    draft.publish("job.requeued", {**jobs.facts(job), "by": BY, "position": None, "reason": why})
