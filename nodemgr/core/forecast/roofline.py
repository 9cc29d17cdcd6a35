"""The estimate that needs no samples: operations and bytes of a step against a GPU's peaks.

Knows: the work of one step, the rates of a model. Must not know: any measurement of the node.

A kernel takes the longer of its arithmetic and its traffic, each at the part of the peak that
library kernels reach, and never less than the shortest kernel. The program launches kernels one
after another: a step takes at least the time of its launches. Utilisation, as NVML counts it, is
the part of the step in which a kernel runs.

With factors that were fitted to a node (fitting.py) a step is the sum over its kernels: the longer
of arithmetic and traffic, and a time for each kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nodemgr.core.forecast.features import Features, WorkRow
from nodemgr.core.forecast.gpu_models import GpuRates

REACHED_PER_MILLE = 600
"""Of the arithmetic peak, in large matrix products and convolutions."""
REACHED_BANDWIDTH_PER_MILLE = 800
SHORTEST_KERNEL_NS = 2_000
LAUNCH_NS = 7_000
"""The program's time for each kernel: a framework's dispatch of one operation."""


class StepEstimate(NamedTuple):
    step_ns: int
    utilization_percent: int
    """From 1 to 100."""


class Factors(NamedTuple):
    """Of the times at the peaks: arithmetic, traffic; and nanoseconds for each kernel."""

    arithmetic: float
    traffic: float
    kernel_ns: float


DEFAULT_FACTORS = Factors(
    1000 / REACHED_PER_MILLE, 1000 / REACHED_BANDWIDTH_PER_MILLE, float(LAUNCH_NS)
)


class Term(NamedTuple):
    """A row of work at the peaks of a model."""

    arithmetic_ns: float
    traffic_ns: float
    kernels: int


def terms(features: Features, model: GpuRates) -> list[Term]:
    """10^9 operations in a second are one in a nanosecond; the same for bytes."""
    return [
        Term(
            row.operations / model.gflops(row.precision),
            row.moved_bytes / model.bandwidth_gb_per_s,
            row.kernels,
        )
        for row in features.work
    ]


def sum_ns(rows: Iterable[Term], factors: Factors) -> float:
    arithmetic, traffic, kernel_ns = factors
    return sum(
        [
            max(row.arithmetic_ns * arithmetic, row.traffic_ns * traffic) + row.kernels * kernel_ns
            for row in rows
        ]
    )


def fitted_ns(features: Features, model: GpuRates, factors: Factors) -> int:
    """One step on this model, with factors of the node."""
    return max(1, round(sum_ns(terms(features, model), factors)))


def estimate(features: Features, model: GpuRates) -> StepEstimate | None:
    """One step on this model; None: the features have no work."""
    if not features.work:
        return None
    busy_ns = sum([_busy_ns(row, model) for row in features.work])
    launches_ns = LAUNCH_NS * sum([row.kernels for row in features.work])
    step_ns = max(1, busy_ns, launches_ns)
    return StepEstimate(step_ns, min(100, max(1, round(100 * busy_ns / step_ns))))


def _busy_ns(row: WorkRow, model: GpuRates) -> int:
    """10^9 operations in a second are one in a nanosecond; the same for bytes."""
    arithmetic_ns = row.operations * 1000 // (model.gflops(row.precision) * REACHED_PER_MILLE)
    traffic_ns = row.moved_bytes * 1000 // (model.bandwidth_gb_per_s * REACHED_BANDWIDTH_PER_MILLE)
    return max(arithmetic_ns, traffic_ns, row.kernels * SHORTEST_KERNEL_NS)
