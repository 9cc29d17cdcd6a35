"""Viewers over real sockets. The whole page, with a manager: tests/edge/web/test_web_page.py."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodemgr.edge.page import viewers
from nodemgr.edge.page.address import listen
from nodemgr.edge.page.channel import Channel
from nodemgr.edge.page.server import Page, PageSettings, serve
from tests.support.limits import WAIT_LIMIT_S

REQUEST = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"


class BigViews(Channel):
    """A manager whose view of a megabyte is another one each time."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self._marks = itertools.cycle("abc")

    @property
    def is_here(self) -> bool:
        return True

    async def ask(self, verb: str, token: str | None = None, arguments: Any = None) -> Any:
        assert verb == "view"
        await asyncio.sleep(0)
        return {"now": 0, "text": next(self._marks) * 1_000_000}


class Reader:
    """A viewer that reads all it is sent."""

    def __init__(self) -> None:
        self.events = 0
        self._tail = b""

    async def run(self, address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST)
        while data := await reader.read(2**20):
            text = self._tail + data
            self.events += text.count(b"event: ")
            self._tail = text[-6:]  # shorter than what is counted


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


async def end_of(sock: socket.socket) -> None:
    """Reads the rest of a connection that the server has closed."""
    with contextlib.suppress(ConnectionResetError):
        while await asyncio.get_running_loop().sock_recv(sock, 2**20):
            pass


def test_a_viewer_that_never_reads_is_dropped_and_slows_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(viewers, "PERIOD_S", 0.005)
    monkeypatch.setattr(viewers, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    async def script(deaf: socket.socket) -> None:
        page = Page(BigViews(), PageSettings((), "/"), {})
        listeners = listen("127.0.0.1", 0)
        server = serve(page, listeners)
        address = listeners[0].getsockname()[:2]
        reader = Reader()
        reading = asyncio.ensure_future(reader.run(address))
        await until(lambda: reader.events >= 3)
        ((other,),) = (group.viewers for group in page.viewers._groups.values())
        deaf.setblocking(False)
        await asyncio.get_running_loop().sock_connect(deaf, address)
        await asyncio.get_running_loop().sock_sendall(deaf, REQUEST)
        await until(lambda: len(page.viewers) == 2)
        ((stuck,),) = (group.viewers - {other} for group in page.viewers._groups.values())
        seen = reader.events
        await until(lambda: reader.events > seen + 2 and other.is_ready() and not stuck.is_ready())
        now_s[0] += viewers.DROP_S + 1
        await until(lambda: len(page.viewers) == 1)
        assert [group.viewers for group in page.viewers._groups.values()] == [{other}]
        await end_of(deaf)
        seen = reader.events
        await until(lambda: reader.events >= seen + 3)
        reading.cancel()
        server.stop()
        await server.close_all_connections()

    async def limited() -> None:
        async with asyncio.timeout(WAIT_LIMIT_S):
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                await script(deaf)

    asyncio.run(limited())
