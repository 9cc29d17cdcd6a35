"""The number of a table's rows: read once, and again before a row is called too many."""

from __future__ import annotations

import sqlite3

from nodemgr.edge.store.row_counts import RowCounts


def test_rows_are_read_once_while_they_are_few_enough() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE events (sequence INTEGER PRIMARY KEY)")
    database.executemany("INSERT INTO events VALUES (?)", [(number,) for number in range(5)])
    counts, read = RowCounts(database.cursor()), list[str]()
    database.set_trace_callback(read.append)
    counts.add("events", 5)
    assert counts.beyond("events", 10) == 0
    assert len(read) == 1
    counts.add("events", 5)
    assert (counts.beyond("events", 10), len(read)) == (0, 1)
    counts.add("events", 1)
    assert (counts.beyond("events", 10), len(read)) == (0, 2), "six were never written"
    assert counts.beyond("events", 3) == 2
    counts.forget()
    counts.beyond("events", 10)
    assert len(read) == 4
