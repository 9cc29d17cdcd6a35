"""Intervals from residuals."""

from __future__ import annotations

import math

import pytest

from nodemgr.core.forecast import conformal


def test_the_reach_is_the_residual_of_the_rank_that_the_coverage_asks_for() -> None:
    assert conformal.reach([*range(-9, 1)], 900) == 9
    assert conformal.reach([float(number) for number in range(1, 100)], 900) == 90
    assert conformal.reach([1.0] * 8, 900) is None
    assert conformal.reach([1.0] * 9, 900) == 1.0


@pytest.mark.parametrize("count", [9, 10, 11, 19, 29, 99])
def test_the_interval_covers_a_new_residual_at_least_as_often_as_stated(count: int) -> None:
    """Each of n + 1 exchangeable residuals is left out once: exact, without chance."""
    figures = [math.sin(7 * number) for number in range(count + 1)]
    inside = 0
    for out in range(count + 1):
        reach = conformal.reach(figures[:out] + figures[out + 1 :])
        assert reach is not None
        inside += abs(figures[out]) <= reach
    assert inside * 1000 >= 900 * (count + 1)


def test_intervals_lie_around_the_figure_and_within_bounds() -> None:
    assert conformal.around_factor(10.0, math.log(1.25)) == pytest.approx((8, 12.5))
    assert conformal.around_points(95.0, 10.0, 1, 100) == (85, 100)
    assert conformal.around_factor(10.0, None) is None
    assert conformal.around_points(10.0, None, 1, 100) is None
    assert conformal.around_factor(1.0, math.log(1.73)) == pytest.approx((1 / 1.73, 1.73))
    assert conformal.around_factor(1.0, math.log(1.74)) is None, "it says nothing"
