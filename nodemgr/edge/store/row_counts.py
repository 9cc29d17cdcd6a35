"""How many rows each environment has in a table of the store, read once.

Knows: the tables by name. Must not know: their bounds.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable

AT_ONCE = 100
"""Rows beyond a bound are deleted when they are so many: half a millisecond."""


def from_the_fullest(
    excess: int, counted: Callable[[], Counter[str]], drop: Callable[[str, int], int]
) -> None:
    """Drop so much, each time of the env with most: a flood displaces no other env's past."""
    while excess > 0:
        (env, most), (_, next_most) = (*counted().most_common(2), ("", 0), ("", 0))[:2]
        dropped = drop(env, min(excess, max(most - next_most, (excess + 1) // 2)))
        if dropped <= 0:
            return
        excess -= dropped


class RowCounts:
    """Changed within the caller's transaction. After a rollback call `forget`."""

    def __init__(self, cursor: sqlite3.Cursor, table: str, number: str) -> None:
        """`number`: the column by which the oldest rows of an env are found, in an index."""
        self._cursor, self._table, self._number = cursor, table, number
        self._known: Counter[str] | None = None
        self._total = 0

    def of_envs(self) -> Counter[str]:
        if self._known is None:
            counted = self._cursor.execute(
                f"SELECT env, count(*) FROM {self._table} GROUP BY env"
            ).fetchall()
            self._known = Counter(dict(counted))
            self._total = self._known.total()
        return self._known

    def total(self) -> int:
        self.of_envs()
        return self._total

    def add(self, env: str, rows: int) -> None:
        """After they were written or deleted."""
        if self._known is not None:
            self._known[env] += rows
            self._total += rows

    def forget(self) -> None:
        self._known = None

    def trim(self, most: int, added: int) -> None:
        """Delete the oldest rows beyond `most`: after `added` rows not many more than they are."""
        excess = self.total() - most
        if excess >= AT_ONCE:
            self.drop(min(excess, 2 * max(added, AT_ONCE)))

    def drop(self, rows: int) -> None:
        from_the_fullest(rows, self.of_envs, self._drop_of)

    def _drop_of(self, env: str, rows: int) -> int:
        oldest = f"SELECT {self._number} FROM {self._table} WHERE env = ? ORDER BY 1 LIMIT ?"
        dropped: int = self._cursor.execute(
            f"DELETE FROM {self._table} WHERE {self._number} IN ({oldest})", (env, rows)
        ).rowcount
        self.add(env, -dropped)
        return dropped
