"""Runs of a network on batches: plain_policies by its outputs, drawn at random while it is trained.

Knows: the forward passes of nodemgr/edge/placement/scoring.py. Must not know: torch, gradients.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from nodemgr.core.placement.policies import SizedJob as Job
from nodemgr.edge.placement import scoring
from nodemgr.edge.placement.weights import Weights
from nodemgr.placement import batch_model, batches, plain_policies
from nodemgr.placement.batches import SimJob, TraceJob
from nodemgr.placement.failures import Cluster, Failures
from nodemgr.placement.observed import SeenGpu, SimPolicy

Outputs = Callable[[Sequence[float]], Sequence[float]]


class Instance(NamedTuple):
    """One batch on one cluster."""

    jobs: tuple[SimJob, ...]
    failures: Failures
    seed: str


Draw = Callable[[Random, str], Instance]
"""Makes a batch with its failures from a generator and a seed."""


def made_up(cluster: Cluster, count: int, one_cluster: str | None = None) -> Draw:
    """Batches that are made up; `one_cluster`: the seed of the bad GPUs, the same for all."""
    return lambda random, seed: Instance(
        batches.made_up(random, count, cluster.gpus), Failures(cluster, seed, one_cluster), seed
    )


def of_trace(
    cluster: Cluster, rows: Sequence[TraceJob], count: int, one_cluster: str | None = None
) -> Draw:
    return lambda random, seed: Instance(
        batches.from_trace(random, rows, count), Failures(cluster, seed, one_cluster), seed
    )


class Decision(NamedTuple):
    """A choice of the scorer: the features of the candidates, and the positions it picked."""

    rows: array[float]
    candidates: int
    picks: tuple[int, ...]


class PickSample(NamedTuple):
    """A pick of the source's network: (s, a, s'); the reward follows when the batch ends."""

    state: tuple[float, ...]
    action: int
    next_state: tuple[float, ...]


def reward(random_ms: float, own_ms: float) -> float:
    """(t_random - t_rl) / t_random ([74]; PLACEMENT of the source, whose formula is lost)."""
    return (random_ms - own_ms) / random_ms


def best_random_ms(instance: Instance, count: int) -> int:
    """The smallest of the maximum completion times of so many random placements ([72])."""
    return min(
        batch_model.run(
            instance.jobs,
            instance.failures,
            plain_policies.randomly(f"{instance.seed}/random/{number}"),
        ).makespan_ms
        for number in range(count)
    )


def gumbel(random: Random) -> float:
    return -math.log(-math.log(min(1 - 1e-12, max(1e-12, random.random()))))


# -- the scorer --


def by_score(
    weights: Weights, random: Random | None = None, decisions: list[Decision] | None = None
) -> SimPolicy:
    """The order of the scorer; with `random`, drawn with the probabilities of its softmax."""

    def policy(candidates: Sequence[SeenGpu], job: Job) -> list[int]:
        rows = scoring.features(candidates, job)
        scores = scoring.score_rows(weights, rows, len(candidates))
        if random is not None:
            scores = [score + gumbel(random) for score in scores]
        order = sorted(range(len(scores)), key=lambda at: -scores[at])
        if decisions is not None and len(order) > job.gpus:
            decisions.append(Decision(rows, len(order), tuple(order[: job.gpus])))
        return order

    return policy


# -- the source's network --


def masked_pick(outputs: Sequence[float], s: Sequence[float], random: Random | None) -> int:
    """The GPU of the largest probability ([69-71]); those with s = 1 have the probability 0.

    With `random` the GPU is drawn with these probabilities.
    """
    usable = [gpu for gpu, taken in enumerate(s) if not taken]
    if random is None:
        return max(usable, key=lambda gpu: outputs[gpu])
    return max([(outputs[gpu] + gumbel(random), gpu) for gpu in usable])[1]


def by_network(
    outputs: Outputs,
    gpus: int,
    random: Random | None = None,
    samples: list[PickSample] | None = None,
) -> SimPolicy:
    """Picks one by one from the state, until n are picked ([71])."""

    def policy(candidates: Sequence[SeenGpu], job: Job) -> list[int]:
        place = {gpu.index: at for at, gpu in enumerate(candidates)}
        state = scoring.state_of(job.gpus, job.counted_hours, [*place], gpus)
        order = []
        for _ in range(job.gpus):
            gpu = masked_pick(outputs(state), state[2:], random)
            order.append(place[gpu])
            after = (*state[: gpu + 2], 1.0, *state[gpu + 3 :])
            if samples is not None:
                samples.append(PickSample(state, gpu, after))
            state = after
        return order

    return policy
