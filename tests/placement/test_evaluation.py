"""The table of policies: pairs, intervals, and the orders that known cases must have."""

from __future__ import annotations

from random import Random

import pytest

from nodemgr.edge.placement.weights import WeightsError
from nodemgr.placement import evaluation
from nodemgr.placement.evaluation import RANDOM, WARM
from nodemgr.placement.failures import Cluster
from nodemgr.placement.rollouts import made_up
from nodemgr.placement.source_method import SourceTraining
from tests.placement.support import SMALL, TINY, tiny


def test_a_paired_interval_is_that_of_the_relative_differences() -> None:
    found = evaluation.paired([11.0, 24.0, 30.0], [10.0, 20.0, 30.0])
    assert found.mean == pytest.approx(10.0)
    assert found.half == pytest.approx(1.96 * 10 / 3**0.5)


def test_policies_that_know_the_bad_gpu_are_best_where_only_that_counts() -> None:
    instances = [tiny(Random(), f"test/{number}") for number in range(6)]
    rows = {row.name: row for row in evaluation.table(instances, evaluation.POLICIES)}
    for name in (WARM, "reliable (Gamma-Poisson)", "reliable, known rates"):
        assert rows[name].hours == pytest.approx(3.0, abs=0.05)
    assert rows[RANDOM].hours > 3.5
    assert rows[WARM].against_warm == (0.0, 0.0)
    assert rows[WARM].against_random.mean < -10
    assert not any(row.undone for row in rows.values())


def test_whole_gpus_of_one_size_leave_spread_and_pack_the_order_of_the_index() -> None:
    draw = made_up(SMALL, 10)
    instances = [draw(Random(seed), str(seed)) for seed in range(3)]
    rows = {row.name: row for row in evaluation.table(instances, evaluation.POLICIES)}
    assert rows["spread"].hours == rows["pack"].hours == rows["first fit"].hours


@pytest.mark.frameworks
def test_the_source_network_fits_its_own_size_alone() -> None:
    policy = evaluation.learned(SourceTraining(tiny, 1, TINY.gpus).weights({}))
    draw = made_up(Cluster(gpus=6), 4)
    assert evaluation.table([tiny(Random(), "a")], {"source": policy})
    with pytest.raises(WeightsError):
        evaluation.table([draw(Random(1), "a")], {"source": policy})
