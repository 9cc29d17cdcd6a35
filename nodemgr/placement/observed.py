"""A policy's view of the GPUs in a simulation: failures so far, their estimated rates.

Knows: the posterior of nodemgr/core/placement/rates.py, here with running sums. Must not know:
jobs, which GPUs a policy chooses.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nodemgr.core.placement import rates
from nodemgr.core.placement.policies import SizedJob as Job
from nodemgr.placement.batches import HOUR_MS
from nodemgr.placement.failures import Failures

GPU_BYTES = 80 << 30


@dataclass(slots=True)
class SeenGpu:
    """A GPU as policies see it: the fields of policies.KnownGpu, and those of other policies."""

    index: int
    uuid: str
    remaining_memory_bytes: int = GPU_BYTES
    tasks: int = 0
    rate_per_hour: float = 0.0
    age_hours: float = 0.0
    quiet_hours: float = math.inf
    starts: int = 0
    """The jobs of this batch that it was given to."""
    failures: int = 0
    """Of the batch and of the history before it."""
    batch_failures: int = 0
    true_rate_per_hour: float = 0.0

    @property
    def number(self) -> int:
        return self.index

    @property
    def remaining_bytes(self) -> int:
        return self.remaining_memory_bytes


SimPolicy = Callable[[Sequence[SeenGpu], Job], Sequence[int]]
"""As in core/placement/policies.py: the positions of the candidates in the order of choice."""


def uuid_of(gpu: int) -> str:
    return f"GPU-{gpu:04d}"


class Observed:
    """The records of one simulation. Times are milliseconds since the batch began."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self._history_ms = round(failures.cluster.history_hours * HOUR_MS)
        self.gpus = [SeenGpu(gpu, uuid_of(gpu)) for gpu in range(failures.cluster.gpus)]
        self._sums = [0.0] * len(self.gpus)
        """Of aged failures, as of the time 0."""
        self._last_ms = [-math.inf] * len(self.gpus)
        for gpu, times in enumerate(failures.times_ms):
            for time_ms in times[: bisect_left(times, 0)]:
                self._record(gpu, time_ms)
        for seen in self.gpus:
            seen.batch_failures = 0

    def _record(self, gpu: int, time_ms: int) -> None:
        self._sums[gpu] += 2 ** (time_ms / HOUR_MS / rates.HALF_LIFE_HOURS)
        self._last_ms[gpu] = time_ms
        self.gpus[gpu].failures += 1
        self.gpus[gpu].batch_failures += 1

    def failed(self, gpu: int, now_ms: int) -> None:
        self._record(gpu, now_ms)

    def refresh(self, now_ms: int, chosen: Iterable[int]) -> list[SeenGpu]:
        """These GPUs with their estimates as of now."""
        observed = (now_ms + self._history_ms) / HOUR_MS
        hours = rates.aged_hours(observed)
        decay = 2 ** (-now_ms / HOUR_MS / rates.HALF_LIFE_HOURS)
        total = math.fsum(self._sums) * decay + rates.BASE_FAILURES
        base_hours = rates.BASE_FAILURES / rates.BASE_RATE
        mean = total / (hours * len(self.gpus) + base_hours)
        prior_hours = rates.PRIOR_SHAPE / mean
        found = []
        for gpu in chosen:
            seen = self.gpus[gpu]
            count = self._sums[gpu] * decay
            seen.rate_per_hour = (rates.PRIOR_SHAPE + count) / (prior_hours + hours)
            seen.true_rate_per_hour = self._failures.rate_per_hour(gpu, now_ms)
            seen.age_hours = observed
            seen.quiet_hours = (now_ms - self._last_ms[gpu]) / HOUR_MS
            found.append(seen)
        return found
