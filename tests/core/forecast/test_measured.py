"""Forecasts from runs with the same step."""

from __future__ import annotations

import pytest

from nodemgr.core.forecast import measured
from nodemgr.core.forecast.roofline import StepEstimate
from nodemgr.core.model.values import replace
from tests.core.forecast.trainings import A100, GIB, features, owner, sample

ESTIMATE = StepEstimate(20_000_000, 90)


def test_own_runs_are_taken_as_they_are() -> None:
    known = [sample(step_ns=step_ns) for step_ns in (900, 1_000, 5_000)]
    found = measured.of_same_step(features(7), A100, owner("ann"), known, ESTIMATE)
    assert found is not None
    assert (found.runs, found.step_ns, found.utilization_percent) == (3, 1_000, 80)
    assert found.peak_bytes == 5 * GIB


def test_runs_of_others_move_a_forecast_by_a_bounded_factor() -> None:
    for step_ns, expected_ns in ((1, 5_000_000), (10**15, 80_000_000), (30_000_000, 30_000_000)):
        known = [sample("eve", step_ns=step_ns, peak_bytes=step_ns)] * 500
        found = measured.of_same_step(features(), A100, owner("ann"), known, ESTIMATE)
        assert found is not None
        assert found.step_ns == expected_ns
        assert found.peak_bytes == (8 * GIB if step_ns == 10**15 else 4 * GIB)


def test_runs_of_others_are_bounded_by_the_memory_of_the_one_who_asks() -> None:
    """The same step, and a false figure of reserved memory with it."""
    theirs = features(peak_bytes=60 * GIB)
    known = [sample("eve", of=theirs, peak_bytes=70 * GIB)] * 9
    for reserved_bytes, most_bytes in (
        (4 * GIB, 8 * GIB),
        (GIB // 4, GIB // 4 + 2 * GIB),
        (0, 2 * GIB),
    ):
        of = features(peak_bytes=reserved_bytes)
        found = measured.of_same_step(of, A100, owner("ann"), known, ESTIMATE)
        assert found is not None
        assert found.peak_bytes == most_bytes


@pytest.mark.parametrize("percent", [0, 1, 22])
def test_idle_tasks_of_others_leave_a_share_of_the_estimate(percent: int) -> None:
    known = [sample("eve", utilization_percent=percent)] * 500
    found = measured.of_same_step(features(), A100, owner("ann"), known, ESTIMATE)
    assert found is not None
    assert found.utilization_percent == 22
    own = measured.of_same_step(features(), A100, owner("eve"), known, ESTIMATE)
    assert own is not None
    assert own.utilization_percent == percent


def test_own_runs_stand_against_any_number_of_others() -> None:
    known = [sample("eve", step_ns=1)] * 500 + [sample("ann", step_ns=30_000_000)]
    found = measured.of_same_step(features(), A100, owner("ann"), known, ESTIMATE)
    assert found is not None
    assert found.step_ns == 30_000_000


def test_the_same_name_in_another_environment_is_another_owner() -> None:
    """Root of a container can be any user there."""
    known = [replace(sample("ann", step_ns=1), env="env-eve")] * 500
    found = measured.of_same_step(features(), A100, owner("ann"), known, ESTIMATE)
    assert found is not None
    assert found.step_ns == ESTIMATE.step_ns // 4


def test_another_step_or_model_is_not_the_same() -> None:
    other = features(richer=(1, 2, 3, 4, 5, 6))
    assert measured.of_same_step(other, A100, owner("ann"), [sample()], ESTIMATE) is None
    assert measured.of_same_step(features(), "Tesla T4", owner("ann"), [sample()], ESTIMATE) is None
    assert measured.of_same_step(features(), A100, owner("bob"), [sample()], None) is None


def test_figures_that_no_run_had_are_none() -> None:
    row = sample(step_ns=None, peak_bytes=None, utilization_percent=None)
    found = measured.of_same_step(features(), A100, owner("ann"), [row], ESTIMATE)
    assert found == measured.Measured(1, True, None, None, None)
