"""Use of the GPUs by the minute in the store: a row for each GPU and minute.

Knows: the table `gpu_minutes`, its bound. Must not know: how a minute is made
(core/views/gpu_minutes.py), transactions (database.py).

Rows are numbered in the order in which they were written and trimmed by number, not by time: a
clock that was set wrong for a while deletes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from nodemgr.core.views.gpu_minutes import GpuMinute, Steps

RETAINED_ROWS = 8 * 24 * 60 * 16
"""Eight days of 16 GPUs, which is the most; fewer GPUs have more days. At most 20 MB."""
MADE_WAY_ROWS = 200
"""So many of the oldest rows go with each commit while the disk is full."""
MEANS = """
SELECT uuid, (minute - :first) / :step, avg(utilization_percent), avg(memory_used_bytes)
FROM gpu_minutes WHERE minute >= :first AND minute < :end GROUP BY 1, 2
"""

Means = dict[str, tuple[list[float | None], list[int | None]]]
"""By GPU: utilisation and memory, a value for each step."""


def write(cursor: sqlite3.Cursor, rows: Sequence[GpuMinute]) -> None:
    """Within the caller's transaction."""
    cursor.executemany(
        "INSERT INTO gpu_minutes (minute, uuid, utilization_percent, memory_used_bytes)"
        " VALUES (?, ?, ?, ?)",
        rows,
    )
    cursor.execute(
        "DELETE FROM gpu_minutes WHERE number <= (SELECT max(number) FROM gpu_minutes) - ?",
        (RETAINED_ROWS,),
    )


def make_way(cursor: sqlite3.Cursor) -> None:
    """On a full disk, within the caller's transaction: delete the oldest rows."""
    cursor.execute(
        "DELETE FROM gpu_minutes WHERE number <"
        " (SELECT coalesce(min(number), 0) FROM gpu_minutes) + ?",
        (MADE_WAY_ROWS,),
    )


def first_minute(db: sqlite3.Connection) -> int | None:
    """The earliest minute of all rows; None: there is none."""
    found: int | None = db.execute("SELECT min(minute) FROM gpu_minutes").fetchone()[0]
    return found


def means(db: sqlite3.Connection, steps: Steps) -> Means:
    """The mean of each step for each GPU that has a row in the span; None: nothing is known."""
    first, end = steps.minutes
    found: Means = {}
    span = {"first": first, "end": end, "step": max(1, steps.step_s // 60)}
    for uuid, step, percent, memory_bytes in db.execute(MEANS, span):
        lists = found.setdefault(uuid, ([None] * steps.length, [None] * steps.length))
        lists[0][step] = None if percent is None else round(percent, 1)
        lists[1][step] = None if memory_bytes is None else round(memory_bytes)
    return found
