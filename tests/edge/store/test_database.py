"""The store: all or nothing, never overwritten, readable after any fault."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nodemgr.edge.store import database as module
from nodemgr.edge.store import history_rows
from nodemgr.edge.store.database import (
    CommitBatch,
    EventRow,
    RecordRow,
    Store,
    StoreFailed,
)
from nodemgr.edge.store.history_rows import Bounds, HistoryRow, PayloadRow
from nodemgr.edge.store.migrations import StoreUnusable
from tests.support.limits import WAIT_LIMIT_S


def batch(**rows: str) -> CommitBatch:
    return CommitBatch({("task", key): value for key, value in rows.items()}, [], [], {})


def rows(store: Store) -> dict[str, str]:
    return {key: value for _, key, value in store.current()}


def test_what_was_committed_is_there_after_the_writer_died(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\nfrom nodemgr.edge.store.database import"
        " CommitBatch, EventRow, RecordRow, Store\nstore ="
        " Store(Path(sys.argv[1]))\nstore.commit(CommitBatch({('task', 't1'): '{}'}, [RecordRow(1,"
        " 'alice', 5, 'r')], [EventRow(1, 'e')], {'epoch': '7'}))\nos.kill(os.getpid(),"
        " signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)])
    assert ended.returncode == -signal.SIGKILL
    store = Store(tmp_path)
    assert rows(store) == {"t1": "{}"}
    assert store.records() == ["r"]
    assert store.events(0, 10) == ["e"]
    assert store.meta() == {"epoch": "7"}
    assert store.last_sequence() == 1
    store.close()


def test_a_row_is_replaced_and_deleted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.commit(batch(t1="a", t2="b"))
    store.commit(CommitBatch({("task", "t1"): "c", ("task", "t2"): None}, [], [], {"gone": None}))
    assert rows(store) == {"t1": "c"}
    store.close()


def test_a_commit_that_fails_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.commit(batch(t1="a"))
    spoiler = sqlite3.connect(store.path)
    spoiler.execute(
        "CREATE TRIGGER spoil BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'spoilt'); END"
    )
    spoiler.commit()
    with pytest.raises(StoreFailed, match="spoilt"):
        store.commit(
            CommitBatch(
                {("task", "t1"): "b"}, [RecordRow(1, "alice", 0, "r")], [EventRow(1, "e")], {}
            )
        )
    assert rows(store) == {"t1": "a"}
    assert store.records() == []
    spoiler.execute("DROP TRIGGER spoil")
    spoiler.commit()
    spoiler.close()
    store.commit(batch(t1="b"))
    assert rows(store) == {"t1": "b"}
    store.close()


def test_a_store_that_somebody_locks_says_so_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_MS", 10)
    store = Store(tmp_path)
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailed, match="another program holds the database locked"):
        store.commit(batch(t1="a"))
    other.execute("ROLLBACK")
    other.close()
    store.commit(batch(t1="a"))
    assert rows(store) == {"t1": "a"}
    store.close()


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """The kernel refuses to let the files grow, as a full disk does."""
    program = (
        "import resource, sys; from pathlib import Path; from nodemgr.edge.store.database import"
        " CommitBatch, Store, StoreFailed\nstore ="
        " Store(Path(sys.argv[1]))\nstore.commit(CommitBatch({('task', 't1'): 'kept'}, [], [],"
        " {}))\nresource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))\ntry:"
        " store.commit(CommitBatch({('task', f'big{n}'): 'x' * 9000 for n in range(40)}, [], [],"
        " {}))\nexcept StoreFailed as error: print('refused:', error)\nprint(sorted(key for _, key,"
        " _ in store.current()))\nresource.setrlimit(resource.RLIMIT_FSIZE,"
        " (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\nstore.commit(CommitBatch({('task',"
        " 't2'): 'later'}, [], [], {}))\nprint(sorted(key for _, key, _ in store.current()));"
        " store.close()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
    )
    refused, before, after = ended.stdout.splitlines()
    assert refused.startswith(f"refused: {tmp_path}/state.db: ")
    assert before == "['t1']"
    assert after == "['t1', 't2']"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"this is no database at all, but long enough to be taken for one" * 40, "not a database"),
        (b"\0" * 8192, "not a database|another program|damaged"),
    ],
)
def test_a_file_that_is_no_store_is_refused_and_left_alone(
    tmp_path: Path, content: bytes, why: str
) -> None:
    path = tmp_path / module.FILE_NAME
    path.write_bytes(content)
    with pytest.raises(StoreUnusable, match=why):
        Store(tmp_path)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / module.FILE_NAME) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(StoreUnusable, match="another program's database"):
        Store(tmp_path)
    with sqlite3.connect(tmp_path / module.FILE_NAME) as other:
        assert other.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]
    other.close()


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.commit(CommitBatch({("task", f"t{n}"): "x" * 3000 for n in range(50)}, [], [], {}))
    store.close()
    path = tmp_path / module.FILE_NAME
    content = bytearray(path.read_bytes())
    content[20_000:60_000] = b"\xff" * 40_000
    path.write_bytes(content)
    with pytest.raises(StoreUnusable, match=r"damaged|malformed"):
        Store(tmp_path)
    assert path.read_bytes() == content


def test_a_directory_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable) as refusal:
        Store(tmp_path / "missing")
    assert "\n" not in str(refusal.value)


def test_events_are_bounded_and_paged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETAINED_EVENTS", 2_000)
    store = Store(tmp_path)
    for start in range(1, 5_001, 500):
        store.commit(
            CommitBatch(
                {}, [], [EventRow(number, str(number)) for number in range(start, start + 500)], {}
            )
        )
    assert store.events(0, 1) == ["3001"]
    assert store.events(4_990, 3) == ["4991", "4992", "4993"]
    assert store.events(None, 2) == ["4999", "5000"]
    assert store.last_sequence() == 5_000
    store.close()


def test_a_flood_washes_away_its_own_past_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETAINED_EVENTS", 2_000)
    monkeypatch.setattr(module, "RETAINED_RECORDS", 2_000)
    store = Store(tmp_path)
    quiet = [EventRow(n, f"bob {n}", "bob") for n in range(1, 501)] + [
        EventRow(n, f"node {n}") for n in range(501, 601)
    ]
    records = [RecordRow(n, "bob", n, f"bob {n}") for n in range(1, 501)]
    store.commit(CommitBatch({}, records, quiet, {}))
    for start in range(601, 10_001, 100):
        flood = range(start, start + 100)
        events = [EventRow(n, f"alice {n}", "alice") for n in flood]
        store.commit(
            CommitBatch({}, [RecordRow(n, "alice", n, f"alice {n}") for n in flood], events, {})
        )
    kept = store.events(0, 10_000)
    assert kept[:600] == [event.value for event in quiet]
    assert len(kept) <= 2_000
    assert kept[-1] == "alice 10000"
    assert kept[600:] == sorted(kept[600:], key=lambda text: int(text.split()[1])), (
        "of the flood the last part"
    )
    assert store.records("bob") == [record.value for record in records]
    assert len(store.records()) <= 2_000
    store.close()


def test_a_record_that_is_written_again_counts_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for value in ("granted", "ended"):
        store.commit(CommitBatch({}, [RecordRow(1, "alice", 10, value)], [], {}))
        assert store.records() == [value]
        assert store._records.total() == 1
    store.close()


def test_records_are_found_by_env_and_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.commit(
        CommitBatch(
            {},
            [RecordRow(n, "alice" if n % 2 else "bob", n * 10, str(n)) for n in range(1, 7)],
            [],
            {},
        )
    )
    assert store.records() == ["1", "2", "3", "4", "5", "6"]
    assert store.records("alice") == ["1", "3", "5"]
    assert store.records("alice", since_wall_ns=30) == ["3", "5"]
    assert store.records(limit=2) == ["5", "6"]
    assert store.records("nobody") == []
    store.close()


def test_the_log_is_kept_short_by_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_BYTES", 200_000)
    monkeypatch.setattr(module, "WAL_LIMIT_BYTES", 1_000_000)
    monkeypatch.setattr(module, "WAL_WAIT_S", WAIT_LIMIT_S)
    store = Store(tmp_path)
    largest = 0
    for n in range(64 * 40):
        store.commit(batch(**{f"t{n % 10}": "x" * 500}))
        largest = max(largest, store.log_bytes())
    assert store._checkpoint is not None
    # It wrote some 50 MB. Between two readings it grows by at most LOOK_EVERY_COMMITS commits; then
    # a commit waits.
    assert 200_000 < largest < 8_000_000
    store.close()
    assert store.log_bytes() == 0


def test_a_commit_waits_for_a_late_checkpoint_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_BYTES", 50_000)
    monkeypatch.setattr(module, "WAL_LIMIT_BYTES", 100_000)
    monkeypatch.setattr(module, "WAL_WAIT_S", 0.01)
    monkeypatch.setattr(module, "WAL_REST_S", WAIT_LIMIT_S)
    stuck = threading.Event()
    begun: list[Path] = []

    def late(path: Path) -> None:
        begun.append(path)
        stuck.wait(WAIT_LIMIT_S)

    monkeypatch.setattr(module, "_checkpoint", late)
    store = Store(tmp_path)
    waits: list[float | None] = []
    join = threading.Thread.join
    monkeypatch.setattr(
        threading.Thread,
        "join",
        lambda thread, timeout=None: (waits.append(timeout), join(thread, timeout))[1],
    )
    assert not store.is_late()
    for _ in range(64 * 4):
        store.commit(batch(t1="x" * 5_000))
    assert len(begun) == 1, "one at a time"
    assert waits == [0.01], "everybody waits with it: once, and then not again for a while"
    assert store.is_late()
    monkeypatch.setattr(module, "WAL_REST_S", 0)
    for _ in range(64 * 2):
        store.commit(batch(t1="x" * 5_000))
    assert waits == [0.01] * (1 + 64 * 2), "without a rest each commit waits"
    stuck.set()
    join(store._checkpoint)
    monkeypatch.setattr(module, "WAL_LIMIT_BYTES", 2**30)  # as it is after the next checkpoint
    assert not store.is_late()
    store.close()


def test_free_space_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert abs(store.free_bytes() - shutil.disk_usage(tmp_path).free) < 2**30
    store.close()


# -- jobs that have ended --


def ended(
    job_id: str,
    env: str = "alice",
    wall_ns: int = 0,
    command: str = "train",
    ran_ms: int | None = 1_000,
    key: str = "",
) -> HistoryRow:
    state = "done" if ran_ms is not None else "failed"
    return HistoryRow(
        job_id, env, wall_ns, state, command, ran_ms, key, f"s{job_id[1:]}", f"{job_id} ended"
    )


def history(store: Store, *rows: HistoryRow | str) -> None:
    """Commits rows, and that the jobs of these names run again."""
    changes = {row: None for row in rows if isinstance(row, str)} | {
        row.job_id: row for row in rows if isinstance(row, HistoryRow)
    }
    store.commit(CommitBatch({}, [], [], {}, changes))


def test_the_history_is_paged_by_env_and_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    history(
        store, ended("j1", wall_ns=10), ended("j2", env="bob", wall_ns=20), ended("j3", wall_ns=30)
    )
    assert [text for _, text in store.history(None, 0, None, 10)] == [
        "j1 ended",
        "j2 ended",
        "j3 ended",
    ]
    assert [text for _, text in store.history("alice", 0, None, 1)] == ["j3 ended"]
    assert [text for _, text in store.history(None, 20, None, 10)] == ["j2 ended", "j3 ended"]
    ((first, _),) = store.history(None, 0, 0, 1)
    assert [text for _, text in store.history("alice", 0, first, 10)] == ["j3 ended"]
    store.close()


def test_a_job_that_runs_again_leaves_the_history_and_comes_back_as_the_last(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    history(store, ended("j1"), ended("j2"))
    history(store, "j1", "j9")
    assert [text for _, text in store.history(None, 0, None, 10)] == ["j2 ended"]
    history(store, ended("j1"))
    history(store, ended("j2", ran_ms=None))
    assert [text for _, text in store.history(None, 0, None, 10)] == [
        "j1 ended",
        "j2 ended",
    ], "once each"
    store.close()


def test_an_arrays_elements_are_found_by_its_name_and_no_others(tmp_path: Path) -> None:
    store = Store(tmp_path)
    history(
        store, *(ended(name) for name in ("j1", "j10", "j12.0", "j12.11", "j12", "j121.0", "j2"))
    )
    assert [name for name, _ in store.history_of("j12", 10)] == ["j12", "j12.0", "j12.11"]
    assert [name for name, _ in store.history_of("j12.1", 10)] == ["j12"], "it may be in that row"
    assert [name for name, _ in store.history_of("j12.0", 10)] == ["j12.0", "j12"]
    assert [name for name, _ in store.history_of("j1", 10)] == ["j1"]
    store.close()


def test_how_long_a_command_ran_counts_its_own_env_and_what_ended_well(tmp_path: Path) -> None:
    store = Store(tmp_path)
    runs = [
        ("alice", "train", 30),
        ("alice", "train", 10),
        ("alice", "train", None),
        ("alice", "eval", 5),
        ("bob", "train", 7),
    ]
    history(
        store,
        *(
            ended(f"j{number}", env, 0, command, ran_ms)
            for number, (env, command, ran_ms) in enumerate(runs)
        ),
    )
    history(store, ended("j9", ran_ms=20))
    assert store.durations_ms("alice", "train", 10) == [10, 20, 30]
    assert store.durations_ms("alice", "train", 2) == [10, 20], "the last two"
    assert store.durations_ms("carol", "train", 10) == []
    store.close()


def test_a_key_finds_its_job_in_its_env_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    history(store, ended("j1", key="k"), ended("j2"))
    assert [store.job_of_key("alice", key) for key in ("k", "other", "")] == ["j1", None, None]
    assert store.job_of_key("bob", "k") is None
    store.close()


def test_the_history_is_bounded_and_the_fullest_env_loses_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_rows, "RETAINED_ROWS", 2_000)
    store = Store(tmp_path)
    history(store, ended("j0", env="bob"))
    for start in range(1, 4_000, 500):
        history(store, *(ended(f"j{number}") for number in range(start, start + 500)))
    kept = store.history(None, 0, None, 10_000)
    assert len(kept) <= 3_000
    assert kept[0][1] == "j0 ended", "one job of bob's is not washed away by alice's thousands"
    store.close()


def test_how_a_job_ended_is_not_looked_for_among_all_that_its_env_has_had(tmp_path: Path) -> None:
    store = Store(tmp_path)
    asked: list[str] = []
    store._db.set_trace_callback(asked.append)
    assert store.states_of("alice", "j1") == []
    store._db.set_trace_callback(None)
    plan = [row[3] for row in store._db.execute(f"EXPLAIN QUERY PLAN {asked[0]}")]
    assert any("job_id=?" in step for step in plan)
    assert not any("env=?" in step for step in plan), plan
    store.close()


def payload(size_bytes: int) -> bytes:
    return b"x" * size_bytes


def runs(store: Store, job_id: str, env: str = "alice", size_bytes: int = 1_000) -> None:
    """A job is submitted and ends."""
    spec_id = f"s{job_id[1:]}"
    store.commit(
        CommitBatch(
            {("spec", spec_id): "{}"},
            [],
            [],
            {},
            payloads=[PayloadRow(spec_id, b"/", payload(size_bytes - 1))],
        )
    )
    end = CommitBatch(
        {("spec", spec_id): None}, [], [], {}, {job_id: ended(job_id, env)}, specs={spec_id: env}
    )
    store.commit(end)


def names(store: Store, env: str = "alice") -> list[str]:
    return [text.split()[0] for _, text in store.history(env, 0, None, 10_000)]


def kept(store: Store, count: int) -> list[int]:
    return [number for number in range(1, count + 1) if store.payload(f"s{number}") is not None]


def test_the_newest_ended_jobs_keep_what_they_ran_and_the_older_ones_their_rows(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path, bounds=Bounds(payload_bytes=10_000))
    for number in range(1, 31):
        runs(store, f"j{number}")
        runs(store, f"j{number + 100}", env="bob", size_bytes=10)
    assert len(names(store)) == 30
    assert kept(store, 30) == list(range(21, 31))
    assert all(store.payload(f"s{number + 100}") for number in range(1, 31)), "bob has little"
    store.close()
    again = Store(tmp_path, bounds=Bounds(payload_bytes=10_000))
    runs(again, "j31")
    assert kept(again, 31) == list(range(22, 32)), "the sums are counted again"
    again.close()


def test_the_payload_of_a_job_that_lives_is_not_the_historys(tmp_path: Path) -> None:
    store = Store(tmp_path, bounds=Bounds(payload_bytes=2_500))
    store.commit(CommitBatch({}, [], [], {}, payloads=[PayloadRow("s99", b"/", payload(50_000))]))
    runs(store, "j1")
    store.commit(CommitBatch({("spec", "s1"): "{}"}, [], [], {}, {"j1": None}, specs={"s1": None}))
    for number in range(2, 8):
        runs(store, f"j{number}")
    assert kept(store, 99) == [1, 6, 7, 99], "j1 was requeued and waits again, j99 has not ended"
    store.commit(CommitBatch({}, [], [], {}, {"j1": ended("j1")}, specs={"s1": "alice"}))
    assert kept(store, 99) == [1, 7, 99]
    store.close()


def test_the_history_of_an_env_is_bounded_in_bytes(tmp_path: Path) -> None:
    store = Store(tmp_path, bounds=Bounds(env_bytes=100_000, payload_bytes=50_000))
    runs(store, "j1000", env="bob")
    for number in range(1, 200):
        runs(store, f"j{number}")
    rows = names(store)
    assert rows[-1] == "j199"
    assert rows == sorted(rows, key=lambda name: int(name[1:])), "the newest are left"
    there_bytes = sum(ended(name).size_bytes for name in rows) + len(kept(store, 199)) * 1_000
    assert 90_000 < there_bytes <= 100_000
    assert names(store, "bob") == ["j1000"]
    store.close()


def test_all_histories_together_are_bounded_and_the_fullest_loses_first(tmp_path: Path) -> None:
    store = Store(tmp_path, bounds=Bounds(all_bytes=100_000))
    for number in range(1, 11):
        runs(store, f"j{number + 1000}", env="bob")
    for number in range(1, 300):
        runs(store, f"j{number}")
    assert len(names(store, "bob")) == 10
    assert "j1" not in names(store)
    assert "j299" in names(store)
    store.close()


def test_the_elements_of_an_array_share_what_they_run_until_the_last_of_them_goes(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path, bounds=Bounds(env_bytes=2_000))
    store.commit(CommitBatch({}, [], [], {}, payloads=[PayloadRow("s1", b"/", payload(500))]))
    rows = {f"j1.{index}": ended(f"j1.{index}")._replace(spec_id="s1") for index in range(5)}
    store.commit(CommitBatch({}, [], [], {}, rows, specs={"s1": "alice"}))
    assert store.payload("s1") is not None
    for number in range(2, 20):
        history(store, ended(f"j{number}"))
    assert "j1.4" not in names(store)
    assert store.payload("s1") is None
    store.close()


def test_a_commit_that_fails_leaves_the_bounds_right(tmp_path: Path) -> None:
    store = Store(tmp_path, bounds=Bounds(payload_bytes=2_500))
    runs(store, "j1")
    spoiler = sqlite3.connect(store.path)
    spoiler.execute(
        "CREATE TRIGGER spoil BEFORE INSERT ON meta BEGIN SELECT RAISE(ABORT, 'spoilt'); END"
    )
    spoiler.commit()
    for _ in range(5):
        with pytest.raises(StoreFailed, match="spoilt"):
            store.commit(
                CommitBatch(
                    {},
                    [],
                    [],
                    {"a": "b"},
                    {"j2": ended("j2")},
                    [PayloadRow("s2", b"/", payload(999))],
                    {"s2": "alice"},
                )
            )
    spoiler.execute("DROP TRIGGER spoil")
    spoiler.commit()
    spoiler.close()
    runs(store, "j2")
    assert kept(store, 2) == [1, 2]
    store.close()


def test_a_file_of_freed_pages_does_not_grow(tmp_path: Path) -> None:
    """The remains of a loop of submit and withdraw are bounded: freed pages are used again."""
    bounds, sizes = Bounds(env_bytes=400_000, payload_bytes=200_000), []
    for first in (1, 41, 81, 121):
        store = Store(tmp_path, bounds=bounds)
        for number in range(first, first + 40):
            runs(store, f"j{number}", size_bytes=50_000)
        store.close()
        sizes.append(store.path.stat().st_size)
    assert sizes[-1] <= sizes[0] + 50_000
    assert sizes[0] < 600_000, sizes


# -- the disk's reserve --


def test_a_log_that_begins_anew_is_not_cut_off(tmp_path: Path) -> None:
    """To give half of it back to the file system took the commit 6 ms of the processor."""
    log = Path(f"{tmp_path / module.FILE_NAME}-wal")
    store = Store(tmp_path, reserve_bytes=2**20)
    store.commit(batch(t1="x" * 2**21))
    long_bytes = log.stat().st_size
    assert long_bytes > 2**21
    store._begin_checkpoint().join()
    store._begin_checkpoint().join()  # the first may have begun before the commit's end
    store.commit(batch(t2="x"))
    assert store.log_bytes() < 50_000, "it begins anew"
    assert log.stat().st_size == long_bytes
    assert long_bytes < module.WAL_CUT_BYTES, "beyond that it is"
    store.close()


def test_ended_jobs_beyond_a_bound_go_in_few_statements(tmp_path: Path) -> None:
    """One statement deletes their rows, and one finds what they ran, whatever their number."""
    store = Store(tmp_path)
    for number in range(1, 201):
        runs(store, f"j{number}", size_bytes=100)
    store.close()
    store = Store(tmp_path, bounds=Bounds(env_bytes=50_000))
    asked: list[str] = []
    store._db.set_trace_callback(asked.append)
    runs(store, "j201", size_bytes=100)
    assert 50 < len(names(store)) < 150
    asked = [text for text in asked if "spec_id = left.spec_id" in text]
    assert len(asked) == 1, "one look for the payloads of them all"
    assert store.payload("s1") is None
    assert store.payload("s200") is not None
    store.close()


def test_the_log_keeps_its_room_over_an_end_and_a_start(tmp_path: Path) -> None:
    log = Path(f"{tmp_path / module.FILE_NAME}-wal")
    for number in range(3):
        store = Store(tmp_path, reserve_bytes=2**22)
        assert log.stat().st_blocks * 512 >= 2**21
        assert store._db.execute("PRAGMA freelist_count").fetchone()[0] * 4096 >= 2**20 * 7 // 8
        store.commit(batch(**{f"t{number}": "x" * 3_000}))
        store.close()
    assert log.stat().st_blocks * 512 >= 2**21
    store = Store(tmp_path, reserve_bytes=2**22)
    assert len(rows(store)) == 3
    store.close()


def test_a_log_that_is_in_the_database_as_a_whole_counts_for_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    empty = store.log_bytes()
    store.commit(batch(t1="x" * 100_000))
    assert 100_000 < store.log_bytes() - empty < 150_000
    store._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    assert store.log_bytes() == 0
    store.commit(batch(t2="x"))
    assert 0 < store.log_bytes() < 50_000, "it begins anew"
    store.close()


def test_what_waits_for_the_log_has_a_checkpoint_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.commit(batch(t1="x" * 100_000))
    assert not store.is_behind()
    monkeypatch.setattr(module, "WAL_LIMIT_BYTES", 50_000)
    assert store.is_behind()
    assert store._checkpoint is not None
    store._checkpoint.join()
    assert not store.is_behind()
    store.close()
