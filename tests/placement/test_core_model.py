"""The batch problem on the decision core: the fast model gives the same times."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from bench.trace import core_model
from bench.trace.core_model import CoreModel
from nodemgr.core.model import values
from nodemgr.core.model.entities import Config
from nodemgr.edge.placement import weights
from nodemgr.edge.placement.learned import SHIPPED
from nodemgr.placement import batch_model, plain_policies, rollouts
from nodemgr.placement.batches import HOUR_MS, SimJob
from nodemgr.placement.failures import Cluster, Failures
from nodemgr.placement.observed import SimPolicy
from nodemgr.placement.rollouts import made_up
from tests.support.examples import examples

SEEDS = range(examples(3))
SMALL = Cluster(gpus=5, rate_per_hour=1 / 100, history_hours=48.0, avoids=True)
CLUSTERS = {
    "begins anew": SMALL,
    "checkpoints": replace(SMALL, checkpoint_ms=HOUR_MS // 2),
    "drifts": replace(SMALL, drift_hours=12.0, recovery_ms=5 * HOUR_MS),
}
POLICIES: dict[str, SimPolicy] = {
    "index": plain_policies.product("index"),
    "warm": plain_policies.warm_least_failures,
    "reliable": plain_policies.product("reliable"),
    "scorer": rollouts.by_score(weights.load(SHIPPED)),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_fast_model_gives_the_times_of_the_core(seed: int, cluster: str, policy: str) -> None:
    instance = made_up(CLUSTERS[cluster], 6)(Random(seed), str(seed))
    chosen = POLICIES[policy]
    on_core = CoreModel(instance.jobs, instance.failures, chosen).run()
    assert batch_model.run(instance.jobs, instance.failures, chosen) == on_core
    assert on_core.is_done


def test_jobs_that_come_later_start_as_in_the_fast_model() -> None:
    jobs = tuple(
        SimJob(number, 1 + number % 3, HOUR_MS * (1 + number % 4), number * HOUR_MS // 2)
        for number in range(8)
    )
    failures, policy = Failures(SMALL, "later"), plain_policies.product("index")
    assert CoreModel(jobs, failures, policy).run() == batch_model.run(jobs, failures, policy)


def with_policy(placement: str) -> Config:
    return values.replace(core_model.CONFIG, placement=placement)


@pytest.mark.parametrize("placement", ["spread", "pack", "index"])
def test_the_managers_orders_are_those_of_the_table(placement: str) -> None:
    """With its own history, and without the simulated policy."""
    instance = made_up(SMALL, 6)(Random(7), "own")
    policy = plain_policies.product(placement)
    own = CoreModel(instance.jobs, instance.failures, _unasked, with_policy(placement)).run()
    assert own == batch_model.run(instance.jobs, instance.failures, policy)


def test_the_managers_reliable_policy_learns_the_rates_of_its_history() -> None:
    cluster = replace(SMALL, bad_factor=200.0, rate_per_hour=1 / 1000)
    instance = made_up(cluster, 6)(Random(3), "rates")
    model = CoreModel(instance.jobs, instance.failures, _unasked, with_policy("reliable"))
    bad = [gpu for gpu in range(5) if instance.failures.rate_per_hour(gpu, 0) > 0.1]
    learned = {row.index: model.state.outlook[row.uuid] for row in model.state.gpus.values()}
    assert max(learned, key=lambda gpu: learned[gpu].rate_per_hour) in bad
    assert model.run().is_done


def _unasked(*_: object) -> list[int]:
    raise AssertionError("the manager's policy decides")
