"""Forecasts from earlier tasks with the same step, and the nearest task as a baseline.

Knows: samples. Must not know: networks. The samples of the user in the same environment come first:
they are taken as they are. Samples of others count by the median, each owner's with a bounded
weight, and within bounds around the figures that need no samples (samples.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from nodemgr.core.forecast import samples
from nodemgr.core.forecast.features import Features
from nodemgr.core.forecast.roofline import StepEstimate
from nodemgr.core.forecast.samples import Sample, SampleOwner
from nodemgr.core.model.values import value


@value
class Measured:
    """The figures of tasks with the same step on one GPU model."""

    runs: int
    is_own: bool
    """Of the user who asks, in this environment."""
    step_ns: int | None
    utilization_percent: int | None
    peak_bytes: int | None
    log_residuals: tuple[float, ...] = ()
    """Of each run's step time, from the median."""


def of_same_step(
    features: Features,
    gpu_model: str,
    owner: SampleOwner,
    known: Iterable[Sample],
    estimate: StepEstimate | None,
) -> Measured | None:
    """None: no such task has ended, or none of this owner's and there is no estimate to hold it."""
    same = [
        sample
        for sample in known
        if sample.gpu_model == gpu_model and sample.features.is_same_step(features)
    ]
    own = [sample for sample in same if sample.owner == owner]
    if own:
        return _summary(own)
    if not same or estimate is None:
        return None
    return _summary(same, _Bounds(features.peak_bytes, estimate))


class _Bounds(NamedTuple):
    """Figures of the asking client that no samples move."""

    reserved_bytes: int
    estimate: StepEstimate


def _summary(found: Sequence[Sample], bounds: _Bounds | None = None) -> Measured:
    step_ns = _median(found, lambda sample: sample.step_ns)
    percent = _median(found, lambda sample: sample.utilization_percent)
    peak_bytes = _median(found, lambda sample: sample.peak_bytes)
    if bounds is not None:
        estimate = bounds.estimate
        if step_ns is not None:
            step_ns = samples.time_within(step_ns, estimate.step_ns)
        if percent is not None:
            percent = samples.percent_within(percent, estimate.utilization_percent)
        if peak_bytes is not None:
            peak_bytes = samples.memory_within(peak_bytes, bounds.reserved_bytes)
    return Measured(
        len(found),
        bounds is None,
        None if step_ns is None else round(step_ns),
        None if percent is None else min(100, round(percent)),
        None if peak_bytes is None else round(peak_bytes),
        tuple(math.log(sample.step_ns / step_ns) for sample in found if step_ns and sample.step_ns),
    )


def _median(found: Sequence[Sample], figure: Callable[[Sample], int | None]) -> float | None:
    rows = [(number, sample.owner) for sample in found if (number := figure(sample)) is not None]
    weights = samples.weights([owner for _, owner in rows])
    return samples.median((row[0], weight) for row, weight in zip(rows, weights, strict=True))
