"""The driver's own limit on an environment's container.

Set at the grant, changed with the quota, lifted at the end.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.node.programs import finish, said
from tests.supervisor.world import remove_cgroup
from tests.support.manager import HOLD, Manager

GIB = 2**30
ROOTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A real one, as a container has it."""
    root = next((root for root in ROOTS if (root / "cgroup.procs").exists()), None)
    try:
        assert root is not None
        made = root / f"nodemgr-test-{os.getpid()}"
        made.mkdir()
    except (AssertionError, OSError):
        pytest.skip("cannot make a cgroup here: needs root and cgroup v2")
    yield made
    remove_cgroup(made)


@pytest.fixture
def node(cgroup: Path, make_manager: Callable[..., Manager]) -> Manager:
    """After the cgroup, so that its programs end before that is removed."""
    manager = make_manager(simulate="1x16GiB", environment={"NODEMGR_BEAT_MS": "50"})
    manager.quota("alice", 1, memory_bytes=4 * GIB)
    return manager


def contained(
    node: Manager, cgroup: Path, gib: int, *, shim: bool, namespace: bool = True
) -> subprocess.Popen[str]:
    """hold in a container of alice's: the cgroup and a mount namespace."""
    enter = 'echo $$ > "$1" && shift && exec "$@"'
    command = [*(["unshare", "-m"] if namespace else []), str(HOLD), "-b", str(gib * GIB)]
    return node.spawn(
        "alice", ["/bin/sh", "-c", enter, "sh", str(cgroup / "cgroup.procs"), *command], shim=shim
    )


def doctors_line(node: Manager) -> str:
    (check,) = [
        check for check in node.call("doctor")["checks"] if check["name"] == "driver limits"
    ]
    assert check["ok"]
    return str(check["detail"])


def bypass_gets(node: Manager, cgroup: Path, gib: int) -> str | None:
    """The driver's own answer to a program in the container that goes round the shim.

    None: it has the memory.
    """
    program = contained(node, cgroup, gib, shim=False)
    error: str | None = said(program)["error"]
    finish(program)
    return error


def test_what_goes_round_the_shim_in_a_container_meets_the_driver(
    node: Manager, cgroup: Path
) -> None:
    events = node.events()
    holder = contained(node, cgroup, 1, shim=True)
    assert said(holder)["error"] is None
    assert "keeps 1 limits" in doctors_line(node)
    assert bypass_gets(node, cgroup, 4) == "CUDA_ERROR_OUT_OF_MEMORY"
    node.quota("alice", 1, memory_bytes=8 * GIB)
    doctors_line(node)  # a reading of the GPUs, after the order in the same thread
    assert bypass_gets(node, cgroup, 4) is None
    finish(holder)
    events.expect("task.ended")
    assert "keeps 0 limits" in doctors_line(node)
    assert bypass_gets(node, cgroup, 12) is None, "lifted"


def test_a_cgroup_that_is_no_container_is_left_alone(node: Manager, cgroup: Path) -> None:
    holder = contained(node, cgroup, 1, shim=True, namespace=False)
    said(holder)
    assert "keeps 0 limits" in doctors_line(node)
    finish(holder)


def test_a_cgroup_of_two_environments_is_left_alone(node: Manager, cgroup: Path) -> None:
    node.quota("bob", 1, memory_bytes=4 * GIB)
    holder = contained(node, cgroup, 1, shim=True)
    said(holder)
    other = node.spawn(
        "bob", ["/bin/sh", "-c", f"echo $$ > {cgroup}/cgroup.procs && exec unshare -m {HOLD}"]
    )
    said(other)
    assert "keeps 0 limits" in doctors_line(node)
    finish(other)
    node.events().expect("task.ended", env="bob")
    assert "keeps 1 limits" in doctors_line(node)


def test_a_later_manager_lifts_what_an_earlier_one_set(node: Manager, cgroup: Path) -> None:
    holder = contained(node, cgroup, 1, shim=True)
    said(holder)
    node.kill()
    finish(holder)
    node.start()
    doctors_line(node)
    assert bypass_gets(node, cgroup, 12) is None
