"""The head's end: one socket for all nodes, a session for each node that has said hello.

Knows: keys, sessions, numbers, silence. Must not know: jobs, what a frame of a node means.

A node is the key that it has proved. A hello begins a session, and ends the one that its node had.
A session ends by a gap in the numbers, by silence, by a full way to the node, or by `forget`. Its
node hears `over` at its next frame and says hello anew. A word's key may join, and nothing else.
"""

from __future__ import annotations

import asyncio
import collections
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import zmq

from nodemgr.edge.links.admission import Admission
from nodemgr.edge.links.frames import Frame, FrameTooLong, SessionNumbers, decode, encode
from nodemgr.edge.links.keys import KeyPair, is_key
from nodemgr.edge.links.pace import MAX_BYTES, MAX_FRAMES, PACE, Pace
from nodemgr.edge.links.sockets import Socket, SocketReader, bounded
from nodemgr.edge.links.unproved import Unproved

_SHIFTS = 8
"""Parts of a beat's time; each session has its turn in one of them."""


class HeadEvents(Protocol):
    """The reports of the link. Each is called in the loop."""

    def joined(self, word: str, node: str, key: str, said: Frame) -> dict[str, Any]:
        """The answer to a node with a word, of which `word` is the public key.

        With `error` it is a refusal. An answer may be lost: the same node asks again.
        """

    def synced(self, node: str, session: int, said: Frame) -> None:
        """A session begins: the node has said hello, and was welcomed."""

    def message(self, node: str, session: int, said: Frame) -> None: ...

    def silent(self, node: str, session: int) -> None:
        """The session is over."""


class _Session:
    def __init__(self, node: str, route: bytes, number: int, heard_s: float) -> None:
        self.node, self.route = node, route
        self.numbers = SessionNumbers(number)
        self.heard_s = heard_s
        self.frames = self.size = 0
        """Since its last turn, and their bytes."""


class HeadLinks:
    """All nodes of a head."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: str,
        own: KeyPair,
        known: Mapping[str, str],
        words: Callable[[str], bool],
        greeting: Frame,
        events: HeadEvents,
        pace: Pace = PACE,
    ) -> None:
        """Binds HOST:PORT (port 0 or *: a free one). Raises zmq.ZMQError.

        `known`: the public key of each node, and `words`: is this the public key of a word that may
        be said? Both are asked each time. `greeting`: what the welcome says of the head.
        """
        self._loop, self._pace = loop, pace
        self._known, self._words, self._greeting, self._events = known, words, greeting, events
        self._sessions: dict[str, _Session] = {}
        self._routes: dict[bytes, _Session] = {}
        self.counts: collections.Counter[str] = collections.Counter()
        """Frames of sessions without beats (`said`, `heard`), and by their causes the faults."""
        self._context: zmq.Context[Socket] = zmq.Context()
        self._admission = Admission(loop, self._context, self._may_connect)
        self._socket = bounded(self._context, zmq.ROUTER, own)
        self._socket.curve_server = True
        self._socket.setsockopt(zmq.IPV6, int(address.startswith("[")))
        self._socket.setsockopt(zmq.ZAP_DOMAIN, b"nodes")
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._unproved = Unproved(loop, self._context, self._socket)
        try:
            self._socket.bind(f"tcp://{address}")
        except zmq.ZMQError:
            self._unproved.close()
            self._socket.close()
            self._admission.close()
            self._context.term()
            raise
        self._reader = SocketReader(loop, self._socket, self._take)
        self._shift, self._due_s = 0, loop.time()
        self._timer = loop.call_soon(self._tick)

    @property
    def address(self) -> str:
        """HOST:PORT, as it is bound."""
        bound = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return bound.rstrip(b"\0").decode().removeprefix("tcp://")

    def sessions(self) -> dict[str, int]:
        return {node: live.numbers.session for node, live in self._sessions.items()}

    def say(self, node: str, kind: str, **fields: Any) -> bool:
        """Sends a frame. False: the node has no session, and the frame is dropped.

        Raises FrameTooLong.
        """
        live = self._sessions.get(node)
        if live is None:
            return False
        raw = live.numbers.stamped(kind, fields)
        if self._send(live.route, raw):
            self.counts["said"] += kind != "beat"
            return True
        self._end(live, "full")
        return False

    def forget(self, node: str) -> None:
        """Ends the session of a node that has left; its key is no longer in `known`."""
        live = self._sessions.get(node)
        if live is not None:
            self._end(live, "left")

    def close(self) -> None:
        self._timer.cancel()
        self._unproved.close()
        self._reader.close()
        self._admission.close()
        self._context.term()

    # -- frames --

    def _node_of(self, key: str) -> str | None:
        return next((node for node, public in self._known.items() if public == key), None)

    def _may_connect(self, key: str) -> bool:
        return self._node_of(key) is not None or self._words(key)

    def _take(self, parts: list[zmq.Frame]) -> None:
        frame = decode(parts[1].bytes) if len(parts) == 2 else None
        if parts[0].bytes not in self._routes:
            self._unproved.proved(parts[-1])
        if frame is None:
            self.counts["garbage"] += 1
            return
        route, key = parts[0].bytes, str(parts[1].get("User-Id"))
        if frame["t"] == "join":
            self._join(route, key, frame)
            return
        node = self._node_of(key)
        if node is None:  # it has left since it connected
            self.counts["unknown"] += 1
            self._send(route, encode("over", {"why": "this head does not know the node"}))
        elif frame["t"] == "hello":
            self._begin(node, route, frame)
        else:
            self._hear(node, route, frame, len(parts[1]))

    def _join(self, route: bytes, key: str, frame: Frame) -> None:
        node, public = frame.get("node"), frame.get("key")
        if not (self._words(key) and isinstance(node, str) and is_key(public)):
            self.counts["garbage"] += 1
            return
        answer = self._events.joined(key, node, str(public), frame)
        self._send(route, encode("joined", {**self._greeting, **answer}))

    def _begin(self, node: str, route: bytes, frame: Frame) -> None:
        for before in (self._sessions.get(node), self._routes.get(route)):
            if before is not None:
                self._end(before, "anew")
        live = _Session(node, route, secrets.randbits(62) | 1, self._loop.time())
        self._sessions[node] = self._routes[route] = live
        spread_ms = round(len(self._known) * self._pace.handshake_s * 1_000)
        if self.say(node, "welcome", **self._greeting, spread_ms=spread_ms):
            self._events.synced(node, live.numbers.session, frame)

    def _hear(self, node: str, route: bytes, frame: Frame, size: int) -> None:
        live = self._routes.get(route)
        if live is None or (live.node, live.numbers.session) != (node, frame.get("s")):
            self.counts["late"] += 1
            self._send(route, encode("over", {"why": "the session is over"}))
        elif not live.numbers.takes(frame):
            self._end(live, "gap")
        else:
            live.heard_s = self._loop.time()
            live.frames += 1
            live.size += size
            if live.frames > MAX_FRAMES or live.size > MAX_BYTES:
                self._end(live, "flood")
            elif frame["t"] != "beat":
                self.counts["heard"] += 1
                self._events.message(node, live.numbers.session, frame)

    def _send(self, route: bytes, raw: bytes) -> bool:
        try:
            self._socket.send_multipart([route, raw], zmq.NOBLOCK)
        except zmq.ZMQError:  # its connection has ended, or takes nothing more
            return False
        self._reader.read_soon()
        return True

    # -- the end of a session --

    def _end(self, live: _Session, cause: str) -> None:
        if self._routes.pop(live.route, None) is None:
            return
        if self._sessions.get(live.node) is live:
            del self._sessions[live.node]
        self.counts[cause] += 1
        self._send(live.route, encode("over", {"why": cause, "of": live.numbers.session}))
        self._events.silent(live.node, live.numbers.session)

    def _tick(self) -> None:
        """One shift's beats, and its silent nodes."""
        now_s, shift_s = self._loop.time(), self._pace.beat_s / _SHIFTS
        if now_s - self._due_s > self._pace.silent_s / 2:
            for live in self._sessions.values():  # this process was away; nobody else need be
                live.heard_s = now_s
        self._reader.read()
        for live in list(self._sessions.values()):
            if (live.numbers.session >> 1) % _SHIFTS != self._shift:
                continue
            live.frames = live.size = 0
            if now_s - live.heard_s > self._pace.silent_s:
                self._end(live, "silent")
            else:
                self.say(live.node, "beat")
        self._shift = (self._shift + 1) % _SHIFTS
        self._due_s = now_s + shift_s
        self._timer = self._loop.call_later(shift_s, self._tick)


__all__ = ["FrameTooLong", "HeadEvents", "HeadLinks"]
