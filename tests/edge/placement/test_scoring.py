"""The forward pass in C: the same numbers as plain Python, in any order of the GPUs."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from random import Random

import pytest

from nodemgr.core.placement.policies import KnownGpu as Candidate
from nodemgr.core.placement.policies import SizedJob as Job
from nodemgr.edge.placement import scoring, weights
from nodemgr.edge.placement.weights import FEATURES, SCORER, SOURCE, Weights, WeightsError

HIDDEN = 5
SHAPE = (len(FEATURES), HIDDEN)
RATES = (0.1, 0.002, 0.002, 0.03, 0.0, 0.5)
JOB = Job(2, 5.0)


def network(kind: str, widths: tuple[int, ...]) -> Weights:
    random, count = Random(3), weights.count_of(kind, widths)
    return Weights(kind, widths, array("f", (random.gauss(0, 0.5) for _ in range(count))))


def gpus(rates: Sequence[float]) -> list[Candidate]:
    return [
        Candidate(index, f"GPU-{index}", 0, 0, rate, 100.0 * index)
        for index, rate in enumerate(rates)
    ]


def layer(values: list[float], inputs: Sequence[float], width: int) -> list[float]:
    """The outputs of a layer; it takes its weights from the front of `values`."""
    sums = [0.0] * width
    for value in inputs:
        for place in range(width):
            sums[place] += value * values.pop(0)
    return [total + values.pop(0) for total in sums]


def relu(row: Sequence[float]) -> list[float]:
    return [max(0.0, value) for value in row]


def plain_score(scorer: Weights, rows: array[float]) -> list[float]:
    width = len(FEATURES)
    inputs = [list(rows[at : at + width]) for at in range(0, len(rows), width)]
    first = list(scorer.values[: (width + 1) * HIDDEN])
    own = [relu(layer(list(first), row, HIDDEN)) for row in inputs]
    mean = [sum(column) / len(own) for column in zip(*own, strict=True)]
    most = [max(column) for column in zip(*own, strict=True)]
    scores = []
    for row, features in zip(own, inputs, strict=True):
        left = list(scorer.values[len(first) :])
        second = relu(layer(left, [*row, *mean, *most], HIDDEN))
        scores += layer(left, [*second, *features], 1)
    return scores


def test_the_scorer_in_c_computes_what_its_form_says() -> None:
    scorer = network(SCORER, SHAPE)
    rows = scoring.features(gpus(RATES), JOB)
    found = scoring.score(scorer, gpus(RATES), JOB)
    assert found == pytest.approx(plain_score(scorer, rows), abs=1e-4)


def test_gpus_in_another_order_have_the_same_scores() -> None:
    scorer, candidates = network(SCORER, SHAPE), gpus(RATES)
    found = scoring.score(scorer, candidates, JOB)
    mixed = [candidates[place] for place in (3, 5, 0, 1, 4, 2)]
    for gpu, score in zip(mixed, scoring.score(scorer, mixed, JOB), strict=True):
        assert score == pytest.approx(found[gpu.index], abs=1e-4)


def test_a_scorer_of_one_size_scores_one_gpu_and_a_thousand() -> None:
    for count in (1, 1_000):
        assert len(scoring.score(network(SCORER, SHAPE), gpus([0.01] * count), JOB)) == count


def test_dense_layers_in_c_compute_what_their_form_says() -> None:
    widths = (4, 7, 6, 3)
    dense, inputs = network(SOURCE, widths), [0.5, -1.0, 0.0, 2.0]
    values, row = list(dense.values), inputs
    for place, width in enumerate(widths[1:]):
        row = layer(values, row, width)
        row = relu(row) if place < 2 else row
    assert scoring.dense(dense, inputs) == pytest.approx(row, abs=1e-5)


def test_features_are_finite_for_every_rate_and_time() -> None:
    for rates in (RATES, [0.0] * 4, [1e9] * 3, [5e-324]):
        for job in (JOB, Job(1), Job(6, 0.0), Job(1, 1e9)):
            assert all(map(math.isfinite, scoring.features(gpus(rates), job)))


@pytest.mark.parametrize("rate", [math.nan, math.inf])
def test_a_rate_that_is_no_number_is_refused_in_one_line(rate: float) -> None:
    with pytest.raises(WeightsError, match="no finite number"):
        scoring.score(network(SCORER, SHAPE), gpus([0.1, rate]), JOB)


@pytest.mark.parametrize("spoil", ["NaN", "cut", "widths", "no GPU", "another network"])
def test_a_score_that_no_network_can_give_is_refused_in_one_line(spoil: str) -> None:
    given, candidates = network(SCORER, SHAPE), gpus(RATES)
    if spoil == "NaN":
        given.values[0] = math.nan
    elif spoil == "cut":
        del given.values[-1]
    elif spoil == "widths":
        given = Weights(SCORER, (len(FEATURES), HIDDEN + 1), given.values)
    elif spoil == "no GPU":
        candidates = []
    else:
        given = network(SOURCE, (4, 3))
    with pytest.raises(WeightsError) as caught:
        scoring.score(given, candidates, JOB)
    assert "\n" not in str(caught.value)


def test_dense_layers_refuse_other_inputs_and_widths() -> None:
    dense = network(SOURCE, (4, 3))
    with pytest.raises(WeightsError):
        scoring.dense(dense, [0.0] * 5)
    with pytest.raises(WeightsError):
        scoring.dense(Weights(SOURCE, (4, 4), dense.values), [0.0] * 4)
