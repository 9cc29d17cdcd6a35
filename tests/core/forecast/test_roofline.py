"""The estimate without samples."""

from __future__ import annotations

from nodemgr.core.forecast import roofline
from nodemgr.core.forecast.features import WorkRow
from nodemgr.core.forecast.gpu_models import GPU_MODELS, find
from tests.core.forecast.trainings import A100, features


def model(name: str = A100):
    found = find(name)
    assert found is not None
    return found


def test_large_products_are_bound_by_arithmetic_and_small_ones_by_traffic() -> None:
    product = features(work=(WorkRow("float32", 8, 117 * 10**10, 10**9, 10),))
    assert roofline.estimate(product, model()) == (100_000_000, 100)
    sums = features(work=(WorkRow("float32", -2, 10**8, 16_312 * 10**5, 10),))
    assert roofline.estimate(sums, model()) == (1_000_000, 100)


def test_a_step_of_small_kernels_takes_the_time_of_its_launches() -> None:
    small = features(work=(WorkRow("float32", -2, 10, 100, 1_000),))
    assert roofline.estimate(small, model()) == (7_000_000, 29)


def test_rows_add_up_and_half_precision_is_faster() -> None:
    row = WorkRow("float32", 8, 10**12, 10**9, 10)
    one = roofline.estimate(features(work=(row,)), model())
    two = roofline.estimate(features(work=(row, row)), model())
    half = roofline.estimate(features(work=(WorkRow("bfloat16", 8, 10**12, 10**9, 10),)), model())
    assert one is not None
    assert two is not None
    assert half is not None
    assert two.step_ns == 2 * one.step_ns
    assert 10 * half.step_ns < one.step_ns


def test_no_work_is_no_estimate_and_every_model_has_one() -> None:
    assert roofline.estimate(features(work=()), model()) is None
    for row in GPU_MODELS:
        found = roofline.estimate(features(), row)
        assert found is not None
        assert found.step_ns > 0
        assert 1 <= found.utilization_percent <= 100
