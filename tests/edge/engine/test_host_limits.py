"""Limits on host memory beside suspended tasks: raised before, lowered after, the same anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nodemgr.edge.engine import host_limits
from nodemgr.edge.engine.host_limits import HostLimits
from nodemgr.edge.executor.interface import nothing
from nodemgr.edge.kernel import cgroups
from tests.core.world import GIB, Node
from tests.support.no_factory import NoFactory

ENV_GIB, COMMAND_GIB, JOB_GIB, MOVED_GIB = 40, 16, 10, 30
COMMAND, JOB = f"alice/run-1.77.{COMMAND_GIB * GIB}", "alice/j1.1"


class Kernel(NoFactory):
    """Executes limits as the launcher does: none below the present use."""

    def __init__(self, scope: Path) -> None:
        self.directory, self.is_there = scope, True
        self.used: dict[str, int] = {}

    def state(self) -> tuple[bool, str]:
        return self.is_there, ""

    def scope(self) -> str:
        return str(self.directory) if self.is_there else ""

    def limit_cgroups(
        self, limits: Sequence[tuple[str, str]], then: Callable[[], None] = nothing
    ) -> None:
        for name, limit in limits:
            file, _, value = limit.partition(" ")
            if file == "memory.max":
                lowest = self.used.get(name, 0)
                wanted = value if value == "max" else str(max(int(value), lowest))
                (self.directory / name / file).write_text(f"{wanted}\n")
        then()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Of alice: t1, the process 1 of a limited command, and j1, a limited job without a GPU."""
    made = Node(1, node_memory_bytes=100 * GIB)
    made.quota("alice", 1, host_memory_bytes=ENV_GIB * GIB)
    made.quota("bob", 1)
    made.asks("alice", 1)
    job = made.submits("alice", gpus=0, host_memory_bytes=JOB_GIB * GIB)
    assert job == "j1"
    for name in ("alice", COMMAND, JOB, "alice/run-2.5", "bob"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.max").write_text("max\n")
    (tmp_path / "alice" / "memory.max").write_text(f"{ENV_GIB * GIB}\n")
    monkeypatch.setattr(cgroups, "directory_of", lambda pid: tmp_path / COMMAND)
    return made


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def limits_of(node: Node, kernel: Kernel) -> HostLimits:
    """Of a manager that begins now."""
    return HostLimits(asyncio.new_event_loop(), node.state, kernel)


def gib(kernel: Kernel, *names: str) -> list[float | str]:
    texts = [(kernel.directory / name / "memory.max").read_text().strip() for name in names]
    return [int(text) / GIB if text.isdigit() else text for text in texts]


def test_limits_are_raised_for_a_suspension_and_lowered_after_it(
    node: Node, kernel: Kernel
) -> None:
    limits = limits_of(node, kernel)
    limits.settle_all()
    of_all = ("alice", COMMAND, JOB, "alice/run-2.5", "bob")
    plain = [ENV_GIB, COMMAND_GIB, JOB_GIB, "max", "max"]
    assert gib(kernel, *of_all) == plain
    node.suspends("t1")
    node.is_measured("t1", MOVED_GIB * GIB)
    raised: list[object] = []
    limits.before_suspension("alice", lambda: raised.append(gib(kernel, *of_all)))
    assert raised == [[ENV_GIB + MOVED_GIB, COMMAND_GIB + MOVED_GIB, *plain[2:]]]
    assert limits.of_env("alice")[1] == f"memory.max {(ENV_GIB + MOVED_GIB) * GIB}"
    node.is_out("t1")
    node.resumes("t1")
    limits.settle("alice")
    assert gib(kernel, *of_all) == raised[0]
    node.is_back("t1")
    limits.settle("alice")
    assert gib(kernel, *of_all) == plain


@pytest.mark.parametrize("ends", ["resume", "death", "failure"])
@pytest.mark.parametrize("killed", ["measured", "raised", "out", "before lowering"])
def test_a_manager_that_begins_anywhere_writes_the_same(
    node: Node, kernel: Kernel, killed: str, ends: str
) -> None:
    """Only the store is left of the earlier one."""
    limits = limits_of(node, kernel)
    node.suspends("t1")
    node.is_measured("t1", MOVED_GIB * GIB)
    if killed != "measured":
        limits.settle("alice")
    if killed in ("measured", "raised", "out"):
        limits = limits_of(node, kernel)
        limits.settle_all()
    assert gib(kernel, "alice", COMMAND) == [ENV_GIB + MOVED_GIB, COMMAND_GIB + MOVED_GIB]
    if ends == "failure":
        node.suspension_fails("t1")
    else:
        node.is_out("t1")
        if ends == "resume":
            node.resumes("t1")
            node.is_back("t1")
        else:
            node.dies(1)
    if killed == "before lowering":
        limits = limits_of(node, kernel)
        limits.settle_all()
    else:
        limits.settle("alice")
    assert gib(kernel, "alice", COMMAND, JOB) == [ENV_GIB, COMMAND_GIB, JOB_GIB]


def test_a_limit_below_what_is_in_use_is_lowered_later(
    node: Node, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.suspends("t1")
    node.is_measured("t1", MOVED_GIB * GIB)
    limits = limits_of(node, kernel)
    limits.settle("alice")
    node.suspension_fails("t1")
    kernel.used = {"alice": 60 * GIB, COMMAND: 0}
    limits.settle("alice")
    assert gib(kernel, "alice", COMMAND) == [60, COMMAND_GIB]
    kernel.used = {"alice": 45 * GIB}
    limits._check_again()
    assert gib(kernel, "alice") == [45]
    kernel.used = {}
    limits._check_again()
    assert gib(kernel, "alice") == [ENV_GIB]
    limits._check_again()
    assert limits._timer is None, "nothing is left to lower"


def test_a_suspension_waits_a_moment_for_a_launcher_that_is_about_to_answer(
    node: Node, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_limits, "LAUNCHER_S", 0.0)
    node.suspends("t1")
    node.is_measured("t1", MOVED_GIB * GIB)
    limits, seen = limits_of(node, kernel), list[object]()
    kernel.is_there = False
    limits.before_suspension("alice", lambda: seen.append(gib(kernel, COMMAND)))
    assert not seen
    kernel.is_there = True
    limits._loop.run_until_complete(asyncio.sleep(0.01))
    assert seen == [[COMMAND_GIB + MOVED_GIB]]
    kernel.is_there = False
    limits.before_suspension("alice", lambda: seen.append("without"))
    while len(seen) < 2:
        limits._loop.run_until_complete(asyncio.sleep(0.01))
    limits.close()


def test_the_kernels_rounding_to_pages_is_no_difference(node: Node, kernel: Kernel) -> None:
    limits = limits_of(node, kernel)
    limits.settle_all()
    node.quota("alice", 1, host_memory_bytes=ENV_GIB * GIB + 1)
    assert not list(limits._changes("alice"))
    node.quota("alice", 1)
    assert list(limits._changes("alice")) == [("alice", "memory.max max")]
    kernel.is_there = False
    assert not list(limits._changes("alice"))


def test_the_directories_of_jobs_under_way_are_those_of_this_node(
    node: Node, kernel: Kernel
) -> None:
    limits = limits_of(node, kernel)
    assert limits.leaves() == {"j1": kernel.directory / JOB}
    kernel.is_there = False
    assert limits.leaves() == {}
