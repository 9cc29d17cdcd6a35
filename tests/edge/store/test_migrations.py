"""An earlier version's store becomes this version's, whole or not at all, beside a copy of it."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import click.testing
import pytest

from nodemgr.cli.admins import serve
from nodemgr.core.lifecycle.restart import restore
from nodemgr.core.model.encoding import decode
from nodemgr.core.model.entities import Config, Evidence, RunSpec, TaskClass
from nodemgr.core.model.values import replace
from nodemgr.edge.store import migrations as module
from nodemgr.edge.store.database import FILE_NAME, Store
from nodemgr.edge.store.migrations import MIGRATIONS, StoreUnusable

GOLDEN = Path(__file__).parent.parent.parent / "golden"
STORES = ("earlier_store", "store", "unnumbered_store")
LANDED = {
    1: 58753245, 2: 0, 3: 3582654781, 4: 1915442629, 5: 0, 6: 4013102952, 7: 0, 8: 2019786239,
    9: 4042876072,
}  # fmt: skip
"""Checksum of the text of each migration that has landed; 0: it has none."""
MEASURED = re.compile(
    r"""INSERT INTO "(records|history)"|INSERT INTO "current" VALUES\('(job|record|task)'"""
    r"""|INSERT INTO "meta" VALUES\('boot_id'"""
)
"""Rows that migration 3 writes anew."""


def make(directory: Path, name: str) -> Path:
    """The store of an earlier version."""
    path = directory / FILE_NAME
    lines = json.loads((GOLDEN / f"{name}.json").read_text())["sql"]
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript("\n".join(lines))
    return path


def dump(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return [*map(str, db.execute("PRAGMA user_version")), *db.iterdump()]


def version(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def set_version(path: Path, number: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {number}")


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir() if not each.name.endswith("-mark"))


@pytest.mark.parametrize("name", STORES)
def test_a_store_without_a_number_is_upgraded_beside_its_copy(tmp_path: Path, name: str) -> None:
    path = make(tmp_path, name)
    before = dump(path)
    store = Store(tmp_path)
    assert not store.is_new
    assert store.current()
    store.close()
    assert version(path) == len(MIGRATIONS)
    copy = tmp_path / f"{FILE_NAME}-v0"
    assert dump(copy) == before
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    kept = [line for line in before[1:] if "COMMIT" not in line and not MEASURED.match(line)]
    assert [line for line in kept if line not in dump(path)] == []
    copy.unlink()
    Store(tmp_path).close()
    assert names(tmp_path) == [FILE_NAME], "a store of this version is not copied"


def test_a_new_store_and_an_upgraded_one_have_the_same_tables(tmp_path: Path) -> None:
    def objects(path: Path) -> set[tuple[str, str]]:
        with contextlib.closing(sqlite3.connect(path)) as db:
            return set(db.execute("SELECT name, sql FROM sqlite_schema"))

    (tmp_path / "new").mkdir()
    store = Store(tmp_path / "new")
    assert store.is_new
    store.close()
    for name in STORES:
        (tmp_path / name).mkdir()
        path = make(tmp_path / name, name)
        Store(tmp_path / name).close()
        assert objects(path) == objects(tmp_path / "new" / FILE_NAME)


def test_durations_of_an_earlier_store_stay(tmp_path: Path) -> None:
    path = make(tmp_path, "numbered_store")
    with contextlib.closing(sqlite3.connect(path)) as db:
        text = db.execute("SELECT value FROM records").fetchone()[0]
        back = {**json.loads(text), "record_id": 99, "asked_wall_ns": 3, "granted_wall_ns": 2}
        back["ended_wall_ns"] = 2 + 10**9
        db.execute("INSERT INTO records VALUES (99, 'alice', 2, ?)", (json.dumps(back),))
        db.commit()
    Store(tmp_path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        rows = [json.loads(text) for (text,) in db.execute("SELECT value FROM records")]
        jobs = [json.loads(text)["job"] for (text,) in db.execute("SELECT value FROM history")]
        (boots,) = db.execute("SELECT value FROM meta WHERE key = 'boots'").fetchone()
    *others, moved = sorted(rows, key=lambda row: int(row["record_id"]))
    for row in others:
        assert row["granted_ns"] - row["asked_ns"] == row["granted_wall_ns"] - row["asked_wall_ns"]
        assert row["ended_ns"] - row["granted_ns"] == row["ended_wall_ns"] - row["granted_wall_ns"]
    assert moved["granted_ns"] == moved["asked_ns"], "the clock was put back"
    assert moved["ended_ns"] - moved["granted_ns"] == 10**9 - 1
    (attempt,) = jobs[0]["attempts"]
    ran_wall_ns = attempt["ended_wall_ns"] - attempt["started_wall_ns"]
    assert attempt["ended_ns"] - attempt["started_ns"] == ran_wall_ns
    assert json.loads(boots)[0][1] == 0


def test_a_landed_migration_is_never_edited() -> None:
    """Make a new migration, and give LANDED its number."""
    assert len(MIGRATIONS) == len(LANDED)
    assert zlib.crc32(module.TABLES.encode()) == LANDED[1]
    assert zlib.crc32(inspect.getsource(module._durations).encode()) == LANDED[3]
    rows = inspect.getsource(module._array_rows) + inspect.getsource(module._enqueue)
    assert zlib.crc32(rows.encode()) == LANDED[4]
    assert zlib.crc32(inspect.getsource(module._programs).encode()) == LANDED[6]
    assert zlib.crc32(inspect.getsource(module._evidence).encode()) == LANDED[8]
    assert zlib.crc32(inspect.getsource(module._nested_runs).encode()) == LANDED[9]


@pytest.mark.parametrize("state", ["queued", "held", "after"])
def test_an_array_that_was_still_entering_waits_as_one_row(tmp_path: Path, state: str) -> None:
    path = make(tmp_path, "numbered_store")
    after = ["j1"] if state == "after" else []
    model = {
        "job_id": "j7", "env": "alice", "name": "train", "command": "python", "user": "ann",
        "spec_id": "s7", "gpus": 1, "memory_bytes": None, "priority": "normal",
        "time_limit_ms": None, "submitted_wall_ns": 10**18, "state": state, "after": after,
        "deeds": [{"wall_ns": 10**18, "who": "ann", "what": "submitted"}],
    }  # fmt: skip
    spec = {"spec_id": "s7", "user": "ann", "uid": 1, "gid": 1}
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for kind, key, row in (
            ("entering", "j7", {"model": model, "indices": [3, 4, 9]}),
            ("job", "j7.1", {**model, "job_id": "j7.1", "state": "held"}),
            ("spec", "s7", spec),
        ):
            db.execute("INSERT INTO current VALUES (?, ?, ?)", (kind, key, json.dumps(row)))
    set_version(path, 3)
    store = Store(tmp_path)
    rows = [(kind, key, decode(kind, text)) for kind, key, text in store.current()]
    store.close()
    restored = restore(Config(), rows, 10**15)
    row = restored.jobs["j7"]
    assert (row.indices, row.state.value, row.after) == (((3, 3), (4, 4), (9, 9)), state, (*after,))
    assert restored.env_jobs["alice"] >= 4
    waiting = [(request.job_id, request.size) for request in restored.requests.values()]
    assert ("j7", 3) in waiting or state != "queued"


def test_an_attempt_beside_a_failure_becomes_fields(tmp_path: Path) -> None:
    Store(tmp_path).close()
    path = tmp_path / FILE_NAME
    lines = ["XID 79: fell off the bus", "j3.0, attempt 2, failed beside it"]
    row = {"failure_id": "f1", "uuid": "GPU-0", "kind": "xid", "wall_ns": 1, "service_ns": 1,
           "evidence": lines, "last_service_ns": 1}  # fmt: skip
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO current VALUES ('failure', 'f1', ?)", (json.dumps(row),))
    set_version(path, 7)
    store = Store(tmp_path)
    (failure,) = (decode(kind, text) for kind, _, text in store.current() if kind == "failure")
    store.close()
    assert failure.evidence == (Evidence(lines[0]), Evidence(job_id="j3.0", attempt=2))


FLAT = {
    "command": "python", "gpus": 1, "memory_bytes": None, "time_limit_ms": 5_000,
    "task_class": "best-effort", "compute_percent": 30, "memory_most_bytes": None,
}  # fmt: skip


def test_the_run_of_a_row_becomes_one_value(tmp_path: Path) -> None:
    Store(tmp_path).close()
    path = tmp_path / FILE_NAME
    own = {"env": "alice", "token": "a1", "since_ns": 1, "since_wall_ns": 1}
    task = {"task_id": "t1", "gpus": ["GPU-0", "GPU-1"], "fresh": [], "state": "running"}
    request = {"request_id": "r2", "priority": "low", "sequence": 2, "wait_ms": None, "askers": []}
    job = {"job_id": "j1", "env": "alice", "name": "", "user": "ann", "spec_id": "s1",
           "priority": "low", "submitted_wall_ns": 1, "state": "held"}  # fmt: skip
    bare = {"task_id": "t3", "gpus": ["GPU-2"], "fresh": [], "state": "running", "command": "sh"}
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for kind, key, row in (
            ("task", "t1", {**own, **FLAT, **task}),
            ("task", "t3", {**own, **bare}),
            ("request", "r2", {**own, **FLAT, **request}),
            ("job", "j1", {**FLAT, **job}),
        ):
            db.execute("INSERT INTO current VALUES (?, ?, ?)", (kind, key, json.dumps(row)))
        spec = {"spec_id": "s1", "user": "ann", "uid": 1, "gid": 1}
        past = {**FLAT, **job, "job_id": "j0", "state": "done"}
        ended = json.dumps({"job": past, "spec": spec})
        db.execute(
            "INSERT INTO history VALUES (1, 'j0', 'alice', 1, 'done', 'python', 1, '', 's1', 1, ?)",
            (ended,),
        )
    set_version(path, 8)
    store = Store(tmp_path)
    rows = {key: decode(kind, text) for kind, key, text in store.current() if key != "ids"}
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        rows["j0"] = decode("history", db.execute("SELECT value FROM history").fetchone()[0]).job
    run = RunSpec("python", 1, None, 5_000, task_class=TaskClass.BEST_EFFORT, compute_percent=30)
    assert rows["r2"].run == rows["j1"].run == rows["j0"].run == run
    assert rows["t1"].run == replace(run, gpus=2)
    assert rows["t1"].gpus == ("GPU-0", "GPU-1")
    assert rows["t3"].run == RunSpec("sh", 1, None, None)


KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from nodemgr.edge.store import migrations as module
from nodemgr.edge.store.database import Store
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def in_migration(number):
    real = module.MIGRATIONS[number]
    return (*module.MIGRATIONS[:number], lambda db: (real(db), die()))
def change(db):
    db.execute("CREATE TABLE more (x)")
    db.execute("DELETE FROM current")
at = sys.argv[2]
first = module.MIGRATIONS[0]
module.MIGRATIONS = {
    "before the second": (first, die),
    "in the second": (first, lambda db: (change(db), die())),
    "before the third": (first, change, die),
    "in the copy": (first,),
}.get(at) or in_migration(int(at))
if at == "in the copy":
    module._sync = die
Store(Path(sys.argv[1]))
"""


@pytest.mark.parametrize(
    "at",
    [
        *map(str, range(len(MIGRATIONS))),
        *("before the second", "in the second", "before the third", "in the copy"),
    ],
)
def test_a_kill_in_an_upgrade_leaves_the_old_store(tmp_path: Path, at: str) -> None:
    path = make(tmp_path, "store")
    before = dump(path)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), at])
    assert ended.returncode == -signal.SIGKILL
    assert dump(path) == before
    Store(tmp_path).close()
    assert version(path) == len(MIGRATIONS)
    assert names(tmp_path) == [FILE_NAME, f"{FILE_NAME}-v0"]
    assert dump(tmp_path / f"{FILE_NAME}-v0") == before


def test_the_version_is_read_again_behind_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process upgrades the store between the first look and the lock."""
    path = make(tmp_path, "store")
    copy, made = module._copy, []

    def upgraded_meanwhile(db: sqlite3.Connection, store: Path, number: int) -> None:
        copy(db, store, number)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            for migrate in MIGRATIONS:
                migrate(other)
            other.execute(f"PRAGMA application_id = {module.APPLICATION_ID}")
        set_version(path, len(MIGRATIONS))

    first, *more = MIGRATIONS
    monkeypatch.setattr(module, "_copy", upgraded_meanwhile)
    monkeypatch.setattr(module, "MIGRATIONS", (lambda db: (made.append(1), first(db))[1], *more))
    Store(tmp_path).close()
    assert made == []
    assert version(path) == len(MIGRATIONS)


def test_a_later_versions_store_is_refused_with_the_way_back(tmp_path: Path) -> None:
    path = make(tmp_path, "store")
    Store(tmp_path).close()
    set_version(path, len(MIGRATIONS) + 1)
    before = dump(path)
    with pytest.raises(StoreUnusable, match=r"put .*/state\.db-v0 in its place") as refusal:
        Store(tmp_path)
    known = len(MIGRATIONS)
    told = f"later version of nodemgr (store {known + 1}; this version reads up to {known})"
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)
    (tmp_path / f"{FILE_NAME}-v0").rename(tmp_path / f"{FILE_NAME}-v{known + 1}")
    (tmp_path / f"{FILE_NAME}-v1x").touch()
    with pytest.raises(StoreUnusable, match="put a backup of an earlier version in its place"):
        Store(tmp_path)
    assert dump(path) == before


def test_an_upgrade_without_room_for_the_copy_names_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path, "store")
    before, size = dump(path), path.stat().st_size
    (tmp_path / f"{FILE_NAME}-copy").touch()  # of an upgrade that found the disk full
    free = SimpleNamespace(f_bavail=2 * size - 1, f_frsize=1)
    wanted = rf"{2 * size} bytes .* {2 * size - 1} are free.* `nodemgr serve --no-store-copy`"
    with monkeypatch.context() as full:
        full.setattr(os, "statvfs", lambda _: free)
        with pytest.raises(StoreUnusable, match=wanted):
            Store(tmp_path)
    assert dump(path) == before
    assert names(tmp_path) == [FILE_NAME]
    Store(tmp_path, make_copy=False).close()
    assert version(path) == len(MIGRATIONS)
    assert names(tmp_path) == [FILE_NAME]


def test_the_last_two_copies_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path, "store")
    Store(tmp_path).close()
    for later in range(1, 4):
        monkeypatch.setattr(module, "MIGRATIONS", (*MIGRATIONS, *[lambda _db: None] * later))
        Store(tmp_path).close()
        assert version(path) == len(MIGRATIONS) + later
    last = [f"{FILE_NAME}-v{len(MIGRATIONS) + number}" for number in (1, 2)]
    assert names(tmp_path) == sorted([FILE_NAME, *last])
    (tmp_path / last[0]).replace(path)
    Store(tmp_path).close()
    assert names(tmp_path) == sorted([FILE_NAME, *last])


def test_serve_upgrades_without_a_copy_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nodemgr.edge import service

    asked: list[bool] = []
    monkeypatch.setattr(service, "serve", lambda _, store_copy: asked.append(store_copy))
    for flags in ([], ["--no-store-copy"]):
        directories = ["--run-dir", str(tmp_path / "run"), "--state-dir", str(tmp_path / "state")]
        result = click.testing.CliRunner().invoke(serve.command, [*directories, *flags])
        assert result.exit_code == 0, result.output
    assert asked == [True, False]
