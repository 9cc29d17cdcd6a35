"""The page process's end of the socket to the manager: one JSON object a line, both ways.

Knows: the form of requests and answers (edge/web/view_server.py is the other end). Must not know:
HTTP, the meaning of a verb. While the manager is away, each request is refused at once, and the
connection is tried again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from client_plugin.messages.form import MessageLine, relayed
from nodemgr.edge.host import stderr_log
from nodemgr.messages import manager_log as log
from nodemgr.messages import web as messages

RETRY_S = 0.25
MAX_ANSWER_BYTES = 2**28
ANSWER_TIMEOUT_S = 60.0
NO_ARGUMENTS: Mapping[str, Any] = {}


class RequestRefused(Exception):
    """The manager's no, in one line, with its code."""

    def __init__(self, line: MessageLine, code: str = "") -> None:
        """`code`: of a line that the manager made."""
        super().__init__(line)
        self.code = code or line.code


class ManagerAway(RequestRefused):
    """No manager answers."""

    def __init__(self) -> None:
        super().__init__(messages.MANAGER_AWAY())


class Channel:
    """The connection, made again whenever it is lost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._is_reported = False
        """The log has the line that the socket is closed to this process."""
        self._on_change: list[Callable[[bool], None]] = []

    @property
    def is_here(self) -> bool:
        """Whether a manager is connected."""
        return self._writer is not None

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
            except (OSError, ValueError):
                pass  # no manager is there, or it was lost
            await asyncio.sleep(RETRY_S)

    async def _connect(self) -> None:
        """Returns when the connection is lost. Raises OSError, ValueError."""
        reader, writer = await asyncio.open_unix_connection(self._path, limit=MAX_ANSWER_BYTES)
        try:
            self._writer = writer
            self._changed(True)
            await self._read(reader)
        finally:
            self._lose(writer)

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
            log.PAGE_REFUSED_AT_SOCKET(path=self._path)
            if closed is None
            else log.PAGE_SHUT_OUT(directory=closed)
        )

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            answer = json.loads(line)
            waiter = self._pending.pop(answer["id"], None)
            if waiter is None or waiter.done():
                continue
            if answer["ok"]:
                waiter.set_result(answer["result"])
            else:
                waiter.set_exception(RequestRefused(relayed(str(answer["error"])), answer["code"]))

    def _lose(self, writer: asyncio.StreamWriter) -> None:
        self._writer = None
        writer.close()
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
        writer = self._writer
        if writer is None:
            raise ManagerAway
        number = next(self._numbers)
        request = {"id": number, "verb": verb, "token": token, "args": {**arguments}}
        line = json.dumps(request, separators=(",", ":")).encode() + b"\n"
        waiter = self._pending[number] = asyncio.get_running_loop().create_future()
        writer.write(line)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await waiter
        except TimeoutError:
            raise ManagerAway from None
        finally:
            self._pending.pop(number, None)
