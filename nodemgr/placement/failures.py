"""Failures of a simulated cluster: the same for all policies (common random numbers).

Knows: rates of GPUs, their drift, seeds. Must not know: jobs, policies. A GPU fails at the same
times whatever runs on it, and is down for the recovery time after each failure. So each policy
meets the same failures, and differences between policies have little noise.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from random import Random

from client_plugin.messages.form import SpokenError
from nodemgr.placement.batches import HOUR_MS


class BadCluster(SpokenError):
    """Parameters of which no cluster can be made. The message is one line."""


@dataclass(frozen=True)
class Cluster:
    """The parameters of a failing cluster. Raises BadCluster."""

    gpus: int = 16
    bad_part: float = 0.2
    """The part of the GPUs that fail often."""
    rate_per_hour: float = 1 / 400
    """Of the others."""
    bad_factor: float = 40.0
    """How many times as often a bad GPU fails."""
    recorded_per_hour: tuple[float, ...] = ()
    """The rate of each GPU, from records; empty: by the numbers above."""
    drift_hours: float | None = None
    """After each such time other GPUs are the bad ones; None: never."""
    restart_ms: int = 300_000
    """The time that each restart adds to a job."""
    recovery_ms: int = HOUR_MS
    """The time that a GPU is down after a failure."""
    checkpoint_ms: int | None = None
    """The work between checkpoints; None: a failed job begins anew."""
    avoids: bool = False
    """A job gets no GPU that failed under it, where there are enough others."""
    history_hours: float = 30 * 24.0
    """The time before the batch in which failures were recorded."""
    horizon_hours: float = 60 * 24.0
    """A batch that is not done by then counts as done at this time."""

    def __post_init__(self) -> None:
        holds = {
            "gpus": 1 <= self.gpus <= 1_000,
            "recorded_per_hour": len(self.recorded_per_hour) in (0, self.gpus)
            and all(0 <= rate < math.inf for rate in self.recorded_per_hour),
            "bad_part": 0 <= self.bad_part <= 1,
            "rate_per_hour": 0 <= self.rate_per_hour < math.inf,
            "bad_factor": 0 <= self.bad_factor < math.inf,
            "history_hours": 0 <= self.history_hours < math.inf,
            "horizon_hours": 0 < self.horizon_hours < math.inf,
            "restart_ms": self.restart_ms >= 0,
            "recovery_ms": self.recovery_ms >= 0,
            "checkpoint_ms": self.checkpoint_ms is None or self.checkpoint_ms >= 1,
            "drift_hours": self.drift_hours is None or 1 <= self.drift_hours < math.inf,
        }
        wrong = [f"{name} {getattr(self, name)}" for name, good in holds.items() if not good]
        if wrong:
            raise BadCluster(
                f"no cluster can be simulated with {', '.join(wrong)}",
                "1 to 1000 GPUs; parts of 0 to 1; rates and times that are finite and not below 0",
            )

    @property
    def bad_gpus(self) -> int:
        return round(self.gpus * self.bad_part)


class Failures:
    """The times of all failures of one seed, by GPU, in milliseconds; 0: the batch begins.

    Failures of the history have times below 0.
    """

    def __init__(self, cluster: Cluster, seed: str, bad_seed: str | None = None) -> None:
        """`bad_seed` decides which GPUs are the bad ones; None: `seed` does."""
        self.cluster = cluster
        self._bad: dict[int, frozenset[int]] = {}
        self._seed = seed
        self._bad_seed = seed if bad_seed is None else bad_seed
        self.times_ms = tuple(self._of(gpu) for gpu in range(cluster.gpus))

    def rate_per_hour(self, gpu: int, at_ms: int) -> float:
        """The true rate, which no policy but `known rates` sees."""
        return self._rate(gpu, self._epoch(at_ms / HOUR_MS))

    def next_ms(self, gpu: int, after_ms: int) -> float:
        """The time of the next failure; infinite: none before the horizon."""
        times = self.times_ms[gpu]
        place = bisect_right(times, after_ms)
        return times[place] if place < len(times) else math.inf

    def _epoch(self, hours: float) -> int:
        drift = self.cluster.drift_hours
        return 0 if drift is None else math.floor((hours + self.cluster.history_hours) / drift)

    def _rate(self, gpu: int, epoch: int) -> float:
        if self.cluster.recorded_per_hour:
            return self.cluster.recorded_per_hour[gpu]
        if epoch not in self._bad:
            choice = Random(f"{self._bad_seed}/bad/{epoch}")
            bad = choice.sample(range(self.cluster.gpus), self.cluster.bad_gpus)
            self._bad[epoch] = frozenset(bad)
        factor = self.cluster.bad_factor if gpu in self._bad[epoch] else 1.0
        return self.cluster.rate_per_hour * factor

    def _of(self, gpu: int) -> tuple[int, ...]:
        """A Poisson process by inversion: unit exponentials over the integral of the rate."""
        cluster, random = self.cluster, Random(f"{self._seed}/gpu/{gpu}")
        at, end, found = -cluster.history_hours, cluster.horizon_hours, list[int]()
        left = random.expovariate(1)
        while at < end:
            epoch = self._epoch(at)
            until = end
            if cluster.drift_hours is not None:
                until = min(end, (epoch + 1) * cluster.drift_hours - cluster.history_hours)
                until = max(until, math.nextafter(at, math.inf))
            rate = self._rate(gpu, epoch)
            if rate * (until - at) < left:
                left -= rate * (until - at)
                at = until
                continue
            at += left / rate
            found.append(round(at * HOUR_MS))
            at += cluster.recovery_ms / HOUR_MS + 1e-6
            left = random.expovariate(1)
        return tuple(found)
