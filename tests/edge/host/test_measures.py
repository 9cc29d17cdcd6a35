"""Histograms: each duration is in the bucket whose upper bound is the first not below it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.edge.host.measures import HOLD_S, STEP_S, WAIT_S, Histogram
from tests.support.examples import examples

NS = 1_000_000_000


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for duration_ns in (0, NS, NS + 1, 2 * NS, 2 * NS + 1, 9 * NS):
        histogram.observe(duration_ns)
    assert histogram.counts == [2, 2, 2]
    assert histogram.total_ns == 15 * NS + 2


def test_a_clock_that_went_back_counts_as_no_time() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(-5)
    assert (histogram.counts, histogram.total_ns) == ([1, 0], 0)


@settings(max_examples=examples(100))
@given(st.lists(st.integers(-(10**9), 10**16)), st.sampled_from((HOLD_S, STEP_S, WAIT_S)))
def test_no_duration_is_lost(durations: list[int], bounds: tuple[float, ...]) -> None:
    histogram = Histogram(bounds)
    for duration_ns in durations:
        histogram.observe(duration_ns)
    assert sum(histogram.counts) == len(durations)
    assert histogram.total_ns == sum(max(0, duration_ns) for duration_ns in durations)
    below = sum(histogram.counts[:-1])
    assert below == sum(duration_ns <= bounds[-1] * NS for duration_ns in durations)
