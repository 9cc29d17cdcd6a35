"""Inference without a framework; files of weights that have no sense."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from nodemgr.core.forecast import network
from nodemgr.core.forecast.gpu_models import find
from nodemgr.core.forecast.network import INPUTS, NetworkError
from nodemgr.core.forecast.roofline import StepEstimate
from tests.core.forecast.trainings import A100, features, text, weights

ORIGIN = (0.0,) * len(INPUTS)


def loaded(body: dict[str, Any]) -> network.Network:
    found = network.parse(text(body)).time
    assert found is not None
    return found


def test_a_small_network_by_hand() -> None:
    body = weights()
    rows = body["networks"]["time"]["layers"]
    rows[0] = {"weights": [[0.5] + [0.0] * (len(INPUTS) - 1)], "biases": [0.25]}
    rows[1] = {"weights": [[2.0]], "biases": [-0.5]}
    point = (1.0, *ORIGIN[1:])
    assert network.correction(loaded(body), point, "time") == pytest.approx(
        2 * math.tanh(0.75) - 0.5
    )


def test_a_correction_stays_within_its_bounds() -> None:
    assert network.correction(loaded(weights(9.0)), ORIGIN, "time") == math.log(4)
    assert network.correction(loaded(weights(-9.0)), ORIGIN, "time") == -math.log(4)
    assert network.correction(loaded(weights(-9.0)), ORIGIN, "compute") == -9


def test_the_nearest_anchors_count_by_their_distance_alone_or_beside_the_layers() -> None:
    body = weights(output=1.0)
    row = body["networks"]["time"]
    row["anchors"] = [[place, *ORIGIN[1:]] for place in (0.0, 1.0, 2.0, 3.0)]
    row["labels"] = [0.1, 0.2, 0.3, 9.0]
    expected = (0.1 / 0.3 + 0.2 / 1.3 + 0.3 / 2.3) / (1 / 0.3 + 1 / 1.3 + 1 / 2.3)
    for way, found in (("network", 1.0), ("nearest", expected), ("both", (1 + expected) / 2)):
        row["way"] = way
        assert network.correction(loaded(body), ORIGIN, "time") == pytest.approx(found)


def test_the_factors_of_a_model_replace_its_estimate() -> None:
    body = weights() | {"factors": {A100: [2.0, 1.0, 500.0]}}
    nets, model, plain = network.parse(text(body)), find(A100), StepEstimate(7, 1)
    other = find("Tesla T4")
    assert model is not None
    assert other is not None
    # 2 x 200 x 10^9 operations at 19.5 x 10^12 a second, and 500 kernels
    assert nets.step_ns(features(), model, plain) == round(2 * 2e11 / 19_500 + 500 * 500)
    assert nets.step_ns(features(), other, plain) == 7


def test_inputs_are_in_the_order_of_their_names() -> None:
    model = find(A100)
    assert model is not None
    found = dict(zip(INPUTS, network.inputs(features(), model, StepEstimate(999, 55)), strict=True))
    assert found["addv2"] == math.log1p(2_000)
    assert found["capability"] == 8
    assert found["cores"] == math.log1p(6_912)
    assert found["step_ns"] == math.log(1_000)
    assert found["utilization_percent"] == 55


def test_inputs_are_known_within_the_range_and_near_an_anchor() -> None:
    near = loaded(weights(reach=1.0, width=5.0))
    assert network.is_known(near, ORIGIN)
    assert network.is_known(near, (0.9, *ORIGIN[1:]))
    assert not network.is_known(near, (1.1, *ORIGIN[1:]))
    wide = loaded(weights(reach=100.0, width=5.0))
    assert network.is_known(wide, (5.9, *ORIGIN[1:]))
    assert not network.is_known(wide, (6.1, *ORIGIN[1:]))


def test_a_network_may_be_missing() -> None:
    body = weights(kind="memory")
    assert network.parse(text(body)).time is None
    assert network.parse(text(body)).memory is not None


DAMAGE = {
    "no JSON": "{",
    "too deep": "[" * 100_000,
    "a list": "[]",
    "another version": text(weights() | {"schema_version": 1}),
    "no factors": text(weights() | {"factors": None}),
    "two factors": text(weights() | {"factors": {A100: [1.0, 1.0]}}),
    "a factor of zero": text(weights() | {"factors": {A100: [1.0, 0.0, 1.0]}}),
    "a long name": text(weights() | {"factors": {"x" * 300: [1.0, 1.0, 1.0]}}),
    "too many models": text(
        weights() | {"factors": {str(number): [1.0, 1.0, 1.0] for number in range(65)}}
    ),
    "other inputs": text(weights() | {"inputs": INPUTS[1:]}),
    "an unknown network": text(weights(kind="other")),
    "no number": text(weights()).replace('"reach": 1000000.0', '"reach": NaN'),
    "too large a number": text(weights()).replace('"reach": 1000000.0', '"reach": 1e999'),
    "a text as a number": text(weights()).replace('"reach": 1000000.0', '"reach": "1"'),
    "no reach": text(weights()).replace('"reach"', '"rich"'),
}


def changed(*path: str | int, to: object) -> str:
    body = copy.deepcopy(weights())
    place: Any = body["networks"]["time"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return text(body)


WIDE = len(INPUTS)
CHANGES = [
    changed("scales", to=[0.0] * WIDE),
    changed("scales", to=[1.0] * (WIDE - 1)),
    changed("means", to=None),
    changed("anchors", to=[]),
    changed("anchors", to=[[0.0] * WIDE] * (network.MAX_ANCHORS + 1)),
    changed("anchors", to=[[0.0]]),
    changed("labels", to=[]),
    changed("labels", to=[0.0, 0.0]),
    changed("way", to="guess"),
    changed("layers", to=[]),
    changed("layers", to=[1]),
    changed("layers", to=[{"weights": [[0.0] * WIDE], "biases": [0.0]}] * 2),
    changed("layers", 0, "weights", to=[]),
    changed("layers", 0, "biases", to=[0.0]),
    changed("layers", 1, "weights", to=[[1.0, 1.0]] * 2),
    changed("layers", 1, "weights", 0, 0, to=True),
    changed("layers", 1, "weights", 0, 0, to=1e7),
    changed("card", to=None),
    changed("card", "samples", to=0),
    changed("card", "samples", to=True),
    changed("card", "error", to=None),
    changed("card", "residuals", to=[0.0] * (network.MAX_RESIDUALS + 1)),
]


@pytest.mark.parametrize("damaged", [*DAMAGE.values(), *CHANGES])
def test_a_file_without_sense_is_refused_with_its_place(damaged: str) -> None:
    with pytest.raises(NetworkError) as refused:
        network.parse(damaged)
    assert refused.value.line.isprintable()
