"""The estimate's factors for each GPU model, fitted to the step times of its samples.

Knows: samples, the terms of the estimate (roofline.py). Must not know: networks, files.

A roofline has the peaks of a data sheet. The part of them that a framework reaches, and the time
that it spends on each kernel, are properties of the node: three factors, the same for all families
of models, fitted before anything else is learned. The loss counts far samples by their distance
alone, and each owner's samples by a bounded weight (samples.py); no factor leaves its default by
more than MAX_FACTOR.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from nodemgr.core.forecast import gpu_models, roofline, samples
from nodemgr.core.forecast.gpu_models import GpuRates
from nodemgr.core.forecast.roofline import DEFAULT_FACTORS, Factors, Term
from nodemgr.core.forecast.samples import Sample

LEAST_SAMPLES = 5
MOST_SAMPLES = 300
"""The newest of each environment on one GPU model; in plain Python more take too long."""
MAX_FACTOR = 8
WIDE_STEP, FINE_STEP = 0.8, 0.01
NEAR = 0.3
"""Up to this logarithm of a factor the loss grows by its square."""
PULL = 0.003
"""Of the defaults, against few samples."""

Logs = list[float]


def fit(known: Sequence[Sample]) -> dict[str, Factors]:
    """By the name of the GPU model; those with too few samples are absent.

    `known`: the oldest first.
    """
    by_model: dict[GpuRates, list[Sample]] = {}
    for sample in known:
        model = gpu_models.find(sample.gpu_model)
        if model is not None and sample.step_ns and sample.features.work:
            by_model.setdefault(model, []).append(sample)
    return {
        model.name: _of_model(model, _newest(rows))
        for model, rows in by_model.items()
        if len(rows) >= LEAST_SAMPLES
    }


def _newest(rows: Sequence[Sample]) -> list[Sample]:
    """No environment takes the places of others."""
    envs = [row.env for row in rows]
    counts = samples.fair_counts(Counter(envs), MOST_SAMPLES)
    return [rows[index] for index in samples.newest_of_each(envs, counts)]


def _of_model(model: GpuRates, rows: Sequence[Sample]) -> Factors:
    """Coordinate descent on the logarithms, from the defaults."""
    terms = [roofline.terms(row.features, model) for row in rows]
    labels = [math.log(row.step_ns or 1) for row in rows]
    weights = samples.weights([row.owner for row in rows])
    best = [0.0] * len(DEFAULT_FACTORS)
    least, step = _loss(best, terms, labels, weights), WIDE_STEP
    while step > FINE_STEP:
        found = None
        for place in range(len(best)):
            for change in (step, -step):
                tried = [*best[:place], best[place] + change, *best[place + 1 :]]
                loss = _loss(tried, terms, labels, weights)
                if abs(tried[place]) <= math.log(MAX_FACTOR) and loss < least - 1e-9:
                    best, least, found = tried, loss, tried
        if found is None:
            step /= 2
    return _factors(best)


def _factors(logs: Logs) -> Factors:
    return Factors(
        *[factor * math.exp(log) for factor, log in zip(DEFAULT_FACTORS, logs, strict=True)]
    )


def _loss(
    logs: Logs, terms: Sequence[Sequence[Term]], labels: Sequence[float], weights: Sequence[float]
) -> float:
    factors, total = _factors(logs), PULL * sum([log * log for log in logs])
    for rows, label, weight in zip(terms, labels, weights, strict=True):
        away = abs(math.log(max(1.0, roofline.sum_ns(rows, factors))) - label)
        total += weight * (away * away / (2 * NEAR) if away < NEAR else away - NEAR / 2)
    return total
