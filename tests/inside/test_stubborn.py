"""The manager does not wait for a faulty part of a container.

Such parts are a stopped supervisor, and a runner that hangs or is not needed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from client_plugin.ways.event_stream import EventStream
from nodemgr.edge.executor import local
from nodemgr.edge.executor.local import NodeFactory
from tests.inside.boxes import WAIT_LIMIT_S, Box, outcome
from tests.inside.test_claims import Stranger
from tests.inside.test_life import CPU, runner_of, supervisor_of, until_named
from tests.support.local import LocalManager
from tests.support.queue_pages import queue_rows


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LocalManager, Box]]:
    """A manager in this process that is short of patience, and a box."""
    monkeypatch.setattr(local, "GRACE_MS", 100)
    monkeypatch.setattr(local, "RELUCTANCE_S", 0.1)
    with LocalManager(factory=None) as manager:
        manager.call("quota_set", env="alice", gpus=1)
        factory = manager.daemon.jobs.factory
        assert isinstance(factory, NodeFactory)
        factory._grace_ms = 100
        box = Box(manager, "alice")
        yield manager, box
        box.stop()


def event(manager: LocalManager, name: str, count: int = 1, **fields: object) -> None:
    """Waits for the so-many-th event of this name with these fields since the manager's start."""
    with EventStream(manager.run_dir, 0) as stream:
        for told in stream.follow(WAIT_LIMIT_S):
            count -= told["name"] == name and all(
                told.get(key) == value for key, value in fields.items()
            )
            if count == 0:
                return
    raise AssertionError(f"no {name} with {fields}")


def stopped_job(manager: LocalManager, box: Box, *options: str) -> tuple[str, int]:
    """An attempt with a supervisor that hears nothing."""
    job = box.submit(*CPU, *options, "--", "sleep", "600")
    event(manager, "job.started", job=job)
    supervisor = supervisor_of(box)
    os.kill(supervisor, signal.SIGSTOP)
    return job, supervisor


def test_a_supervisor_that_is_stopped_keeps_no_job_alive(here: tuple[LocalManager, Box]) -> None:
    """Any process of this user in the container can stop it."""
    manager, box = here
    job, _ = stopped_job(manager, box)
    manager.call("job_withdraw", job=job)
    told = outcome(manager, job)
    assert told["state"] == "withdrawn"
    until_named(box, "sleep", box.pid)  # its first process


def test_nor_does_it_keep_it_beyond_its_time(here: tuple[LocalManager, Box]) -> None:
    manager, box = here
    for limit in ("2s", "20s", "200s"):
        try:
            job, _ = stopped_job(manager, box, "--time", limit, "--max-restarts", "3")
            break
        except ProcessLookupError:  # its time was over before it was stopped
            continue
    told = outcome(manager, job)
    assert (told["state"], told["why"]) == ("failed", "time limit")
    until_named(box, "sleep", box.pid)


def test_its_time_is_no_matter_of_the_wall_clock(
    here: tuple[LocalManager, Box], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is set on by a year."""
    manager, box = here
    true_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + 365 * 86_400 * 10**9)
    job = box.submit(
        *CPU, "--time", "1h", "--max-restarts", "0", "--", "sh", "-c", "sleep 1; exit 3"
    )
    told = outcome(manager, job)
    assert (told["state"], told["exit"], told["why"]) == ("failed", 3, "exit code 3")


def test_a_runner_that_hangs_holds_nothing_back(
    here: tuple[LocalManager, Box], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its order goes back to the queue; when it wakes up it comes again, and the job runs once."""
    monkeypatch.setattr(local, "CLAIM_TIMEOUT_S", 0.3)
    manager, box = here
    first = box.submit(*CPU, "--hold", "--", "true")
    box.say("queue")
    runner = runner_of(box)
    os.kill(runner, signal.SIGSTOP)
    job = box.submit(*CPU, "--", "sh", "-c", "echo begun; exit 3")
    event(manager, "place.down")
    event(manager, "job.unbegun", job=job)
    (row,) = (row for row in queue_rows(manager.call) if row["id"] == job)
    assert "waits for its container" in row["reason"]
    os.kill(runner, signal.SIGCONT)
    told = outcome(manager, job)
    assert told["exit"] == 3
    assert box.say("logs", job).stdout == "begun\n"
    manager.call("job_withdraw", job=first)


def test_a_runner_that_nobody_needs_is_sent_away(here: tuple[LocalManager, Box]) -> None:
    """Not at once; and the next job has another."""
    manager, box = here
    runners = manager.daemon.jobs.factory.runners
    manager.do(lambda: setattr(runners, "_idle_s", 0.05))
    for count in (1, 2):
        job = box.submit(*CPU, "--", "true")
        assert outcome(manager, job)["exit"] == 0
        event(manager, "place.down", count)


@pytest.mark.parametrize("ends", ["before", "meanwhile", "never"])
@pytest.mark.parametrize("begins", [False, True], ids=["claimed", "begun"])
def test_a_program_that_claimed_a_job_cannot_keep_it(
    here: tuple[LocalManager, Box], begins: bool, ends: str
) -> None:
    """It says a supervisor's words and starts nothing; it ignores what it is told."""
    manager, box = here
    claimer = Stranger(box)
    claimer("deaf")
    assert claimer("runner")["verb"] == "ACK"
    job = box.submit("--gpus", "1", "--max-restarts", "3", "--", "true")
    assert claimer("next")["verb"] == "START"
    assert claimer("claim", job, "1")["verb"] == "CLAIMED"
    if begins:
        assert claimer("report", "RUNNING", job, "1", b"started 1 1 1 1".hex())["verb"] == "ACK"
    if ends == "before":
        claimer.end()
    manager.call("job_withdraw", job=job)
    if ends == "meanwhile":
        claimer.end()
    told = outcome(manager, job)
    assert (told["state"], told["why"]) == ("withdrawn", "root (uid 0) withdrew it")
    if ends == "never":
        assert claimer.code() == -signal.SIGKILL
    event(manager, "job.withdrawn", job=job)
    assert queue_rows(manager.call) == []
    assert manager.call("status")["tasks"] == []
    box.say("queue")
    later = box.submit("--gpus", "1", "--", "true")
    assert outcome(manager, later)["exit"] == 0, "the GPU is free again"
