"""The table of programs that ran before: bounded in each environment, and gone with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from nodemgr.edge.store import migrations, program_rows
from nodemgr.edge.store.database import CommitBatch


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:")
    for migrate in migrations.MIGRATIONS:
        migrate(made)
    yield made
    made.close()


def read(db: sqlite3.Connection, env: str, key: str) -> str | None:
    found = db.execute(program_rows.READ, (env, key)).fetchone()
    return None if found is None else str(found[0])


def test_the_one_that_ran_longest_ago_goes(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_rows, "MAX_PROGRAMS", 2)
    for key, text in (("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")):
        program_rows.write(db.cursor(), {("ann", key): text})
    program_rows.write(db.cursor(), {("bob", "a"): "5"})
    assert [read(db, "ann", key) for key in "abc"] == ["3", None, "4"]
    assert read(db, "bob", "a") == "5"


def test_of_ten_thousand_commands_the_newest_are_kept(db: sqlite3.Connection) -> None:
    most, keys = program_rows.MAX_PROGRAMS, [f"{number:05}" for number in range(10_000)]
    for begin in range(0, len(keys), 100):
        rows = {("ann", key): "1" for key in keys[begin : begin + 100]}
        program_rows.write(db.cursor(), rows)
    found = db.execute("SELECT key FROM programs WHERE env = 'ann' ORDER BY key").fetchall()
    assert [key for (key,) in found] == keys[-most:]


def test_their_bytes_are_bounded(db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_rows, "MAX_BYTES", 10)
    for key in "abc":
        program_rows.write(db.cursor(), {("ann", key): "x" * 5})
    assert [read(db, "ann", key) for key in "abc"] == [None, "x" * 5, "x" * 5]


def test_a_bound_counts_bytes_without_a_look_at_the_texts(db: sqlite3.Connection) -> None:
    """Read whole, 8 MiB would cost each end of a job 2 ms."""
    program_rows.write(db.cursor(), {("ann", "a"): "1", ("ann", "b"): "22"})
    assert db.execute(program_rows.SIZE, ("ann",)).fetchone() == (2, 3)
    kinds = db.execute("SELECT DISTINCT typeof(value) FROM programs").fetchall()
    assert kinds == [("blob",)]


def test_the_end_of_an_environment_is_not_dropped_while_the_disk_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program_rows, "MAX_PROGRAMS", 2)
    rows = {("ann", program_rows.ALL): ""}
    for key in "abcd":
        rows = program_rows.newest(rows, {("bob", key): "1"})
    assert list(rows) == [("ann", program_rows.ALL), ("bob", "d")]


def test_an_environment_takes_its_programs_along(db: sqlite3.Connection) -> None:
    program_rows.write(db.cursor(), {("ann", "a"): "1", ("bob", "a"): "2"})
    program_rows.write(db.cursor(), {("ann", program_rows.ALL): ""})
    assert (read(db, "ann", "a"), read(db, "bob", "a")) == (None, "2")


def test_what_waits_for_a_full_disk_is_bounded_and_in_order(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_rows, "MAX_PROGRAMS", 3)
    waiting = CommitBatch.empty()
    for env, key in (("ann", "a"), ("bob", "b"), ("ann", program_rows.ALL), ("ann", "c")):
        waiting.add(CommitBatch({}, [], [], {}, programs={(env, key): "1"}))
    program_rows.write(db.cursor(), waiting.programs)
    assert [read(db, "ann", "a"), read(db, "bob", "b"), read(db, "ann", "c")] == [None, "1", "1"]
