"""Margins from past errors."""

from __future__ import annotations

import pytest

from nodemgr.core.forecast import margins
from nodemgr.core.forecast.margins import Pair
from nodemgr.core.forecast.samples import Predicted
from nodemgr.core.model.values import replace
from tests.core.forecast.trainings import GIB, features, owner, sample

MIB = margins.MIB
ENV = "env-ann"


def test_few_pairs_give_the_default() -> None:
    assert margins.run_per_mille([], ENV) == margins.DEFAULT_RUN_PER_MILLE
    assert (
        margins.run_per_mille([Pair(100, 100, owner("ann"))] * 19, ENV)
        == margins.DEFAULT_RUN_PER_MILLE
    )
    assert margins.memory_bytes(10 * GIB, [], ENV) == 10 * GIB * 150 // 1000


@pytest.mark.parametrize(
    ("pairs", "worst", "per_mille"),
    [(1, 1_100, 150), (1, 1_240, 240), (98, 1_240, 240), (98, 9_000, 1_000), (99, 1_240, 240),
     (100, 1_240, 20)],
)  # fmt: skip
def test_few_pairs_of_memory_give_their_worst_ratio_if_the_default_is_less(
    pairs: int, worst: int, per_mille: int
) -> None:
    """Of 99 pairs the worst is the one that 1 % may exceed; of 100 it may be exceeded."""
    known = [Pair(1_000, 900, owner("ann"))] * (pairs - 1) + [Pair(1_000, worst, owner("ann"))]
    assert margins.memory_bytes(10_000 * GIB, known, ENV) == 10_000 * GIB * per_mille // 1000


def test_the_margin_of_a_pair_covers_the_pair() -> None:
    """Each quotient is rounded up."""
    pair = Pair(3_000 * MIB, 3_733 * MIB + 1, owner("ann"))
    assert pair.predicted + margins.memory_bytes(pair.predicted, [pair], ENV) >= pair.actual


def test_the_margin_covers_the_part_of_past_runs() -> None:
    pairs = [Pair(1_000, 1_000 + 10 * number, owner("ann")) for number in range(100)]
    assert margins.run_per_mille(pairs, ENV) == 1_940
    assert margins.memory_bytes(10_000 * GIB, pairs, ENV) == 10_000 * GIB * 980 // 1000


def test_margins_stay_within_their_bounds() -> None:
    short, long = [Pair(1_000, 1, owner("ann"))] * 99, [Pair(1, 10**12, owner("ann"))] * 99
    assert margins.run_per_mille(short, ENV) == margins.LEAST_RUN_PER_MILLE
    assert margins.run_per_mille(long, ENV) == margins.MOST_RUN_PER_MILLE
    assert margins.memory_bytes(10_000 * GIB, short, ENV) == 10_000 * GIB * 20 // 1000
    assert margins.memory_bytes(10 * GIB, long, ENV) == 10 * GIB
    assert margins.memory_bytes(1, short, ENV) == margins.LEAST_MEMORY_BYTES


def pairs_of(user: str, count: int, actual: int) -> list[Pair]:
    return [Pair(1_000, actual, owner(user))] * count


def test_one_environment_s_pairs_do_not_set_the_margin_of_others() -> None:
    """A third of the weight may still be the slowest 5 %: the bound of the margin holds then."""
    honest = [pair for user in ("bob", "cid", "dan") for pair in pairs_of(user, 50, 1_100)]
    false = pairs_of("eve", 1_000, 10**9)
    assert margins.run_per_mille(honest, ENV) == 1_100
    assert margins.run_per_mille(honest + false, ENV) == margins.MOST_RUN_PER_MILLE
    assert margins.memory_bytes(10_000 * GIB, honest, ENV) == 10_000 * GIB * 100 // 1000
    assert margins.memory_bytes(10_000 * GIB, honest + false, ENV) == 10_000 * GIB * 500 // 1000
    low = pairs_of("eve", 1_000, 1)
    assert margins.run_per_mille(honest + low, ENV) == 1_100
    assert margins.memory_bytes(10_000 * GIB, honest + low, ENV) == 10_000 * GIB * 100 // 1000


@pytest.mark.parametrize("others", [["eve"], ["eve", "bob"]])
def test_the_pairs_of_few_other_environments_make_no_margin_smaller(others: list[str]) -> None:
    low = [pair for user in others for pair in pairs_of(user, 500, 1)]
    assert margins.run_per_mille(low, ENV) == margins.DEFAULT_RUN_PER_MILLE
    assert margins.memory_bytes(10 * GIB, low, ENV) == 10 * GIB * 150 // 1000


@pytest.mark.parametrize("actual", [1, 10**9])
def test_enough_pairs_of_the_environment_itself_stand_alone(actual: int) -> None:
    own, false = pairs_of("ann", 99, 1_200), pairs_of("eve", 1_000, actual)
    assert margins.run_per_mille(own + false, ENV) == 1_200
    assert margins.memory_bytes(10_000 * GIB, own + false, ENV) == 10_000 * GIB * 200 // 1000


def test_pairs_are_those_of_samples_with_a_forecast() -> None:
    known = [
        sample(),
        sample(predicted=Predicted(memory_bytes=7, run_ms=9)),
        sample(predicted=Predicted(memory_bytes=7), peak_bytes=None),
    ]
    assert margins.run_pairs(known) == [Pair(9, 30_000, owner("ann"))]
    assert margins.memory_pairs(known, "torch 9") == [Pair(7, 5 * GIB, owner("ann"))]
    assert margins.memory_pairs(known, "tensorflow 2") == []


def test_a_client_asks_for_a_larger_margin_until_past_tasks_give_one() -> None:
    found = replace(features(), peak_bytes=8 * GIB, margin_bytes=5 * GIB)
    assert margins.of_features(found, 10 * GIB, [], ENV) == 5 * GIB
    assert margins.of_features(found, 100 * GIB, [], ENV) == 15 * GIB
    known = [Pair(1_000, 1_100, owner("ann"))] * 99
    assert margins.of_features(found, 10 * GIB, known, ENV) == GIB


def test_memory_of_a_graph_is_not_filled_in_with_a_margin_beyond_its_bound() -> None:
    graph = replace(features(), framework="tensorflow 2.21.0 graph")
    assert not margins.is_too_wide(graph, 10 * GIB, 6 * GIB)
    assert margins.is_too_wide(graph, 10 * GIB, 6 * GIB + 1)
    assert not margins.is_too_wide(features(), 10 * GIB, 10 * GIB)
