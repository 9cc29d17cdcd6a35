"""Invariants of memory in grants: what is kept for tasks, and elastic grants with their orders.

Knows: the tables of grants. Must not know: how they came to be.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodemgr.core.manager import Transition
from nodemgr.core.state import accounting, elastic_grants
from nodemgr.core.state.node_state import State


def check(state: State) -> Iterator[str]:
    """Everything that is wrong with elastic grants, a line each."""
    marked = {key: True for key, grant in state.grants.items() if grant.most_bytes}
    if marked != state.elastic_grants:
        yield f"elastic grants are {sorted(state.elastic_grants)}, counted {sorted(marked)}"
    for task in state.tasks.values():
        most_bytes = task.run.memory_most_bytes
        if most_bytes is not None and not 0 < (task.run.memory_bytes or 0) <= most_bytes:
            yield f"{task.task_id} asked for {task.run.memory_bytes} to {most_bytes} bytes"
    for key, lowering in state.lowerings.items():
        if key not in marked or lowering.asked_bytes < 0:
            yield f"{lowering} of {key}, which is no elastic grant"
        elif lowering.number is not None and lowering.asked_bytes >= state.grants[key].memory_bytes:
            yield f"{lowering} lowers {state.grants[key]} by nothing"


def check_change(transition: Transition) -> Iterator[str]:
    """Promise 1 for what elastic grants have beyond the promised part.

    It grows within the range, and shrinks only by the ledger's answer: with an order that was open.
    And what a task named is kept for it as long as its grant has its size.
    """
    draft = transition.draft
    for task_id, was, task in draft.tasks.changes():
        if task is None or was is not None or not task.kept_bytes:
            continue
        for uuid in task.gpus:
            held = draft.grants[task.env, uuid]
            if held.suspended_tasks:  # it grows once its memory is on the GPU again
                continue
            if not task.kept_bytes <= held.kept_bytes <= held.limit_bytes:
                yield f"{task_id} began with more named memory than {held} has"
    for key, before, grant in draft.grants.changes():
        if grant is None or before is None or not (grant.most_bytes and before.most_bytes):
            continue
        grew = grant.memory_bytes > before.memory_bytes
        if grew and grant.memory_bytes > _highest(transition, key):
            yield f"{grant} grew beyond its range"
        was_active = accounting.active_tasks(before) > 0 and accounting.active_tasks(grant) > 0
        shrank = grant.memory_bytes < before.memory_bytes
        ordered = draft.lowerings.before(key)
        has_ledger = draft.members.before(before.env) is not None
        if was_active and shrank and has_ledger and ordered is None:
            yield f"{grant} shrank from {before.memory_bytes} bytes without the ledger's answer"


def _highest(transition: Transition, key: tuple[str, str]) -> int:
    """The end of its range, or the quota's size while a task without a range shares it."""
    draft = transition.draft
    grant = draft.grants[key]
    full_bytes = accounting.full_grant(draft.envs[grant.env].quota, draft.gpus[grant.uuid])
    return max(full_bytes, elastic_grants.ceiling(draft, grant))
