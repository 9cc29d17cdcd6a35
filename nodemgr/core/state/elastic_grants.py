"""Elastic grants: how much of each is promised, how far it may grow, and what may be lowered.

Knows: the sums of GPUs and quotas, and the orders to lower that are open. Must not know: the
request that needs the memory, and when a grant grows (core/elastic/grants.py).

A task may ask for a range of memory. Its grants have the least of it promised, and grow into memory
that nothing else was promised. The rest of a grant, beyond the promised part, is its surplus: any
request within its quota may have that, as far as the ledger shows it unused. A grant whose last
range has ended stays elastic until it is lowered to its promised part.
"""

from __future__ import annotations

from collections.abc import Collection

from nodemgr.core.model.entities import MS, Grant, Task, Uuid
from nodemgr.core.model.schema import EnvGpu, Figures
from nodemgr.core.model.values import replace
from nodemgr.core.state import accounting
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

IN_USE_BEATS = 3
"""For so many beats after an order, memory that it found in use counts as in use."""


def any_there(draft: Draft) -> bool:
    """Whether any elastic grant exists. If not, no step pays for them."""
    return draft.elastic_grants.is_used()


def there(draft: Draft) -> list[Grant]:
    """All elastic grants, in the order of their keys."""
    return [draft.grants[key] for key in sorted(draft.elastic_grants)]


def ceiling(book: Draft | State, grant: Grant) -> int:
    """The size that an elastic grant may grow to."""
    least_bytes = accounting.least(book, grant)
    if not grant.elastic_tasks:
        return least_bytes
    return max(least_bytes, min(grant.most_bytes, book.gpus[grant.uuid].memory_total_bytes))


def surplus(book: Draft | State, grant: Grant) -> int:
    """The bytes that an elastic grant has beyond the promised part."""
    if not grant.most_bytes or accounting.active_tasks(grant) == 0:
        return 0
    return max(0, grant.memory_bytes - accounting.least(book, grant))


def is_in_use(draft: Draft, key: EnvGpu) -> bool:
    """Whether the last order to lower the grant found its surplus in use, not long ago."""
    lowering = draft.lowerings.get(key)
    if lowering is None or (lowering.number is not None and not lowering.is_repeated):
        return False
    return draft.now_ns < lowering.at_ns + IN_USE_BEATS * draft.config.beat_ms * MS


def hoped(draft: Draft, grant: Grant) -> int:
    """The surplus that an order would free, as far as is known."""
    return 0 if is_in_use(draft, (grant.env, grant.uuid)) else surplus(draft, grant)


class Spare:
    """The bytes that orders to lower grants would free, by GPU and by env."""

    def __init__(self, of_gpu: dict[Uuid, int], of_env: dict[str, int]) -> None:
        self.of_gpu = of_gpu
        self.of_env = of_env

    def __bool__(self) -> bool:
        return bool(self.of_env)


NO_SPARE = Spare({}, {})


def spare(draft: Draft, *, all_surplus: bool = False) -> Spare:
    """`all_surplus`: also what the last order found in use."""
    if not any_there(draft):
        return NO_SPARE
    found = Spare({}, {})
    for grant in there(draft):
        more_bytes = surplus(draft, grant) if all_surplus else hoped(draft, grant)
        if more_bytes:
            found.of_env[grant.env] = found.of_env.get(grant.env, 0) + more_bytes
            if not accounting.is_parked(grant):
                found.of_gpu[grant.uuid] = found.of_gpu.get(grant.uuid, 0) + more_bytes
    return found


def share(draft: Draft, grant: Grant, task: Task, figures: Figures) -> None:
    """Adds a task to a grant in use: the grant grows to what it promises now, if there is room.

    Memory that the task has asked for is added to what the others use.
    """
    held = accounting.with_task(grant, task.kept_bytes, task.run.memory_most_bytes)
    wanted_bytes = wanted(draft, grant, task.kept_bytes, task.run.memory_most_bytes, figures)
    memory_bytes = grant.memory_bytes
    if not accounting.is_parked(grant):
        memory_bytes = max(memory_bytes, min(wanted_bytes, accounting.most(draft, grant)))
    draft.put_grant(replace(held, memory_bytes=memory_bytes))


def wanted(
    draft: Draft, grant: Grant, kept_bytes: int, most_bytes: int | None, figures: Figures
) -> int:
    """The size of the grant with one task more: what it promises then, and room for the task."""
    held = accounting.with_task(grant, kept_bytes, most_bytes)
    wanted_bytes = accounting.least(draft, held)
    if kept_bytes:
        others_bytes = grant.kept_bytes + figures.get((grant.env, grant.uuid), 0)
        wanted_bytes = max(wanted_bytes, others_bytes + kept_bytes + grant.caps_bytes)
    return wanted_bytes


def begin(draft: Draft, task: Task) -> None:
    """A new task's grants grow at once, if no request waits."""
    if any(True for _ in draft.requests):
        return
    for number, uuid in enumerate(task.gpus):
        grant = draft.grants[task.env, uuid]
        more_bytes = most_growth(draft, grant, among=len(task.gpus) - number)
        if more_bytes > 0:
            draft.put_grant(replace(grant, memory_bytes=grant.memory_bytes + more_bytes))


def most_growth(draft: Draft, grant: Grant, *, among: int = 1) -> int:
    """The bytes that an elastic grant may have more now; `among`: grants share its env's quota."""
    if accounting.active_tasks(grant) == 0 or accounting.is_parked(grant):
        return 0
    wanted_bytes = ceiling(draft, grant) - grant.memory_bytes
    quota_bytes = _free_quota(draft, grant.env)
    if quota_bytes is not None:
        wanted_bytes = min(wanted_bytes, quota_bytes // among)
    return max(0, min(wanted_bytes, free_bytes(draft, grant.uuid)))


def free_bytes(draft: Draft, uuid: Uuid) -> int:
    """The GPU's bytes that nothing was promised; stalled tasks may come back to theirs."""
    gpu = draft.gpus[uuid]
    if not gpu.usable:
        return 0
    return accounting.gpu_room(draft, gpu) - _returning_bytes(
        draft, [grant for grant in draft.grants.values() if grant.uuid == uuid]
    )


def _free_quota(draft: Draft, env: str) -> int | None:
    """The env's memory quota that is left, without what its tasks may come back or grow to."""
    left_bytes = accounting.quota_room(draft, env)
    if left_bytes is None:
        return None
    grants = [grant for grant in draft.grants.values() if grant.env == env]
    return left_bytes - _returning_bytes(draft, grants) - _coming_gpus_bytes(draft, env)


def _returning_bytes(draft: Draft, grants: Collection[Grant]) -> int:
    """The bytes that grants are below the promised part: stalled, or pending for lack of room."""
    missing = (accounting.least(draft, grant) - grant.memory_bytes for grant in grants)
    return sum(max(0, missing_bytes) for missing_bytes in missing)


def _coming_gpus_bytes(draft: Draft, env: str) -> int:
    """The memory of GPUs that the env's elastic tasks may still get: GPUs come before memory."""
    if not draft.elastics.is_used():
        return 0
    quota = draft.envs[env].quota
    largest = max(draft.gpus.values(), key=lambda gpu: gpu.memory_total_bytes)
    coming_bytes = 0
    for lease in draft.elastics.values():
        task = draft.tasks[lease.task_id]
        if task.env == env:
            each_bytes = accounting.least_of(
                quota, largest, task.run.memory_bytes, task.run.memory_most_bytes
            )
            coming_bytes += (lease.most - len(task.gpus)) * each_bytes
    return coming_bytes
