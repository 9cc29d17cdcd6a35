"""The journal stores before it reports; while the store fails, it refuses or keeps.

Every event has one number.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from nodemgr.core.model.effects import Publish, Save
from nodemgr.core.model.entities import (
    Attempt,
    Ended,
    Env,
    Job,
    JobSpec,
    JobState,
    Quota,
    Record,
    RunSpec,
)
from nodemgr.core.views.gpu_minutes import GpuMinute
from nodemgr.edge.store.database import CommitBatch, Store, StoreFailed
from nodemgr.edge.store.disk_reserve import DiskReserve
from nodemgr.edge.store.journal import Journal, Spread
from tests.edge.simulated_clock import SimulatedClock
from tests.support.local import FailingStore

SECOND_NS = 1_000_000_000
WALL_NS = 1_700_000_000 * SECOND_NS


class World:
    def __init__(self, directory: Path) -> None:
        self.hook = FailingStore()
        self.store = Store(directory, self.hook)
        self.clock = SimulatedClock()
        self.told: list[dict[str, Any]] = []
        self.recovered = 0
        self.journal = Journal(self.store, self.clock)
        self.journal.publish_to(lambda name, text: self.told.append(json.loads(text)))
        self.journal.subscribe(lambda: None, self.count)

    def count(self) -> None:
        self.recovered += 1

    def names(self) -> list[str]:
        """The names of the published events, in order."""
        self.journal.publish()
        return [event["name"] for event in self.told]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def env(name: str, gpus: int = 1) -> Save:
    return Save("env", name, Env(name, Quota(gpus)))


def test_rows_and_events_are_stored_together_then_told(world: World) -> None:
    assert world.journal.write(
        [env("alice")], [Publish("quota.set", {"env": "alice"})], must_hold=False
    )
    assert world.journal.rows() == [("env", "alice", Env("alice", Quota(1)))]
    assert world.told == [], "not before the clients have their answers"
    world.journal.publish()
    (event,) = world.told
    assert event == {
        "schema_version": 1, "sequence": 1, "name": "quota.set", "time_ns": world.clock.wall_ns(),
        "monotonic_ns": world.clock.monotonic_ns(), "env": "alice",
    }  # fmt: skip
    assert world.journal.events(0, 10) == world.told


def test_an_observer_gets_each_event_once_and_after_the_subscribers(world: World) -> None:
    seen: list[tuple[int, Publish]] = []
    world.journal.observe_with(lambda event: seen.append((len(world.told), event)))
    event = Publish("task.ended", {"env": "alice", "held_ns": 7})
    world.journal.write([env("alice")], [event], must_hold=False)
    assert seen == []
    world.journal.publish()
    world.journal.publish()
    assert seen == [(1, event)]


def test_commits_are_timed_and_failed_ones_counted(world: World) -> None:
    world.journal.write([env("alice")], [], must_hold=False)
    world.journal.write([], [], must_hold=False)
    assert sum(world.journal.commit_time.counts) == 1, "without rows there is no commit"
    world.hook.fault = "disk I/O error"
    world.journal.write([env("bob")], [], must_hold=True)
    assert not world.journal.retry()
    assert sum(world.journal.commit_time.counts) == 1
    assert world.journal.failed_commits == 3, "the write, the event about it, the retry"


def test_nothing_to_store_is_no_commit(world: World) -> None:
    assert world.journal.write([], [], must_hold=False)
    assert world.hook.commits == 0


def test_while_the_store_fails_a_gift_is_refused_and_a_fact_holds(world: World) -> None:
    world.hook.fault = "database or disk is full"
    assert not world.journal.write([env("alice")], [Publish("quota.set", {})], must_hold=False)
    assert world.names() == ["store.failed"]
    assert world.journal.write([env("bob")], [Publish("task.ended", {})], must_hold=True)
    assert world.names() == ["store.failed", "task.ended"]
    assert "disk is full" in str(world.journal.fault)
    assert world.journal.rows() == []

    world.hook.fault = None
    assert world.journal.retry()
    assert world.journal.fault is None
    assert world.recovered == 1
    assert [key for _, key, _ in world.journal.rows()] == ["bob"]
    assert world.names() == ["store.failed", "task.ended", "store.recovered"]


def test_what_waited_is_written_before_what_comes_next(world: World) -> None:
    world.hook.fault = "disk I/O error"
    world.journal.write([env("alice", 1)], [], must_hold=True)
    world.journal.write([env("alice", 2)], [], must_hold=True)
    world.hook.fault = None
    assert world.journal.write([env("alice", 3)], [Publish("quota.set", {})], must_hold=False)
    assert world.journal.rows() == [("env", "alice", Env("alice", Quota(3)))]
    assert world.names() == ["store.failed", "store.recovered", "quota.set"]


def test_numbers_have_no_gap_and_no_repeat_through_a_failure(world: World) -> None:
    world.journal.note("a")
    world.hook.fault = "full"
    assert not world.journal.write([], [Publish("refused", {})], must_hold=False)
    world.journal.note("b")
    world.hook.fault = None
    world.journal.note("c")
    assert [event["sequence"] for event in world.told] == [1, 2, 3, 4, 5]
    assert world.names() == ["a", "store.failed", "b", "store.recovered", "c"]
    assert world.journal.events(0, 10) == world.told


def test_events_are_read_while_the_store_fails(world: World) -> None:
    world.journal.note("a")
    world.hook.fault = "full"
    world.journal.note("b")
    names = ["a", "b", "store.failed"]
    for since, limit, there in (
        (None, 10, names), (None, 2, names[1:]), (0, 2, names[:2]), (1, 1, names[1:2]), (3, 9, []),
    ):  # fmt: skip
        assert [event["name"] for event in world.journal.events(since, limit)] == there
    world.hook.fault = None
    assert world.journal.retry()
    assert world.journal.events(None, 10) == world.told


def test_a_failing_store_that_fails_again_says_so_once(world: World) -> None:
    world.hook.fault = "full"
    for _ in range(3):
        world.journal.write([env("alice")], [], must_hold=True)
        assert not world.journal.retry()
    assert world.names() == ["store.failed"]


def test_what_needs_no_row_is_answered_while_the_store_fails(world: World) -> None:
    world.hook.fault = "full"
    world.journal.note("something")
    assert world.journal.write([], [], must_hold=False)


def test_a_running_leases_record_is_state_and_history_and_an_ended_one_history_alone(
    world: World,
) -> None:
    record = Record(1, "alice", "t1", "train", ("GPU-1",), (), (5,), 0, None, 10, 20)
    world.journal.write([Save("record", "t1", record)], [], must_hold=False)
    assert world.journal.rows() == [("record", "t1", record)]
    ended = Record(1, "alice", "t1", "train", ("GPU-1",), (), (5,), 0, None, 10, 20, 30, "released")
    world.journal.write([Save("record", "t1", ended)], [], must_hold=True)
    assert world.journal.rows() == []
    (row,) = world.journal.records("alice", 0)
    assert (row["why"], row["ended_wall_ns"]) == ("released", 30)


def test_numbers_go_on_after_a_restart(world: World, tmp_path: Path) -> None:
    world.journal.note("a")
    world.store.close()
    again = World(tmp_path)
    again.journal.note("b")
    assert again.told[0]["sequence"] == 2


# -- jobs that have ended --


def final(job_id: str, ran_s: int, state: JobState = JobState.DONE) -> Save:
    job = Job(
        job_id, "alice", "", RunSpec("python train.py", 1, None, None), "alice", "s1", "normal", 0,
        state, started_wall_ns=WALL_NS, ended_wall_ns=WALL_NS - SECOND_NS,
        attempts=(Attempt(1, WALL_NS, WALL_NS - SECOND_NS, (), 0, None, "", "", started_ns=0,
                          ended_ns=ran_s * SECOND_NS),),
    )  # fmt: skip
    return Save("history", job_id, Ended(job, JobSpec("s1", "alice", 1_000, 1_000)))


def test_a_job_that_ended_is_found_with_what_was_run(world: World) -> None:
    world.journal.write([final("j1", 10)], [], must_hold=True, durable=True)
    (ended,) = world.journal.ended("j1")
    assert (ended.job.state, ended.spec.user) == (JobState.DONE, "alice")
    ((_, row),) = world.journal.history("alice")
    assert (row["job"]["job_id"], row["spec"]["uid"]) == ("j1", 1_000)
    assert world.journal.ended("j2") == []


def test_an_end_that_the_store_cannot_take_yet_is_known_all_the_same(world: World) -> None:
    world.journal.write([final("j1.0", 10), final("j2", 10)], [], must_hold=True)
    world.hook.fault = "disk I/O error"
    world.journal.write([final("j1.1", 10), Save("history", "j2", None)], [], must_hold=True)
    assert [ended.job.job_id for ended in world.journal.ended("j1")] == ["j1.0", "j1.1"]
    assert world.journal.ended("j2") == [], "it runs again"
    world.hook.fault = None
    assert world.journal.retry()
    assert [row["job"]["job_id"] for _, row in world.journal.history()] == ["j1.0", "j1.1"]


def test_how_long_a_command_takes_follows_what_ends(world: World) -> None:
    assert world.journal.spread("alice", "python train.py") is None
    world.journal.write([final(f"j{number}", number) for number in range(1, 6)], [], must_hold=True)
    assert world.journal.spread("alice", "python train.py") == Spread(5, 2_000, 3_000, 4_000)
    world.journal.write([final("j6", 60, JobState.FAILED)], [], must_hold=True)
    assert world.journal.spread("alice", "python train.py") == Spread(5, 2_000, 3_000, 4_000), (
        "a failure says nothing"
    )
    world.journal.write([final("j7", 100)], [], must_hold=True)
    spread = world.journal.spread("alice", "python train.py")
    assert spread is not None
    assert spread.count == 6


# -- why --


def test_a_refusal_says_why_though_small_things_can_be_stored(world: World) -> None:
    """A commit may be too large for the disk, and the event that tells of it is not."""
    commit = world.store.commit

    def too_large(batch: CommitBatch, *, durable: bool = False) -> None:
        if batch.current:
            raise StoreFailed("state.db: the disk is full (database or disk is full)")
        commit(batch, durable=durable)

    world.store.commit = too_large  # type: ignore[method-assign]
    assert not world.journal.write([env("alice")], [], must_hold=False)
    assert world.journal.fault is None
    assert world.journal.refused == "state.db: the disk is full (database or disk is full)"


def test_tenants_are_refused_while_the_disk_is_low_and_that_is_told_once(world: World) -> None:
    refusals: list[str | None] = ["the disk is low", "the disk is low", None]
    world.store.refusal = lambda _batch: refusals.pop(0)  # type: ignore[method-assign]
    for _ in range(2):
        assert not world.journal.write([env("alice")], [], must_hold=False, reserved=False)
        assert world.journal.refused == "the disk is low"
        assert world.journal.write([env("bob")], [], must_hold=False), "it may use the reserve"
    assert world.journal.write([env("alice")], [], must_hold=False, reserved=False)
    assert world.names() == ["store.low", "store.roomy"]
    assert [key for _, key, _ in world.journal.rows()] == ["alice", "bob"]


# -- the GPUs' use, which is dropped where it would be in the way --


def minutes_stored(world: World) -> list[int]:
    with contextlib.closing(sqlite3.connect(world.store.path)) as db:
        return [minute for (minute,) in db.execute("SELECT minute FROM gpu_minutes")]


def test_the_use_of_the_gpus_is_no_commit_of_the_state(world: World) -> None:
    before = world.journal.commits
    world.journal.save_gpu_minutes([GpuMinute(1, "GPU-1", 5.0, 6)])
    assert minutes_stored(world) == [1]
    assert world.journal.commits == before


def test_it_is_dropped_with_one_line_while_the_store_fails(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.hook.fault = "disk I/O error"
    world.journal.note("x")
    capsys.readouterr()
    for minute in range(3):
        world.journal.save_gpu_minutes([GpuMinute(minute, "GPU-1", 5.0, 6)])
    assert capsys.readouterr().err.count("the use of the GPUs is not recorded: ") == 1
    world.hook.fault = None
    assert world.journal.retry()
    capsys.readouterr()
    world.journal.save_gpu_minutes([GpuMinute(9, "GPU-1", 5.0, 6)])
    assert minutes_stored(world) == [9]
    assert "is recorded again" in capsys.readouterr().err


def test_a_locked_database_delays_nothing_and_refuses_no_grant(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another program holds the lock for as long as the test likes."""
    with contextlib.closing(sqlite3.connect(world.store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        world.journal.save_gpu_minutes([GpuMinute(1, "GPU-1", 5.0, 6)])
        assert "holds the database locked" in capsys.readouterr().err
        other.execute("ROLLBACK")
    assert world.journal.fault is None
    assert world.journal.write([], [Publish("x", {})], must_hold=False)
    assert minutes_stored(world) == []


def test_it_takes_nothing_of_the_disks_reserve(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DiskReserve, "is_low", lambda self: True)
    world.journal.save_gpu_minutes([GpuMinute(1, "GPU-1", 5.0, 6)])
    assert "is kept for grants and releases" in capsys.readouterr().err
    assert minutes_stored(world) == []
    assert world.journal.write([], [Publish("x", {})], must_hold=False)
