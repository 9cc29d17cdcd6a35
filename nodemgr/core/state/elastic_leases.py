"""The GPUs of elastic leases that can be recalled, and those beyond the quota.

Knows: the order in which GPUs are recalled. Must not know: whether one is recalled now
(core/elastic), and how it leaves its lease (lifecycle/resizing.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nodemgr.core.model.entities import ElasticLease, Suspension, Task, TaskState, Uuid
from nodemgr.core.state import accounting
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

SCALE = 1_000_000


class HeldGpu(NamedTuple):
    """A GPU of an elastic lease."""

    task_id: str
    uuid: Uuid


def any_there(draft: Draft) -> bool:
    """Whether any elastic lease exists. If not, no step pays for them."""
    return draft.elastics.is_used()


def of_task(draft: Draft, task_id: str) -> ElasticLease | None:
    """The elastic lease of the task; None: it has none."""
    return draft.elastics.get(task_id) if any_there(draft) else None


def above_least(lease: ElasticLease) -> tuple[Uuid, ...]:
    """The GPUs beyond the least number, the last added first."""
    return lease.arrivals[: lease.least - 1 : -1] if lease.least else lease.arrivals[::-1]


def may_return(draft: Draft, task: Task, uuid: Uuid) -> bool:
    """Whether the GPU may leave the task's lease at any moment, by a recall."""
    lease = of_task(draft, task.task_id)
    return lease is not None and uuid in above_least(lease)


def returning(draft: Draft, env: str) -> frozenset[Uuid]:
    """The GPUs above the least numbers of the env's elastic tasks, which use them alone."""
    if not any_there(draft):
        return frozenset()
    return frozenset(
        uuid
        for lease in draft.elastics.values()
        if draft.tasks[lease.task_id].env == env
        for uuid in above_least(lease)
        if accounting.active_tasks(draft.grants.get((env, uuid))) == 1
    )


def is_active(task: Task) -> bool:
    """Whether the task uses its GPUs now: only then a recall gives them to others."""
    return task.state is TaskState.RUNNING and task.suspension is Suspension.NONE


def borrowed(book: Draft | State, env: str) -> list[HeldGpu]:
    """The GPUs beyond the env's quota that its elastic tasks hold, the first to go first."""
    beyond = len(accounting.used_gpus(book, env)) - book.envs[env].quota.gpus
    if beyond <= 0:
        return []
    leases = [
        (book.tasks[lease.task_id], lease)
        for lease in book.elastics.values()
        if book.tasks[lease.task_id].env == env
    ]
    leases.sort(key=lambda pair: (pair[0].since_ns, _number(pair[0])), reverse=True)
    held = [
        HeldGpu(task.task_id, uuid)
        for task, lease in leases
        if is_active(task)
        for uuid in above_least(lease)
        if accounting.is_used(book, env, uuid)
    ]
    return held[:beyond]


def recallable(draft: Draft) -> list[HeldGpu]:
    """All GPUs above the least numbers of active tasks, in the order in which they are recalled.

    Borrowed ones first; then those of the tasks with the most of their greatest numbers.
    """
    found = [
        (_place(draft, lease, uuid), HeldGpu(lease.task_id, uuid))
        for lease in draft.elastics.values()
        if is_active(draft.tasks[lease.task_id])
        for uuid in above_least(lease)
    ]
    envs = {draft.tasks[lease.task_id].env for lease in draft.elastics.values()}
    first = {held for env in envs if env in draft.envs for held in borrowed(draft, env)}
    found.sort(key=lambda pair: (pair[1] not in first, pair[0]))
    return [held for _, held in found]


def _place(draft: Draft, lease: ElasticLease, uuid: Uuid) -> tuple[int, int, int]:
    """The larger the part of its greatest number with this GPU, the sooner it goes."""
    task = draft.tasks[lease.task_id]
    part = (lease.arrivals.index(uuid) + 1) * SCALE // lease.most
    return -part, -task.since_ns, -_number(task)


def _number(task: Task) -> int:
    return int(task.task_id[1:])


def unbound(lease: ElasticLease, task: Task) -> Iterator[str]:
    """The members of the task that may use all of its GPUs."""
    bound = {worker.process for worker in lease.workers}
    return (key for key in task.processes if key not in bound)
