"""The state that survives a kill -9: one SQLite database in WAL mode.

One connection in the manager's loop writes it.

Knows: SQL, files, the rows' outer form (kind, key, JSON text). Must not know: the meaning of a row.

Each step of the core is one commit, made before the step is reported (docs/ARCHITECTURE.md, promise
3). Leases use synchronous=NORMAL, which survives a crash of the manager; quotas use FULL, which
survives a crash of the machine. Checkpoints have their own thread and connection. A failed commit
changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from client_plugin.messages.form import SpokenError
from nodemgr.core.model import job_ids
from nodemgr.core.views.gpu_minutes import GpuMinute
from nodemgr.edge.host import threads
from nodemgr.edge.store import (
    gpu_minute_rows,
    migrations,
    program_rows,
    sample_rows,
    web_token_rows,
)
from nodemgr.edge.store.disk_reserve import FRAME_BYTES, DiskReserve, LogIndex, free_pages
from nodemgr.edge.store.history_rows import Bounds, HistoryRow, HistoryRows, PayloadRow
from nodemgr.edge.store.migrations import StoreUnusable
from nodemgr.edge.store.row_counts import RowCounts
from nodemgr.edge.store.sample_rows import SampleRow
from nodemgr.edge.store.web_token_rows import WebTokenRow
from nodemgr.messages import node as messages

FILE_NAME = "state.db"
RETAINED_EVENTS = 100_000
RETAINED_RECORDS = 1_000_000
CHECKPOINT_BYTES = 4 * 2**20
WAL_LIMIT_BYTES = 64 * 2**20
"""Beyond this a commit waits for the checkpoint, so that a late thread does not fill the disk."""
WAL_CUT_BYTES = WAL_LIMIT_BYTES + 2 * CHECKPOINT_BYTES
"""A log is cut off beyond this: to cut 32 MiB off takes a commit 6 ms of the processor."""
WAL_WAIT_S = 0.5
"""Longest such wait, because it blocks the loop. If the disk is stuck, the log grows instead."""
WAL_REST_S = 30.0
"""After a wait that timed out, no commit waits for this long; `is_late` slows heavy writers."""
RETAINED_WHEN_TIGHT = 100
"""Newest events and records that are kept while old ones are deleted on a full disk."""
BUSY_MS = 1_000

CHECKED = ("current", "meta", "events", "records", "history", "web_tokens", "samples",
           "programs")  # fmt: skip
"""Tables that are checked at start.

Payloads are not: they may be gigabytes. The GPUs' use is not: no decision needs it.
"""
REASONS = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_BUSY": messages.STORE_LOCKED(),
    "SQLITE_LOCKED": messages.STORE_LOCKED(),
    "SQLITE_READONLY": "the file is read-only",
    "SQLITE_IOERR": "the disk answers with an I/O error",
    "SQLITE_CORRUPT": "the database is damaged",
}


CLOCK_SEEN = "clock_ns"


class StoreFailed(SpokenError):
    """A commit failed and the database is unchanged, or a read failed. One line."""


class RecordRow(NamedTuple):
    record_id: int
    env: str
    granted_wall_ns: int
    value: str


class EventRow(NamedTuple):
    sequence: int
    value: str
    env: str = ""
    """Empty: an event of the node."""


@dataclass(slots=True)
class CommitBatch:
    """The rows of one commit.

    `current`: (kind, key) to JSON text. `history`: by job. None deletes.
    """

    current: dict[tuple[str, str], str | None]
    records: list[RecordRow]
    events: list[EventRow]
    meta: dict[str, str | None]
    history: dict[str, HistoryRow | None] = field(default_factory=dict)
    payloads: list[PayloadRow] = field(default_factory=list)
    """Payloads of new specs."""
    specs: dict[str, str | None] = field(default_factory=dict)
    """Env of each spec after its last job has ended; None: an ended job runs the spec again."""
    web_tokens: dict[str, WebTokenRow | None] = field(default_factory=dict)
    samples: list[SampleRow] = field(default_factory=list)
    programs: dict[tuple[str, str], str] = field(default_factory=dict)
    """By environment and key; the key of all: they are deleted."""

    @classmethod
    def empty(cls) -> CommitBatch:
        return cls({}, [], [], {})

    def __bool__(self) -> bool:
        return bool(
            self.current
            or self.records
            or self.events
            or self.meta
            or self.history
            or self.payloads
            or self.specs
            or self.web_tokens
            or self.samples
            or self.programs
        )

    def add(self, later: CommitBatch) -> None:
        """Merges a later batch into this one; later rows replace earlier ones."""
        self.current |= later.current
        self.records += later.records
        self.events += later.events
        self.meta |= later.meta
        self.history |= later.history
        self.payloads += later.payloads
        self.specs |= later.specs
        self.web_tokens |= later.web_tokens
        self.samples = sample_rows.newest(self.samples + later.samples)
        self.programs = program_rows.newest(self.programs, later.programs)


class CommitHook:
    """Called before and after each commit.

    A test overrides it to raise sqlite3.Error or to exit.
    """

    def before(self, commit: int) -> None: ...

    def after(self, commit: int) -> None: ...


def _describe(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "") or ""
    known = next((text for prefix, text in REASONS.items() if name.startswith(prefix)), None)
    return f"{known} ({error})" if known else str(error)


class Store:
    """The open database. Only the thread that opened it may call its methods."""

    def __init__(
        self,
        directory: Path,
        hook: CommitHook | None = None,
        bounds: Bounds | None = None,
        reserve_bytes: int = 0,
        make_copy: bool = True,
        lineage: migrations.Lineage | None = None,
    ) -> None:
        """`reserve_bytes`: disk space reserved for grants and releases.

        `make_copy`: an earlier version's store is copied before it is upgraded. `lineage`: a
        node's, if none is given.

        Raises StoreUnusable with one line. Never overwrites a file that it does not recognise.
        """
        self.path = directory / FILE_NAME
        self.is_new: bool
        """The database did not exist before."""
        self._hook = hook or CommitHook()
        self._commits = 0
        self._on_disk = 0
        self._failing = False
        self._durable = False
        self._checkpoint: threading.Thread | None = None
        self._waited_in_vain_s: float | None = None
        """Time of the last timed-out wait for a checkpoint; None: waits succeed."""
        try:
            _close_to_others(self.path)
            self._db = self._connect(make_copy, lineage)
            self._check()
            self._cursor = self._db.cursor()
            """The cursor of all writes; `Connection.execute` would create one per statement."""
            self._history = HistoryRows(self._cursor, bounds or Bounds())
            self._records = RowCounts(self._cursor, "records", "record_id")
            self._events = RowCounts(self._cursor, "events", "sequence")
            for counts in (self._records, self._events):
                counts.of_envs()  # now, and not in a step
            self._reserve = DiskReserve(self.path, reserve_bytes)
            cut_bytes = max(self._reserve.log_bytes, WAL_CUT_BYTES)
            self._db.execute(f"PRAGMA journal_size_limit = {cut_bytes}")
            self._reserve.hold(self._db)
            self._log = LogIndex(self.path)
        except (sqlite3.Error, OSError) as error:
            raise self._unusable(
                _describe(error) if isinstance(error, sqlite3.Error) else str(error)
            ) from None

    def _unusable(self, why: str) -> StoreUnusable:
        return StoreUnusable(messages.STORE_UNUSABLE(path=self.path, why=why))

    def _connect(self, make_copy: bool, lineage: migrations.Lineage | None) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_MS / 1_000)
        try:
            db.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # is it a database?
            self.is_new = migrations.migrate(db, self.path, make_copy, lineage)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA wal_autocheckpoint = 0")
        except BaseException:
            db.close()
            raise
        return db

    def _check(self) -> None:
        results = (
            self._db.execute(f"PRAGMA quick_check({table})").fetchone()[0] for table in CHECKED
        )
        result = next((result for result in results if result != "ok"), None)
        if result is not None:
            self._db.close()
            raise self._unusable(f"the database is damaged ({result})")

    # -- writing --

    def commit(self, batch: CommitBatch, *, durable: bool = False) -> None:
        """Writes all or nothing. `durable`: survives a power failure. Raises StoreFailed."""
        self._commits += 1
        try:
            self._hook.before(self._commits)
            if durable is not self._durable:
                self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            try:
                self._transact(batch)
            except sqlite3.Error as error:
                if not _is_full(error):
                    raise
                self._roll_back()
                self._begin_log_anew()
                self._transact(batch)
        except sqlite3.Error as error:
            self._roll_back()
            self._fail(True)
            raise StoreFailed(
                messages.STORE_FAULT(path=self.path, error=_describe(error))
            ) from None
        if durable:
            self._on_disk = self._commits
        if self._failing:
            self._fail(False)
        self._hook.after(self._commits)
        self._check_log_size()

    def add_gpu_minutes(self, rows: Sequence[GpuMinute], now_ns: int) -> None:
        """Writes them if that costs nothing that a grant needs. Raises StoreFailed: none is kept.

        `now_ns` is noted as the last time of the node's clock (node_time.py).

        It takes no room of the reserve and waits for no other program. It is no numbered commit.
        """
        if self._reserve.is_low():
            raise StoreFailed(f"{self.path}: the rest of the disk is kept for grants and releases")
        try:
            self._db.execute("PRAGMA busy_timeout = 0")
            if self._durable:
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._durable = False
            self._cursor.execute("BEGIN IMMEDIATE")
            gpu_minute_rows.write(self._cursor, rows)
            self._cursor.execute(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)", (CLOCK_SEEN, str(now_ns))
            )
            self._cursor.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise StoreFailed(
                messages.STORE_FAULT(path=self.path, error=_describe(error))
            ) from None
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute(f"PRAGMA busy_timeout = {0 if self._failing else BUSY_MS}")
        self._check_log_size()

    def _transact(self, batch: CommitBatch) -> None:
        self._cursor.execute("BEGIN IMMEDIATE")
        self._write(batch)
        self._cursor.execute("COMMIT")

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._db.rollback()
        self._history.forget_sums()
        self._records.forget()
        self._events.forget()

    def _begin_log_anew(self) -> None:
        """On a full disk: checkpoints the log.

        SQLite rewrites a fully checkpointed log from its start.
        """
        if self._checkpoint is not None:
            self._checkpoint.join(WAL_WAIT_S)
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def refusal(self, batch: CommitBatch) -> str | None:
        """One line: why tenants' data are refused; None: accepted.

        Grants and releases still pass.
        """
        try:
            return self._reserve.refusal(self._db, sum(len(row.value) for row in batch.payloads))
        except (OSError, sqlite3.Error):
            return None  # the commit reports the error

    @property
    def commits(self) -> int:
        """The number of the last commit."""
        return self._commits

    @property
    def on_disk(self) -> int:
        """The number of the last commit that, with all before it, survives a power failure."""
        return self._on_disk

    def sync(self) -> None:
        """All commits survive a power failure then, if the disk takes them."""
        with contextlib.suppress(OSError):
            descriptor = os.open(f"{self.path}-wal", os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            self._on_disk = self._commits

    def _fail(self, failing: bool) -> None:
        """While commits fail, the busy timeout is 0: a wait per retry would block the loop."""
        if self._failing is not failing:
            self._failing = failing
            self._db.execute(f"PRAGMA busy_timeout = {0 if failing else BUSY_MS}")

    def _write(self, batch: CommitBatch) -> None:
        execute = self._cursor.execute
        if self._reserve.is_low() and free_pages(self._db) < self._reserve.pages // 2:
            self._make_way(batch)
        if puts := [
            (kind, key, value) for (kind, key), value in batch.current.items() if value is not None
        ]:
            self._cursor.executemany("INSERT OR REPLACE INTO current VALUES (?, ?, ?)", puts)
        if len(puts) < len(batch.current):
            gone = [row for row, value in batch.current.items() if value is None]
            self._cursor.executemany("DELETE FROM current WHERE kind = ? AND key = ?", gone)
        for record in batch.records:
            changed = "UPDATE records SET granted_wall_ns = ?, value = ? WHERE record_id = ?"
            at = (record.granted_wall_ns, record.value, record.record_id)
            if not execute(changed, at).rowcount:
                execute("INSERT INTO records VALUES (?, ?, ?, ?)", record)
                self._records.add(record.env, 1)
        if events := batch.events:
            self._cursor.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?)", events)
            for env, count in Counter(event.env for event in events).items():
                self._events.add(env, count)
        self._records.trim(RETAINED_RECORDS, len(batch.records))
        self._events.trim(RETAINED_EVENTS, len(batch.events))
        if batch.history or batch.payloads or batch.specs:
            self._write_jobs(batch)
        if batch.web_tokens:
            web_token_rows.write(self._cursor, batch.web_tokens)
        if batch.samples:
            sample_rows.write(self._cursor, batch.samples)
        program_rows.write(self._cursor, batch.programs)
        for name, text in batch.meta.items():
            if text is None:
                execute("DELETE FROM meta WHERE key = ?", (name,))
            else:
                execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, text))

    def _make_way(self, batch: CommitBatch) -> None:
        """On a full disk: delete the oldest events, records, history, twice the batch's size.

        And some of the GPUs' use.
        """
        gpu_minute_rows.make_way(self._cursor)
        for counts, added in ((self._events, batch.events), (self._records, batch.records)):
            counts.drop(min(2 * len(added), counts.total() - RETAINED_WHEN_TIGHT))
        self._history.make_way(
            sum(2 * row.size_bytes for row in batch.history.values() if row is not None)
        )

    def _write_jobs(self, batch: CommitBatch) -> None:
        history = self._history
        for payload in batch.payloads:
            history.add_payload(payload)
        for job_id, row in batch.history.items():
            if row is None:
                history.remove(job_id)
                continue
            history.put(row)
        for spec_id, env in batch.specs.items():
            if env is None:
                history.take_payload_up(spec_id)
            else:
                history.let_payload_go(spec_id, env)
        history.trim({row.env for row in batch.history.values() if row is not None})

    # -- the log --

    def _check_log_size(self) -> None:
        frames, in_database = self._log.frames()
        held_bytes = self._reserve.log_bytes
        if (frames - in_database) * FRAME_BYTES < min(
            CHECKPOINT_BYTES, held_bytes // 4 or CHECKPOINT_BYTES
        ):
            return
        checkpoint = self._begin_checkpoint()
        limit_bytes = held_bytes // 2 if self._reserve.is_low() else WAL_LIMIT_BYTES
        if frames * FRAME_BYTES > limit_bytes and not self._rests():
            checkpoint.join(WAL_WAIT_S)
            self._waited_in_vain_s = time.monotonic() if checkpoint.is_alive() else None

    def _begin_checkpoint(self) -> threading.Thread:
        if self._checkpoint is None or not self._checkpoint.is_alive():
            self._checkpoint = threads.start(partial(_checkpoint, self.path), "checkpoint")
        return self._checkpoint

    def is_behind(self) -> bool:
        """True if the log exceeds its limit; starts a checkpoint.

        Writes that can wait must wait for it.
        """
        if self.log_bytes() <= WAL_LIMIT_BYTES:
            return False
        self._begin_checkpoint()
        return True

    def _rests(self) -> bool:
        return (
            self._waited_in_vain_s is not None
            and time.monotonic() - self._waited_in_vain_s < WAL_REST_S
        )

    def is_late(self) -> bool:
        """True if the disk does not keep up: the log exceeds its limit, and a wait timed out."""
        if self._waited_in_vain_s is not None and self.log_bytes() <= WAL_LIMIT_BYTES:
            self._waited_in_vain_s = None
        return self._waited_in_vain_s is not None

    def log_bytes(self) -> int:
        """Size of the log; 0 once all of it is in the database."""
        frames, in_database = self._log.frames()
        return frames * FRAME_BYTES if frames != in_database else 0

    # -- reading --

    def _read(self, query: str, arguments: Sequence[object] = ()) -> list[Any]:
        """All rows. Raises StoreFailed, as does every read."""
        try:
            return self._db.execute(query, arguments).fetchall()
        except sqlite3.Error as error:
            raise StoreFailed(
                messages.STORE_FAULT(path=self.path, error=_describe(error))
            ) from None

    def current(self) -> list[tuple[str, str, str]]:
        """(kind, key, JSON text) of every row of the state."""
        return self._read("SELECT kind, key, value FROM current")

    def records(
        self, env: str | None = None, since_wall_ns: int = 0, limit: int = RETAINED_RECORDS
    ) -> list[str]:
        """JSON texts of the last `limit` records granted at or after then, oldest first."""
        where, arguments = "granted_wall_ns >= ?", [since_wall_ns]
        if env is not None:
            where += " AND env = ?"
        query = f"SELECT value FROM records WHERE {where} ORDER BY record_id DESC LIMIT ?"
        rows = self._read(query, (*arguments, *([env] if env is not None else []), limit))
        return [value for (value,) in reversed(rows)]

    def events(self, since: int | None, limit: int) -> list[str]:
        """JSON texts, oldest first: the first `limit` after sequence `since`.

        None: the last `limit`.
        """
        if since is not None:
            rows = self._read(
                "SELECT value FROM events WHERE sequence > ? ORDER BY sequence LIMIT ?",
                (since, limit),
            )
            return [value for (value,) in rows]
        rows = self._read("SELECT value FROM events ORDER BY sequence DESC LIMIT ?", (limit,))
        return [value for (value,) in reversed(rows)]

    def history(
        self, env: str | None, since_wall_ns: int, after: int | None, limit: int
    ) -> list[tuple[int, str]]:
        """(number, JSON text) of jobs that ended at or after `since_wall_ns`, oldest first.

        These are the first `limit` after number `after`, or the last `limit` if `after` is None.
        """
        where, arguments = (
            "ended_wall_ns >= ?" + (" AND env = ?" if env is not None else ""),
            [since_wall_ns, *filter(None, [env])],
        )
        if after is not None:
            query = (
                f"SELECT number, value FROM history WHERE {where} AND number > ? ORDER BY number"
                " LIMIT ?"
            )
            return self._read(query, (*arguments, after, limit))
        query = f"SELECT number, value FROM history WHERE {where} ORDER BY number DESC LIMIT ?"
        return self._read(query, (*arguments, limit))[::-1]

    def history_of(self, job_id: str, limit: int) -> list[tuple[str, str]]:
        """(job, JSON text) of one job, or of an array's elements.

        `j12` is also `j12.0`, `j12.1` …, and the row of an array may have `j12.0` in it.
        """
        query = (
            "SELECT job_id, value FROM history WHERE job_id = ?1 OR job_id = ?2"
            " OR (job_id > ?3 AND job_id < ?4) ORDER BY job_id != ?1, number LIMIT ?5"
        )
        array = job_ids.array_of(job_id)
        return self._read(query, (job_id, array, f"{job_id}.", f"{job_id}/", limit))

    def history_of_each(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """(name, JSON text) of the first row of each name that has one, as in history_of."""
        one = "SELECT value FROM history WHERE job_id"
        query = (
            f"SELECT name, coalesce(({one} = name), ({one} > name || '.' AND job_id < name || '/'"
            f" ORDER BY job_id LIMIT 1), ({one} = substr(name, 1, instr(name, '.') - 1))) AS found"
            " FROM (SELECT value AS name FROM json_each(?)) WHERE found IS NOT NULL"
        )
        return self._read(query, (json.dumps(list(names)),))

    def states_of(self, env: str, job_id: str) -> list[tuple[str, str, str | None]]:
        """(job, state), as history_of, of one env; of the row of its array also the JSON text.

        (`+env`: uses the job index, not the env's.)
        """
        query = (
            "SELECT job_id, state, CASE job_id WHEN ?1 THEN value END FROM history"
            " WHERE (job_id = ?1 OR job_id = ?2 OR (job_id > ?3 AND job_id < ?4)) AND +env = ?5"
        )
        array = job_ids.array_of(job_id)
        return self._read(query, (array, job_id, f"{job_id}.", f"{job_id}/", env))

    def history_in_state(
        self, env: str | None, state: str, after: int, limit: int
    ) -> list[tuple[int, str]]:
        """(number, JSON text) of the first `limit` jobs that ended so, after this number."""
        where = "state = ? AND number > ?" + (" AND env = ?" if env is not None else "")
        query = f"SELECT number, value FROM history WHERE {where} ORDER BY number LIMIT ?"
        return self._read(query, (state, after, *filter(None, [env]), limit))

    def history_number(self, env: str | None, back: int) -> int:
        """The number before that of the last `back` rows."""
        where = "" if env is None else "WHERE env = ?"
        query = f"SELECT number FROM history {where} ORDER BY number DESC LIMIT 1 OFFSET ?"
        found = self._read(query, (*filter(None, [env]), back))
        return int(found[0][0]) if found else 0

    def payload(self, spec_id: str) -> tuple[bytes, bytes] | None:
        """(directory, rest), as they were written; None: the payload is gone."""
        found = self._read("SELECT cwd, value FROM payloads WHERE spec_id = ?", (spec_id,))
        return (found[0][0], found[0][1]) if found else None

    def directories(self, spec_ids: Iterable[str]) -> dict[str, bytes]:
        """Working directories of the specs that still have payloads."""
        return dict(
            row
            for spec_id in spec_ids
            for row in self._read("SELECT spec_id, cwd FROM payloads WHERE spec_id = ?", (spec_id,))
        )

    def last_ended(self, limit: int) -> list[tuple[str, int]]:
        """(job, end time in ns) of the last `limit` jobs, oldest first."""
        query = "SELECT job_id, ended_wall_ns FROM history ORDER BY number DESC LIMIT ?"
        return self._read(query, (limit,))[::-1]

    def job_of_key(self, env: str, key: str) -> str | None:
        """An ended job or array element that was submitted under this key."""
        query = "SELECT job_id FROM history WHERE env = ? AND key = ? AND key != '' LIMIT 1"
        found = self._read(query, (env, key))
        return str(found[0][0]) if found else None

    def durations_ms(self, env: str, command: str, limit: int) -> list[int]:
        """Run times of the last `limit` successful runs, shortest first."""
        last = (
            "SELECT ran_ms FROM history WHERE env = ? AND command = ? AND ran_ms IS NOT NULL ORDER"
            " BY number DESC LIMIT ?"
        )
        return [
            ran_ms
            for (ran_ms,) in self._read(
                f"SELECT ran_ms FROM ({last}) ORDER BY 1", (env, command, limit)
            )
        ]

    def counter(self, key: str) -> int:
        """A counter of the state; 0 if it has no row."""
        found = self._read("SELECT value FROM current WHERE kind = 'counter' AND key = ?", (key,))
        return int(found[0][0]) if found else 0

    def last_sequence(self) -> int:
        return int(self._read("SELECT coalesce(max(sequence), 0) FROM events")[0][0])

    def meta(self) -> dict[str, str]:
        return dict(self._read("SELECT key, value FROM meta"))

    def samples(self) -> list[str]:
        """The texts of all samples, the oldest first."""
        return [text for (text,) in self._read(sample_rows.READ)]

    def program(self, env: str, key: str) -> str | None:
        """The text of a program's runs."""
        found = self._read(program_rows.READ, (env, key))
        return None if not found else str(found[0][0])

    def program_envs(self) -> list[str]:
        """The environments that have programs."""
        return [env for (env,) in self._read(program_rows.ENVS)]

    def web_tokens(self) -> list[WebTokenRow]:
        """All of them, in the order in which they were made."""
        rows = self._read("SELECT * FROM web_tokens ORDER BY made_wall_ns, token_id")
        return [WebTokenRow(*row) for row in rows]

    def free_bytes(self) -> int:
        """Room for an unprivileged writer on the database's disk."""
        return self._reserve.free_bytes()

    def close(self) -> None:
        """Closes the database with a short log. A second call does nothing."""
        if self._checkpoint is not None:
            self._checkpoint.join(timeout=5)
        with contextlib.ExitStack() as holder, contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA busy_timeout = 0")
            if self._reserve.bytes:
                holder.enter_context(self._hold_log_open())
            else:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._db.close()
        self._db.close()
        self._log.close()

    def _hold_log_open(self) -> contextlib.closing[sqlite3.Connection]:
        """Shortens the log and keeps its file with its reserved space.

        The last writing connection would delete the file; a read-only one does not.
        """
        self._db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        self._db.execute("INSERT OR REPLACE INTO meta VALUES ('closed', '1')")
        reader = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)
        reader.execute("SELECT count(*) FROM meta").fetchone()
        return contextlib.closing(reader)


def _is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "") in (
        "SQLITE_FULL",
        "SQLITE_IOERR_SHMSIZE",
        "SQLITE_IOERR_WRITE",
    )


def _close_to_others(path: Path) -> None:
    """Sets mode 0600: SQLite makes files that all users may read.

    The log takes the database's mode. If this fails, opening the database reports the error.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)


def _checkpoint(path: Path) -> None:
    """Copies the log into the database, in its own thread.

    A failure recurs at the next commit or checkpoint.
    """
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(path, timeout=BUSY_MS / 1_000)) as db,
    ):
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")
