"""Margins that past errors ask for: a run's time, and its memory.

Knows: pairs of a forecast and what came of it. Must not know: who uses the margin. Each user's
pairs weigh a bounded part (samples.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nodemgr.core.forecast import samples
from nodemgr.core.forecast.samples import Sample, SampleOwner

MIB = 1 << 20
LEAST_RUN_PAIRS, LEAST_MEMORY_PAIRS = 20, 99
"""With fewer pairs no ratio among them covers the part below.

The default margin holds then; of memory, the worst past ratio where it is larger.
"""
RUN_PART_PER_MILLE, MEMORY_PART_PER_MILLE = 950, 990
"""The part of past runs that the margin would have covered."""
DEFAULT_RUN_PER_MILLE = 1500
LEAST_RUN_PER_MILLE, MOST_RUN_PER_MILLE = 1050, 4000
DEFAULT_MEMORY_PER_MILLE, LEAST_MEMORY_PER_MILLE, MOST_MEMORY_PER_MILLE = 150, 20, 1000
LEAST_MEMORY_BYTES = 128 * MIB


class Pair(NamedTuple):
    """A forecast, what came of it, and the owner of the task."""

    predicted: int
    actual: int
    owner: SampleOwner


def run_pairs(known: Iterable[Sample]) -> list[Pair]:
    return [
        Pair(sample.predicted.run_ms, sample.run_ms, sample.owner)
        for sample in known
        if sample.predicted.run_ms
    ]


def memory_pairs(known: Iterable[Sample]) -> list[Pair]:
    return [
        Pair(sample.predicted.memory_bytes, sample.peak_bytes, sample.owner)
        for sample in known
        if sample.predicted.memory_bytes and sample.peak_bytes
    ]


def run_per_mille(pairs: Sequence[Pair]) -> int:
    """Of a predicted run time, the expected time that a plan uses."""
    if len(pairs) < LEAST_RUN_PAIRS:
        return DEFAULT_RUN_PER_MILLE
    ratio = _covering_ratio_per_mille(pairs, RUN_PART_PER_MILLE)
    return min(max(ratio, LEAST_RUN_PER_MILLE), MOST_RUN_PER_MILLE)


def memory_bytes(predicted_bytes: int, pairs: Sequence[Pair]) -> int:
    """The bytes to add to predicted memory."""
    if len(pairs) < LEAST_MEMORY_PAIRS:
        worst = max(map(_ratio_per_mille, pairs), default=0)
        part = max(DEFAULT_MEMORY_PER_MILLE, worst - 1000)
    else:
        part = _covering_ratio_per_mille(pairs, MEMORY_PART_PER_MILLE) - 1000
    part = min(max(part, LEAST_MEMORY_PER_MILLE), MOST_MEMORY_PER_MILLE)
    return max(LEAST_MEMORY_BYTES, -(-predicted_bytes * part // 1000))


def _ratio_per_mille(pair: Pair) -> int:
    """Of actual to predicted, rounded up: a margin of this ratio covers the pair."""
    return -(-pair.actual * 1000 // pair.predicted)


def _covering_ratio_per_mille(pairs: Sequence[Pair], part_per_mille: int) -> int:
    """The ratio of actual to predicted that this part of the pairs does not exceed."""
    weights = samples.weights([pair.owner for pair in pairs])
    ordered = sorted(zip(map(_ratio_per_mille, pairs), weights, strict=True))
    found = 0.0
    for ratio, weight in ordered:
        found += weight
        if found * 1000 >= part_per_mille:
            return ratio
    return ordered[-1][0]
