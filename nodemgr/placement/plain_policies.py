"""The policies of the table that learn nothing by training.

Knows: the numbers of each candidate. Must not know: the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import cast

from nodemgr.core.placement import policies
from nodemgr.core.placement.policies import SizedJob as Job
from nodemgr.placement.observed import SeenGpu, SimPolicy


def randomly(seed: str) -> SimPolicy:
    random = Random(seed)

    def policy(candidates: Sequence[SeenGpu], job: Job) -> list[int]:
        return random.sample(range(len(candidates)), len(candidates))

    return policy


def by_key(key: Callable[[SeenGpu], tuple[float, ...]]) -> SimPolicy:
    def policy(candidates: Sequence[SeenGpu], job: Job) -> list[int]:
        return sorted(range(len(candidates)), key=lambda at: key(candidates[at]))

    return policy


def product(name: str) -> SimPolicy:
    """A policy of the manager."""
    return cast(SimPolicy, policies.POLICIES[name])


least_tasks = by_key(lambda gpu: (gpu.starts, gpu.index))
cold_least_failures = by_key(lambda gpu: (gpu.batch_failures, gpu.index))
warm_least_failures = by_key(lambda gpu: (gpu.failures, gpu.index))


def known_rates(candidates: Sequence[SeenGpu], job: Job) -> Sequence[int]:
    """`reliable` with the true rates of now."""
    for gpu in candidates:
        gpu.rate_per_hour = gpu.true_rate_per_hour
    return product("reliable")(candidates, job)
