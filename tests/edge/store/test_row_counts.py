"""The rows of each environment: read once, exact after rows are written anew, trimmed in parts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from nodemgr.edge.store.row_counts import AT_ONCE, RowCounts


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.execute("CREATE TABLE events (sequence INTEGER PRIMARY KEY, env TEXT)")
    yield made
    made.close()


def write(database: sqlite3.Connection, counts: RowCounts, env: str, rows: int) -> None:
    database.executemany("INSERT INTO events (env) VALUES (?)", [(env,)] * rows)
    counts.add(env, rows)


def test_rows_are_read_once(database: sqlite3.Connection) -> None:
    counts, read = RowCounts(database.cursor(), "events", "sequence"), list[str]()
    write(database, counts, "a", 5)
    database.set_trace_callback(read.append)
    assert counts.of_envs() == {"a": 5}
    counts.add("b", 2)
    assert (counts.total(), len(read)) == (7, 1)
    counts.forget()
    assert (counts.total(), len(read)) == (5, 2)


def test_a_table_far_beyond_its_bound_is_trimmed_in_parts(database: sqlite3.Connection) -> None:
    """As where a bound was lowered: no step deletes more than it wrote twice, or twice AT_ONCE."""
    counts = RowCounts(database.cursor(), "events", "sequence")
    write(database, counts, "quiet", 10)
    write(database, counts, "flood", 10 * AT_ONCE)
    counts.trim(10 * AT_ONCE, 1)
    assert counts.total() == 10 * AT_ONCE + 10, "so few more are left to the next time"
    totals = []
    while counts.total() > 20:
        counts.trim(20, 1)
        totals.append(counts.total())
        if counts.total() < 20 + AT_ONCE:
            break
    assert totals[0] == 8 * AT_ONCE + 10
    assert len(totals) == 5
    assert dict(counts.of_envs())["quiet"] == 10
    found = database.execute("SELECT env, count(*) FROM events GROUP BY env ORDER BY env")
    assert dict(found.fetchall()) == {"flood": 10, "quiet": 10}
    counts.trim(20 - AT_ONCE, 100 * AT_ONCE)
    assert counts.total() == 0, "after many rows as many may go"
