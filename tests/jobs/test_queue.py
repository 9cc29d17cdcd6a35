"""Jobs through the whole manager: core, store, event loop, executor of this node.

The same over another executor.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin.ways.faults import Fault
from nodemgr.core.model import effects, events
from nodemgr.core.model.entities import DenyCode, JobState
from nodemgr.edge.engine.submission_batches import TURN_SUBMISSIONS
from nodemgr.edge.host.clock import RealClock
from nodemgr.edge.host.journald import Journald
from tests.jobs.world import KINDS, Refused, World, open_gate
from tests.session import TMP
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import FakeGpus
from tests.support.queue_pages import queue_rows
from tests.support.udp_clients import FakeClient

Client = Callable[..., FakeClient]
Make = Callable[..., World]


@pytest.fixture
def kind() -> str:
    return KINDS[0]


on_both = pytest.mark.parametrize("kind", KINDS)
"""Evidence that no decision depends on how jobs are executed."""


@pytest.fixture
def make(kind: str) -> Iterator[Make]:
    worlds: list[World] = []
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as name:

        def start(gpus: int = 1, **settings: Any) -> World:
            worlds.append(World(Path(name), kind, gpus=FakeGpus(gpus), **settings))
            return worlds[-1]

        yield start
        for world in worlds:
            world.close()


@pytest.fixture
def world(make: Make) -> World:
    """A node with one GPU."""
    return make()


# -- one job --


GPU = "GPU-00000000"


@on_both
def test_a_job_runs_once_and_its_end_is_kept_with_what_it_said(world: World) -> None:
    job_id = world.submit(
        "echo $NODEMGR_JOB; echo ${#NODEMGR_TASK}; echo $NODEMGR_VISIBLE $CUDA_VISIBLE_DEVICES",
        environ=("NODEMGR_VISIBLE=GPU-x",),
    )
    ended = world.until_ended(job_id)
    assert (ended.job.state, ended.job.attempts[-1].exit_code) == (JobState.DONE, 0)
    assert ended.job.attempts[-1].log_tail == f"{job_id}:1\n32\n{GPU} {GPU}\n"
    assert world.begun() == [f"{job_id}:1"]
    assert world.manager.call("status")["tasks"] == [], "its lease ended with it"


def test_a_job_without_a_gpu_sees_none_and_holds_none(world: World) -> None:
    holder, gate = world.holding()
    job_id = world.submit(
        "echo visible=$CUDA_VISIBLE_DEVICES task=$NODEMGR_TASK",
        gpus=0,
        environ=("CUDA_VISIBLE_DEVICES=0",),
    )
    assert world.until_ended(job_id).job.attempts[-1].log_tail == "visible= task=\n"
    open_gate(gate)
    world.until_ended(holder)


@on_both
def test_a_failing_job_is_tried_again_from_the_end_of_its_queue_and_given_up_at_last(
    world: World,
) -> None:
    job_id = world.submit("echo trouble; exit 9", max_restarts=2)
    ended = world.until_ended(job_id)
    assert (ended.job.state, ended.job.why, ended.job.restarts) == (
        JobState.FAILED,
        "exit code 9",
        2,
    )
    assert world.begun() == [f"{job_id}:{attempt}" for attempt in (1, 2, 3)]
    assert [attempt.log_tail for attempt in ended.job.attempts] == ["trouble\n"] * 3


def test_what_cannot_improve_is_not_tried_again(world: World) -> None:
    job_id = world.submit(argv=("/nowhere/train",))
    ended = world.until_ended(job_id)
    assert (ended.job.state, "/nowhere/train" in ended.job.why) == (JobState.FAILED, True)
    assert world.job_ids("job.starting") == [job_id]


@on_both
def test_a_job_that_runs_is_withdrawn_and_one_that_waits_never_starts(world: World) -> None:
    running, _ = world.holding()
    waiting = world.submit()
    world.until_begun(running)
    world.order(events.WithdrawJob, waiting)
    world.order(events.WithdrawJob, running)
    assert world.until_ended(waiting).job.state is JobState.WITHDRAWN
    assert world.until_ended(running).job.state is JobState.WITHDRAWN
    assert world.begun() == [f"{running}:1"]


def test_an_array_knows_its_index(world: World) -> None:
    job_id = world.submit("echo $NODEMGR_ARRAY_INDEX", array=(3, 7))
    tails = [world.until_ended(f"{job_id}.{index}").job.attempts[-1].log_tail for index in (3, 7)]
    assert tails == ["3\n", "7\n"]


def test_who_waits_for_a_job_that_ended_already_need_not_wait(world: World) -> None:
    first = world.submit()
    world.until_ended(first)
    second = world.submit("true", after=(first,))
    assert world.until_ended(second).job.state is JobState.DONE
    with pytest.raises(Refused):
        world.submit("true", after=("j999",))


# -- the queue --


def test_an_interactive_waiter_and_jobs_are_served_in_one_order(
    world: World, make_client: Client
) -> None:
    holder, gate = world.holding()
    world.until_running(holder)
    waiter = make_client(world.manager.env_dir("bob"))
    waiter.ask(1)
    waiting = waiter.receive()
    assert waiting is not None
    assert (waiting["verb"], waiting["position"]) == ("WAIT", "1")
    job_id = world.submit()
    assert world.waiting() == [job_id]
    open_gate(gate)
    waiter.expect("GRANT")
    assert world.waiting() == [job_id], "the waiter came first"
    waiter.release()
    assert world.until_ended(job_id).job.state is JobState.DONE


@on_both
def test_a_gang_behind_a_stream_of_small_jobs_is_not_starved(make: Make) -> None:
    """Eight run; then comes the gang, then eight more.

    None of those begins before the gang has ended.
    """
    world = make(8)
    small = [world.holding(env="bob", memory_bytes=1 << 30, command="small") for _ in range(8)]
    for job_id, _ in small:
        world.until_running(job_id)
    gang, gang_gate = world.holding(gpus=8)
    late = [world.submit(env="bob") for _ in range(8)]
    for _, gate in small:
        open_gate(gate)
    world.until_running(gang)
    open_gate(gang_gate)
    for job_id in late:
        world.until_ended(job_id)
    assert world.job_ids("job.starting")[8] == gang


def test_held_unheld_and_moved(world: World) -> None:
    holder, gate = world.holding()
    first, second, third = (world.submit() for _ in range(3))
    world.order(events.HoldJob, first)
    world.order(events.MoveJob, third, None, True)
    assert world.waiting() == [third, second]
    world.order(events.UnholdJob, first)
    assert world.waiting() == [third, second, first]
    open_gate(gate)
    for job_id in (holder, first, second, third):
        world.until_ended(job_id)
    assert world.job_ids("job.starting") == [holder, third, second, first]


# -- one commit --


def test_submissions_of_one_turn_are_one_commit_and_each_is_answered(world: World) -> None:
    holder, gate = world.holding()
    world.until_running(holder)
    before = world.manager.store.commits
    answers = world.submit_all(
        [world.submission() for _ in range(TURN_SUBMISSIONS - 1)] + [world.submission(env="nobody")]
    )
    assert world.manager.store.commits == before + 1
    assert len({answer.job_id for answer in answers}) == TURN_SUBMISSIONS
    refused = [answer.code for answer in answers if answer.job_id is None]
    assert refused == [DenyCode.UNKNOWN_ENV]
    open_gate(gate)


def test_many_more_than_a_turn_takes_are_all_stored(world: World) -> None:
    holder, gate = world.holding()
    answers = world.submit_all([world.submission() for _ in range(150)])
    assert len({answer.job_id for answer in answers if answer.job_id is not None}) == 150
    assert len(world.waiting()) in (150, 151)
    with sqlite3.connect(world.directory / "state" / "state.db") as db:
        (stored,) = db.execute("SELECT count(*) FROM current WHERE kind = 'job'").fetchone()
    db.close()
    assert stored == 151
    for job_id in [answer.job_id for answer in answers]:
        world.order(events.WithdrawJob, job_id)
    open_gate(gate)
    world.until_ended(holder)


def test_a_submission_that_comes_again_is_the_job_that_it_was_also_when_that_has_ended(
    world: World,
) -> None:
    first = world.submit(key="k")
    array = world.submit(array=(0, 1), key="a")
    for job_id in (first, f"{array}.0", f"{array}.1"):
        world.until_ended(job_id)
    assert (world.submit(key="k"), world.submit(array=(0, 1), key="a")) == (first, array)
    assert world.submit(key="k", env="bob") != first, "a key is its env's own"
    assert world.submit() != world.submit(), "no key is no name"


# -- the store fails --


def test_a_submission_waits_for_room_in_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [False, True, True]
    monkeypatch.setattr(
        world.manager.daemon.journal, "is_behind", lambda: len(answers) > 1 and answers.pop()
    )
    assert world.until_ended(world.submit()).job.state is JobState.DONE
    assert answers == [False]


@pytest.mark.parametrize(
    "fault",
    [
        "database or disk is full",
        "database is locked",
        "disk I/O error",
        "database disk image is malformed",
    ],
)
def test_while_the_store_fails_no_job_is_taken_or_started_and_no_end_is_lost(
    world: World, fault: str
) -> None:
    holder, gate = world.holding()
    waiting = world.submit()
    world.until_running(holder)
    world.manager.store.fault = fault
    with pytest.raises(Refused, match=f"cannot store a job now.*{fault}"):
        world.submit()
    open_gate(gate)
    world.until_gone(holder)
    assert world.begun() == [f"{holder}:1"], "nothing is begun that is not stored"
    assert world.job(waiting).state is JobState.QUEUED
    assert world.log(holder) is not None, (
        "its files stay as long as the store does not know its end"
    )
    world.manager.store.fault = None
    assert world.until_ended(waiting).job.state is JobState.DONE
    assert world.ended(holder).job.state is JobState.DONE
    assert world.begun() == [f"{holder}:1", f"{waiting}:1"]


def test_a_start_that_the_store_refuses_is_tried_again_though_nothing_else_happens(
    world: World,
) -> None:
    """The end that made room was stored; its consequence was not.

    No event wakes the manager.
    """
    store = world.manager.store
    holder, gate = world.holding()
    waiting = world.submit()
    world.until_running(holder)
    store.after = lambda _commit: setattr(store, "fault", "database is locked")
    open_gate(gate)
    world.until_gone(holder)
    world.until_seen(lambda: world.manager.daemon.journal.fault is not None)
    del store.after  # type: ignore[method-assign]
    store.fault = None
    assert world.until_ended(waiting).job.state is JobState.DONE


def test_a_history_that_cannot_be_read_is_an_answer_to_whoever_needs_it_and_nothing_to_the_others(
    world: World,
) -> None:
    holder, gate = world.holding()
    waiting = world.submit()
    world.until_running(holder)
    with contextlib.closing(sqlite3.connect(world.directory / "state" / "state.db")) as other:
        other.execute("ALTER TABLE history RENAME TO elsewhere")
        for needs in ({"key": "k"}, {"after": ("j1",)}):
            with pytest.raises(Refused, match=r"cannot look into its store now: .*no such table"):
                world.submit(**needs)
        with pytest.raises(Fault, match=r"state\.db: no such table"):
            world.manager.call("job_show", job="j99")
        assert [row["id"] for row in queue_rows(world.manager.call)] == [waiting, holder]
        other.execute("ALTER TABLE elsewhere RENAME TO history")
    open_gate(gate)
    assert world.until_ended(waiting).job.state is JobState.DONE


def test_an_end_that_was_never_stored_is_told_again_to_the_next_manager(world: World) -> None:
    holder, gate = world.holding()
    world.until_running(holder)
    world.manager.store.fault = "disk I/O error"
    open_gate(gate)
    world.until_gone(holder)
    world.manager.close()
    world.start()
    assert world.until_ended(holder).job.state is JobState.DONE
    assert world.begun() == [f"{holder}:1"]


@on_both
def test_a_new_store_beside_old_jobs_gives_nobody_an_old_ones_name(world: World) -> None:
    """An administrator replaced the store: the remains of an old job do not end a new one."""
    old = world.submit("exit 3", max_restarts=0)
    array = world.submit("true", array=(0, 1))
    world.until_ended(old)
    for element in (f"{array}.0", f"{array}.1"):
        world.until_ended(element)
    world.manager.close()
    for file in (world.directory / "state").glob("state.db*"):
        file.unlink()
    world.start()
    for env in ("alice", "bob"):
        world.manager.call("quota_set", env=env, gpus=1)
    new = world.submit("echo ran")
    assert world.until_ended(new).job.state is JobState.DONE
    assert world.log(new) == b"ran\n"
    assert (old, array, new) == ("j1", "j2", "j3")


# -- what it said --


def test_the_end_of_what_it_said_goes_into_the_journal_where_that_is_wanted(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "socket"))
        journal.settimeout(WAIT_LIMIT_S)
        monkeypatch.setattr(Journald.__init__, "__defaults__", (tmp_path / "socket",))
        world = make(job_log_sink="journald")
        job_id = world.submit("echo trouble; exit 3", max_restarts=0)
        told = journal.recv(65_536).decode()
    assert "trouble" in told
    assert {f"NODEMGR_JOB={job_id}", "NODEMGR_ENV=alice", "PRIORITY=4"} <= set(told.splitlines())


def test_a_journal_that_does_not_listen_costs_the_entry_alone(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Journald.__init__, "__defaults__", (tmp_path / "socket",))
    world = make(job_log_sink="journald")
    assert world.until_ended(world.submit("echo said")).job.attempts[-1].log_tail == "said\n"


def test_logs_of_jobs_that_ended_are_kept_within_their_bound(make: Make) -> None:
    """By the room that they take on the disk, in which a job has small files, too."""
    world = make(job_logs_bytes=1_000_000)
    first, _, third = (
        world.submit("head -c 600000 /dev/urandom | od -An -v -tx1 | head -c 600000")
        for _ in range(3)
    )
    world.until_ended(third)
    world.settle()
    with pytest.raises(FileNotFoundError):
        world.log(first)
    assert len(world.log(third)) == 600_000


def test_the_log_of_a_job_that_runs_takes_no_more_room_than_it_may(make: Make) -> None:
    world = make(job_log_bytes=2**20)
    job_id = world.submit("head -c 3000000 /dev/zero | tr '\\0' x; echo end")
    assert world.until_ended(job_id).job.attempts[-1].log_tail.endswith("xend\n")
    log = world.jobs.factory.logs(job_id)
    assert os.fstat(log).st_size == 3_000_004
    assert os.fstat(log).st_blocks * 512 <= 2**20
    os.close(log)


# -- the manager is restarted --


@on_both
def test_the_next_manager_finds_what_runs_and_keeps_the_places_of_what_waits(world: World) -> None:
    holder, gate = world.holding()
    waiting = [world.submit() for _ in range(5)]
    world.until_running(holder)
    world.order(events.MoveJob, waiting[4], None, True)
    order = [waiting[4], *waiting[:4]]
    world.restart()
    assert world.job(holder).state is JobState.RUNNING
    assert world.waiting() == order
    open_gate(gate)
    for job_id in waiting:
        assert world.until_ended(job_id).job.state is JobState.DONE
    assert world.begun() == [f"{job_id}:1" for job_id in (holder, *order)]


@on_both
def test_what_ended_meanwhile_is_known_and_the_next_begins(world: World) -> None:
    holder, gate = world.holding()
    waiting = world.submit()
    world.until_running(holder)
    world.manager.close()
    open_gate(gate)
    world.start()
    assert world.until_ended(holder).job.attempts[-1].exit_code == 0
    assert world.until_ended(waiting).job.state is JobState.DONE


@on_both
def test_what_was_stored_but_never_begun_is_begun_by_the_next_manager(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the commit and the deed: it costs the job nothing but a number."""
    monkeypatch.setattr(world.jobs.factory, "create", lambda order: None)
    job_id = world.submit(max_restarts=0)
    world.until("job.starting", job=job_id)
    world.restart()
    ended = world.until_ended(job_id)
    assert (
        ended.job.state,
        [attempt.number for attempt in ended.job.attempts],
        ended.job.restarts,
    ) == (JobState.DONE, [2], 0)
    assert world.begun() == [f"{job_id}:2"]


def test_what_was_withdrawn_before_it_began_never_begins(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for verb in ("create", "withdraw"):
        monkeypatch.setattr(world.jobs.factory, verb, lambda *arguments: None)
    job_id = world.submit()
    world.until("job.starting", job=job_id)
    world.order(events.WithdrawJob, job_id)
    world.restart()
    assert world.until_ended(job_id).job.state is JobState.WITHDRAWN
    assert world.begun() == []


@on_both
def test_who_was_to_end_when_the_manager_died_is_ended_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, _ = world.holding()
    world.until_running(job_id)
    asked: list[object] = []
    monkeypatch.setattr(
        world.jobs.factory, "withdraw", lambda *of, warns: asked.append((*of[:2], warns))
    )
    world.manager.do(lambda: world.jobs._stop(effects.StopJob(job_id, 1, "for another task", True)))
    world.order(events.WithdrawJob, job_id)
    world.until_seen(lambda: len(asked) == 2)
    assert asked == [(job_id, 1, True), (job_id, 1, False)], "--signal is for another task's sake"
    world.restart()
    assert world.until_ended(job_id).job.state is JobState.WITHDRAWN
    assert world.begun() == [f"{job_id}:1"]


# -- clocks --


class Jumping(RealClock):
    """Its wall clock is put back by so much."""

    back_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() - self.back_ns


def test_a_wall_clock_that_jumps_back_changes_no_order(make: Make) -> None:
    clock = Jumping()
    world = make(clock=clock)
    holder, gate = world.holding()
    before = [world.submit() for _ in range(3)]
    clock.back_ns = 86_400 * 10**9
    after = [world.submit() for _ in range(3)]
    world.restart()
    last = world.submit()
    assert world.waiting() == [*before, *after, last]
    open_gate(gate)
    for job_id in (holder, *before, *after, last):
        assert world.until_ended(job_id).job.state is JobState.DONE
    assert world.job_ids("job.starting") == [holder, *before, *after, last]
