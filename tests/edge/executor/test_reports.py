"""Reports of a supervisor in a container: on a slow disk they do not fill the manager's memory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodemgr.core.model.entities import Cause, RunSpec
from nodemgr.edge.executor import local, runner_registry
from nodemgr.edge.executor.attempt_directory import (
    RECORD_LINE_BYTES,
    Beginning,
    End,
    record_line,
)
from nodemgr.edge.executor.interface import RunOrder
from nodemgr.edge.executor.launcher import LauncherEndpoint
from nodemgr.edge.executor.local import MOST_UNWRITTEN, NodeFactory
from nodemgr.edge.kernel.processes import process_key, start_ticks
from nodemgr.edge.rpc.operation import OperationError
from tests.support.processes import lasting_fds, open_fds

NAME, PLACE = ("j1", 1), "box"


@pytest.fixture(name="factory")
def _factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    loop = asyncio.new_event_loop()
    listener: Any = SimpleNamespace(
        launch_host_changed=lambda *_: None, started=lambda *_: None, ended=lambda *_: None
    )
    monkeypatch.setattr(
        runner_registry.Runners, "start", lambda *_: True
    )  # its supervisor is this test
    factory = NodeFactory(loop, listener, tmp_path, LauncherEndpoint(tmp_path))
    yield factory
    factory.close()
    loop.close()


@pytest.fixture(name="session")
def _session(factory: NodeFactory) -> Any:
    identity = SimpleNamespace(uid=os.getuid(), gid=os.getgid())
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    order = RunOrder(
        *NAME, "alice", RunSpec("true", 0, None, None, place=PLACE), (), "root", identity.uid,
        identity.gid, ("true",), "/", (),
    )  # fmt: skip
    factory.create(order)
    return SimpleNamespace(
        identity=identity, key=process_key(os.getpid(), ticks), spend=lambda _: None
    )


def test_few_reports_wait_for_the_disk(
    factory: NodeFactory, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    monkeypatch.setattr("nodemgr.edge.executor.output_writer.write_output", lambda *_: disk.wait())
    os.close(factory.claimed(NAME, PLACE, session).order)
    told: list[bool] = []
    say: Callable[[], None] = lambda: factory.reported(  # noqa: E731
        NAME, session, "OUTPUT", {"at": 0, "size": 1}, told.append
    )
    for _ in range(MOST_UNWRITTEN):
        say()
    with pytest.raises(OperationError, match="does not take"):
        say()
    os.close(factory.claimed(NAME, PLACE, session).order)  # a new connection changes nothing
    with pytest.raises(OperationError, match="does not take"):
        say()
    disk.set()
    loop = factory._loop
    while len(told) < MOST_UNWRITTEN:
        loop.run_until_complete(asyncio.sleep(0))
    say()


def test_a_claim_that_fails_keeps_no_descriptor(
    factory: NodeFactory, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(_size_bytes: int) -> int:
        raise OSError(24, "too many open files")

    os.close(factory.claimed(NAME, PLACE, session).order)
    before = lasting_fds()
    monkeypatch.setattr(local, "new_sheet", exhausted)
    with pytest.raises(OperationError, match="too many open files"):
        factory.claimed(NAME, PLACE, session)
    assert len(open_fds() - before) == 0
    with pytest.raises(OperationError):  # there is no sheet to read
        factory.reported(NAME, session, "OUTPUT", {"at": 0, "size": 1}, lambda _: None)


def test_an_earlier_versions_attempt_in_a_container_is_watched_to_its_end(
    factory: NodeFactory, session: Any, tmp_path: Path
) -> None:
    """Its supervisor has the files open, says nothing to the manager, and writes no boot time."""
    ended: list[Any] = []
    supervisor = subprocess.Popen(["sleep", "3600"])
    ticks = start_ticks(supervisor.pid)
    assert ticks is not None
    directory = tmp_path / NAME[0] / str(NAME[1])
    (directory / "free").rename(directory / f"claim.{supervisor.pid}.{ticks}")
    began = Beginning(time.time_ns(), supervisor.pid, ticks, 0)
    (directory / "record").write_bytes(record_line(began)[0] + b" " * RECORD_LINE_BYTES)
    (directory / "log").write_bytes(b"output")
    factory._attempts.clear()  # as after a restart
    factory._listener.ended = lambda *end: ended.append(end)
    assert factory.adopt([NAME]) == []
    loop = factory._loop
    while factory._attempts[NAME].key is None:
        loop.run_until_complete(asyncio.sleep(0))
    with pytest.raises(OperationError):  # a new claim gets no file
        factory.claimed(NAME, PLACE, session)
    end = End(began.wall_ns + 1, 3, None, Cause.OWN, "")
    with (directory / "record").open("r+b") as file:
        line, at = record_line(end)
        os.pwrite(file.fileno(), line, at)
    supervisor.kill()
    supervisor.wait()
    while not ended:
        loop.run_until_complete(asyncio.sleep(0.001))
    assert (ended[0][2].exit_code, ended[0][2].cause) == (3, Cause.OWN)
    log = (directory / "log").read_bytes()
    assert log.startswith(b"output\nnodemgr: an earlier version's client")
    assert log.endswith(b"\n")
