"""Clusters and batches of the tests of placement."""

from __future__ import annotations

from random import Random

from nodemgr.placement import batches
from nodemgr.placement.batches import HOUR_MS, SimJob
from nodemgr.placement.failures import Cluster, Failures
from nodemgr.placement.rollouts import Instance


def hours(*rows: tuple[int, float]) -> tuple[SimJob, ...]:
    """Jobs from (GPUs, hours)."""
    return tuple(
        SimJob(number, gpus, round(time * HOUR_MS)) for number, (gpus, time) in enumerate(rows)
    )


TINY = Cluster(
    gpus=4, bad_part=0.25, rate_per_hour=1e-6, bad_factor=2e6, history_hours=100.0, recovery_ms=0
)
"""Four GPUs. One fails twice an hour, the others never within a batch."""
SMALL = Cluster(gpus=6)
TINY_JOBS = hours((2, 3.0), (1, 2.0), (1, 0.2))
"""The optimum keeps the first two from the bad GPU: 3 hours."""


def tiny(random: Random, seed: str) -> Instance:
    return Instance(TINY_JOBS, Failures(TINY, seed, "the bad GPU"), seed)


def made_up(seed: str, cluster: Cluster, count: int) -> Instance:
    return Instance(
        batches.made_up(Random(seed), count, cluster.gpus), Failures(cluster, seed), seed
    )
