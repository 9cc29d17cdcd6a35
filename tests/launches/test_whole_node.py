"""Launch gates of a whole node: programs that launch, shares that change, kills of both ends."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.launches.gated import tenant_program
from tests.support.limits import until
from tests.support.manager import Manager

GIB = 2**30
KERNEL = "sleep_us_50"
Make = Callable[..., Manager]


@pytest.fixture
def node(make_manager: Make) -> Manager:
    """A GPU on which alice has best effort, and bob may take all of it."""
    manager = make_manager(simulate="1x4GiB")
    manager.call(
        "quota_set", env="alice", gpus=1, memory_bytes=GIB, task_class="best-effort",
        compute_percent=80,
    )  # fmt: skip
    manager.call(
        "quota_set", env="bob", gpus=1, memory_bytes=GIB, task_class="latency-sensitive",
        compute_percent=100,
    )  # fmt: skip
    return manager


class Program:
    """A program that launches when it is asked."""

    def __init__(self, node: Manager, env: str) -> None:
        self.process: subprocess.Popen[str] = node.spawn(
            env, [str(tenant_program()), "step", KERNEL]
        )
        assert self.hears() == "ready"
        self.says("go")

    @property
    def pid(self) -> int:
        return self.process.pid

    def says(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hears(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def launches(self, count: int = 100) -> str:
        """The result of these launches."""
        self.says(f"launch {count}")
        return self.hears()


def task_of(node: Manager, program: Program) -> dict[str, Any]:
    tasks: list[dict[str, Any]] = node.call("status")["tasks"]
    return next(task for task in tasks if program.pid in task["pids"])


def test_a_program_of_an_env_with_a_share_passes_its_gate(node: Manager) -> None:
    program = Program(node, "alice")
    assert program.launches() == "0"
    task = task_of(node, program)
    assert (task["gate"], task["class"]) == ("limited", "best-effort")


def test_a_program_of_a_plain_env_passes_none(node: Manager) -> None:
    node.quota("carol", 1)
    program = Program(node, "carol")
    assert program.launches() == "0"
    assert task_of(node, program)["gate"] == "none"


def test_a_quota_that_changes_reaches_new_programs_only(node: Manager) -> None:
    node.quota("carol", 1)
    earlier = Program(node, "carol")
    assert earlier.launches() == "0"
    node.call("quota_set", env="carol", idle_ms=3_600_000)
    later = Program(node, "carol")
    assert later.launches() == "0"
    assert task_of(node, earlier)["gate"] == "none"
    assert task_of(node, later)["gate"] == "open"


def test_launches_wait_behind_a_closed_gate_and_go_on(node: Manager) -> None:
    slow, urgent = Program(node, "alice"), None
    assert slow.launches() == "0"
    urgent = Program(node, "bob")
    assert urgent.launches() == "0"
    assert task_of(node, slow)["gate"] == "closed"
    slow.says("launch 100")
    assert urgent.launches() == "0"
    urgent.process.kill()
    assert slow.hears() == "0", "its gate opens with the end of the other"
    until(lambda: task_of(node, slow)["gate"] == "limited")


def test_a_launch_of_a_suspended_program_brings_it_back(node: Manager) -> None:
    program = Program(node, "alice")
    assert program.launches() == "0"
    node.call("task_suspend", task="t1")
    assert program.launches() == "0"
    # the program goes on a moment before the manager hears of it
    until(lambda: task_of(node, program)["state"] == "running")
    until(lambda: task_of(node, program)["gate"] == "limited")


def test_a_suspended_program_asks_a_restarted_manager_too(node: Manager) -> None:
    program = Program(node, "alice")
    assert program.launches() == "0"
    node.call("task_suspend", task="t1")
    node.kill()
    program.says("launch 1")
    node.start()
    assert program.hears() == "0"


def test_a_killed_manager_stops_no_launch_and_loses_no_gate(node: Manager) -> None:
    program = Program(node, "alice")
    assert program.launches() == "0"
    node.kill()
    assert program.launches() == "0"
    node.start()
    while not task_of(node, program)["connected"]:
        assert program.launches() == "0"
    assert program.launches() == "0"
    until(lambda: task_of(node, program)["gate"] == "limited")


def test_a_gate_that_a_dead_manager_had_closed_opens_by_itself(node: Manager) -> None:
    slow = Program(node, "alice")
    assert slow.launches() == "0"
    urgent = Program(node, "bob")
    slow.says("launch 1")
    node.kill()
    assert slow.hears() == "0", "two seconds after the last beat"
    node.start()
    slow.says("launch 1")
    urgent.process.kill()
    assert slow.hears() == "0"


def test_a_killed_program_leaves_its_turn_to_others(node: Manager) -> None:
    node.call("quota_set", env="bob", task_class="normal", compute_percent=20)
    first, second = Program(node, "alice"), Program(node, "bob")
    first.says("launch 100000")
    assert second.launches() == "0"
    first.process.send_signal(signal.SIGKILL)
    assert second.launches() == "0"


def test_honest_programs_that_share_a_gpu_are_never_accused(node: Manager) -> None:
    """Both launch without pause for several readings of the manager."""
    node.call("quota_set", env="bob", task_class="normal", compute_percent=20)
    tenants = [
        node.spawn(env, [str(tenant_program()), "stream", kernel, "4000", "20"])
        for env, kernel in (("alice", "sleep_us_20"), ("bob", "sleep_us_2000"))
    ]
    for tenant in tenants:
        assert tenant.stdout is not None
        assert tenant.stdout.readline() == "ready\n"
    for tenant in tenants:
        assert tenant.stdin is not None
        tenant.stdin.write("go\n")
        tenant.stdin.flush()
    for tenant in tenants:
        assert tenant.stdout is not None
        assert tenant.stdout.readline().startswith("launches ")
    assert [tenant.wait() for tenant in tenants] == [0, 0]
    names = {event["name"] for event in node.call("events", since=0)["events"]}
    assert not names & {"gate.garbled", "audit.violation"}


def test_a_stopped_process_and_kernels_of_20_ms_accuse_none(node: Manager) -> None:
    """The holder of the token is stopped, as by a debugger, for several readings."""
    node.call("quota_set", env="bob", task_class="normal", compute_percent=20)
    tenants = [
        node.spawn(env, [str(tenant_program()), "stream", kernel, ms, "20"])
        for env, kernel, ms in (("alice", "sleep_us_20000", "4000"), ("bob", "sleep_us_20", "3000"))
    ]
    for tenant in tenants:
        assert tenant.stdout is not None
        assert tenant.stdin is not None
        assert tenant.stdout.readline() == "ready\n"
        tenant.stdin.write("go\n")
        tenant.stdin.flush()
    stopped, other = tenants
    stopped.send_signal(signal.SIGSTOP)
    assert other.wait() == 0
    stopped.send_signal(signal.SIGCONT)
    assert stopped.wait() == 0
    names = {event["name"] for event in node.call("events", since=0)["events"]}
    assert not names & {"gate.garbled", "audit.violation"}


THREADS = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
print(libc.getenv(b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), flush=True)
"""
"""Prints what the driver reads at its start."""


@pytest.mark.parametrize(("own", "found"), [(None, "b'80'"), ("100", "b'80'"), ("30", "b'30'")])
def test_where_mps_runs_a_grant_sets_the_percentage_of_threads(
    make_manager: Make, tmp_path: Path, own: str | None, found: str
) -> None:
    daemon = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", daemon)
    with subprocess.Popen([daemon, "600"]) as control:
        (tmp_path / "nvidia-cuda-mps-control.pid").write_text(f"{control.pid}\n")
        node = make_manager(
            simulate="1x4GiB", environment={"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
        )
        node.call("quota_set", env="alice", gpus=1, compute_percent=80)
        more = {} if own is None else {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": own}
        program = node.spawn("alice", [sys.executable, "-S", "-c", THREADS], **more)
        assert program.stdout is not None
        assert program.stdout.readline().strip() == found
        control.kill()
