"""The compute of each GPU: what is granted to tasks with a share, free, and held by best effort.

Knows: which tasks count, and that a task without a share counts as the whole GPU beside tasks that
have one. Must not know: which request gets a GPU (scheduler/allocator.py), and when a share changes
(sharing/share_changes.py).

A stalled or suspended task has no compute: its share is offered to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodemgr.core.model.entities import (
    WHOLE_PERCENT,
    Suspension,
    Task,
    TaskClass,
    TaskState,
    Uuid,
)
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State


def computes(task: Task) -> bool:
    """Whether it may launch work now."""
    return task.state is TaskState.RUNNING and task.suspension is not Suspension.SUSPENDED


def in_use(draft: Draft) -> bool:
    """Whether any task has a share. If not, plain tasks need none of these sums."""
    return draft.compute.is_used()


def free_percent(draft: Draft, uuid: Uuid, *, plain: bool) -> int:
    """The compute of a GPU that a request without a share (`plain`) or with one may have."""
    granted_percent = draft.compute.get(uuid) or 0
    beside_plain = draft.config.plain_tasks_share
    if plain:
        return WHOLE_PERCENT if beside_plain or not granted_percent else 0
    if not beside_plain and _has_plain(_tasks(draft, uuid)):
        return 0
    return WHOLE_PERCENT - granted_percent


def best_effort_percent(draft: Draft, uuid: Uuid) -> int:
    """The compute of a GPU that best-effort tasks have."""
    return sum([task.granted_percent or 0 for task in best_effort(draft, uuid)])


def best_effort(draft: Draft, uuid: Uuid) -> list[Task]:
    """The best-effort tasks that compute on a GPU, the youngest first."""
    return sorted(
        [
            task
            for task in _tasks(draft, uuid)
            if task.run.task_class is TaskClass.BEST_EFFORT and computes(task)
        ],
        key=age,
        reverse=True,
    )


def age(task: Task) -> tuple[int, int]:
    """Its place among all tasks, the oldest first."""
    return task.since_ns, int(task.task_id[1:])


def granted_percent(state: State, uuid: Uuid) -> int:
    """The compute of a GPU that its tasks have, for people."""
    tasks = (state.tasks[task_id] for task_id in state.gpu_tasks.get(uuid, ()))
    return WHOLE_PERCENT if _has_plain(tasks) else state.compute.get(uuid, 0)


def _tasks(draft: Draft, uuid: Uuid) -> Iterator[Task]:
    return map(draft.tasks.__getitem__, draft.gpu_tasks.members(uuid))


def _has_plain(tasks: Iterable[Task]) -> bool:
    return any(task.run.compute_percent is None and computes(task) for task in tasks)
