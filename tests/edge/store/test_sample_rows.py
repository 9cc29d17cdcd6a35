"""The table of samples: bounded by number and bytes, fair between users."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.edge.store import migrations, sample_rows
from nodemgr.edge.store.database import CommitBatch
from nodemgr.edge.store.sample_rows import SampleRow
from tests.support.examples import examples


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:")
    made.executescript(migrations.TABLES)
    yield made
    made.close()


def texts(db: sqlite3.Connection) -> list[str]:
    return [text for (text,) in db.execute(sample_rows.READ)]


def test_samples_come_back_in_their_order(db: sqlite3.Connection) -> None:
    sample_rows.write(db.cursor(), [SampleRow("ann", "1"), SampleRow("bob", "2")])
    sample_rows.write(db.cursor(), [SampleRow("ann", "3")])
    assert texts(db) == ["1", "2", "3"]


def test_the_oldest_of_the_user_with_the_most_go_first(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_rows, "RETAINED_ROWS", 4)
    sample_rows.write(db.cursor(), [SampleRow("ann", "a1"), SampleRow("ann", "a2")])
    for number in range(50):
        sample_rows.write(db.cursor(), [SampleRow("eve", f"e{number}")])
    assert texts(db) == ["a1", "a2", "e48", "e49"]


def test_bytes_are_bounded_too(db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_rows, "RETAINED_BYTES", 100)
    for number in range(10):
        sample_rows.write(db.cursor(), [SampleRow("ann", f"{number}" * 30)])
    assert texts(db) == ["7" * 30, "8" * 30, "9" * 30]
    sample_rows.write(db.cursor(), [SampleRow("ann", "é" * 60)])
    assert texts(db) == []


def test_the_environment_with_the_most_bytes_makes_room_for_others(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_rows, "RETAINED_BYTES", 100)
    rows = [SampleRow("ann", f"{number}") for number in range(5)]
    rows += [SampleRow("eve", f"{number}" * 40) for number in range(4)]
    sample_rows.write(db.cursor(), rows)
    expected = [*"01234", "2" * 40, "3" * 40]
    assert texts(db) == expected
    assert [row.value for row in sample_rows.newest(rows)] == expected


def test_samples_that_wait_for_a_full_disk_are_bounded_like_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sample_rows, "RETAINED_ROWS", 3)
    waiting = CommitBatch.empty()
    for env, text in [("ann", "a"), *[("eve", f"e{number}") for number in range(9)]]:
        waiting.add(CommitBatch({}, [], [], {}, samples=[SampleRow(env, text)]))
    assert [row.value for row in waiting.samples] == ["a", "e7", "e8"]


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=40),
    st.integers(1, 20), st.integers(1, 60),
)  # fmt: skip
def test_an_environment_loses_rows_only_while_it_has_the_most(
    given_rows: list[tuple[str, int]], most_rows: int, most_bytes: int
) -> None:
    rows = [sample_rows.StoredSize(*row) for row in given_rows]
    dropped = sample_rows.surplus(rows, most_rows, most_bytes)
    left = [row for index, row in enumerate(rows) if index not in dropped]
    assert len(left) <= most_rows
    assert sum(row.size_bytes for row in left) <= most_bytes
    for env in "abc":
        size_bytes = sum(row.size_bytes for row in rows if row.env == env)
        if len([r for r in rows if r.env == env]) * 3 <= most_rows and size_bytes * 3 < most_bytes:
            assert [row for row in left if row.env == env] == [r for r in rows if r.env == env]
