"""The table of policies: each on the same batches and failures, with paired intervals.

Knows: means, paired differences. Must not know: files, the command line.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from nodemgr.edge.placement import scoring
from nodemgr.edge.placement.weights import SCORER, Weights
from nodemgr.placement import batch_model, plain_policies, rollouts
from nodemgr.placement.batches import HOUR_MS
from nodemgr.placement.observed import SimPolicy
from nodemgr.placement.rollouts import Instance

NORMAL_95 = 1.96
"""Half the width of a 95 % interval, in standard errors."""
RANDOM, WARM = "random", "least failures, warm"
Make = Callable[[Instance], SimPolicy]
"""A policy for one batch: it may keep what it saw of that batch."""


def _always(policy: SimPolicy) -> Make:
    return lambda instance: policy


POLICIES: Mapping[str, Make] = {
    RANDOM: lambda instance: plain_policies.randomly(f"{instance.seed}/policy"),
    "first fit": _always(plain_policies.product("index")),
    "least tasks": _always(plain_policies.least_tasks),
    "spread": _always(plain_policies.product("spread")),
    "pack": _always(plain_policies.product("pack")),
    "least failures, cold": _always(plain_policies.cold_least_failures),
    WARM: _always(plain_policies.warm_least_failures),
    "reliable (Gamma-Poisson)": _always(plain_policies.product("reliable")),
    "reliable, known rates": _always(plain_policies.known_rates),
}
"""The policies that need no training and fit every cluster."""


def learned(weights: Weights) -> Make:
    """The policy of a file of weights. Raises WeightsError when it is used on another size."""
    if weights.kind == SCORER:
        return _always(rollouts.by_score(weights))

    def make(instance: Instance) -> SimPolicy:
        gpus = instance.failures.cluster.gpus
        return rollouts.by_network(lambda state: scoring.dense(weights, state), gpus)

    return make


class PairedDifference(NamedTuple):
    mean: float
    half: float
    """The 95 % interval is mean - half to mean + half."""


class PolicyRow(NamedTuple):
    """One policy of the table."""

    name: str
    hours: float
    """The mean of the maximum completion times."""
    against_random: PairedDifference
    """Percent; below 0: it ends earlier."""
    against_warm: PairedDifference
    undone: int
    """Batches that did not end within the horizon."""


def paired(own: Sequence[float], other: Sequence[float]) -> PairedDifference:
    """The mean relative difference in percent, of pairs with the same batch and failures."""
    found = [100 * (mine / its - 1) for mine, its in zip(own, other, strict=True)]
    if len(found) < 2:
        return PairedDifference(statistics.fmean(found), math.inf)
    half = NORMAL_95 * statistics.stdev(found) / math.sqrt(len(found))
    return PairedDifference(statistics.fmean(found), half)


def makespan_hours(instance: Instance, make: Make) -> float:
    outcome = batch_model.run(instance.jobs, instance.failures, make(instance))
    return outcome.makespan_ms / HOUR_MS


def table(
    instances: Iterable[Instance],
    policies: Mapping[str, Make],
    report: Callable[[int], None] = lambda done: None,
) -> list[PolicyRow]:
    """A row for each policy. RANDOM and WARM are always among them."""
    both = {RANDOM: POLICIES[RANDOM], WARM: POLICIES[WARM], **policies}
    times: dict[str, list[float]] = {name: [] for name in both}
    undone = dict.fromkeys(both, 0)
    for number, instance in enumerate(instances, 1):
        for name, make in both.items():
            outcome = batch_model.run(instance.jobs, instance.failures, make(instance))
            times[name].append(outcome.makespan_ms / HOUR_MS)
            undone[name] += not outcome.is_done
        report(number)
    return [
        PolicyRow(
            name,
            statistics.fmean(times[name]),
            paired(times[name], times[RANDOM]),
            paired(times[name], times[WARM]),
            undone[name],
        )
        for name in policies
    ]
