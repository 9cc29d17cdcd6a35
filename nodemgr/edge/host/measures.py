"""Counts of durations in fixed buckets, as a histogram of Prometheus has them.

Knows: buckets. Must not know: which durations these are, Prometheus. One observation costs less
than a microsecond; it is made in hot paths.
"""

from __future__ import annotations

from bisect import bisect_left

SECOND_NS = 1_000_000_000
WAIT_S = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0)
HOLD_S = (
    1.0,
    10.0,
    60.0,
    300.0,
    900.0,
    3_600.0,
    14_400.0,
    43_200.0,
    86_400.0,
    259_200.0,
    604_800.0,
)
STEP_S = (0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Upper bounds of the buckets of waits, of holds, of steps and commits. A last one has no bound."""


class Histogram:
    """Durations since the start of this process."""

    __slots__ = ("_bounds_ns", "counts", "total_ns")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        """`bounds_s`: upper bounds, rising."""
        self._bounds_ns = [round(bound_s * SECOND_NS) for bound_s in bounds_s]
        self.counts = [0] * (len(bounds_s) + 1)
        """Of each bucket by itself; the last has no upper bound."""
        self.total_ns = 0

    def observe(self, duration_ns: int) -> None:
        """A duration below zero (a clock that a boot set back) counts as zero."""
        if duration_ns < 0:
            duration_ns = 0
        self.counts[bisect_left(self._bounds_ns, duration_ns)] += 1
        self.total_ns += duration_ns
