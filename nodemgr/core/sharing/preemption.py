"""Best-effort tasks go, so that a latency-sensitive request gets its memory or task slot.

Knows: how a task is made to go. Must not know: which task (scheduler/preemption.py).

A job is ended with its grace time, and stands in its queue again at its old place after a pause,
as a job that an administrator requeues. A task without a job is suspended, and waits in the queue
for its memory from then on.
"""

from __future__ import annotations

from nodemgr.core.lifecycle import jobs
from nodemgr.core.model import messages
from nodemgr.core.model.entities import UNDER_WAY, JobState, Request, Task, TaskClass
from nodemgr.core.scheduler import preemption
from nodemgr.core.scheduler.allocator import Shortage
from nodemgr.core.scheduler.passes import PlacementResult
from nodemgr.core.sharing import suspension
from nodemgr.core.state.draft import Draft

BY = "nodemgr"


def preempt(draft: Draft, request: Request, result: PlacementResult, wall_ns: int) -> None:
    """Makes tasks go for a latency-sensitive request that waits for the node's GPUs."""
    if result.answer is not Shortage.NODE:
        return
    for task in preemption.victims(
        draft, result.ask, result.rows, lambda task: can_go(draft, task)
    ):
        _make_go(draft, task, request, wall_ns)


def can_go(draft: Draft, task: Task) -> bool:
    """Whether the task is best effort, and loses nothing that it cannot have again."""
    if task.task_class is not TaskClass.BEST_EFFORT:
        return False
    if task.job_id is None:
        return not task.suspension_fault and suspension.can_suspend(draft, task)
    job = None if task.job_id is None else draft.jobs.get(task.job_id)
    return job is not None and job.state in UNDER_WAY


def _make_go(draft: Draft, task: Task, request: Request, wall_ns: int) -> None:
    if task.job_id is None:
        suspension.begin(draft, task)
        suspension.wish_resume(draft, task, draft.now_ns, wall_ns)
        return
    job = draft.jobs[task.job_id]
    why = messages.PREEMPTED_FOR(env=request.env)
    noted = jobs.noted(job, wall_ns, BY, f"preempted for {request.job_id or request.request_id}")
    jobs.stop(draft, noted, JobState.PAUSED, why)
    draft.publish("job.requeued", {**jobs.facts(job), "by": BY, "position": None, "reason": why})
