"""Earlier runs of recognised programs in the store: a row for each environment and key.

Knows: the table `programs` and its bounds. Must not know: the form of a row's text
(core/forecast/earlier_runs.py), transactions (database.py).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

READ = "SELECT CAST(value AS TEXT) FROM programs WHERE env = ? AND key = ?"
ENVS = "SELECT DISTINCT env FROM programs"
ALL = ""
"""The key that stands for all of an environment."""
MAX_PROGRAMS = 1_000
"""Of an environment; beyond it, and beyond the bytes, the one that ran longest ago goes."""
MAX_BYTES = 8 * 2**20
SIZE = "SELECT count(*), coalesce(sum(length(value)), 0) FROM programs WHERE env = ?"
"""Texts are written as bytes: their length is known without a look at them."""
OLDEST = "DELETE FROM programs WHERE number = (SELECT min(number) FROM programs WHERE env = ?)"

Programs = Mapping[tuple[str, str], str]


def write(cursor: sqlite3.Cursor, rows: Programs) -> None:
    """Within the caller's transaction."""
    for (env, key), text in rows.items():
        if key == ALL:
            cursor.execute("DELETE FROM programs WHERE env = ?", (env,))
            continue
        cursor.execute(
            "INSERT OR REPLACE INTO programs (env, key, value) VALUES (?, ?, ?)",
            (env, key, text.encode()),
        )
    for env in {env for env, _ in rows}:
        while True:
            count, size_bytes = cursor.execute(SIZE, (env,)).fetchone()
            if count <= MAX_PROGRAMS and size_bytes <= MAX_BYTES:
                break
            cursor.execute(OLDEST, (env,))


def newest(before: Programs, later: Programs) -> dict[tuple[str, str], str]:
    """Those for which the store has no room yet, in the order in which they are to be written."""
    gone = {env for env, key in later if key == ALL}
    left = {row: text for row, text in before.items() if row[0] not in gone and row not in later}
    rows = {**left, **later}
    surplus = len(rows) - MAX_PROGRAMS
    dropped = [row for row in rows if row[1] != ALL][: max(0, surplus)]
    return {row: text for row, text in rows.items() if row not in set(dropped)}
