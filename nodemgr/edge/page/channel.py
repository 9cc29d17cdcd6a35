"""The page process's end of the socket to the manager: one JSON object a line, both ways.

Knows: the form of requests and answers (edge/web/view_server.py is the other end). Must not know:
HTTP, the meaning of a verb. While the manager is away, each request is refused at once, and the
connection is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RETRY_S = 0.25
MAX_ANSWER_BYTES = 2**28
ANSWER_TIMEOUT_S = 60.0
NO_ARGUMENTS: Mapping[str, Any] = {}
AWAY = "the manager is away: running tasks go on, and this page follows when it is back"


class RequestRefused(Exception):
    """The manager's no, in one line, with its code."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class ManagerAway(RequestRefused):
    """No manager answers."""

    def __init__(self) -> None:
        super().__init__(AWAY, "away")


class Channel:
    """The connection, made again whenever it is lost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
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
            with contextlib.suppress(OSError, ValueError):
                reader, writer = await asyncio.open_unix_connection(
                    self._path, limit=MAX_ANSWER_BYTES
                )
                try:
                    self._writer = writer
                    self._changed(True)
                    await self._read(reader)
                finally:
                    self._lose(writer)
            await asyncio.sleep(RETRY_S)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            answer = json.loads(line)
            waiter = self._pending.pop(answer["id"], None)
            if waiter is None or waiter.done():
                continue
            if answer["ok"]:
                waiter.set_result(answer["result"])
            else:
                waiter.set_exception(RequestRefused(answer["error"], answer["code"]))

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
        waiter = self._pending[number] = asyncio.get_running_loop().create_future()
        request = {"id": number, "verb": verb, "token": token, "args": {**arguments}}
        writer.write(json.dumps(request, separators=(",", ":")).encode() + b"\n")
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await waiter
        except TimeoutError:
            raise ManagerAway from None
        finally:
            self._pending.pop(number, None)
