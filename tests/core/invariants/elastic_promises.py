"""Invariants of elastic leases: each follows its task, and nothing is granted twice.

Knows: the rows. Must not know: how they came to be.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodemgr.core.model.entities import ElasticLease, Task, Uuid
from nodemgr.core.state import elastic_leases
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State


def check(state: State) -> Iterator[str]:
    for task_id, lease in state.elastics.items():
        task = state.tasks.get(task_id)
        if task is None:
            yield f"{lease} has no task"
        else:
            yield from _lease(state, task, lease)
    if not state.elastics.keys() >= state.declined_until.keys():
        yield f"{state.declined_until} of tasks that are not elastic"


def _lease(state: State, task: Task, lease: ElasticLease) -> Iterator[str]:
    name = lease.task_id
    if sorted(lease.arrivals) != sorted(task.gpus):
        yield f"{name} holds {task.gpus}, arrived are {lease.arrivals}"
    if not 0 < lease.least <= lease.most or len(task.gpus) > lease.most:
        yield f"{name} holds {len(task.gpus)} GPUs of {lease.least} to {lease.most}"
    recalled = [recall.uuid for recall in lease.recalls]
    if len(set(recalled)) != len(recalled) or not set(recalled) <= set(
        elastic_leases.above_least(lease)
    ):
        yield f"{name} is to leave {recalled} of {lease.arrivals}, and keeps {lease.least}"
    if not set(lease.offered) <= set(lease.arrivals):
        yield f"{name} was offered {lease.offered} and holds {lease.arrivals}"
    bound = [worker.process for worker in lease.workers]
    if len(set(bound)) != len(bound) or not set(bound) <= set(task.processes):
        yield f"{name} has the workers {bound} of {task.processes}"
    if not {worker.uuid for worker in lease.workers} <= set(task.gpus):
        yield f"{name} has workers on GPUs that it does not hold: {lease.workers}"
    if lease.leader and lease.leader not in task.processes:
        yield f"{name} is led by {lease.leader}, which is no member"
    if any(state.processes[key].pid is None for key in task.processes if key in state.processes):
        yield f"{name} has a process over UDP"


def is_borrowing(draft: Draft, env: str, uuid: Uuid) -> bool:
    """Whether an elastic task of the env holds the GPU."""
    if not elastic_leases.any_there(draft):
        return False
    return any(
        uuid in lease.arrivals and draft.tasks[lease.task_id].env == env
        for lease in draft.elastics.values()
    )
