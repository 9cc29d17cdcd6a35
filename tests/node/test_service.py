"""The manager under a stand-in for systemd: start, watchdog, ledgers kept over its death."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.node.programs import finish, said
from tests.session import TMP
from tests.support.manager import Manager
from tests.support.ordinary import UID, become_ordinary
from tests.support.supervisor import Supervisor

GIB = 2**30
PR_CAPBSET_DROP, CAP_SYS_PTRACE = 24, 19
Make = Callable[..., Manager]


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as directory:
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


@pytest.mark.parametrize("lost", [".", "manager.lock", "control.sock", "envs/alice/client.conf"])
def test_a_manager_whose_run_directory_goes_ends_and_the_next_one_has_its_tasks(
    make_manager: Make, lost: str
) -> None:
    """As a cleaner of /tmp or logind removes it, or a part of it."""
    manager = make_manager(simulate="1x8GiB")
    manager.quota("alice", 1)
    program = manager.hold("alice", "-b", str(GIB))
    assert said(program)["error"] is None
    gone = manager.run_dir / lost
    if gone.is_dir():
        gone.rename(manager.directory / "old")
    else:
        gone.unlink()
    if os.geteuid() == 0:
        assert manager.wait() == 1
        assert "is gone, and the manager ends: start it again" in manager.log
        manager.start()
    else:
        manager.wait_for_line("1 running task found again")
        assert manager.log.count("is gone, and the manager begins anew") == 1
    (event,) = [row for row in manager.call("events")["events"] if row["name"] == "rundir.lost"]
    assert (event["missing"].startswith(str(gone)), event["containers"]) == (True, [])
    if lost != ".":  # a simulated node's GPUs are in there
        assert [row["id"] for row in manager.status()["tasks"]] == ["t1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's manager")
def test_an_ordinary_users_manager_makes_its_run_directory_again(make_manager: Make) -> None:
    """It is ended by SIGTERM as before, and its jobs begin with no signal blocked."""
    manager = make_manager(simulate="1x8GiB", before_exec=become_ordinary, start=False)
    os.chown(manager.directory, UID, UID)
    manager.start()
    manager.quota("alice", 1)
    for _ in range(2):
        gone = manager.run_dir.rename(manager.directory / "gone")  # at once, and not file by file
        shutil.rmtree(gone)
        manager.wait_for_line("ready on ")
    assert manager.log.count("is gone, and the manager begins anew") == 2
    assert [row["name"] for row in manager.status()["envs"]] == ["alice"]
    assert manager.process is not None
    me = psutil.Process(manager.process.pid)
    for process in (me, *me.children(recursive=True)):
        try:
            text = Path(f"/proc/{process.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # a child of a moment
            continue
        (blocked,) = re.findall(r"SigBlk:\t(\w+)", text)
        assert not int(blocked, 16) & 1 << (signal.SIGTERM - 1), process
    manager.close()  # it ends with 0, or this fails


def test_a_service_whose_run_directory_goes_is_started_again(
    make_manager: Make, supervisor: Supervisor
) -> None:
    manager = make_manager(simulate="1x8GiB", supervisor=supervisor)
    (manager.run_dir / "control.sock").unlink()
    assert manager.wait() == 1
    supervisor.hear_all()
    assert supervisor.heard[-1] == "STOPPING=1"
    assert "control.sock is gone, and the manager ends" in manager.log


def test_a_manager_in_whose_place_another_runs_ends(make_manager: Make) -> None:
    first = make_manager(simulate="1x8GiB")
    (first.run_dir / "manager.lock").unlink()
    second = make_manager(start=False)
    second.run_dir = first.run_dir
    second.start()
    assert first.wait() == 1
    assert "manager.lock is gone" in first.log
    assert second.call("ping")["pid"] == second.pid
