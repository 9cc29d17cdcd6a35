"""How many rows the store's tables have, without reading them each time.

Knows: the tables by name. Must not know: their bounds.

A count may be too high, as where rows were replaced or deleted in another way: `beyond` counts them
before it says so.
"""

from __future__ import annotations

import sqlite3


class RowCounts:
    """Changed within the caller's transaction. After a rollback call `forget`."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self._known: dict[str, int] = {}

    def add(self, table: str, rows: int) -> None:
        if table in self._known:
            self._known[table] += rows

    def beyond(self, table: str, most: int) -> int:
        """How many rows are too many; 0: none."""
        known = self._known.get(table)
        if known is not None and known <= most:
            return 0
        counted: int = self._cursor.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        self._known[table] = counted
        return max(0, counted - most)

    def forget(self) -> None:
        self._known.clear()
