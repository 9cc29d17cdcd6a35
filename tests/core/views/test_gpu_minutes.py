"""Readings become the means of their minute, whatever the clock does; spans become steps."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.core.views.gpu_minutes import (
    MAX_STEPS,
    MINUTE_NS,
    MINUTE_S,
    GpuMinute,
    GpuReading,
    OpenMinute,
    steps,
)
from tests.support.examples import examples

A, B = "GPU-a", "GPU-b"
GIB = 2**30


def test_a_minute_has_the_mean_of_all_samples_and_of_all_readings_of_memory() -> None:
    minute = OpenMinute(5 * MINUTE_NS)
    minute.add({A: GpuReading((0, 0, 0), 2 * GIB), B: GpuReading((100,), 0)})
    minute.add({A: GpuReading((100,), 4 * GIB)})
    assert minute.turn(6 * MINUTE_NS - 1) == []
    assert minute.turn(6 * MINUTE_NS) == [
        GpuMinute(5, A, 25.0, 3 * GIB),
        GpuMinute(5, B, 100.0, 0),
    ]
    assert minute.turn(7 * MINUTE_NS) == [], "nothing was read in minute 6"


def test_a_figure_that_cannot_be_read_is_none_and_not_zero() -> None:
    minute = OpenMinute(0)
    minute.add({A: GpuReading((), 7), B: GpuReading((3, 4), None)})
    minute.add({A: GpuReading((), 9), B: GpuReading((), None)})
    assert minute.turn(MINUTE_NS) == [GpuMinute(0, A, None, 8), GpuMinute(0, B, 3.5, None)]


def test_a_gpu_without_a_figure_has_no_row() -> None:
    minute = OpenMinute(0)
    minute.add({A: GpuReading((), None)})
    assert minute.turn(MINUTE_NS) == []


def test_a_clock_that_is_put_back_ends_the_minute_and_opens_the_earlier_one() -> None:
    minute = OpenMinute(100 * MINUTE_NS)
    minute.add({A: GpuReading((10,), 1)})
    assert minute.turn(40 * MINUTE_NS) == [GpuMinute(100, A, 10.0, 1)]
    minute.add({A: GpuReading((20,), 2)})
    assert minute.turn(41 * MINUTE_NS) == [GpuMinute(40, A, 20.0, 2)]


READINGS = st.builds(
    GpuReading,
    st.lists(st.integers(0, 100), max_size=4).map(tuple),
    st.none() | st.integers(0, 80 * GIB),
)
TIMES = st.lists(st.integers(0, 20 * MINUTE_NS), min_size=1, max_size=30)
"""Of a clock that goes back and forth."""


@given(times=TIMES, data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_every_reading_counts_once_in_the_minute_that_was_open(
    times: list[int], data: st.DataObject
) -> None:
    minute, now, rows = OpenMinute(0), 0, []
    stays: list[dict[str, list[GpuReading]]] = [defaultdict(list)]
    at = [0]
    for wall_ns in times:
        found = data.draw(st.dictionaries(st.sampled_from([A, B]), READINGS))
        minute.add(found)
        for uuid, reading in found.items():
            stays[-1][uuid].append(reading)
        rows += minute.turn(wall_ns)
        if wall_ns // MINUTE_NS != now:
            now = wall_ns // MINUTE_NS
            stays.append(defaultdict(list))
            at.append(now)
    wanted = []
    for number, by_uuid in zip(at[:-1], stays[:-1], strict=True):
        for uuid, readings in by_uuid.items():
            percents = [percent for reading in readings for percent in reading.percents]
            known = [
                reading.memory_used_bytes
                for reading in readings
                if reading.memory_used_bytes is not None
            ]
            percent = round(sum(percents) / len(percents), 1) if percents else None
            memory_bytes = sum(known) // len(known) if known else None
            if (percent, memory_bytes) != (None, None):
                wanted.append(GpuMinute(number, uuid, percent, memory_bytes))
    assert rows == wanted
    for row in rows:
        assert row.utilization_percent is None or 0 <= row.utilization_percent <= 100


DAY_S = 86_400


@pytest.mark.parametrize(
    ("since_s", "until_s", "told"),
    [
        (0, 0, (0, 60, 0)),
        (90, 90, (60, 60, 0)),
        (0, 60, (0, 60, 1)),
        (59, 61, (0, 60, 2)),
        (DAY_S, 2 * DAY_S, (DAY_S, 60, 1_440)),
        (0, 1_499 * 60, (0, 60, 1_499)),
        (0, 1_500 * 60, (0, 120, 750)),
        (0, 8 * DAY_S, (0, 480, 1_440)),
    ],
)
def test_a_span_has_the_shortest_steps_that_are_few_enough(
    since_s: int, until_s: int, told: tuple[int, int, int]
) -> None:
    assert steps(since_s, until_s) == told


@settings(max_examples=examples(100), deadline=None)
@given(since_s=st.integers(0, 2**33), span_s=st.integers(0, 2**33))
def test_steps_cover_the_span_and_are_few(since_s: int, span_s: int) -> None:
    until_s = since_s + span_s
    found = steps(since_s, until_s)
    assert found.length <= MAX_STEPS
    assert found.step_s % MINUTE_S == found.since_s % found.step_s == 0
    assert found.since_s <= since_s < found.since_s + found.step_s
    assert found.since_s + found.length * found.step_s >= until_s or span_s == 0
    assert (found.length - 1) * found.step_s + found.since_s < until_s or span_s == 0
    first, end = found.minutes
    assert (end - first) * MINUTE_S == found.length * found.step_s
