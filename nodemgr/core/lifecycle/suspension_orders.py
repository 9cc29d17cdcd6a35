"""Orders to suspend and to resume a task.

Knows: which task an order names, and the state in which it may be obeyed. Must not know: the users
that may order it, the refusals' lines.
"""

from __future__ import annotations

from nodemgr.core.lifecycle import administration, leasing, matching, suspension
from nodemgr.core.model.entities import Suspension, Task
from nodemgr.core.model.events import ResumeTask, SuspendTask
from nodemgr.core.state.draft import Draft


def _task(draft: Draft, event: SuspendTask | ResumeTask) -> Task | None:
    task = draft.tasks.get(administration.present_id(draft, event.task_id))
    return task if task is not None and event.env in (None, task.env) else None


def suspend(draft: Draft, event: SuspendTask, _now_ns: int) -> None:
    """A resume that waits is given up. Nothing happens to a task that cannot be suspended."""
    task = _task(draft, event)
    if task is None:
        return
    waiting = draft.requests.get(leasing.resume_id(task.task_id))
    if waiting is not None and waiting.resumes is not None and not waiting.askers:
        draft.drop_request(waiting)
        draft.wake_scheduler()
    if suspension.can_suspend(draft, task):
        suspension.begin(draft, task)


def resume(draft: Draft, event: ResumeTask, now_ns: int) -> None:
    """It waits in the queue of its env for its room; served at once if it can be."""
    task = _task(draft, event)
    if task is None or task.suspension not in (Suspension.SUSPENDING, Suspension.SUSPENDED):
        return
    suspension.wish_resume(draft, task, now_ns, event.wall_ns)
    matching.match(draft, {}, now_ns, event.wall_ns)
