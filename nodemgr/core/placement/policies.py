"""The orders in which fresh GPUs are chosen: each policy once.

Knows: the numbers of each candidate, and the width and the time of the job. Must not know: quotas,
queues, which candidates qualify (scheduler/allocator.py), where a rate comes from (rates.py).

`reliable` in closed form. A failure of one of the job's GPUs costs all of them the restart and half
of the job's time. The expected loss of the job on a GPU is therefore

    rate * hours * gpus * (hours / 2 + RESTART_HOURS)      in GPU hours,

and the loss of a typical job there is the same with its numbers. A long or wide job loses more on
an unreliable GPU than a typical job would: it takes the GPU with the lowest rate. A short one loses
less, so it takes the GPU with the highest rate and leaves the others. Both are one order: by
`rate * (weight of the job - weight of a typical job)`. Three exceptions come before it:

- a GPU that failed within the last RECENT_HOURS comes last;
- a GPU on which the job would fail with a probability above RISK_MAX comes after those without;
- a GPU that other tasks use costs the job more time than a failure does.

Rates are compared in steps of a factor of two, so the GPUs among which the records show no
difference keep the order `spread`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nodemgr.core.placement.orders import ORDERS, SPREAD, FillOrder

RESTART_HOURS = 0.25
"""The time from a failure until the job runs again."""
TYPICAL_GPUS, TYPICAL_HOURS = 1, 1.0
UNKNOWN_HOURS = 8.0
"""The time of a job that nothing is known of: a working day."""
RISK_MAX = 0.05
RECENT_HOURS = 1.0


@dataclass(frozen=True)
class KnownGpu:
    """A GPU that qualifies for a job."""

    index: int
    uuid: str
    remaining_memory_bytes: int
    tasks: int
    rate_per_hour: float = 0.0
    """The estimate of its failures in an hour."""
    age_hours: float = 0.0
    """The time for which it is observed."""
    quiet_hours: float = math.inf
    """The time since its last failure; infinite: none is known."""

    @property
    def number(self) -> int:
        return self.index

    @property
    def remaining_bytes(self) -> int:
        return self.remaining_memory_bytes


@dataclass(frozen=True)
class SizedJob:
    gpus: int
    hours: float | None = None
    """The time that it is expected to run; None: unknown."""

    @property
    def counted_hours(self) -> float:
        """The time that the policy counts with."""
        return UNKNOWN_HOURS if self.hours is None else max(0.0, self.hours)


FullOrder = Callable[[Sequence[KnownGpu], SizedJob], list[int]]
"""The positions of the candidates in the order of choice."""


def loss_weight(gpus: int, hours: float) -> float:
    """The GPU hours that a job loses for each failure an hour of one of its GPUs."""
    return hours * gpus * (hours / 2 + RESTART_HOURS)


TYPICAL_WEIGHT = loss_weight(TYPICAL_GPUS, TYPICAL_HOURS)


def expected_loss(rate_per_hour: float, job: SizedJob) -> float:
    """The GPU hours that the job loses on average by failures of a GPU with this rate."""
    return rate_per_hour * loss_weight(job.gpus, job.counted_hours)


def is_risky(rate_per_hour: float, hours: float) -> bool:
    """Would a job of so many hours fail there with a probability above RISK_MAX?"""
    return rate_per_hour * hours > RISK_MAX


def is_endangered(gpu: KnownGpu, job: SizedJob) -> bool:
    """Did the GPU fail lately, or would the job probably fail there?"""
    return gpu.quiet_hours < RECENT_HOURS or is_risky(gpu.rate_per_hour, job.counted_hours)


def is_short(job: SizedJob) -> bool:
    """Does it lose less by a failure than a typical job?"""
    return loss_weight(job.gpus, job.counted_hours) < TYPICAL_WEIGHT


def reliable_key(job: SizedJob) -> Callable[[KnownGpu], tuple[float, ...]]:
    """The key of a candidate for this job; the smallest is chosen first."""
    hours = job.counted_hours
    weight = loss_weight(job.gpus, hours) - TYPICAL_WEIGHT
    shared_hours = job.gpus * hours

    def key(gpu: KnownGpu) -> tuple[float, ...]:
        rate = gpu.rate_per_hour
        step = 2.0 ** math.floor(math.log2(rate)) if 0 < rate < math.inf else rate
        risky = is_risky(rate, hours)
        loss = step if risky else step * weight
        return (
            gpu.quiet_hours < RECENT_HOURS,
            risky,
            gpu.tasks * shared_hours + loss,
            *SPREAD(gpu),
        )

    return key


def _by_order(order: FillOrder) -> FullOrder:
    def policy(candidates: Sequence[KnownGpu], job: SizedJob) -> list[int]:
        return sorted(range(len(candidates)), key=lambda at: order(candidates[at]))

    return policy


def reliable(candidates: Sequence[KnownGpu], job: SizedJob) -> list[int]:
    """In the order of expected loss for this job, less that of a typical one."""
    key = reliable_key(job)
    return sorted(range(len(candidates)), key=lambda at: key(candidates[at]))


POLICIES: Mapping[str, FullOrder] = {
    **{name: _by_order(order.key) for name, order in ORDERS.items()},
    "reliable": reliable,
}
