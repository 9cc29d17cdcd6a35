"""The exact optimum: by hand on tiny cases, and never above any policy."""

from __future__ import annotations

from random import Random

import pytest

from bench.placement import optimum
from nodemgr.placement import batch_model, evaluation
from nodemgr.placement.batches import HOUR_MS
from nodemgr.placement.failures import Cluster
from nodemgr.placement.rollouts import made_up
from tests.placement.support import tiny
from tests.support.examples import examples

SMALL = Cluster(gpus=4, bad_part=0.25, rate_per_hour=1 / 100, bad_factor=20.0)
SEEDS = range(examples(8))


def test_the_optimum_of_the_tiny_case_keeps_the_long_jobs_from_the_bad_gpu() -> None:
    for number in range(4):
        found = optimum.find(tiny(Random(), f"test/{number}"))
        assert found == (3 * HOUR_MS, True)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_policy_is_better_than_the_optimum(seed: int) -> None:
    instance = made_up(SMALL, 4)(Random(seed), str(seed))
    found = optimum.find(instance)
    assert found.is_exact
    for make in evaluation.POLICIES.values():
        outcome = batch_model.run(instance.jobs, instance.failures, make(instance))
        assert outcome.makespan_ms >= found.makespan_ms


def test_a_search_that_is_cut_says_so() -> None:
    instance = made_up(SMALL, 6)(Random(1), "1")
    assert not optimum.find(instance, 2).is_exact


def test_a_larger_cluster_is_refused() -> None:
    instance = made_up(Cluster(gpus=7), 1)(Random(1), "1")
    with pytest.raises(ValueError, match="more than 6"):
        optimum.find(instance)
