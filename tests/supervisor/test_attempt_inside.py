"""The program for jobs in containers, under the sanitizers, with a manager that the test plays."""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from csrc import build
from nodemgr.core.model.entities import RunSpec
from nodemgr.edge.executor.attempt_directory import AttemptFiles
from nodemgr.edge.executor.interface import RunOrder
from nodemgr.edge.rpc import wire
from nodemgr.edge.rpc.shared_buffers import new_sheet
from tests.client_c.compiled import ENVIRONMENT, compile_c
from tests.support.limits import WAIT_LIMIT_S

JOB: dict[str, Any] = {"job": "j1", "attempt": 1}


class PlayedManager:
    """Its socket, and the sealed order and the sheet of one attempt."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind(str(directory / "socket"))
        self.socket.listen()
        self.socket.settimeout(WAIT_LIMIT_S)
        (directory / "client.conf").write_text("env=alice\naddress=unix:socket\n")
        self.sheet = new_sheet(65_536)
        self.processes: list[int] = []

    def order(self, script: str) -> int:
        files = AttemptFiles(self.directory / "jobs", JOB["job"], JOB["attempt"])
        files.write(
            RunOrder(
                JOB["job"], JOB["attempt"], "alice", RunSpec(script, 0, None, None, place="box"),
                (), "root", os.getuid(), os.getgid(), ("/bin/sh", "-c", script), "/",
                (f"PATH={os.environ['PATH']}",),
            ),
            1_000,
            "boot",
        )  # fmt: skip
        return files.sealed_order()

    def accept(self) -> socket.socket:
        peer, _ = self.socket.accept()
        peer.settimeout(WAIT_LIMIT_S)
        return peer

    def claim(self) -> tuple[socket.socket, int, int]:
        """The connection of an attempt, its PID and the request's id."""
        peer = self.accept()
        verb, fields = hear(peer)
        assert verb == "CLAIM"
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("3i", credentials)[0]
        self.processes.append(os.pidfd_open(pid))
        return peer, pid, fields["rid"]

    def answer_claim(self, peer: socket.socket, rid: int, order: int, at: int = 0) -> None:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [order, self.sheet]))
        peer.sendmsg([wire.encode("CLAIMED", rid=rid, at=at, size=0)], [rights])


def hear(peer: socket.socket) -> tuple[str, dict[str, Any]]:
    verb, fields = wire.decode(peer.recv(wire.PACKET_BYTES), wire.Direction.UP)
    return verb, dict(fields)


def until_ended(manager: PlayedManager, peer: socket.socket) -> tuple[bytes, str]:
    """Acknowledges all words; the output, and the end."""
    output = b""
    while True:
        verb, fields = hear(peer)
        if verb == "OUTPUT":
            assert fields["at"] == len(output)
            output += os.pread(manager.sheet, fields["size"], 0)
        peer.send(wire.encode("ACK", rid=fields["rid"]))
        if verb == "ENDED":
            return output, fields["text"]


@pytest.fixture(name="manager")
def _manager(tmp_path: Path) -> Iterator[PlayedManager]:
    manager = PlayedManager(tmp_path)
    yield manager
    manager.socket.close()
    for process in manager.processes:
        with contextlib.suppress(ProcessLookupError):  # a test that failed leaves it
            signal.pidfd_send_signal(process, signal.SIGKILL)
    for descriptor in (manager.sheet, *manager.processes):
        os.close(descriptor)


@pytest.fixture(name="begin")
def _begin(tmp_path: Path, manager: PlayedManager) -> Iterator[Callable[[], None]]:
    """Begins the runner and has it start the attempt."""
    sources = [each for each in build.sources_of("nodemgr-runner") if each.name != "start.c"]
    program = compile_c(tmp_path / "nodemgr-runner", sources, sanitizer="address")
    log = tmp_path / "sanitizer"
    options = {**ENVIRONMENT, "ASAN_OPTIONS": f"{ENVIRONMENT['ASAN_OPTIONS']}:log_path={log}"}
    with contextlib.ExitStack() as open_until_the_end:

        def begin() -> None:
            starter = subprocess.Popen([program, str(tmp_path)], env={**os.environ, **options})
            runner = open_until_the_end.enter_context(manager.accept())
            runner.send(wire.encode("ACK", rid=hear(runner)[1]["rid"]))
            assert starter.wait(WAIT_LIMIT_S) == 0
            runner.send(wire.encode("START", **JOB))
            open_until_the_end.callback(
                runner.send, wire.encode("DISMISS", reason="the test is over")
            )

        yield begin
    assert [each.read_text() for each in tmp_path.glob("sanitizer*")] == []


def test_output_and_end_reach_the_manager(
    begin: Callable[[], None], manager: PlayedManager
) -> None:
    begin()
    peer, _, rid = manager.claim()
    manager.answer_claim(peer, rid, manager.order("seq 100000; exit 3"))
    output, end = until_ended(manager, peer)
    assert output == b"".join(b"%d\n" % number for number in range(1, 100_001))
    assert end.split()[2:4] == ["3", "-"]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_before_the_order_ends_the_job(
    begin: Callable[[], None], manager: PlayedManager, number: int
) -> None:
    begin()
    peer, pid, rid = manager.claim()
    os.kill(pid, number)
    peer.send(wire.encode("LIMIT", limit_ms=1, **JOB))  # nor is its memory there yet
    manager.answer_claim(peer, rid, manager.order("exec sleep infinity"))
    _, end = until_ended(manager, peer)
    assert end.startswith("ended ")


def test_places_that_no_output_has_break_nothing(
    begin: Callable[[], None], manager: PlayedManager
) -> None:
    begin()
    peer, _, rid = manager.claim()
    order = manager.order("seq 10; exit 0")
    manager.answer_claim(peer, rid, order, at=2**64 - 1)
    output, end = b"", ""
    while not end:
        verb, fields = hear(peer)
        if verb == "OUTPUT":  # its connection ends before the answer
            peer.close()
            peer, _, rid = manager.claim()
            manager.answer_claim(peer, rid, order, at=2**63)
            continue
        peer.send(wire.encode("ACK", rid=fields["rid"]))
        end = fields.get("text", "") if verb == "ENDED" else ""
    assert output == b""
    assert end.split()[2:4] == ["0", "-"]
