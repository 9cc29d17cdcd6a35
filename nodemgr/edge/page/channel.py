"""The page process's connection to the manager, which takes orders in packets.

Knows: the form of questions and answers (client_plugin/ways/conversation.py). Must not know: HTTP,
the meaning of a verb. While the manager is away, each request is refused at once, and the
connection is tried again.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import itertools
import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from client_plugin.messages.form import SpokenError, relayed, stated
from client_plugin.ways.conversation import (
    INLINE_BYTES,
    MAX_PACKET_BYTES,
    order_text,
    question,
    unpacked,
)
from nodemgr.edge.host import stderr_log

RETRY_S = 0.25
MAX_ASKED = 32
"""Questions that are under way at a time, as the manager takes them (client_server.OF_PAGES)."""
FULL_S = 0.002
"""The kernel keeps ten packets that are unread: the next one waits."""
ANSWER_TIMEOUT_S = 60.0
NO_ARGUMENTS: Mapping[str, Any] = {}


class RequestRefused(SpokenError):
    """The manager's no, in one line, with its code."""

    def __init__(self, what: str, next: str = "", code: str = "") -> None:
        super().__init__(what, next, code)
        self.code = code or self.line.code


class ManagerAway(RequestRefused):
    """No manager answers."""

    def __init__(self) -> None:
        super().__init__(
            stated(
                "the manager is away, and running tasks go on",
                "wait: this page follows when it is back",
                "away",
            )
        )


class Channel:
    """The connection, made again whenever it is lost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._lost: asyncio.Future[None]
        """Of this connection: its end."""
        self._sheet = -1
        """Memory of the manager, for an order longer than a packet."""
        self._long, self._turns = asyncio.Lock(), asyncio.Semaphore(MAX_ASKED)
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._parts: dict[int, list[str]] = {}
        self._is_reported = False
        """The log has the line that the socket is closed to this process."""
        self._on_change: list[Callable[[bool], None]] = []

    @property
    def is_here(self) -> bool:
        """Whether a manager is connected."""
        return self._socket is not None

    def subscribe(self, on_change: Callable[[bool], None]) -> None:
        """`on_change` is called with True when a manager is there, with False when it is lost."""
        self._on_change.append(on_change)

    async def run(self) -> None:
        """Keeps the connection until it is cancelled."""
        while True:
            try:
                await self._connect()
            except PermissionError:
                self._report_closed()
            except OSError:
                pass  # no manager is there
            await asyncio.sleep(RETRY_S)

    async def _connect(self) -> None:
        """Returns when the connection is lost. Raises OSError."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.setblocking(False)
            sock.connect(os.fspath(self._path))
            self._socket, self._lost = sock, loop.create_future()
            loop.add_reader(sock, self._readable, sock)
            self._changed(True)
            try:
                await self._lost
            finally:
                loop.remove_reader(sock)
                self._lose()

    def _report_closed(self) -> None:
        """Says once where the way to the manager is closed to this process's user."""
        if self._is_reported:
            return
        self._is_reported = True
        closed = next(
            (str(path) for path in reversed(self._path.parents) if not os.access(path, os.X_OK)),
            None,
        )
        stderr_log.say(
            stated(
                f"the web page cannot reach the manager: its user may not open {self._path}",
                "remove what stands there, and restart the manager (no task is lost)",
            )
            if closed is None
            else stated(
                f"the web page cannot reach the manager: {closed} is closed to other users",
                f"chmod o+x {closed}, or name another --run-dir",
            )
        )

    def _readable(self, sock: socket.socket) -> None:
        numbers = array.array("i")
        try:
            packet, ancillary, _, _ = sock.recvmsg(
                MAX_PACKET_BYTES, socket.CMSG_SPACE(numbers.itemsize), socket.MSG_CMSG_CLOEXEC
            )
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    numbers.frombytes(data)
            if numbers:
                self._sheet = numbers[0]
            self._take(*unpacked(packet))
        except BlockingIOError:
            pass
        except (OSError, ValueError, KeyError):  # the manager ended, or this is none
            if not self._lost.done():
                self._lost.set_result(None)

    def _take(self, verb: str, said: Mapping[str, str]) -> None:
        """A part of an answer; they come in their order. Raises ValueError, KeyError."""
        number = int(said["rid"])
        if verb == "DENY":
            self._answer(number, {"error": said.get("reason", ""), "code": said.get("code", "")})
        elif verb == "PART":
            parts = self._parts.setdefault(number, [])
            parts.append(said["data"])
            if len(parts) == int(said["count"]):
                self._answer(number, json.loads("".join(self._parts.pop(number))))

    def _answer(self, number: int, answer: Any) -> None:
        waiter = self._pending.pop(number, None)
        if waiter is None or waiter.done():
            return
        if isinstance(answer, dict) and "error" in answer:
            error, code = relayed(str(answer["error"])), str(answer.get("code", ""))
            waiter.set_exception(RequestRefused(error, code=code))
        else:
            waiter.set_result(answer)

    def _lose(self) -> None:
        self._socket = None
        if self._sheet >= 0:
            os.close(self._sheet)
            self._sheet = -1
        self._parts.clear()
        pending, self._pending = self._pending, {}
        for waiter in pending.values():
            if not waiter.done():
                waiter.set_exception(ManagerAway())
        self._changed(False)

    def _changed(self, is_here: bool) -> None:
        for notify in self._on_change:
            notify(is_here)

    async def ask(
        self, verb: str, token: str | None = None, arguments: Mapping[str, Any] = NO_ARGUMENTS
    ) -> Any:
        """The manager's answer. Raises RequestRefused; ManagerAway where no manager answers."""
        text = order_text(verb, {**arguments}, by=token)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S), self._turns:
                if len(text) <= INLINE_BYTES:
                    return await self._question("order", text)
                async with self._long:
                    if self._sheet < 0:
                        await self._question("sheet")
                    os.pwrite(self._sheet, text.encode(), 0)
                    return await self._question("order", f"[0,{len(text)}]")
        except (TimeoutError, OSError):
            raise ManagerAway from None

    async def _question(self, what: str, argument: str | None = None) -> Any:
        """Raises RequestRefused, OSError."""
        if self._socket is None:
            raise ManagerAway
        number, sock = next(self._numbers), self._socket
        packet = question(number, what, argument)
        waiter = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    sock.send(packet)
                    break
                await asyncio.sleep(FULL_S)
            return await waiter
        finally:
            self._pending.pop(number, None)
