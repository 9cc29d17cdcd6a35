"""The end of a killed leader: its workers, its exit code, and the next start of the training."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.elastic.led import TRAINEE, Led, workers_of
from tests.support.limits import WAIT_LIMIT_S, until
from tests.support.manager import Manager

SCRIPT = Path(__file__).with_name("with_gloo.py")


@pytest.fixture
def manager(make_manager: Callable[..., Manager]) -> Manager:
    manager = make_manager(simulate="2x8GiB", environment={"NODEMGR_OFFER_CALM_MS": "100"})
    manager.quota("alice", 2)
    return manager


def verb(manager: Manager, name: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "nodemgr", name, "--run-dir", str(manager.run_dir), *words]


def pids_of_task(manager: Manager, workers: int) -> tuple[int, list[int]]:
    """The leader of the only task, and its workers that use a GPU, once there are as many."""
    end_s = time.monotonic() + WAIT_LIMIT_S
    while time.monotonic() < end_s:
        pids = [pid for task in manager.status()["tasks"] for pid in task["pids"]]
        leaders = [pid for pid in pids if b"client_plugin/elastic" in _command(pid)]
        if leaders and len(pids) > workers:
            return leaders[0], [pid for pid in pids if pid not in leaders]
        time.sleep(0.05)
    raise AssertionError(manager.status()["tasks"])


def kill(leader: int, workers: list[int]) -> None:
    """Kill the leader; its workers end with it."""
    descriptors = [os.pidfd_open(pid) for pid in workers]
    os.kill(leader, signal.SIGKILL)
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], WAIT_LIMIT_S)[0]
        os.close(descriptor)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_shell_finds_exit_code_137(manager: Manager, tmp_path: Path) -> None:
    words = verb(manager, "run", "--env", "alice", "--gpus", "2-2", "--elastic", "--")
    line = shlex.join([*words, sys.executable, str(TRAINEE), "--child"])
    led = Led(tmp_path, "sh", "-c", f'{line}; echo "code $?"', own=True)
    try:
        led.line("the training runs on 2 GPUs$")
        leader, _ = pids_of_task(manager, 0)
        workers = workers_of(leader)
        assert len(workers) == 2
        kill(leader, list(workers.values()))
        led.line("^code 137$")
        assert led.end() == 0
    finally:
        led.close()
    assert manager.events().expect("task.ended")["env"] == "alice"


@pytest.mark.frameworks
@pytest.mark.slow
def test_a_job_starts_again_from_its_checkpoint(manager: Manager, tmp_path: Path) -> None:
    checkpoint, lines = tmp_path / "checkpoint", tmp_path / "lines"
    options = ["--env", "alice", "--gpus", "1-2", "--elastic", "--max-restarts", "1", "--"]
    command = [sys.executable, str(SCRIPT), str(checkpoint), str(lines)]
    submitted = subprocess.run(
        verb(manager, "submit", *options, *command), capture_output=True, text=True, check=True
    )
    job = submitted.stdout.strip()
    until(checkpoint.exists)
    leader, workers = pids_of_task(manager, 2)
    kill(leader, workers)
    count = len(lines.read_text().splitlines())
    shown: list[str] = []

    def has_resumed() -> bool:
        logs = subprocess.run(verb(manager, "logs", job), capture_output=True, text=True)
        shown[:] = re.findall(r"goes on from \S+ at step (\d+) of", logs.stdout)
        return bool(shown)

    until(has_resumed)
    until(lambda: len(lines.read_text().splitlines()) > count)
    steps = [json.loads(line)["step"] for line in lines.read_text().splitlines()]
    assert 0 < int(shown[0]) == steps[count] <= steps[count - 1] + 1
    subprocess.run(verb(manager, "queue", "withdraw", job), check=True, capture_output=True)
