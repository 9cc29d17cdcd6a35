"""A scripted manager: plain sockets, and nothing said but what the test says.

The test plays the manager: it awaits a packet, and answers. It sends and receives the
wire's own bytes (nodemgr.edge.rpc.wire), so that both ends of it are tried at once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from nodemgr._native import lib
from nodemgr.edge.ledger.native_ledger import Ledger, SlotState
from nodemgr.edge.rpc import wire
from tests.support.limits import WAIT_LIMIT_S
from tests.support.packets import Packet, decode

GPUS = tuple(f"GPU-{index:08x}-1111-2222-3333-444444444444" for index in range(4))
GPU_BYTES = 80 << 30
AFTER_LOSS = "; what this process holds stays, new allocations are refused"
"""The text for the user behind the reason of a FENCE, which names the remedy."""
AWAY = "nodemgr: no answer from the manager at "
"""A holder says so after five seconds of silence, as a test on a busy machine may take."""


@dataclass
class Env:
    """A directory as the manager makes one for an env."""

    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="nm")))
    settings: dict[str, str] = field(default_factory=dict)

    def write(self, **changes: str) -> None:
        self.settings.update(changes)
        text = "".join(
            f"{key}={value}\n" for key, value in {"env": "alice", **self.settings}.items()
        )
        fresh = self.directory / "client.conf.new"
        fresh.write_text(text)
        fresh.replace(self.directory / "client.conf")


class Books:
    """An env's ledger with its first slot given out."""

    def __init__(self, limit_bytes: int = 10 << 30) -> None:
        self.ledger = Ledger.create()
        for row, uuid in enumerate(GPUS):
            self.ledger.set_row(row, uuid, GPU_BYTES)
            self.ledger.set_limit(row, limit_bytes)
        self.ledger.set_slot(0, 0, SlotState.LIVE)

    def beats(self, slot: int = 0) -> int:
        """The slot's beat word."""
        word: int = lib.nm_ledger_beat_word(self.ledger._native, slot)
        return word

    def await_beats(self, count: int = 1, slot: int = 0, since: int | None = None) -> None:
        """Returns when the word has moved so often, from what it was at `since`, else now."""
        end_s = time.monotonic() + WAIT_LIMIT_S
        before = self.beats(slot) if since is None else since
        for _ in range(count):
            while self.beats(slot) == before:
                assert time.monotonic() < end_s, "it does not beat"
                time.sleep(0.001)
            before = self.beats(slot)

    def adopted(self) -> Books:
        """The same books in the hands of a restarted manager."""
        books = Books.__new__(Books)
        books.ledger = Ledger.adopt(*(os.dup(fd) for fd in self.ledger.fds))
        return books


def grant_fields(
    request: Packet,
    *,
    gpus: int = 1,
    slot: int | None = 0,
    generation: int = 0,
    **changes: wire.Value,
) -> dict[str, wire.Value]:
    """A GRANT's fields that answer `request`."""
    fields: dict[str, wire.Value | None] = {
        "rid": request.number("rid") or 0,
        "task": request.text("task"),
        "lease": "t1",
        "gpus": GPUS[:gpus],
        "rows": tuple(range(gpus)),
        "limits": (10 << 30,) * gpus,
        "slot": slot,
        "generation": generation if slot is not None else None,
        "beat_ms": 50,
        **changes,
    }
    return {key: value for key, value in fields.items() if value is not None}


class Speaker(Protocol):
    """A process with a stderr that the test reads."""

    def line(self) -> str: ...


def said(stderr: IO[str] | None) -> str:
    """The next line that a process says to its user, but for those of a silent manager."""
    assert stderr is not None
    while (line := stderr.readline()).startswith(AWAY):
        pass
    return line.rstrip("\n")


class Connection:
    """One accepted client."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.socket.settimeout(WAIT_LIMIT_S)
        self.fds: list[int] = []
        """The descriptors of the last packet."""

    def read(self) -> Packet | None:
        """The next packet; None at the end of the connection."""
        try:
            data, self.fds, _, _ = socket.recv_fds(self.socket, 2048, 4)
        except ConnectionResetError:
            return None
        return decode(data) if data else None

    def expect(self, verb: str) -> Packet:
        """The next packet that is no beat (unless that is wanted) is `verb`."""
        while True:
            message = self.read()
            assert message is not None, f"the client left where {verb} was due"
            if message.verb == verb:
                return message
            assert message.verb == "BEAT", message

    def closes(self) -> list[str]:
        """Reads to the end; the verbs that came before it."""
        verbs = []
        while (message := self.read()) is not None:
            verbs.append(message.verb)
        return verbs

    def send(self, verb: str, *, fds: tuple[int, ...] = (), **fields: wire.Value) -> None:
        self.send_raw(wire.encode(verb, **fields), fds)

    def send_raw(self, packet: bytes, fds: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.socket, [packet], list(fds))

    def grant(self, request: Packet, books: Books, **changes: wire.Value) -> None:
        self.send("GRANT", fds=books.ledger.fds, **grant_fields(request, **changes))

    def reply(self, verb: str, **fields: wire.Value) -> None:
        """The answer to a CANCEL or RELEASE: the client waits for it for half a second, and leaves.

        A test on a busy machine may come later.
        """
        with contextlib.suppress(ConnectionError):
            self.send(verb, **fields)

    def settle(self, process: Speaker) -> None:
        """Returns when the process has read all that was sent to it."""
        self.send("NOTE", text="settled")
        assert process.line() == "nodemgr: settled"

    def close(self) -> None:
        self.socket.close()


class Manager:
    """The listener at an env's socket. Several may follow one another (a restart)."""

    def __init__(self, env: Env) -> None:
        self.env = env
        path = env.directory / "socket"
        path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen(16)
        self.listener.settimeout(WAIT_LIMIT_S)
        env.write(address="unix:socket")
        self.accepted: list[Connection] = []
        """Kept, because an unreferenced connection is closed."""

    def accept(self) -> Connection:
        self.accepted.append(Connection(self.listener.accept()[0]))
        return self.accepted[-1]

    def close(self) -> None:
        self.listener.close()


class UdpManager:
    """A manager over UDP: each answer carries client and counter of the packet that it answers."""

    def __init__(self, env: Env, epoch: int = 7) -> None:
        self.key = secrets.token_bytes(32)
        self.epoch = epoch
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(WAIT_LIMIT_S)
        self.peer: tuple[str, int] | None = None
        (env.directory / "key").write_text(self.key.hex())
        env.write(
            address=f"udp:127.0.0.1:{self.socket.getsockname()[1]}",
            key="key",
            timeout_ms=str(int(WAIT_LIMIT_S * 1_000)),  # until then it uses one socket
        )

    def read(self) -> Packet:
        data, self.peer = self.socket.recvfrom(2048)
        return decode(wire.verify(data, self.key))

    def expect(self, verb: str) -> Packet:
        """The next packet of `verb`; others (beats, repeated packets) are passed over."""
        while (message := self.read()).verb != verb:
            pass
        return message

    def packet(self, to: Packet, verb: str, **fields: wire.Value) -> bytes:
        answer = {"rid": to.number("rid") or 0} if "rid" in wire.REQUIRED[verb] else {}
        extras = {"client": to.text("client") or "", "counter": to.number("counter") or 0}
        return wire.sign(wire.encode(verb, **{**answer, **extras, **fields}), self.key)

    def answer(self, to: Packet, verb: str, **fields: wire.Value) -> bytes:
        packet = self.packet(to, verb, **fields)
        self.send_raw(packet)
        return packet

    def send_raw(self, packet: bytes) -> None:
        assert self.peer is not None
        self.socket.sendto(packet, self.peer)

    def greet(self) -> Packet:
        """Answers HELLO; returns the first packet of another kind."""
        hello = self.expect("HELLO")
        self.answer(hello, "EPOCH", epoch=self.epoch)
        while (message := self.read()).verb == "HELLO":
            self.answer(message, "EPOCH", epoch=self.epoch)
        return message

    def close(self) -> None:
        self.socket.close()
