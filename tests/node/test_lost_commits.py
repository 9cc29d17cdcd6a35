"""The manager is killed and the middle of its log damaged.

The store reports and keeps what it lost, and starts no job twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodemgr.edge.store.journal import Reached, StoreMark, lost
from tests.support.limits import until
from tests.support.manager import HOLD, WAIT_LIMIT_S, Manager
from tests.support.processes import is_running
from tests.support.udp_clients import FakeClient

FRAME_BYTES, HEADER_BYTES = 4_096 + 24, 32
GIB = 2**30
Make = Callable[..., Manager]


class Node:
    """A real manager and one environment; a job's script waits at a gate."""

    def __init__(self, make_manager: Make) -> None:
        self.manager = make_manager(
            simulate="2x16GiB", environment={"NODEMGR_DISK_RESERVE_BYTES": str(2**26)}
        )
        self.manager.quota("alice", 2)
        self.gate = self.manager.directory / "gate"
        os.mkfifo(self.gate)
        self.begun = self.manager.directory / "begun"
        self._frames = 0

    def nodemgr(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "NODEMGR_RUN_DIR": str(self.manager.run_dir)}
        return subprocess.run(
            [sys.executable, "-m", "nodemgr", *words],
            env=environment,
            capture_output=True,
            text=True,
        )

    def submit(self, *options: str) -> str:
        script = f"echo $NODEMGR_JOB $$ >> {self.begun}; read line < {self.gate}"
        return self.nodemgr(
            "submit", "--env", "alice", "--gpus", "1", *options, "--", "sh", "-c", script
        ).stdout.strip()

    def until_started(self, job: str) -> None:
        """Until the manager knows it, and the job's own script has said so."""
        self.manager.events().expect("job.started", job=job)
        until(lambda: self.begun.exists() and self.begun.read_text().endswith("\n"))

    def remember(self) -> None:
        """The present store stays, and later commits will be lost."""
        index = (self.manager.state_dir / "state.db-shm").read_bytes()
        self._frames = int.from_bytes(index[16:20], sys.byteorder)

    def kill_and_damage(self) -> None:
        self.manager.kill()
        with open(self.manager.state_dir / "state.db-wal", "r+b") as log:
            log.seek(HEADER_BYTES + self._frames * FRAME_BYTES + 500)
            log.write(os.urandom(1_000))
        self.manager.start()

    def starts(self) -> list[str]:
        return [line.split()[0] for line in self.begun.read_text().splitlines()]

    def pid(self) -> int:
        return int(self.begun.read_text().split()[1])

    def check(self, name: str) -> dict[str, Any]:
        (row,) = [row for row in self.manager.call("doctor")["checks"] if row["name"] == name]
        return dict(row)

    def open_gate(self) -> None:
        self.gate.write_text("go\n")


@pytest.fixture
def node(make_manager: Make) -> Node:
    return Node(make_manager)


def until_ended(pid: int) -> None:
    until(lambda: not is_running(pid))


def test_jobs_that_the_store_forgot_are_told_and_what_runs_of_them_stays_under_control(
    node: Node,
) -> None:
    node.remember()
    assert [node.submit(), node.submit("--hold")] == ["j1", "j2"]
    node.until_started("j1")
    node.kill_and_damage()
    assert node.manager.status()["jobs"] == []
    lines = [line for line in node.manager.log.splitlines() if "state.db lacks its last" in line]
    assert len(lines) == 1
    assert "jobs j1 to j2 were submitted and are not known any more" in lines[0]
    assert "running, and not known to the store: j1 (start 1)" in node.manager.log
    assert is_running(node.pid())
    row = node.check("known jobs")
    assert (row["ok"], "j1 (start 1)" in row["detail"]) == (False, True)
    assert "nodemgr events --since 0 --name store.lost" in row["detail"], (
        "the doctor names the last loss alone"
    )
    assert node.manager.events().expect("store.lost")["reason"] in lines[0]
    assert node.manager.events().expect("job.unknown")["running"] == ["j1 (start 1)"]
    assert node.submit("--hold") == "j3", "no name is given twice"
    assert node.starts() == ["j1:1"]
    pid = node.pid()
    assert node.nodemgr("queue", "withdraw", "j9").returncode == 1
    several = node.nodemgr("queue", "withdraw", "j9", "j1", "j3")
    assert several.stderr.splitlines()[:2] == [
        "nodemgr: j1 is withdrawn",
        "nodemgr: j3 is withdrawn",
    ]
    assert several.stderr.splitlines()[2].startswith("nodemgr: there is no job 'j9'")
    assert (several.returncode, len(several.stderr.splitlines())) == (1, 3)
    until_ended(pid)
    assert node.starts() == ["j1:1"]
    assert (node.manager.state_dir / "jobs" / "j1" / "1").is_dir(), "its files are kept"


def test_a_start_that_the_store_forgot_is_not_done_again(node: Node) -> None:
    assert node.submit("--hold") == "j1"
    node.remember()
    assert node.nodemgr("queue", "unhold", "j1").returncode == 0
    node.until_started("j1")
    node.kill_and_damage()
    assert "running, and not known to the store: j1 (start 1)" in node.manager.log
    pid = node.pid()
    assert node.nodemgr("queue", "unhold", "j1").returncode == 0
    node.until_started("j1")
    assert (node.starts(), node.pid(), is_running(pid)) == (["j1:1"], pid, True)
    assert node.check("known jobs")["ok"] is False, "the store has lost events all the same"
    node.open_gate()
    assert node.manager.events().expect("job.ended", job="j1")["state"] == "done"
    assert node.starts() == ["j1:1"]


def test_the_gpu_of_a_job_that_the_store_forgot_is_not_granted_again(node: Node) -> None:
    node.manager.quota("bob", 2)
    node.remember()
    words = (
        "submit",
        "--env",
        "alice",
        "--gpus",
        "2",
        "--",
        str(HOLD),
        "-b",
        str(8 * GIB),
        "-s",
        "600",
    )
    assert node.nodemgr(*words).stdout == "j1\n"
    deadline = time.monotonic() + WAIT_LIMIT_S
    while sum(gpu["memory_used_bytes"] or 0 for gpu in node.manager.status()["gpus"]) < 8 * GIB:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    node.kill_and_damage()
    assert node.manager.status()["tasks"] == []
    with FakeClient(node.manager.env_dir("bob")) as bob:
        bob.ask(2)
        said = bob.receive()
        assert said is not None
        assert said["verb"] == "WAIT", (said, node.manager.status(), node.manager.log)
        assert (said["verb"], "in use by programs without a lease" in said["reason"]) == (
            "WAIT",
            True,
        )
        assert node.nodemgr("queue", "withdraw", "j1").returncode == 0
        bob.expect("GRANT")


def test_a_kill_without_damage_loses_nothing_and_says_nothing(node: Node) -> None:
    assert node.submit("--hold") == "j1"
    node.manager.restart()
    assert "lacks" not in node.manager.log
    assert node.check("known jobs")["ok"] is True


def test_a_new_store_is_not_an_older_one(node: Node) -> None:
    assert node.submit("--hold") == "j1"
    node.manager.stop()
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (node.manager.state_dir / name).unlink(missing_ok=True)
    for _ in range(2):
        node.manager.start()
        assert "lacks" not in node.manager.log
        node.manager.quota("alice", 2)
        node.manager.kill()
    node.manager.start()
    assert node.submit("--hold") == "j2"


# -- the mark --


@pytest.mark.parametrize("content", [b"", b"garbage\n", b"0 1 2\n", b"\xff" * 500])
def test_a_mark_that_cannot_be_read_marks_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mark"
    path.write_bytes(content)
    mark = StoreMark(path)
    assert mark.before == Reached()
    mark.write(5, 2)
    mark.close()
    again = StoreMark(path)
    assert again.before == Reached(5, 2)
    again.close()


def test_a_mark_of_another_boot_marks_nothing(tmp_path: Path) -> None:
    mark = StoreMark(tmp_path / "mark")
    mark.write(5, 2)
    mark.close()
    text = (tmp_path / "mark").read_bytes()
    (tmp_path / "mark").write_bytes(b"0" * text.index(b" ") + text[text.index(b" ") :])
    again = StoreMark(tmp_path / "mark")
    assert again.before == Reached()
    again.close()


def test_what_was_lost_is_said_in_one_line() -> None:
    assert lost(Reached(5, 2), Reached(5, 2)) == lost(Reached(5, 2), Reached(9, 3)) == ""
    said = (
        "state.db lacks its last event of before this start: its log was damaged, or it is an older"
        " copy"
    )
    assert lost(Reached(5, 2), Reached(4, 2)) == said
    assert "its last 3 events" in lost(Reached(5, 2), Reached(2, 1))
    assert "; job j2 was submitted" in lost(Reached(5, 2), Reached(2, 1))
