"""The output of a job over a client socket: pieces, readers that wait, what they cost.

A reader that waits is answered by the log's growth and by the end of the attempt, and by nothing
else.
"""

from __future__ import annotations

import base64
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin.ways.conversation import Conversation
from client_plugin.ways.log_pieces import PIECE_BYTES
from nodemgr.edge.api.output_reads import LOG_BYTE_NS
from nodemgr.edge.rpc import wire
from tests.support.limits import WAIT_LIMIT_S, until
from tests.support.local import LocalManager
from tests.support.packets import decode


@pytest.fixture(scope="module")
def manager() -> Iterator[LocalManager]:
    with LocalManager(factory=None) as manager:
        manager.call("quota_set", env="alice", gpus=2)
        yield manager


class Printer:
    """A job that prints each line that it gets, until it gets none."""

    def __init__(self, manager: LocalManager, gate: Path) -> None:
        os.mkfifo(gate)
        self.job = ordered(
            manager,
            "job_submit",
            argv=["/bin/cat", str(gate)],
            cwd="/",
            environ=["PATH=/bin"],
            key=os.urandom(16).hex(),
            gpus=0,
        )["job"]
        self._gate = gate.open("wb", buffering=0)  # when the job has opened it

    def print(self, text: bytes) -> None:
        self._gate.write(text)

    def end(self) -> None:
        self._gate.close()


@pytest.fixture
def printer(manager: LocalManager, tmp_path: Path) -> Iterator[Printer]:
    printer = Printer(manager, tmp_path / "gate")
    yield printer
    printer.end()


def ordered(manager: LocalManager, verb: str, **arguments: Any) -> Any:
    with Conversation(manager.env_dir("alice") / "socket", WAIT_LIMIT_S) as talk:
        answer, descriptors = talk.order(verb, arguments)
    assert not descriptors
    return answer


class Reader:
    """A connection that asks and does not wait for the answer."""

    def __init__(self, manager: LocalManager, job: str, offset: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(WAIT_LIMIT_S)
        self.socket.connect(str(manager.env_dir("alice") / "socket"))
        arguments = {"job": job, "offset": offset, "wait": True}
        text = json.dumps({"verb": "job_log_read", "args": arguments})
        self.socket.send(wire.encode("ASK", rid=1, what="order", argument=text))

    def answer(self) -> dict[str, Any]:
        packet = decode(self.socket.recv(wire.PACKET_BYTES), wire.Direction.DOWN)
        told: dict[str, Any] = json.loads(packet.text("data") or "")
        return told


def until_waiting(manager: LocalManager, count: int) -> None:
    logs = manager.service.daemon.job_orders.logs
    until(lambda: manager.do(lambda: len(logs)) == count)


def test_readers_that_wait_are_answered_when_the_log_grows(
    manager: LocalManager, printer: Printer
) -> None:
    readers = [Reader(manager, printer.job, 0) for _ in range(3)]
    until_waiting(manager, 3)
    printer.print(b"one\n")
    for reader in readers:
        told = reader.answer()
        assert (base64.b64decode(told["data"]), told["living"]) == (b"one\n", True)
        reader.socket.close()
    until_waiting(manager, 0)


def test_a_reader_that_waits_is_answered_at_the_end_and_forgotten_when_it_goes(
    manager: LocalManager, printer: Printer
) -> None:
    printer.print(b"one\n")
    until(lambda: ordered(manager, "job_log_read", job=printer.job)["size_bytes"] == 4)
    stays, goes = (Reader(manager, printer.job, 4) for _ in range(2))
    until_waiting(manager, 2)
    goes.socket.close()
    until_waiting(manager, 1)
    printer.end()
    told = stays.answer()
    assert (told["data"], told["at"], told["size_bytes"]) == ("", 4, 4)
    until_waiting(manager, 0)


def test_a_piece_is_bounded_and_costs_its_environment_its_bytes(
    manager: LocalManager, printer: Printer
) -> None:
    written = os.urandom(100_000)
    printer.print(written)
    until(lambda: ordered(manager, "job_log_read", job=printer.job)["size_bytes"] == len(written))
    clients = manager.daemon.clients
    costs: list[int] = []
    connection_spend = clients._spend
    clients._spend = lambda session, cost_ns: (
        costs.append(cost_ns) or connection_spend(session, cost_ns)
    )
    try:
        told = ordered(manager, "job_log_read", job=printer.job, offset=10)
    finally:
        clients._spend = connection_spend
    assert base64.b64decode(told["data"]) == written[10 : 10 + PIECE_BYTES]
    assert PIECE_BYTES * LOG_BYTE_NS in costs
