"""Ended jobs in the store: their rows, their payloads, and the bytes of both.

Knows: the tables `history` and `payloads`, the bounds. Must not know: the meaning of a row's text,
transactions (database.py).

A payload belongs to the jobs that run it until the last of them has ended. From then on it counts
to its environment's history, and is deleted before the rows. Sums are kept in memory, and counted
again after a transaction that failed.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from nodemgr.edge.store.row_counts import AT_ONCE, RowCounts, from_the_fullest

RETAINED_ROWS = 100_000
ROW_BYTES = 400
"""The bytes of a row beside its texts: its columns, and its places in the indices."""
COLUMNS = "job_id, env, ended_wall_ns, state, command, ran_ms, key, spec_id, size_bytes, value"


class HistoryRow(NamedTuple):
    """A job that has ended."""

    job_id: str
    env: str
    ended_wall_ns: int
    state: str
    command: str
    ran_ms: int | None
    """The running time of a job that ended well."""
    key: str
    """The submitter's."""
    spec_id: str
    value: str

    @property
    def size_bytes(self) -> int:
        return (
            ROW_BYTES + len(self.command.encode(errors="replace")) + len(self.key) + len(self.value)
        )


class PayloadRow(NamedTuple):
    """The payload of living jobs."""

    spec_id: str
    cwd: bytes
    value: bytes


class Bounds(NamedTuple):
    """Bounds of the kept data of ended jobs, in bytes."""

    env_bytes: int = 2**28
    """The bound of one environment: rows and payloads together."""
    all_bytes: int = 2**30
    payload_bytes: int = 2**26
    """The bound of one environment's payloads, kept for the newest jobs; at most env_bytes / 2."""


class HistoryRows:
    """Writes within the caller's transaction. After a rollback call `forget_sums`."""

    def __init__(self, cursor: sqlite3.Cursor, bounds: Bounds) -> None:
        self._cursor = cursor
        self._bounds = bounds._replace(
            payload_bytes=min(bounds.payload_bytes, bounds.env_bytes // 2)
        )
        self._row_bytes: Counter[str] | None = None
        self._rows = RowCounts(cursor, "history", "number")
        self._payload_bytes: Counter[str] = Counter()
        _ = self._sums, self._rows.of_envs()  # now, and not in a step

    def forget_sums(self) -> None:
        self._row_bytes = None
        self._rows.forget()

    @property
    def _sums(self) -> Counter[str]:
        """Bytes of each env's rows."""
        if self._row_bytes is None:
            execute = self._cursor.execute
            self._row_bytes = Counter(
                dict(execute("SELECT env, sum(size_bytes) FROM history GROUP BY env").fetchall())
            )
            ended = "SELECT env, sum(size_bytes) FROM payloads WHERE env IS NOT NULL GROUP BY env"
            self._payload_bytes = Counter(dict(execute(ended).fetchall()))
        return self._row_bytes

    # -- one row --

    def put(self, row: HistoryRow) -> None:
        self.remove(row.job_id)
        self._sums[row.env] += row.size_bytes
        columns = (*row[:-1], row.size_bytes, row.value)
        self._cursor.execute(
            f"INSERT INTO history ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", columns
        )
        self._rows.add(row.env, 1)

    def remove(self, job_id: str) -> None:
        """A job that is not there: nothing.

        Its payload stays: the job runs again, or has ended again.
        """
        found = self._cursor.execute(
            "SELECT env, size_bytes FROM history WHERE job_id = ?", (job_id,)
        ).fetchone()
        if found is not None:
            self._sums[found[0]] -= found[1]
            self._cursor.execute("DELETE FROM history WHERE job_id = ?", (job_id,))
            self._rows.add(found[0], -1)

    def add_payload(self, row: PayloadRow) -> None:
        size_bytes = len(row.cwd) + len(row.value)
        self._cursor.execute(
            "INSERT INTO payloads VALUES (?, NULL, NULL, ?, ?, ?)",
            (row.spec_id, size_bytes, row.cwd, row.value),
        )

    def let_payload_go(self, spec_id: str, env: str) -> None:
        """The last job that ran it has ended."""
        sums, execute = self._sums, self._cursor.execute
        found = execute(
            "SELECT env, size_bytes FROM payloads WHERE spec_id = ?", (spec_id,)
        ).fetchone()
        if found is not None:
            self._count_payload(found[0], -found[1])
            self._count_payload(env, found[1])
            number = execute("SELECT coalesce(max(number), 0) FROM history").fetchone()[0]
            execute(
                "UPDATE payloads SET env = ?, ended = ? WHERE spec_id = ?", (env, number, spec_id)
            )
        sums[env] += 0

    def take_payload_up(self, spec_id: str) -> None:
        """A job that had ended runs it again."""
        _ = self._sums
        found = self._cursor.execute(
            "SELECT env, size_bytes FROM payloads WHERE spec_id = ?", (spec_id,)
        ).fetchone()
        if found is not None:
            self._count_payload(found[0], -found[1])
            self._cursor.execute(
                "UPDATE payloads SET env = NULL, ended = NULL WHERE spec_id = ?", (spec_id,)
            )

    def _count_payload(self, env: str | None, more_bytes: int) -> None:
        if env is not None:
            self._payload_bytes[env] += more_bytes

    # -- the bounds --

    def trim(self, envs: Iterable[str]) -> None:
        """After rows of these envs were added: delete what is beyond a bound, the oldest first.

        Beyond the bound of all envs, the env with most bytes loses rows.
        """
        sums, bounds = self._sums, self._bounds
        for env in envs:
            if self._payload_bytes[env] > bounds.payload_bytes:
                self._drop_payloads(env, self._payload_bytes[env] - bounds.payload_bytes)
            excess_bytes = sums[env] + self._payload_bytes[env] - bounds.env_bytes
            if excess_bytes > 0:
                self._drop_rows(env, excess_bytes)
        total_bytes = sums.total() + self._payload_bytes.total()
        if total_bytes > bounds.all_bytes:
            from_the_fullest(total_bytes - bounds.all_bytes, self._bytes_of, self._drop_rows)
        excess = self._rows.total() - RETAINED_ROWS
        if excess >= AT_ONCE:
            from_the_fullest(excess, self._rows.of_envs, self._drop_count)

    def make_way(self, size_bytes: int) -> None:
        """Makes room for this number of bytes."""
        from_the_fullest(size_bytes, self._bytes_of, self._drop_rows)

    def _bytes_of(self) -> Counter[str]:
        return self._sums + self._payload_bytes

    def _drop_payloads(self, env: str, excess_bytes: int) -> None:
        gone = []
        oldest = "SELECT spec_id, size_bytes FROM payloads WHERE env = ? ORDER BY ended"
        for spec_id, size_bytes in self._cursor.execute(oldest, (env,)):
            if excess_bytes <= 0:
                break
            excess_bytes -= size_bytes
            gone.append((spec_id, size_bytes))
        for spec_id, size_bytes in gone:
            self._drop_payload(env, spec_id, size_bytes)

    def _drop_payload(self, env: str, spec_id: str, size_bytes: int) -> None:
        self._count_payload(env, -size_bytes)
        self._cursor.execute("DELETE FROM payloads WHERE spec_id = ?", (spec_id,))

    def _drop_rows(self, env: str, excess_bytes: int) -> int:
        """Returns how many bytes were dropped."""
        before_bytes = self._sums[env] + self._payload_bytes[env]
        left_bytes = excess_bytes
        rows = []
        for row in self._cursor.execute(
            "SELECT number, size_bytes, spec_id FROM history WHERE env = ? ORDER BY number", (env,)
        ):
            if left_bytes <= 0:
                break
            left_bytes -= row[1]
            rows.append(row)
        self._drop(env, rows)
        return before_bytes - self._sums[env] - self._payload_bytes[env]

    def _drop_count(self, env: str, count: int) -> int:
        oldest = (
            "SELECT number, size_bytes, spec_id FROM history WHERE env = ? ORDER BY number LIMIT ?"
        )
        rows = self._cursor.execute(oldest, (env, count)).fetchall()
        self._drop(env, rows)
        return len(rows)

    def _drop(self, env: str, rows: list[tuple[int, int, str]]) -> None:
        """Deletes rows, with payloads that no other row names."""
        self._sums[env] -= sum(size_bytes for _, size_bytes, _ in rows)
        self._rows.add(env, -len(rows))
        self._cursor.executemany(
            "DELETE FROM history WHERE number = ?", [(number,) for number, *_ in rows]
        )
        left = (
            "SELECT env, spec_id, size_bytes FROM payloads AS left WHERE env IS NOT NULL"
            " AND spec_id IN (SELECT value FROM json_each(?))"
            " AND NOT EXISTS (SELECT 1 FROM history WHERE spec_id = left.spec_id)"
        )
        specs = json.dumps(sorted({spec_id for *_, spec_id in rows}))
        for owner, spec_id, size_bytes in self._cursor.execute(left, (specs,)).fetchall():
            self._drop_payload(owner, spec_id, size_bytes)
