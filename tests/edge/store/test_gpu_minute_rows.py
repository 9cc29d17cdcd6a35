"""The table of the GPUs' use: bounded by number, read as means."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.core.views.gpu_minutes import MINUTE_S, GpuMinute, Steps, steps
from nodemgr.edge.store import gpu_minute_rows, migrations
from tests.support.examples import examples

A, B = "GPU-a", "GPU-b"


def database() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:")
    made.executescript(migrations.TABLES)
    return made


def minutes(db: sqlite3.Connection) -> list[int]:
    """In the order in which they were written."""
    return [minute for (minute,) in db.execute("SELECT minute FROM gpu_minutes ORDER BY number")]


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    made = database()
    yield made
    made.close()


def test_a_step_of_a_minute_shows_the_row(db: sqlite3.Connection) -> None:
    rows = [GpuMinute(10, A, 12.5, 7), GpuMinute(10, B, None, 8), GpuMinute(12, A, 50.0, None)]
    gpu_minute_rows.write(db.cursor(), rows)
    assert gpu_minute_rows.first_minute(db) == 10
    assert gpu_minute_rows.means(db, steps(600, 840)) == {
        A: ([12.5, None, 50.0, None], [7, None, None, None]),
        B: ([None] * 4, [8, None, None, None]),
    }


def test_a_minute_with_two_rows_shows_their_mean(db: sqlite3.Connection) -> None:
    for percent in (10.0, 30.0):
        gpu_minute_rows.write(db.cursor(), [GpuMinute(10, A, percent, 4)])
    assert gpu_minute_rows.means(db, steps(600, 660)) == {A: ([20.0], [4])}


def test_an_empty_table_and_an_empty_span(db: sqlite3.Connection) -> None:
    assert gpu_minute_rows.first_minute(db) is None
    assert gpu_minute_rows.means(db, steps(0, 600)) == {}
    gpu_minute_rows.write(db.cursor(), [GpuMinute(10, A, 1.0, 1)])
    assert gpu_minute_rows.means(db, steps(600, 600)) == {}


def test_the_oldest_rows_go_whatever_their_minute(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that was years ahead for a while deletes nothing, and its rows go in their turn."""
    monkeypatch.setattr(gpu_minute_rows, "RETAINED_ROWS", 6)
    for minute in (1, 2, 9_000_000, 9_000_001, 3, 4, 5, 6):
        gpu_minute_rows.write(db.cursor(), [GpuMinute(minute, A, 1.0, 1)])
        kept = minutes(db)
        assert len(kept) <= 6
    assert kept == [9_000_000, 9_000_001, 3, 4, 5, 6]


def test_a_full_disk_takes_the_oldest_rows(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_minute_rows, "MADE_WAY_ROWS", 2)
    gpu_minute_rows.make_way(db.cursor())
    gpu_minute_rows.write(db.cursor(), [GpuMinute(minute, A, 1.0, 1) for minute in range(5)])
    gpu_minute_rows.make_way(db.cursor())
    assert minutes(db) == [2, 3, 4]


ROWS = st.lists(
    st.builds(
        GpuMinute,
        st.integers(0, 60),
        st.sampled_from([A, B]),
        st.none() | st.integers(0, 1_000).map(lambda tenths: tenths / 10),
        st.none() | st.integers(0, 2**40),
    ),
    max_size=60,
)
SPANS = st.builds(
    lambda first, step, length: Steps(first * step * MINUTE_S, step * MINUTE_S, length),
    st.integers(0, 10),
    st.integers(1, 7),
    st.integers(0, 12),
)


@given(rows=ROWS, span=SPANS)
@settings(max_examples=examples(100), deadline=None)
def test_means_are_those_of_a_simple_model(rows: list[GpuMinute], span: Steps) -> None:
    db = database()
    gpu_minute_rows.write(db.cursor(), rows)
    found = gpu_minute_rows.means(db, span)
    db.close()
    for uuid in (A, B):
        percents, memory_bytes = found.get(uuid, ([None] * span.length, [None] * span.length))
        for step in range(span.length):
            begin = span.since_s + step * span.step_s
            inside = [
                row
                for row in rows
                if row.uuid == uuid and begin <= row.minute * MINUTE_S < begin + span.step_s
            ]
            for shown, known in (
                (percents[step], [row.utilization_percent for row in inside]),
                (memory_bytes[step], [row.memory_used_bytes for row in inside]),
            ):
                there = [value for value in known if value is not None]
                if not there:
                    assert shown is None
                else:
                    assert shown == pytest.approx(sum(there) / len(there), abs=0.51)
