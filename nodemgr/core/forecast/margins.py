"""Margins that past errors ask for: a run's time, and its memory.

Knows: pairs of a forecast and what came of it. Must not know: the use of the margin. An
environment's own pairs count alone where there are enough. Before that those of all count: each
owner's with a bounded weight (samples.py), and those of fewer than LEAST_ENVS environments never
make a margin smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nodemgr.core.forecast import samples
from nodemgr.core.forecast.features import Features
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
MOST_MEMORY_OF_OTHERS_PER_MILLE = 500
EXPERIMENTAL, MOST_EXPERIMENTAL_PER_MILLE = "tensorflow", 600
"""A framework whose memory is not filled in where it needs a larger margin."""
LEAST_MEMORY_BYTES = 128 * MIB
LEAST_ENVS = 3
"""Of fewer, one has more than a third of the weight."""


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


def memory_pairs(known: Iterable[Sample], framework: str) -> list[Pair]:
    """Of tasks with the framework (`torch 2.13.0 ...`), in any version of it."""
    return [
        Pair(sample.predicted.memory_bytes, sample.peak_bytes, sample.owner)
        for sample in known
        if sample.predicted.memory_bytes and sample.peak_bytes
        if _name(sample.features.framework) == _name(framework)
    ]


def _name(framework: str) -> str:
    return framework.partition(" ")[0]


def of_features(found: Features, predicted_bytes: int, pairs: Sequence[Pair], env: str) -> int:
    """The bytes to add to the predicted memory of a training.

    Where no past tasks give the margin, the client may ask for a larger one.
    """
    margin_bytes = memory_bytes(predicted_bytes, pairs, env)
    has_enough = _covering(pairs, env, LEAST_MEMORY_PAIRS, MEMORY_PART_PER_MILLE) is not None
    return margin_bytes if has_enough else max(margin_bytes, found.margin_bytes)


def is_too_wide(found: Features, predicted_bytes: int, margin_bytes: int) -> bool:
    """Whether the memory is not to be filled in."""
    most_bytes = predicted_bytes * MOST_EXPERIMENTAL_PER_MILLE // 1000
    return _name(found.framework) == EXPERIMENTAL and margin_bytes > most_bytes


def run_per_mille(pairs: Sequence[Pair], env: str) -> int:
    """Of a predicted run time, the expected time that a plan of this environment uses."""
    found = _covering(pairs, env, LEAST_RUN_PAIRS, RUN_PART_PER_MILLE)
    ratio = DEFAULT_RUN_PER_MILLE if found is None else found
    return min(max(ratio, LEAST_RUN_PER_MILLE), MOST_RUN_PER_MILLE)


def memory_bytes(predicted_bytes: int, pairs: Sequence[Pair], env: str) -> int:
    """The bytes to add to predicted memory of this environment."""
    return max(LEAST_MEMORY_BYTES, -(-predicted_bytes * memory_per_mille(pairs, env) // 1000))


def memory_per_mille(pairs: Sequence[Pair], env: str) -> int:
    """The same as a part of predicted memory, without the least."""
    bounded = [_bounded(pair, env) for pair in pairs]
    ratio = _covering(bounded, env, LEAST_MEMORY_PAIRS, MEMORY_PART_PER_MILLE)
    if ratio is None:
        worst = max(map(_ratio_per_mille, bounded), default=0)
        ratio = max(1000 + DEFAULT_MEMORY_PER_MILLE, worst)
    return min(max(ratio - 1000, LEAST_MEMORY_PER_MILLE), MOST_MEMORY_PER_MILLE)


def _bounded(pair: Pair, env: str) -> Pair:
    """A pair of another environment with no more than the margin that it may ask for."""
    if pair.owner.env == env:
        return pair
    most = pair.predicted * (1000 + MOST_MEMORY_OF_OTHERS_PER_MILLE) // 1000
    return pair._replace(actual=min(pair.actual, most))


def _covering(pairs: Sequence[Pair], env: str, least: int, part_per_mille: int) -> int | None:
    """The ratio that covers this part of the environment's pairs; with too few, of all pairs.

    None: there are too few of both, or those of fewer than LEAST_ENVS environments.
    """
    own = [pair for pair in pairs if pair.owner.env == env]
    if len(own) >= least:
        return _covering_ratio_per_mille(own, part_per_mille)
    if len(pairs) >= least and len({pair.owner.env for pair in pairs}) >= LEAST_ENVS:
        return _covering_ratio_per_mille(pairs, part_per_mille)
    return None


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
