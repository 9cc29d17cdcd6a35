"""Samples of finished tasks in the store: a row each.

Knows: the table `samples` and its bounds. Must not know: the form of a sample
(core/forecast/samples.py), transactions (database.py).

Beyond the bound of rows, the environment with the most rows loses the oldest of them; beyond that
of bytes, the one with the most bytes. So the samples of one do not push out those of others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

TABLES = """
CREATE TABLE samples (number INTEGER PRIMARY KEY, env TEXT NOT NULL, value TEXT NOT NULL);
CREATE INDEX samples_of_env ON samples (env, number);
"""
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


def read(db: sqlite3.Connection) -> list[str]:
    """The texts of all samples, the oldest first."""
    return [text for (text,) in db.execute("SELECT value FROM samples ORDER BY number")]
