"""The versions of the store: numbered migrations, and the copy made before the first of them.

The number of a store is SQLite's `user_version`: so many migrations were made on it. All that a
store lacks are made in one transaction, so a kill at any moment leaves the store as it was. A
migration that has landed is never edited: a later change is a new one.

Knows: SQL, files. Must not know: the meaning of a row.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from client_plugin.messages.form import SpokenError
from nodemgr.messages import node as messages

Migration = Callable[[sqlite3.Connection], None]
APPLICATION_ID = 0x4E4D4752  # "NMGR"
UNNUMBERED = frozenset({1293433005, 1351123474, 1410322476})
"""Checksums that stood in the place of the number before there were numbers: version 0."""
COPIES = 2
"""So many copies of earlier versions stay beside the store; older ones are deleted."""
TABLES = """
CREATE TABLE current (kind TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, \
PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE records (record_id INTEGER PRIMARY KEY, env TEXT NOT NULL, \
granted_wall_ns INTEGER NOT NULL, value TEXT NOT NULL);
CREATE INDEX records_of_env ON records (env, record_id);
CREATE TABLE events (sequence INTEGER PRIMARY KEY, value TEXT NOT NULL, env TEXT NOT NULL);
CREATE INDEX events_of_env ON events (env, sequence);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE history (number INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL UNIQUE, \
env TEXT NOT NULL,
  ended_wall_ns INTEGER NOT NULL, state TEXT NOT NULL, command TEXT NOT NULL, ran_ms INTEGER, \
key TEXT NOT NULL,
  spec_id TEXT NOT NULL, size_bytes INTEGER NOT NULL, value TEXT NOT NULL);
CREATE INDEX history_of_env ON history (env, number, size_bytes);
CREATE INDEX history_of_command ON history (env, command, number) WHERE ran_ms IS NOT NULL;
CREATE INDEX history_of_key ON history (env, key) WHERE key != '';
CREATE INDEX history_of_spec ON history (spec_id);
CREATE TABLE payloads (spec_id TEXT PRIMARY KEY, env TEXT, ended INTEGER, \
size_bytes INTEGER NOT NULL, cwd BLOB NOT NULL,
  value BLOB NOT NULL);
CREATE INDEX payloads_of_env ON payloads (env, ended, size_bytes) WHERE env IS NOT NULL;
CREATE TABLE web_tokens (token_id TEXT PRIMARY KEY, env TEXT, sha256 TEXT NOT NULL, \
made_by TEXT NOT NULL,
  made_wall_ns INTEGER NOT NULL, expires_wall_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE gpu_minutes (number INTEGER PRIMARY KEY, minute INTEGER NOT NULL, \
uuid TEXT NOT NULL,
  utilization_percent REAL, memory_used_bytes INTEGER);
CREATE INDEX gpu_minutes_by_minute ON gpu_minutes (minute);
CREATE TABLE samples (number INTEGER PRIMARY KEY, env TEXT NOT NULL, value TEXT NOT NULL);
CREATE INDEX samples_of_env ON samples (env, number);
"""
"""In `payloads`, an env stands when the last job has ended: `ended` is its number in `history`."""


class StoreUnusable(SpokenError):
    """The manager cannot start on this database.

    The message has the remedy. The file is unchanged.
    """


def _tables(db: sqlite3.Connection) -> None:
    """All tables. A store without a number has those of its time already."""
    for statement in TABLES.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS").split(";"):
        db.execute(statement.replace("CREATE INDEX", "CREATE INDEX IF NOT EXISTS"))


def _entering(_db: sqlite3.Connection) -> None:
    """Rows of arrays with elements that are still to be entered: no version before reads them."""


def _durations(db: sqlite3.Connection) -> None:
    """Times of the node's clock beside the wall times, of which durations were differences.

    An earlier difference stays as it was, or is 0 where the clock was put back.
    """
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    ahead_ns = now_ns - time.time_ns()

    def measured(row: dict[str, Any], *names: str) -> None:
        """A time at least that of the one before it."""
        least_ns = None
        for name in names:
            wall_ns = row.get(f"{name}_wall_ns")
            if wall_ns is not None:
                least_ns = row[f"{name}_ns"] = max(
                    wall_ns + ahead_ns, least_ns or wall_ns + ahead_ns
                )

    def of_record(row: dict[str, Any]) -> None:
        measured(row, "asked", "granted", "ended")

    def of_job(row: dict[str, Any]) -> None:
        measured(row, "entered")
        measured(row, "resumes")
        for attempt in row.get("attempts", ()):
            measured(attempt, "started", "ended")

    def of_task(row: dict[str, Any]) -> None:
        row.pop("exempt_until_wall_ns", None)  # until the next `nodemgr keep`

    changes: dict[str, Callable[[dict[str, Any]], None]] = {
        "record": of_record, "job": of_job, "task": of_task,
    }  # fmt: skip
    for kind, change in changes.items():
        _rewrite(db, "current", "key", change, f"kind = '{kind}'")
    _rewrite(db, "records", "record_id", of_record)
    _rewrite(db, "history", "number", lambda row: of_job(row["job"]))
    boot = db.execute("SELECT value FROM meta WHERE key = 'boot_id'").fetchone()
    if boot is not None:
        db.execute("INSERT INTO meta VALUES ('boots', ?)", (json.dumps([[boot[0], 0]]),))
        db.execute("DELETE FROM meta WHERE key = 'boot_id'")


def _array_rows(db: sqlite3.Connection) -> None:
    """An array of which some elements were still to be entered waits for the rest as one row."""
    rows = db.execute("SELECT key, value FROM current WHERE kind = 'entering'").fetchall()
    for array, text in rows:
        entering = json.loads(text)
        job, numbers = entering["model"], sorted(entering["indices"])
        job["indices"] = ",".join(map(str, numbers))
        if job["state"] == "queued":
            _enqueue(db, job, len(numbers))
        _put(db, "job", array, job)
    db.execute("DELETE FROM current WHERE kind = 'entering'")


def _assignments(_db: sqlite3.Connection) -> None:
    """Rows of assigned jobs: no version before reads them."""


def _enqueue(db: sqlite3.Connection, job: dict[str, Any], size: int) -> None:
    """An array's row of so many jobs goes to the end of its queue."""
    (last,) = db.execute(
        "SELECT coalesce(max(json_extract(value, '$.queued_ns')), 0) FROM current"
        " WHERE kind IN ('job', 'request')"
    ).fetchone()
    (count,) = db.execute(
        "SELECT value FROM current WHERE kind = 'counter' AND key = 'ids'"
    ).fetchone() or (0,)
    number, now_ns = int(count) + 1, time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    db.execute("INSERT OR REPLACE INTO current VALUES ('counter', 'ids', ?)", (str(number),))
    wall_ns = job["submitted_wall_ns"]
    job |= {
        "request_id": f"r{number}", "queued_ns": last + 1,
        "entered_wall_ns": wall_ns, "entered_ns": wall_ns + now_ns - time.time_ns(),
    }  # fmt: skip
    same = (
        "env", "gpus", "memory_bytes", "command", "priority", "job_id", "time_limit_ms",
        "queued_ns", "place", "task_class", "compute_percent", "deadline_ms", "expected_ms",
        "predicted", "gpu_range", "memory_most_bytes",
    )  # fmt: skip
    request = {name: job[name] for name in same if name in job} | {
        "request_id": f"r{number}", "token": "", "sequence": number, "since_ns": job["entered_ns"],
        "since_wall_ns": wall_ns, "wait_ms": None, "askers": [], "size": size,
    }  # fmt: skip
    _put(db, "request", f"r{number}", request)


def _put(db: sqlite3.Connection, kind: str, key: str, row: dict[str, Any]) -> None:
    text = json.dumps(row, separators=(",", ":"))
    db.execute("INSERT INTO current VALUES (?, ?, ?)", (kind, key, text))


def _rewrite(
    db: sqlite3.Connection,
    table: str,
    key: str,
    change: Callable[[dict[str, Any]], None],
    where: str = "1",
) -> None:
    rows = db.execute(f"SELECT {key}, value FROM {table} WHERE {where}").fetchall()
    for name, text in rows:
        row = json.loads(text)
        change(row)
        text = json.dumps(row, separators=(",", ":"))
        db.execute(f"UPDATE {table} SET value = ? WHERE {key} = ? AND {where}", (text, name))


def _programs(db: sqlite3.Connection) -> None:
    """Earlier runs of programs that are recognised when they are submitted again."""
    db.execute(
        "CREATE TABLE programs (number INTEGER PRIMARY KEY, env TEXT NOT NULL, key TEXT NOT NULL,"
        " value TEXT NOT NULL, UNIQUE (env, key))"
    )


def _runs(_db: sqlite3.Connection) -> None:
    """Rows of requests with all columns of a job's run: no version before reads them."""


def _evidence(db: sqlite3.Connection) -> None:
    """An attempt beside a failure of a GPU is its job and its number, no line."""

    def of_line(line: str) -> dict[str, Any]:
        found = re.fullmatch(r"([\w.]+), attempt (\d+), failed beside it", line)
        if found is None:
            return {"what": line}
        return {"job_id": found[1], "attempt": int(found[2])}

    def of_failure(row: dict[str, Any]) -> None:
        row["evidence"] = list(map(of_line, row["evidence"]))

    _rewrite(db, "current", "key", of_failure, "kind = 'failure'")


def _nested_runs(db: sqlite3.Connection) -> None:
    """The program and the resources of a job, a request or a task are one value of its row."""
    names = (
        "command", "gpus", "memory_bytes", "time_limit_ms", "place", "task_class",
        "compute_percent", "deadline_ms", "expected_ms", "predicted", "gpu_range",
        "memory_most_bytes", "cpus", "host_memory_bytes", "signal", "is_memory_filled",
    )  # fmt: skip

    def nest(row: dict[str, Any]) -> None:
        run = {name: row.pop(name) for name in names if name in row}
        row["run"] = {"memory_bytes": None, "time_limit_ms": None, **run}

    def of_task(row: dict[str, Any]) -> None:
        gpus = row["gpus"]  # those that it got
        nest(row)
        row["gpus"], row["run"]["gpus"] = gpus, len(gpus)

    for kind, change in (("job", nest), ("request", nest), ("task", of_task)):
        _rewrite(db, "current", "key", change, f"kind = '{kind}'")
    _rewrite(db, "history", "number", lambda row: nest(row["job"]))


MIGRATIONS: tuple[Migration, ...] = (
    _tables,
    _entering,
    _durations,
    _array_rows,
    _assignments,
    _programs,
    _runs,
    _evidence,
    _nested_runs,
)
"""The n-th makes a store of version n out of one of version n - 1."""


def head_tables(db: sqlite3.Connection) -> None:
    """The tables of a head's first store: those of a node's at that time."""
    _tables(db)
    _programs(db)


def head_starts(db: sqlite3.Connection) -> None:
    """Starts of a job that are over: of one in the history the last one is known."""

    def change(row: dict[str, Any]) -> None:
        last = {name: row[name] for name in row if name not in ("job", "is_last")}
        if row.get("node_job"):
            row["job"]["past"] = [{"number": 1, **last}]

    _rewrite(db, "history", "number", change)


class Lineage(NamedTuple):
    """Stores of one kind: how a file of it is known, and its migrations."""

    application_id: int
    unnumbered: frozenset[int]
    migrations: tuple[Migration, ...]


def of_node() -> Lineage:
    return Lineage(APPLICATION_ID, UNNUMBERED, MIGRATIONS)


def migrate(
    db: sqlite3.Connection, path: Path, make_copy: bool, lineage: Lineage | None = None
) -> bool:
    """Brings the store at `path` to this version. True: it was empty.

    `make_copy`: beside an earlier version's store stays a copy, if there is room for two.
    `lineage`: a node's, if none is given.
    Raises StoreUnusable, sqlite3.Error or OSError; the store is unchanged then.
    """
    own = lineage or of_node()
    version = _version(db, path, own)
    if version == len(own.migrations):
        return False
    if version is not None and make_copy:
        _copy(db, path, version)
    db.execute("BEGIN IMMEDIATE")
    if _version(db, path, own) != version:  # another process was faster: look again
        db.execute("ROLLBACK")
        return migrate(db, path, make_copy, own)
    for number, migration in enumerate(own.migrations[version or 0 :], (version or 0) + 1):
        migration(db)
        db.execute(f"PRAGMA application_id = {own.application_id}")
        db.execute(f"PRAGMA user_version = {number}")
    db.execute("COMMIT")
    return version is None


def _version(db: sqlite3.Connection, path: Path, own: Lineage) -> int | None:
    """Of the store; None: it is empty. Raises StoreUnusable where it is not for this version."""
    count = _number(db, "SELECT count(*) FROM sqlite_schema")
    if not count:
        return None
    if _number(db, "PRAGMA application_id") != own.application_id:
        raise StoreUnusable(
            messages.STORE_UNUSABLE(path=path, why="this is another program's database")
        )
    version = _number(db, "PRAGMA user_version")
    if version in own.unnumbered:
        return 0
    latest = len(own.migrations)
    if version > latest:
        raise StoreUnusable(
            f"{path} was written by a later version of nodemgr (store {version}; this version "
            f"reads up to {latest})",
            f"install that version again, or {_way_back(path, latest)}",
        )
    return version


def _way_back(path: Path, latest: int) -> str:
    usable = [copy for number, copy in _copies(path) if number <= latest]
    if not usable:
        return "put a backup of an earlier version in its place (docs/admins/operation.md, Upgrade)"
    return (
        f"put {usable[-1]} in its place, which is as it was before the upgrade "
        "(docs/admins/operation.md, Upgrade)"
    )


def _copies(path: Path) -> list[tuple[int, Path]]:
    """(version, file) of the copies beside the store, the oldest version first."""
    found = ((each.name.rpartition("-")[2], each) for each in path.parent.glob(f"{path.name}-v*"))
    return sorted((int(name[1:]), each) for name, each in found if name[1:].isdecimal())


def _copy(db: sqlite3.Connection, path: Path, version: int) -> None:
    """The store as it is, in `state.db-vN` beside it, which appears whole or not at all."""
    part = path.with_name(f"{path.name}-copy")
    part.unlink(missing_ok=True)  # of an upgrade that was killed or found the disk full
    size = _number(db, "PRAGMA page_count") * _number(db, "PRAGMA page_size")
    disk = os.statvfs(path.parent)
    if (free := disk.f_bavail * disk.f_frsize) < 2 * size:
        raise StoreUnusable(
            f"an upgrade first copies {path} and needs {2 * size} bytes there, but {free} are free",
            "free the disk, or copy it elsewhere and start once with `nodemgr serve "
            "--no-store-copy`",
        )
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with contextlib.closing(sqlite3.connect(part)) as copy:
        db.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
    _sync(part)
    part.replace(path.with_name(f"{path.name}-v{version}"))
    _sync(path.parent)
    copies = sorted((copy for _, copy in _copies(path)), key=lambda copy: copy.stat().st_mtime_ns)
    for old in copies[:-COPIES]:
        old.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _number(db: sqlite3.Connection, query: str) -> int:
    return int(db.execute(query).fetchone()[0])
