"""`nodemgr run --elastic` under a real manager on a simulated node, as a user types it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.elastic.led import TRAINEE, Led
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager


@pytest.fixture
def manager(make_manager: Callable[..., Manager]) -> Manager:
    """Three GPUs; alice may use two and borrow none."""
    manager = make_manager(simulate="3x8GiB", environment={"NODEMGR_OFFER_CALM_MS": "100"})
    manager.quota("alice", 2)
    return manager


def words(manager: Manager, *options: str) -> list[str]:
    start = [sys.executable, "-m", "nodemgr", "run", "--run-dir", str(manager.run_dir)]
    return [*start, "--env", "alice", *options, "--", sys.executable, str(TRAINEE)]


def refused(manager: Manager, *options: str) -> tuple[int, str]:
    ended = subprocess.run(
        words(manager, *options), capture_output=True, text=True, timeout=WAIT_LIMIT_S
    )
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


Start = Callable[..., Led]


@pytest.fixture
def start(manager: Manager, tmp_path: Path) -> Iterator[Start]:
    started: list[Led] = []

    def begin(options: Sequence[str]) -> Led:
        started.append(Led(tmp_path, *words(manager, *options), own=True))
        return started[-1]

    yield begin
    for led in started:
        led.close()


def test_a_task_grows_within_the_quota_and_ends_by_ctrl_c(manager: Manager, start: Start) -> None:
    led = start(["--gpus", "1-2", "--elastic"])
    led.line("the training runs on 2 GPUs$")
    (task,) = manager.status()["tasks"]
    assert (task["gpus_min"], task["gpus_max"], len(task["gpus"])) == (1, 2, 2)
    assert len(led.workers()) == 2
    led.send(signal.SIGINT)
    assert led.end() == -signal.SIGINT


def test_a_task_borrows_what_its_quota_allows(manager: Manager, start: Start) -> None:
    code, line = refused(manager, "--gpus", "1-3", "--elastic")
    assert code == 77
    assert "--gpus 3 is more than the quota of alice, 2" in line
    manager.quota("alice", 2, borrow=1)
    led = start(["--gpus", "1-3", "--elastic"])
    led.line("the training runs on 3 GPUs$")
    code, line = refused(manager, "--gpus", "1-4", "--elastic")
    assert code == 77
    assert "the quota of alice, 2, and the 1 that it may borrow" in line
    code, line = refused(manager, "--gpus", "1-3")
    assert code == 77, "a range that is decided once borrows nothing"
    assert "--gpus 3 is more than the quota of alice, 2" in line


def test_a_killed_leader_takes_its_workers_with_it(manager: Manager, start: Start) -> None:
    led = start(["--gpus", "2-2", "--elastic"])
    led.line("the training runs on 2 GPUs$")
    led.send(signal.SIGKILL)
    assert led.end() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--elastic"], "--elastic needs a range of GPUs"),
        (["--gpus", "2", "--elastic"], "--elastic needs a range of GPUs"),
        (["--gpus", "1-2", "--checkpoint", "x"], "--checkpoint is of elastic tasks"),
        (["--gpus", "2-1", "--elastic"], "2-1"),
        (["--gpus", "0-2", "--elastic"], "--gpus"),
        (["--gpus", "2-", "--elastic"], "--gpus"),
    ],
)
def test_a_wrong_command_line_is_refused(
    manager: Manager, options: list[str], expected: str
) -> None:
    code, line = refused(manager, *options)
    assert code == 2
    assert expected in line
    assert line.count("\n") <= 2
