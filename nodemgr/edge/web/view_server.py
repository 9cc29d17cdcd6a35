"""The manager's end of the page process's socket: one JSON object a line, both ways.

Knows: lines, limits of what the page process may cost. Must not know: what a verb does. The page
process may be taken over by a viewer: it is refused what is malformed, cannot have more than a part
of the loop's time, and an answer that it does not read stops its next request.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from nodemgr.edge.clients.rate_limits import RateLimiter
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.rpc.operation import JsonText, OperationError, Reply

MAX_CONNECTIONS = 4
MAX_LINE_BYTES = 2**18
MAX_UNANSWERED = 32
UNREAD_BYTES = 2**23
"""Beyond this the next request waits."""
TIME_NS = 200_000_000
"""Of the loop's time in each second, for all connections together."""
SLICE_NS = 5_000_000
"""Of the loop's time without a pause: the requests of tasks come between."""
PAUSE_S = 0.005
ACCEPT_PAUSE_S = 0.05
"""Between two new connections: a page process needs one."""

SECOND_NS = 1_000_000_000

BeginView = Callable[[str, object, object, Reply], None]
"""Carries a verb out: (verb, token, arguments), and calls the last with its answer."""
_to_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class _Connection(asyncio.Protocol):
    """One page process."""

    def __init__(self, server: ViewServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._unread = b""
        self._lines: deque[bytes] = deque()
        self._unanswered = 0
        self._is_writable = True
        self._rest: asyncio.TimerHandle | None = None

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(UNREAD_BYTES)
        if not self._server.admit(self):
            transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._lines.clear()
        if self._rest is not None:
            self._rest.cancel()
        self._server.forget(self)

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._turn()

    def data_received(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        self._lines.extend(lines)
        if len(self._unread) > MAX_LINE_BYTES:
            self.close()
            return
        self._turn()

    # -- requests --

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _may_go_on(self) -> bool:
        return (
            self._is_writable
            and self._unanswered < MAX_UNANSWERED
            and self._rest is None
            and self._is_open()
        )

    def _is_open(self) -> bool:
        """Nothing is written to a peer that has gone: asyncio would log each such write."""
        return self._transport is not None and not self._transport.is_closing()

    def _turn(self) -> None:
        """Carries requests out, as far as the limits allow; reads no more while some are left."""
        clock, spent = self._server.clock, self._server.time
        started_ns = clock.monotonic_ns()
        while self._lines and self._may_go_on():
            began_ns = clock.monotonic_ns()
            self._receive(self._lines.popleft())
            now_ns = clock.monotonic_ns()
            rest_s = spent.rest_ns(now_ns) / SECOND_NS
            spent.spent += now_ns - began_ns
            if not rest_s and now_ns - started_ns >= SLICE_NS:
                rest_s = PAUSE_S
            if rest_s:
                self._rest = self._server.loop.call_later(rest_s, self._rested)
        if self._transport is not None:
            if self._lines:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _rested(self) -> None:
        self._rest = None
        self._turn()

    def _receive(self, line: bytes) -> None:
        try:
            request = json.loads(line)
            number, verb = request["id"], request["verb"]
            if isinstance(number, bool) or not isinstance(number, int) or not isinstance(verb, str):
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            self.close()  # this is no page process of ours
            return
        self._unanswered += 1
        token, given = request.get("token"), request.get("args", {})
        self._server.begin(verb, token, given, lambda answer: self._answer(number, answer))

    def _answer(self, number: int, result: Any) -> None:
        self._unanswered -= 1
        if self._transport is None or not self._is_open():
            return
        if isinstance(result, OperationError):
            text = _to_text({"id": number, "ok": False, "code": result.code, "error": str(result)})
        else:
            told = result if isinstance(result, JsonText) else _to_text(result)
            text = f'{{"id":{number},"ok":true,"result":{told}}}'
        self._transport.write(text.encode() + b"\n")
        if self._lines:
            self._server.loop.call_soon(self._turn)


class ViewServer:
    """The listening socket, in the manager's loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        listener: socket.socket,
        begin: BeginView,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.begin = begin
        self.time = RateLimiter(TIME_NS)
        self._connections: set[_Connection] = set()
        self._arriving: set[asyncio.Task[Any]] = set()
        listener.setblocking(False)
        self._listener = listener
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def _listen(self) -> None:
        self._pause = None
        self.loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """One connection, and a pause, so that a flood of them costs little."""
        self.loop.remove_reader(self._listener)
        self._pause = self.loop.call_later(ACCEPT_PAUSE_S, self._listen)
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # the peer has gone, or no file descriptor is left
        sock.setblocking(False)
        arriving = self.loop.create_task(
            self.loop.connect_accepted_socket(lambda: _Connection(self), sock)
        )
        self._arriving.add(arriving)
        arriving.add_done_callback(self._arriving.discard)

    def admit(self, connection: _Connection) -> bool:
        if len(self._connections) >= MAX_CONNECTIONS:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self.loop.remove_reader(self._listener)
        for arriving in self._arriving:
            arriving.cancel()
        self._listener.close()
        for connection in list(self._connections):
            connection.close()
