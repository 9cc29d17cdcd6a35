"""The control plane: orders by zmq ROUTER, the stream of events by zmq XPUB.

Both are sockets of the run directory.

Knows: frames, JSON. Must not know: what a verb does (api/verb_table.py).

The sockets' files are open to root and one group alone, and that is all their protection: a process
that can connect may order.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from nodemgr.edge.admin.control_client import MAX_SYNC_BYTES, SYNC_PREFIX
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.rundir import CONTROL_SOCKET, EVENTS_SOCKET, give_to_group
from nodemgr.edge.rpc.operation import JsonText, OperationError, Reply, parse, text
from nodemgr.messages import manager_log as log
from nodemgr.messages import orders as messages

MAX_ORDER_BYTES = 2**18
SEND_HWM = 100_000
"""Events that one slow subscriber may lag behind before it misses some (their numbers show it)."""
LINGER_MS = 200
SUBSCRIBES = b"\x01"
"""The first byte of a subscription; that of its end is 0."""

_to_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


BeginOrder = Callable[[str, str, dict[str, Any], Reply], None]
"""Carries an order of this administrator out: (who, verb, arguments), and calls the last."""
ANONYMOUS = "an administrator"


class ControlServer:
    """Both sockets, in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, run_dir: Path, group: str) -> None:
        """Raises zmq.ZMQError where a socket cannot be bound."""
        self._begin: BeginOrder | None = None
        self._loop = loop
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.MAXMSGSIZE, MAX_ORDER_BYTES)
        self._stream = self._context.socket(zmq.XPUB)
        self._is_reading = False
        self._stream.setsockopt(zmq.SNDHWM, SEND_HWM)
        self._stream.setsockopt(zmq.MAXMSGSIZE, MAX_ORDER_BYTES)
        for socket, name in ((self._router, CONTROL_SOCKET), (self._stream, EVENTS_SOCKET)):
            socket.setsockopt(zmq.LINGER, LINGER_MS)
            self._bind(socket, run_dir / name, group)

    def start(self, begin: BeginOrder) -> None:
        """Takes orders from now on; those that were sent before wait in the socket."""
        self._begin = begin
        self._loop.add_reader(_option(self._router, zmq.FD), self._readable)
        self._loop.add_reader(_option(self._stream, zmq.FD), self._subscribed)
        self._loop.call_soon(self._readable)
        self._loop.call_soon(self._subscribed)

    @staticmethod
    def _bind(socket: zmq.Socket[bytes], path: Path, group: str) -> None:
        path.unlink(missing_ok=True)
        # under the manager's umask: no client connects before the group is set
        socket.bind(f"ipc://{path}")
        give_to_group(path, group)

    # -- events --

    def publish(self, name: str, text: str) -> None:
        self._stream.send(name.encode(), zmq.NOBLOCK | zmq.SNDMORE)
        self._stream.send(text.encode(), zmq.NOBLOCK)
        if not self._is_reading:  # sending may swallow the descriptor's edge
            self._is_reading = True
            self._loop.call_soon(self._subscribed)

    def _subscribed(self) -> None:
        """Zmq keeps the subscriptions itself.

        They are taken out of the socket, and a sync topic is published back.
        """
        self._is_reading = False
        while _option(self._stream, zmq.EVENTS) & zmq.POLLIN:
            subscription = self._stream.recv(zmq.NOBLOCK)
            topic = subscription[1:]
            if (
                subscription[:1] == SUBSCRIBES
                and topic.startswith(SYNC_PREFIX)
                and len(topic) <= MAX_SYNC_BYTES
            ):
                self._stream.send(topic, zmq.NOBLOCK)

    # -- orders --

    def _readable(self) -> None:
        """The descriptor reports edges only, so everything must be read at once."""
        while _option(self._router, zmq.EVENTS) & zmq.POLLIN:
            *envelope, body = self._router.recv_multipart(zmq.NOBLOCK)
            self._order(envelope, body)

    def _order(self, envelope: list[bytes], body: bytes) -> None:
        assert self._begin is not None
        try:
            verb, given = parse(body)
            if not isinstance(given, dict):
                raise OperationError(messages.ARGUMENTS_NOT_OBJECT())
            who = text(given.pop("by")) if "by" in given else ANONYMOUS
        except OperationError as error:
            self._reply(envelope, _refusal(error))
            return
        self._begin(who, verb, given, lambda answer: self._reply(envelope, _answer(answer)))

    def _reply(self, envelope: list[bytes], reply: str) -> None:
        try:
            self._router.send_multipart([*envelope, reply.encode()], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            stderr_log.say(log.ANSWER_LOST(error=error))
        self._loop.call_soon(self._readable)

    def close(self) -> None:
        for socket in (self._router, self._stream):
            self._loop.remove_reader(_option(socket, zmq.FD))
            socket.close()
        self._context.term()


def _option(socket: zmq.Socket[bytes], option: int) -> int:
    return int(socket.getsockopt(option))


def _answer(result: object) -> str:
    if isinstance(result, OperationError):
        return _refusal(result)
    return f'{{"ok":true,"result":{result if isinstance(result, JsonText) else _to_text(result)}}}'


def _refusal(error: OperationError) -> str:
    return _to_text({"ok": False, **error.answer()})
