"""The manager under a stand-in for systemd: start, watchdog, ledgers kept over its death."""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.node.programs import finish, said
from tests.support.manager import Manager
from tests.support.supervisor import Supervisor

GIB = 2**30
PR_CAPBSET_DROP, CAP_SYS_PTRACE = 24, 19
Make = Callable[..., Manager]


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with tempfile.TemporaryDirectory(prefix="nm", dir="/tmp") as directory:
        supervisor = Supervisor(Path(directory))
        yield supervisor
        supervisor.close()


def blind() -> None:
    """A manager that may not look into other processes."""
    assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0) == 0


def test_a_service_says_when_it_is_ready_and_when_it_ends(
    make_manager: Make, supervisor: Supervisor
) -> None:
    manager = make_manager(simulate="1x8GiB", supervisor=supervisor)
    assert supervisor.hear() == "READY=1"
    manager.stop()
    assert supervisor.hear() == "STOPPING=1"


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root's manager can be made blind to root's processes"
)
def test_a_kept_ledger_serves_where_no_client_can_show_it(
    make_manager: Make, supervisor: Supervisor
) -> None:
    """The client is stopped and cannot rejoin; this manager may not read its descriptors."""
    manager = make_manager(
        simulate="1x8GiB",
        supervisor=supervisor,
        before_exec=blind,
        environment={"NODEMGR_BEAT_MS": "50", "NODEMGR_TIMEOUT_MS": "1500"},
    )
    manager.quota("alice", 1, memory_bytes=4 * GIB)
    program = manager.hold("alice", "-b", str(GIB))
    assert said(program)["error"] is None
    supervisor.hear_all()
    kept = {os.fstat(fd).st_ino for fd in supervisor.store.values()}
    assert len(kept) == 2
    os.kill(program.pid, signal.SIGSTOP)
    events = manager.events(since=None)
    manager.restart()
    events.expect("task.stalled", env="alice")
    supervisor.hear_all()
    assert len({os.fstat(fd).st_ino for fd in supervisor.store.values()} & kept) == 1, (
        "the usage file is the same"
    )
    assert "lost" not in manager.log
    os.kill(program.pid, signal.SIGCONT)
    events.expect("task.resumed", env="alice")
    second = manager.hold("alice", "-b", str(4 * GIB))
    assert said(second)["error"] == "CUDA_ERROR_OUT_OF_MEMORY", (
        "what was allocated before the restart counts"
    )
    assert finish(program) == (0, "")
    finish(second)
    while supervisor.store:  # a ledger without tasks is kept no longer
        supervisor.hear()


def test_the_watchdog_is_patted_until_no_client_can_find_the_manager(
    make_manager: Make, supervisor: Supervisor
) -> None:
    supervisor.watchdog_us = 100_000
    manager = make_manager(simulate="1x8GiB", supervisor=supervisor)
    for _ in range(3):
        supervisor.hear_until("WATCHDOG=1")
    manager.run_dir.rename(manager.run_dir.with_name("elsewhere"))
    assert manager.wait() == 1
    supervisor.hear_all()
    assert supervisor.heard[-1] == "STOPPING=1"
    assert f"{manager.run_dir} or its sockets were removed or replaced" in manager.log


@pytest.mark.parametrize("lost", [".", "manager.lock", "control.sock"])
def test_a_manager_whose_run_directory_goes_ends_and_the_next_one_has_its_tasks(
    make_manager: Make, lost: str
) -> None:
    """As a cleaner of /tmp or logind removes it. It does not go on where no client finds it."""
    manager = make_manager(simulate="1x8GiB")
    manager.quota("alice", 1)
    program = manager.hold("alice", "-b", str(GIB))
    assert said(program)["error"] is None
    if lost == ".":
        manager.run_dir.rename(manager.run_dir.with_name("elsewhere"))
    else:
        (manager.run_dir / lost).unlink()
    assert manager.wait() == 1
    assert f"{manager.run_dir} or its sockets were removed or replaced" in manager.log
    if lost != ".":  # a simulated node's GPUs are in there
        manager.start()
        assert [row["id"] for row in manager.status()["tasks"]] == ["t1"]
