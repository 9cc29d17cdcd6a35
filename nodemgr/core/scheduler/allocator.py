"""Which GPUs a request gets: the table of docs/allocation.md ("Which GPUs"), and nothing else.

Knows: one request's numbers and one row of numbers per healthy GPU. Must not know: tasks, queues,
where numbers come from. Source: the patent named in docs/allocation.md, [0084-0126], with its two
faults mended: where fewer than `slots` fresh GPUs qualify, as many reused ones make up for them as
are missing; and what fails there though it may be served later waits.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from nodemgr.core.model.entities import WHOLE_PERCENT, DenyCode, TaskClass, Uuid
from nodemgr.core.placement.orders import SPREAD

ANY_NUMBER = 1 << 30
"""More tasks than a GPU ever has."""


NORMAL = TaskClass.NORMAL
"""Read for each request: a member of an enum costs more than a name of the module."""


class Ask(NamedTuple):
    """The demand of a request, beside the limits of its env."""

    gpus: int
    quota_gpus: int
    """The GPUs of its quota, without `elsewhere`."""
    quota_remaining_bytes: int | None
    """The rest of the env's memory quota, below zero after it was lowered; None: no quota."""
    max_tasks_per_gpu: int
    reuse_below: int = ANY_NUMBER
    """A GPU that the env holds is reused only with fewer tasks on it than this: 1 is never."""
    percent: int = WHOLE_PERCENT
    """The compute that it needs on each GPU."""
    task_class: TaskClass = NORMAL
    elsewhere: int = 0
    """The GPUs that its env uses and it may not have, of no row: drained ones, avoided ones."""


class Candidate(NamedTuple):
    """One usable GPU as one env sees it."""

    uuid: Uuid
    number: int
    """Its index (a tuple has an `index` of its own)."""
    used: bool
    """The env holds it through a task that is not stalled."""
    tasks: int
    """The tasks of all envs on the GPU, without stalled ones."""
    remaining_bytes: int
    """The GPU's unpromised bytes; below zero if lost processes hold more."""
    need_bytes: int
    """The bytes that a fresh grant here takes from the GPU and from the env's quota."""
    big_enough: bool = True
    """Could a grant here ever hold what the request names?"""
    has_free: bool = True
    """Of a grant here, what the request names is not in use by the env's other tasks."""
    reserved: bool = False
    """An earlier request waits for the GPU: no other request gets it as a fresh GPU."""
    free_percent: int = WHOLE_PERCENT
    """The compute that this request may have there."""
    releasable_percent: int = 0
    """The compute that others would give up for this request."""
    need_percent: int | None = None
    """The compute that the request needs there; None: as much as anywhere (Ask.percent)."""
    time_ms: int | None = None
    """The predicted run time of the request there; None: unknown."""
    is_endangered: bool = False
    """It failed lately, or the request would probably fail there."""
    may_return: bool = False
    """An elastic task of its env holds it above its least number: a recall can bring it back."""


class Choice(NamedTuple):
    fresh: tuple[Candidate, ...]
    reused: tuple[Candidate, ...]
    used: int
    """GPUs that the env holds by now, beside the fresh ones."""


class Shortage(enum.Enum):
    """Why a request that is within its quota has to wait."""

    NODE = "node"
    """A shortage of the node's GPUs: others hold them."""
    QUOTA_MEMORY = "quota_memory"
    """A shortage of its own env's remaining memory quota alone."""
    LEDGER = "ledger"
    """A shortage of memory in the grants that its own env holds, and of nothing else."""
    COMPUTE = "compute"
    """A shortage of compute on the GPUs that its own env holds, and of nothing else."""
    OWN_GPUS = "own_gpus"
    """A shortage of GPUs in its own env's quota, which it does not share with other tasks."""
    HOST = "host"
    """A shortage of CPUs or host memory alone."""


Policy = Callable[[Candidate], tuple[float, ...]]
"""The order of fresh GPUs: the smallest key first."""


def refusal(gpus: int, quota_gpus: int, node_gpus: int, *, explicit: bool) -> DenyCode | None:
    """The code of a request that can never be served as it stands; None: it may be, or wait."""
    if quota_gpus == 0 or gpus == 0:
        return DenyCode.NO_GPU
    if gpus > quota_gpus:
        return DenyCode.OVER_QUOTA
    if explicit and gpus > node_gpus:
        return DenyCode.MORE_THAN_NODE
    return None


def choose(ask: Ask, candidates: Sequence[Candidate], policy: Policy = SPREAD) -> Choice | Shortage:
    """The GPUs for a request within its quota, or what they are short of."""
    choice = _choose(ask, candidates, policy)
    if choice is not None:
        return choice
    used = [gpu for gpu in candidates if gpu.used]
    if ask.gpus - sum([gpu.tasks < ask.reuse_below for gpu in used]) > max(
        0, ask.quota_gpus - len(used)
    ):
        return Shortage.OWN_GPUS
    freed = [gpu._replace(has_free=True) for gpu in candidates]
    if _choose(ask, freed, policy) is not None:
        return Shortage.LEDGER
    if any(gpu.free_percent < needed_percent(gpu, ask) for gpu in used):
        freed = [gpu._replace(free_percent=WHOLE_PERCENT) if gpu.used else gpu for gpu in freed]
        if _choose(ask, freed, policy) is not None:
            return Shortage.COMPUTE
    if _choose(ask._replace(quota_remaining_bytes=None), freed, policy) is not None:
        return Shortage.QUOTA_MEMORY
    return Shortage.NODE


def _choose(ask: Ask, candidates: Sequence[Candidate], policy: Policy) -> Choice | None:
    """The table, from `slots` on: where there are none left, nothing is fresh."""
    used = [gpu for gpu in candidates if gpu.used]
    slots = max(0, ask.quota_gpus - len(used))
    fresh = _fresh(ask, candidates, slots, policy) if slots else []
    missing = ask.gpus - len(fresh)
    reusable = (
        [
            gpu
            for gpu in used
            if gpu.has_free and gpu.tasks < ask.reuse_below and has_compute(gpu, ask)
        ]
        if missing
        else []
    )
    return (
        Choice(tuple(fresh), reused(reusable, missing), len(used) + ask.elsewhere)
        if missing <= len(reusable)
        else None
    )


def reused(reusable: list[Candidate], gpus: int) -> tuple[Candidate, ...]:
    """So many of them: those with the fewest tasks, and ones that a recall may free last."""
    return tuple(sorted(reusable, key=_reuse_order)[:gpus])


def _reuse_order(gpu: Candidate) -> tuple[int, ...]:
    return (gpu.may_return, gpu.tasks, -gpu.remaining_bytes, gpu.number)


def _fresh(
    ask: Ask, candidates: Iterable[Candidate], slots: int, policy: Policy
) -> list[Candidate]:
    """The fresh GPUs that qualify, in the policy's order.

    They are at most `slots`, no more than asked for, and together within the remaining quota.
    """
    fresh = sorted(
        (gpu for gpu in candidates if not gpu.reserved and qualifies(gpu, ask)),
        key=_preference(ask, policy),
    )
    most, left_bytes = min(slots, ask.gpus), ask.quota_remaining_bytes
    if left_bytes is None or sum([gpu.need_bytes for gpu in fresh[:most]]) <= left_bytes:
        return fresh[:most]
    return _within(left_bytes, fresh, most)


def _within(left_bytes: int, fresh: list[Candidate], most: int) -> list[Candidate]:
    """As many of the GPUs as these bytes are enough for, at most `most`: the first in their order.

    A GPU is passed over if too little would be left for the others: as long as enough smaller ones
    qualify, no request waits because its policy prefers a larger one.
    """
    smallest = accumulate(sorted([gpu.need_bytes for gpu in fresh]))
    missing = min(most, sum([sum_bytes <= left_bytes for sum_bytes in smallest]))
    picked: list[Candidate] = []
    for place, gpu in enumerate(fresh, 1):
        if not missing:
            break
        others = sorted([other.need_bytes for other in fresh[place:]])
        if gpu.need_bytes + sum(others[: missing - 1]) <= left_bytes:
            picked.append(gpu)
            left_bytes -= gpu.need_bytes
            missing -= 1
    return picked


def _preference(ask: Ask, policy: Policy) -> Policy:
    """The order of fresh GPUs for a request of this class.

    Latency-sensitive: the GPU with the most compute left first, those on which it would probably
    fail after the others, and those that best effort would have to give up last. Best effort: the
    shortest predicted time first. Else the policy's order.
    """
    if ask.task_class is NORMAL:
        return policy
    if ask.task_class is TaskClass.LATENCY_SENSITIVE:
        return lambda gpu: (
            gpu.free_percent < needed_percent(gpu, ask),
            gpu.is_endangered,
            -gpu.free_percent,
            *policy(gpu),
        )
    return lambda gpu: (gpu.time_ms is None, gpu.time_ms or 0, *policy(gpu))


def needed_percent(gpu: Candidate, ask: Ask) -> int:
    """The compute that the request needs on this GPU."""
    return ask.percent if gpu.need_percent is None else gpu.need_percent


def has_compute(gpu: Candidate, ask: Ask) -> bool:
    if gpu.need_percent is None and ask.percent <= gpu.free_percent:
        return True  # each GPU without shares
    return needed_percent(gpu, ask) <= gpu.free_percent + gpu.releasable_percent


def qualifies(gpu: Candidate, ask: Ask) -> bool:
    """Whether the GPU can be a fresh one for this request, unless it is reserved for another."""
    return (
        not gpu.used
        and gpu.big_enough
        and gpu.has_free
        and gpu.tasks < ask.max_tasks_per_gpu
        and gpu.need_bytes <= gpu.remaining_bytes
        and has_compute(gpu, ask)
    )
