"""Failure rates: posteriors by hand, ageing, priors of the other GPUs, intervals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.core.placement import rates
from nodemgr.core.placement.rates import HALF_LIFE_HOURS, Rate, Track, aged, aged_hours, learned
from tests.support.examples import examples

MODEL = "NVIDIA H100"
MONTH_HOURS = 30 * 24.0


def track(*ages: float, observed: float = MONTH_HOURS, model: str = MODEL) -> Track:
    return Track(model, observed, ages)


def test_a_gpu_without_others_has_the_published_rate_as_its_prior() -> None:
    rate = learned({"a": track(observed=0.0)})["a"]
    assert rate.shape == rates.PRIOR_SHAPE
    assert rate.per_hour == pytest.approx(rates.BASE_RATE)


def test_the_posterior_adds_failures_and_hours_to_the_prior() -> None:
    observed, base = aged_hours(MONTH_HOURS), rates.BASE_FAILURES / rates.BASE_RATE
    mean = (2 + rates.BASE_FAILURES) / (observed + base)
    rate = learned({"a": track(0.0, 0.0)})["a"]
    assert rate.shape == rates.PRIOR_SHAPE + 2
    assert rate.hours == pytest.approx(rates.PRIOR_SHAPE / mean + observed)


def test_after_a_half_life_a_failure_counts_half() -> None:
    assert aged(0) == 1
    assert aged(HALF_LIFE_HOURS) == 0.5
    assert aged(2 * HALF_LIFE_HOURS) == 0.25
    assert aged(-1.0) == 1, "an event of the future counts as a new one"
    assert aged_hours(1e9) == pytest.approx(HALF_LIFE_HOURS / math.log(2))
    assert aged_hours(1.0) == pytest.approx(1.0, rel=1e-3)


def test_a_failing_gpu_leads_and_the_others_learn_from_it() -> None:
    node = {f"{index}": track() for index in range(8)}
    calm = learned(node)
    ill = learned({**node, "0": track(1.0, 50.0, 200.0)})
    assert ill["0"].per_hour == pytest.approx(7 * ill["1"].per_hour, rel=0.05)
    assert calm["1"].per_hour < ill["1"].per_hour, "their prior contains its failures"


@pytest.mark.parametrize("hours", [1.0, MONTH_HOURS, 1e5])
@pytest.mark.parametrize("gpus", [1, 2, 16])
def test_more_failures_are_a_higher_rate_however_short_the_record(hours: float, gpus: int) -> None:
    """A prior of the other GPUs alone gets this wrong: they look worse than the failing one."""
    calm = {f"{index}": track(observed=hours) for index in range(gpus)}
    one, two = (
        {**calm, "0": track(0.5, observed=hours)},
        {**calm, "0": track(0.5, 0.2, observed=hours)},
    )
    assert learned(calm)["0"].per_hour < learned(one)["0"].per_hour < learned(two)["0"].per_hour
    if gpus > 1:
        assert learned(one)["1"].per_hour < learned(one)["0"].per_hour


def test_other_models_teach_nothing() -> None:
    alone = learned({"a": track()})["a"]
    beside = learned({"a": track(), "b": track(1.0, 2.0, model="NVIDIA A100")})["a"]
    assert alone == beside


def test_all_gpus_bad_have_equal_rates() -> None:
    found = learned({f"{index}": track(5.0, 6.0, 7.0) for index in range(4)})
    assert len({round(rate.per_hour, 12) for rate in found.values()}) == 1


@pytest.mark.parametrize("shape", [0.5, 1.0, 3.5, 40.0])
def test_the_interval_holds_the_mean_and_has_its_tails(shape: float) -> None:
    rate = Rate(shape, 1_000.0)
    low, high = rate.interval()
    assert 0 < low < rate.per_hour < high
    assert rates._gamma_cdf(shape, low * 1_000) == pytest.approx(0.05, abs=1e-6)
    assert rates._gamma_cdf(shape, high * 1_000) == pytest.approx(0.95, abs=1e-6)


def test_the_quantiles_of_an_exponential_distribution_are_known() -> None:
    low, high = Rate(1.0, 1.0).interval()
    assert low == pytest.approx(-math.log(0.95), rel=1e-6)
    assert high == pytest.approx(-math.log(0.05), rel=1e-6)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e6), st.lists(st.floats(-1e4, 1e6), max_size=8), st.sampled_from("xy")
        ),
        min_size=1,
        max_size=16,
    )
)
def test_every_rate_is_a_positive_finite_number(
    node: list[tuple[float, list[float], str]],
) -> None:
    found = learned(
        {at: Track(model, hours, tuple(ages)) for at, (hours, ages, model) in enumerate(node)}
    )
    for rate in found.values():
        low, high = rate.interval()
        assert 0 <= low <= high < math.inf
        assert 0 < rate.per_hour < math.inf
