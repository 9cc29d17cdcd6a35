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
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.rpc.operation import JsonText, Later, OperationError
from nodemgr.edge.store.database import StoreFailed
from nodemgr.messages import orders as messages

MAX_CONNECTIONS = 4
MAX_LINE_BYTES = 2**18
MAX_UNANSWERED = 32
UNREAD_BYTES = 2**23
"""Beyond this the next request waits."""
TIME_NS = 200_000_000
"""Of the loop's time in each second."""

Perform = Callable[[str, object, object], Any]
"""Carries a verb out: (verb, token, arguments). Raises OperationError."""
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
        self._time = RateLimiter(TIME_NS)
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
        return self._is_writable and self._unanswered < MAX_UNANSWERED and self._rest is None

    def _turn(self) -> None:
        """Carries requests out, as far as the limits allow; reads no more while some are left."""
        clock = self._server.clock
        while self._lines and self._may_go_on():
            began_ns = clock.monotonic_ns()
            self._receive(self._lines.popleft())
            now_ns = clock.monotonic_ns()
            rest_ns = self._time.rest_ns(now_ns)
            self._time.spent += now_ns - began_ns
            if rest_ns:
                self._rest = self._server.loop.call_later(rest_ns / 1e9, self._rested)
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
        result = self._server.result(verb, request.get("token"), request.get("args", {}))
        if isinstance(result, Later):
            result.begin(lambda answer: self._answer(number, answer))
        else:
            self._answer(number, result)

    def _answer(self, number: int, result: Any) -> None:
        self._unanswered -= 1
        if self._transport is None:
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
        perform: Perform,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self._perform = perform
        self._connections: set[_Connection] = set()
        listener.setblocking(False)
        self._server = loop.run_until_complete(
            loop.create_unix_server(lambda: _Connection(self), sock=listener)
        )

    def admit(self, connection: _Connection) -> bool:
        if len(self._connections) >= MAX_CONNECTIONS:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    def result(self, verb: str, token: object, given: object) -> Any:
        """The verb's answer, a Later or an OperationError; an answer is owed in any case."""
        try:
            return self._perform(verb, token, given)
        except OperationError as error:
            return error
        except StoreFailed as error:
            return OperationError(messages.STORE_FAILED(fault=error))
        except Exception as error:
            stderr_log.fault("in a request of the web page", error)
            return OperationError(messages.INTERNAL_FAULT(error=repr(error)))

    def close(self) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.close()
