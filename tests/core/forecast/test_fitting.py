"""The factors of a node, fitted to its samples; the learning that follows from them."""

from __future__ import annotations

import pytest

from nodemgr.core.forecast import fitting, learning, network, roofline
from nodemgr.core.forecast.features import WorkRow
from nodemgr.core.forecast.samples import Sample
from nodemgr.core.model.values import replace
from tests.core.forecast.trainings import A100, features, sample, text


def slow_node(count: int) -> list[Sample]:
    """Half of the arithmetic peak, and 30 us for each kernel, of steps of 10 to 310 kernels."""
    rows = []
    for number in range(count):
        operations, kernels = 10**9 * (1 + number * 7 % 20), 10 + 60 * (number % 6)
        found = features(work=(WorkRow("float32", 6, operations, 10**6, kernels),))
        step_ns = 2 * operations // 19_500 + 30_000 * kernels
        rows.append(replace(sample(of=found, step_ns=step_ns), wall_ns=number))
    return rows


def test_the_factors_of_the_node_are_fitted_before_anything_is_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arithmetic, _, kernel_ns = fitting.fit(slow_node(40))[A100]
    assert arithmetic == pytest.approx(2, rel=0.3)
    assert kernel_ns == pytest.approx(30_000, rel=0.1)
    assert fitting.fit(slow_node(fitting.LEAST_SAMPLES - 1)) == {}
    rows = [replace(row, gpu_model="RTX 9090") for row in slow_node(40)]
    assert fitting.fit(rows) == {}
    monkeypatch.setattr(learning, "MAX_PASSES", 40)
    body = learning.train(slow_node(60))
    assert set(body["factors"]) == {A100}
    net = network.parse(text(body)).time
    assert net is not None
    assert net.card.error < 0.1 < 0.5 < net.card.prior_error


def test_one_user_s_nonsense_moves_no_factor_beyond_its_bound_nor_far_from_the_truth() -> None:
    users = ("ann", "bob", "cid")
    honest = [replace(row, env=users[number % 3]) for number, row in enumerate(slow_node(30))]
    many = slow_node(2 * fitting.MOST_SAMPLES)
    nonsense = [replace(row, env="eve", step_ns=10**13, wall_ns=100) for row in many]
    arithmetic, traffic, kernel_ns = fitting.fit(honest + nonsense)[A100]
    assert kernel_ns == pytest.approx(30_000, rel=0.3)
    defaults = roofline.DEFAULT_FACTORS
    for found, plain in zip((arithmetic, traffic, kernel_ns), defaults, strict=True):
        assert plain / fitting.MAX_FACTOR <= found <= plain * fitting.MAX_FACTOR
