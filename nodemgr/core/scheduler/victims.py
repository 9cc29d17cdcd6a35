"""Which best-effort tasks must go, so that a latency-sensitive request gets memory and a task slot.

Knows: the GPUs as the request sees them, the best-effort tasks there, what each would give back.
Must not know: how a task is made to go (sharing/preemption.py).

Compute needs none of this: best effort gives it up in the step that serves the request. On each GPU
the youngest tasks go first, and no task goes without need. Of the GPUs, those are freed where the
fewest tasks go. A grant belongs to an env: its memory comes back with the last of the env's tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from nodemgr.core.model.entities import JobState, Suspension, Task
from nodemgr.core.scheduler.allocator import Ask, Candidate, has_compute, qualifies
from nodemgr.core.state import compute
from nodemgr.core.state.draft import Draft


def victims(
    draft: Draft, ask: Ask, rows: Collection[Candidate], can_go: Callable[[Task], bool]
) -> list[Task]:
    """The tasks that must go, beside those that are going; none if that would not help."""
    used = [row for row in rows if row.used]
    reusable = [
        row
        for row in used
        if row.has_free and row.tasks < ask.reuse_below and has_compute(row, ask)
    ]
    slots = ask.quota_gpus - len(used)
    fresh = [row for row in rows if not row.reserved and qualifies(row, ask)]
    missing = ask.gpus - len(reusable) - min(len(fresh), max(0, slots))
    if missing <= 0 or missing > slots - len(fresh):
        return []
    possible = [
        (found, row)
        for row in rows
        if not row.used and not row.reserved and row.big_enough and row.has_free
        if row not in fresh and (found := _on(draft, ask, row, can_go)) is not None
    ]
    possible.sort(key=lambda pair: (len(pair[0]), pair[1].number))
    chosen = possible[:missing]
    taken = [*fresh, *(row for _, row in chosen)]
    if len(chosen) < missing or not _within_quota(ask, taken):
        return []
    return list({task.task_id: task for found, _ in chosen for task in found}.values())


def is_going(draft: Draft, task: Task) -> bool:
    """Whether the task is about to give its GPUs or its memory back."""
    if task.suspension in (Suspension.SUSPENDING, Suspension.SUSPENDED):
        return True
    job = None if task.job_id is None else draft.jobs.get(task.job_id)
    return job is not None and job.state is JobState.STOPPING


def _within_quota(ask: Ask, rows: Collection[Candidate]) -> bool:
    left_bytes = ask.quota_remaining_bytes
    return left_bytes is None or sum([row.need_bytes for row in rows]) <= left_bytes


def _on(
    draft: Draft, ask: Ask, row: Candidate, can_go: Callable[[Task], bool]
) -> list[Task] | None:
    """The tasks that must go from this GPU; None: it would not suffice."""
    there = [draft.tasks[task_id] for task_id in draft.gpu_tasks.members(row.uuid)]
    going = {task.task_id for task in there if is_going(draft, task)}
    able = [task for task in there if task.task_id not in going and can_go(task)]

    def suffices(tasks: list[Task]) -> bool:
        gone = going | {task.task_id for task in tasks}
        return qualifies(_without(draft, row, there, gone), ask)

    youngest = sorted(able, key=compute.age, reverse=True)
    found: list[Task] = []
    while not suffices(found):
        if len(found) == len(youngest):
            return None
        found = youngest[: len(found) + 1]
    for task in tuple(found):  # an older one may have given enough alone
        less = [other for other in found if other is not task]
        if suffices(less):
            found = less
    return found


def _without(draft: Draft, row: Candidate, there: list[Task], gone: set[str]) -> Candidate:
    """The row as it is once these tasks are gone."""
    staying = {task.env for task in there if task.task_id not in gone}
    leaving = {
        task.env
        for task in there
        if task.env not in staying and task.suspension is not Suspension.SUSPENDED
    }
    freed_bytes = sum([draft.grants[env, row.uuid].memory_bytes for env in leaving])
    active = sum(task.task_id in gone and compute.computes(task) for task in there)
    return row._replace(remaining_bytes=row.remaining_bytes + freed_bytes, tasks=row.tasks - active)
