"""A node's end: one connection at a time to its head, a session on it, and a new one after it.

Knows: the head's address and key, numbers, silence, when to try again. Must not know: jobs, the
meaning of a frame of the head.

A connection that ends is not taken up again: ZeroMQ's own reconnection is off, so no frame of one
connection arrives on the next. A connection begins with the node's whole state, the hello.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from nodemgr.edge.links.frames import Frame, SessionNumbers, decode, encode
from nodemgr.edge.links.keys import KeyPair
from nodemgr.edge.links.pace import PACE, Pace
from nodemgr.edge.links.sockets import Socket, SocketReader, bounded

_FAILED: Mapping[zmq.Event, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the head does not know this node's key",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the peer ended the handshake: it may be another head",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the peer there is no head",
    zmq.EVENT_CLOSED: "nothing answers at the address",
    zmq.EVENT_CONNECT_RETRIED: "nothing answers at the address",
    zmq.EVENT_DISCONNECTED: "the connection ended",
}
"""Events of a connection after which there is none."""
_SILENT = "the head says nothing"
MAX_SPREAD_MS = 600_000


class Dealer:
    """One connection: its socket, and what ZeroMQ reports of it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: zmq.Context[Socket],
        address: str,
        head_key: str,
        own: KeyPair,
        on_ready: Callable[[], None],
        on_end: Callable[[str], None],
        on_frame: Callable[[Frame], None],
    ) -> None:
        self._on_ready, self._on_end, self._on_frame = on_ready, on_end, on_frame
        self._socket = bounded(context, zmq.DEALER, own)
        self._socket.curve_serverkey = head_key.encode()
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self._socket.setsockopt(zmq.IPV6, 1)
        self._life = SocketReader(loop, self._socket.get_monitor_socket(), self._reported)
        self._reader = SocketReader(loop, self._socket, self._take)
        self._socket.connect(f"tcp://{address}")

    def send(self, raw: bytes) -> bool:
        """False: the way is full, or ended."""
        try:
            self._socket.send(raw, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        self._reader.read_soon()
        return True

    def read(self) -> None:
        self._reader.read()

    def close(self) -> None:
        if self._socket.closed:
            return
        self._socket.disable_monitor()
        self._life.close()
        self._reader.close()

    def _reported(self, parts: list[zmq.Frame]) -> None:
        event = zmq.Event(parse_monitor_message([part.bytes for part in parts])["event"])
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._on_ready()
        elif event in _FAILED:
            self._on_end(_FAILED[event])

    def _take(self, parts: list[zmq.Frame]) -> None:
        frame = decode(parts[0].bytes) if len(parts) == 1 else None
        if frame is not None:
            self._on_frame(frame)


class NodeLink:
    """The link of one node to its head."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: str,
        head_key: str,
        own: KeyPair,
        hello: Callable[[], Frame],
        on_message: Callable[[Frame], None],
        on_state: Callable[[Frame | None], None],
        pace: Pace = PACE,
    ) -> None:
        """`on_state` gets the head's welcome when a session begins, and None when it is over."""
        self._loop, self._pace = loop, pace
        self._context: zmq.Context[Socket] = zmq.Context()
        self._peer = self._context, address, head_key, own
        self._hello, self._on_message, self._on_state = hello, on_message, on_state
        self._dealer: Dealer | None = None
        self._numbers: SessionNumbers | None = None
        self._heard_s, self._due_s = 0.0, 0.0
        self._tries, self._spread_s = 0, 0.0
        self.why = "not tried yet"
        """Why there is no session; of one that is there, empty."""
        self._timer = loop.call_soon(self._open)

    @property
    def is_up(self) -> bool:
        return self._numbers is not None

    def send(self, kind: str, /, **fields: Any) -> bool:
        """Sends a frame. False: there is no session, and the frame is dropped.

        Raises FrameTooLong.
        """
        if self._numbers is None or self._dealer is None:
            return False
        if self._dealer.send(self._numbers.stamped(kind, fields)):
            return True
        self._ended("the head takes nothing more")
        return False

    def close(self) -> None:
        self._timer.cancel()
        self._numbers = None
        if self._dealer is not None:
            self._dealer.close()
        self._context.term()

    def end(self, why: str) -> None:
        """Ends the session; it is tried again."""
        self._ended(why)

    # -- a connection --

    def _open(self) -> None:
        self._heard_s = self._loop.time()
        self._dealer = Dealer(self._loop, *self._peer, self._ready, self._ended, self._take)
        self._tick_later()

    def _ready(self) -> None:
        if self._dealer is not None and not self._dealer.send(encode("hello", self._hello())):
            self._ended("the head takes nothing")

    def _ended(self, why: str) -> None:
        was_up, self._numbers = self.is_up, None
        if self._dealer is None:
            return
        self._dealer.close()
        self._dealer = None
        self.why = why
        self._timer.cancel()
        self._timer = self._loop.call_later(self._pause_s(), self._open)
        if was_up:
            self._on_state(None)

    def _pause_s(self) -> float:
        """Longer with each try, and other nodes have another one."""
        pause_s: float = min(self._pace.longest_pause_s, self._pace.pause_s * 2**self._tries)
        self._tries = min(self._tries + 1, 20)
        return pause_s * random.uniform(0.5, 1.5) + self._spread_s * random.random()

    # -- frames --

    def _take(self, frame: Frame) -> None:
        self._heard_s = self._loop.time()
        if frame["t"] == "over":
            self._over(frame)
        elif self._numbers is None:
            if frame["t"] == "welcome":
                self._begin(frame)
        elif frame.get("s") != self._numbers.session or not self._numbers.takes(frame):
            self._ended("a frame of the head was lost")
        elif frame["t"] != "beat":
            self._on_message(frame)

    def _over(self, frame: Frame) -> None:
        self._ended(f"the head ended the session: {str(frame.get('why', ''))[:80]}")

    def _begin(self, welcome: Frame) -> None:
        numbers = SessionNumbers(int(welcome.get("s", 0)))
        if not numbers.takes(welcome):
            self._ended("a frame of the head was lost")
            return
        spread_ms = welcome.get("spread_ms")
        self._spread_s = 0.0
        if isinstance(spread_ms, int) and 0 <= spread_ms <= MAX_SPREAD_MS:
            self._spread_s = spread_ms / 1_000
        self._numbers, self._tries, self.why = numbers, 0, ""
        self._on_state(welcome)

    # -- time --

    def _tick_later(self) -> None:
        self._due_s = self._loop.time() + self._pace.beat_s
        self._timer = self._loop.call_later(self._pace.beat_s, self._tick)

    def _tick(self) -> None:
        now_s = self._loop.time()
        if now_s - self._due_s > self._pace.silent_s / 2:
            self._heard_s = now_s  # this process was away; the head need not be
        dealer = self._dealer
        if dealer is not None:
            dealer.read()
        if self._dealer is None or self._dealer is not dealer:
            return  # ended by what was read; the next try has its timer
        most_s = self._pace.silent_s if self.is_up else self._pace.hello_s
        if now_s - self._heard_s > most_s:
            self._ended(_SILENT)
        elif not self.is_up or self.send("beat"):
            self._tick_later()
