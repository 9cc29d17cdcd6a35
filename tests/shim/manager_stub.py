"""A manager for the shim's tests: one env, a ledger, and answers that the test dictates.

Knows: the wire and the ledger. Must not know: quotas, queues, the store: the real manager decides,
this one does as it is told.

Each connection is a process and gets a slot of its own; its death clears the slot. A descriptor of
the process tells of that, not the end of its connection, which comes before its GPU memory is gone.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import EPOLLIN, epoll
from typing import Self

from nodemgr._native import lib
from nodemgr.edge.ledger.native_ledger import Ledger, SlotState
from nodemgr.edge.rpc import wire
from tests.support.limits import WAIT_LIMIT_S
from tests.support.packets import Packet, decode

LOOK_S = 0.02


@dataclass
class Seat:
    """A process that is connected."""

    connection: socket.socket
    process: int  # pidfd
    pid: int
    slot: int
    generation: int
    task: str = ""
    rid: int = 0
    held: bool = False
    beat_word: int = 0


@dataclass
class ManagerStub:
    """`answer` says what ACQUIRE gets: "grant", "wait", or a reason for DENY."""

    directory: Path
    uuids: list[str]
    total_bytes: int
    limit_bytes: int
    answer: str = "grant"
    beat_answer: str = ""  # to a beat of a stalled process: "grant", "fence", or nothing
    settings: dict[str, str] = field(default_factory=dict)
    granted: list[str] | None = None  # UUIDs of the lease; None: all
    # packets, and a BEAT for each move of a holder's word
    received: list[Packet] = field(default_factory=list)
    seats: list[Seat] = field(default_factory=list)
    deaf: bool = False  # to questions
    holdings_text: str | None = None  # the answer to any question
    at_death: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        self.ledger = Ledger.create()
        for row, uuid in enumerate(self.uuids):
            self.ledger.set_row(row, uuid, self.total_bytes)
            self.ledger.set_limit(row, self.limit_bytes if self._is_granted(uuid) else 0)
        self._changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._poll = epoll()
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._listener.bind(str(self.directory / "socket"))
        self._listener.listen(64)
        self.write_conf()
        for fd in (self._listener.fileno(), self._stop_read):
            self._poll.register(fd, EPOLLIN)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._stop_write, b"x")
        self._thread.join()
        for seat in self.seats:
            self._close(seat)
        self._listener.close()
        self._poll.close()
        os.close(self._stop_read)
        os.close(self._stop_write)
        self.ledger.close()

    def write_conf(self) -> None:
        values = {
            "env": "test", "address": "unix:socket", "acquire": "first-use", "no_gpu": "error",
            "no_manager": "error",
            "gpus": str(len(self.granted or self.uuids)), "node_gpus": str(len(self.uuids)),
            "beat_ms": "200",
            "timeout_ms": str(int(WAIT_LIMIT_S * 1_000)),  # this thread may be late
            "context_bytes": "0",
            **self.settings,
        }  # fmt: skip
        fresh = self.directory / "client.conf.new"
        fresh.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        fresh.replace(self.directory / "client.conf")

    # -- what a test does and sees --

    def used(self, row: int = 0) -> int:
        return self.ledger.used(row)

    def set_limit(self, limit_bytes: int, row: int = 0) -> None:
        self.ledger.set_limit(row, limit_bytes)

    def verbs(self) -> list[str]:
        with self._changed:
            return [message.verb for message in self.received]

    def await_verb(self, verb: str, count: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(
                lambda: [m.verb for m in self.received].count(verb) >= count, timeout=WAIT_LIMIT_S
            ), self.verbs

    def await_no_seats(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: not self.seats, timeout=WAIT_LIMIT_S)

    def set_state(self, state: SlotState) -> None:
        """Sets the state of every process that holds a lease."""
        for seat in self.seats:
            self.ledger.set_slot(seat.slot, seat.generation, state)

    def grant_waiting(self) -> None:
        for seat in self.seats:
            if seat.rid and not seat.held:
                self._grant(seat)

    def holdings(self) -> dict[str, object]:
        """The answer to the question `holdings`, in the manager's form."""
        members = [seat for seat in self.seats if seat.held]
        rows = [row for row, uuid in enumerate(self.uuids) if members and self._is_granted(uuid)]
        return {
            "gpus": [
                [self.uuids[row], self.ledger.limit(row), self.ledger.used(row)] for row in rows
            ],
            "pids": [seat.pid for seat in members],
        }

    # -- the wire --

    def _run(self) -> None:
        while True:
            self._read_beats()
            for fd, _ in self._poll.poll(LOOK_S):
                if fd == self._stop_read:
                    return
                if fd == self._listener.fileno():
                    self._accept()
                elif any(seat.process == fd for seat in self.seats):
                    self._bury(next(seat for seat in self.seats if seat.process == fd))
                elif any(seat.connection.fileno() == fd for seat in self.seats):
                    self._receive(
                        next(seat for seat in self.seats if seat.connection.fileno() == fd)
                    )

    def _read_beats(self) -> None:
        for seat in [seat for seat in self.seats if seat.held]:
            word = lib.nm_ledger_beat_word(self.ledger._native, seat.slot)
            moved, seat.beat_word = word != seat.beat_word, word
            if moved:
                self._note(seat, Packet("BEAT", {"task": seat.task}))

    def _note(self, seat: Seat, message: Packet) -> None:
        with self._changed:
            self.received.append(message)
        self._handle(seat, message)
        with self._changed:
            self._changed.notify_all()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        pid, _, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        taken = {seat.slot for seat in self.seats}
        slot = next(slot for slot in range(1024) if slot not in taken)
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            connection.close()
            return
        with self._changed:
            self.seats.append(
                Seat(connection, process, pid, slot, self.ledger.slot_generation(slot))
            )
        self._poll.register(connection.fileno(), EPOLLIN)
        self._poll.register(process, EPOLLIN)

    def _receive(self, seat: Seat) -> None:
        try:
            packet = seat.connection.recv(wire.PACKET_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:  # the event was of the number's last owner, just buried
            return
        except ConnectionError:
            packet = b""
        if not packet:
            self._poll.unregister(seat.connection.fileno())
            return
        self._note(seat, decode(packet))

    def _bury(self, seat: Seat) -> None:
        with suppress(OSError):  # what it said before its end
            while packet := seat.connection.recv(wire.PACKET_BYTES, socket.MSG_DONTWAIT):
                self._note(seat, decode(packet))
        self.at_death()
        if seat.held:
            self.ledger.clear_slot(seat.slot, seat.generation)
        with self._changed:
            self.seats.remove(seat)
            self._changed.notify_all()
        self._close(seat)

    def _close(self, seat: Seat) -> None:
        """Closed descriptors leave the poll by themselves."""
        seat.connection.close()
        os.close(seat.process)

    def _handle(self, seat: Seat, message: Packet) -> None:
        if message.verb == "ASK":
            self._notify(seat, message)
            return
        seat.rid = message.number("rid") or seat.rid
        seat.task = message.text("task") or seat.task
        if message.verb in ("ACQUIRE", "REJOIN"):
            self._answer(seat, self.answer)
        elif message.verb == "BEAT":
            if seat.held and self.beat_answer:
                self._answer(seat, self.beat_answer)
        elif message.verb == "CANCEL":
            self._send(
                seat, wire.encode("DENY", rid=seat.rid, code="cancelled", reason="cancelled")
            )
        elif message.verb == "RELEASE":
            self._send(seat, wire.encode("ACK", rid=seat.rid))

    def _notify(self, seat: Seat, message: Packet) -> None:
        answer = (
            self.holdings()
            if message.text("what") == "holdings"
            else {"error": "unknown question", "code": "usage"}
        )
        if self.deaf:
            return
        data = (
            json.dumps(answer, separators=(",", ":"))
            if self.holdings_text is None
            else self.holdings_text
        )
        self._send(
            seat, wire.encode("PART", rid=message.number("rid"), index=0, count=1, data=data)
        )

    def _answer(self, seat: Seat, answer: str) -> None:
        if answer == "grant":
            self._grant(seat)
        elif answer == "wait":
            self._send(
                seat,
                wire.encode("WAIT", rid=seat.rid, position=1, reason="place 1: bob holds GPU 0"),
            )
        elif answer == "fence":
            # before the books have it: the client waits for the reason for a second
            self._send(
                seat,
                wire.encode(
                    "FENCE",
                    lease="t1",
                    reason="the lease was taken back while this process was stopped",
                ),
            )
            self.ledger.set_slot(seat.slot, seat.generation, SlotState.FENCED)
        else:
            self._send(seat, wire.encode("DENY", rid=seat.rid, code="over_quota", reason=answer))

    def _is_granted(self, uuid: str) -> bool:
        return self.granted is None or uuid in self.granted

    def _grant(self, seat: Seat) -> None:
        self.ledger.set_slot(seat.slot, seat.generation, SlotState.LIVE)
        rows = [row for row, uuid in enumerate(self.uuids) if self._is_granted(uuid)]
        packet = wire.encode(
            "GRANT", rid=seat.rid, task=seat.task, lease="t1",
            gpus=tuple(self.uuids[row] for row in rows), rows=tuple(rows),
            limits=tuple(self.ledger.limit(row) for row in rows), slot=seat.slot,
            generation=seat.generation, beat_ms=200,
        )  # fmt: skip
        seat.held = True
        seat.beat_word = lib.nm_ledger_beat_word(self.ledger._native, seat.slot)
        self._send(seat, packet, list(self.ledger.fds))

    def _send(self, seat: Seat, packet: bytes, fds: list[int] | None = None) -> None:
        with suppress(ConnectionError):  # its end is read next
            socket.send_fds(seat.connection, [packet], fds or [])
