"""Samples of finished tasks in the store: a row each.

Knows: the table `samples` and its bounds. Must not know: the form of a sample
(core/forecast/samples.py), transactions (database.py).

Beyond the bound of rows, the environment with the most rows loses the oldest of them; beyond that
of bytes, the one with the most bytes. So the samples of one do not push out those of others.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

READ = "SELECT value FROM samples ORDER BY number"
"""The texts of all samples, the oldest first."""
RETAINED_ROWS = 2_000
RETAINED_BYTES = 8 * 2**20
SIZE = "SELECT count(*), coalesce(sum(length(CAST(value AS BLOB))), 0) FROM samples"
OLDEST_OF_MOST = """
DELETE FROM samples WHERE number = (
  SELECT min(number) FROM samples WHERE env = (
    SELECT env FROM samples GROUP BY env ORDER BY {most} DESC, min(number) LIMIT 1))
"""
OF_MOST_ROWS = OLDEST_OF_MOST.format(most="count(*)")
OF_MOST_BYTES = OLDEST_OF_MOST.format(most="sum(length(CAST(value AS BLOB)))")


class SampleRow(NamedTuple):
    env: str
    value: str
    """The JSON text of the sample."""


def write(cursor: sqlite3.Cursor, rows: Iterable[SampleRow]) -> None:
    """Within the caller's transaction."""
    cursor.executemany("INSERT INTO samples (env, value) VALUES (?, ?)", rows)
    while True:
        count, size_bytes = cursor.execute(SIZE).fetchone()
        if count <= RETAINED_ROWS and size_bytes <= RETAINED_BYTES:
            return
        cursor.execute(OF_MOST_ROWS if count > RETAINED_ROWS else OF_MOST_BYTES)


class StoredSize(NamedTuple):
    """A row of the store, as its bounds count it."""

    env: str
    size_bytes: int


def surplus(rows: Sequence[StoredSize], most_rows: int, most_bytes: int) -> set[int]:
    """The places of the rows, the oldest first, that the store drops beyond its bounds.

    Of the environment with the most rows, or the most bytes, the oldest.
    """
    counts, sizes = Counter([row.env for row in rows]), Counter[str]()
    for row in rows:
        sizes[row.env] += row.size_bytes
    dropped: set[int] = set()
    while counts.total() > most_rows or (counts.total() and sizes.total() > most_bytes):
        most = counts if counts.total() > most_rows else sizes
        index, row = _oldest_of_most(rows, dropped, most)
        dropped.add(index)
        counts[row.env] -= 1
        sizes[row.env] -= row.size_bytes
    return dropped


def _oldest_of_most(
    rows: Sequence[StoredSize], dropped: set[int], most: Counter[str]
) -> tuple[int, StoredSize]:
    """Of equal environments, the one with the oldest row."""
    left = [(index, row) for index, row in enumerate(rows) if index not in dropped]
    greatest = max(most.values())
    return next((index, row) for index, row in left if most[row.env] == greatest)


def newest(rows: list[SampleRow]) -> list[SampleRow]:
    """Those of rows for which the store has no room yet that it would keep."""
    sizes = [StoredSize(row.env, len(row.value.encode())) for row in rows]
    dropped = surplus(sizes, RETAINED_ROWS, RETAINED_BYTES)
    return [row for index, row in enumerate(rows) if index not in dropped]
