"""The table of samples: bounded by number and bytes, fair between users."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from nodemgr.edge.store import sample_rows
from nodemgr.edge.store.sample_rows import SampleRow


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:")
    made.executescript(sample_rows.TABLES)
    yield made
    made.close()


def test_samples_come_back_in_their_order(db: sqlite3.Connection) -> None:
    sample_rows.write(db.cursor(), [SampleRow("ann", "1"), SampleRow("bob", "2")])
    sample_rows.write(db.cursor(), [SampleRow("ann", "3")])
    assert sample_rows.read(db) == ["1", "2", "3"]


def test_the_oldest_of_the_user_with_the_most_go_first(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_rows, "RETAINED_ROWS", 4)
    sample_rows.write(db.cursor(), [SampleRow("ann", "a1"), SampleRow("ann", "a2")])
    for number in range(50):
        sample_rows.write(db.cursor(), [SampleRow("eve", f"e{number}")])
    assert sample_rows.read(db) == ["a1", "a2", "e48", "e49"]


def test_bytes_are_bounded_too(db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_rows, "RETAINED_BYTES", 100)
    for number in range(10):
        sample_rows.write(db.cursor(), [SampleRow("ann", f"{number}" * 30)])
    assert sample_rows.read(db) == ["7" * 30, "8" * 30, "9" * 30]
    sample_rows.write(db.cursor(), [SampleRow("ann", "é" * 60)])
    assert sample_rows.read(db) == []
