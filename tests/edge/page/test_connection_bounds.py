"""No peer keeps the page from others: idle connections, unread answers, too many connections."""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
from tornado.iostream import IOStream

from nodemgr.edge.page import connection_bounds
from nodemgr.edge.page.address import listen
from nodemgr.edge.page.channel import Channel
from nodemgr.edge.page.connection_bounds import Connections
from nodemgr.edge.page.server import Page, PageFile, PageServer, PageSettings, serve
from tests.support.limits import WAIT_LIMIT_S

GET = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
BIG = PageFile(b"x" * 2**25, "text/plain", '"big"')
Address = tuple[str, int]


def run(script: Callable[[Page, PageServer, Address], Coroutine[Any, Any, None]]) -> None:
    """With a page that has one big file and no manager."""

    async def limited() -> None:
        page = Page(Channel(Path("/nowhere")), PageSettings((), "/"), {"big.js": BIG})
        listeners = listen("127.0.0.1", 0)
        server = serve(page, listeners)
        async with asyncio.timeout(WAIT_LIMIT_S):
            await script(page, server, listeners[0].getsockname()[:2])
        server.stop()
        await server.close_all_connections()

    asyncio.run(limited())


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


async def status_of_health(address: Address) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(GET % b"healthz")
    try:
        return (await reader.readline()).split()[1]
    finally:
        writer.close()


async def whole_answer(address: Address, request: bytes) -> bytes:
    """All that comes until the server ends the connection."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionResetError:  # it had not read the request
        return b""
    finally:
        writer.close()


def test_idle_connections_end_before_the_first_request_and_after_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_bounds, "IDLE_S", 0.05)

    async def script(page: Page, server: PageServer, address: Address) -> None:
        assert await whole_answer(address, b"") == b""
        assert await whole_answer(address, b"GET /healthz HTTP/1.1\r\nHos") == b""
        while not (await whole_answer(address, GET % b"healthz")).startswith(b"HTTP/1.1 200"):
            pass  # this process was kept waiting before the request was read

    run(script)


def test_idle_connections_lock_no_request_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_bounds, "MAX_CONNECTIONS", 10)

    async def script(page: Page, server: PageServer, address: Address) -> None:
        viewer, writer = await asyncio.open_connection(*address)
        writer.write(GET % b"events")
        assert (await viewer.readline()).split()[1] == b"200"
        idle = [await asyncio.open_connection(*address) for _ in range(30)]
        assert await status_of_health(address) == b"200"
        assert len(server.connections._open) <= 10
        assert await idle[0][0].read() == b"", "the oldest makes room"
        assert len(page.viewers) == 1, "a viewer does not"
        for _, other in idle:
            other.close()
        writer.close()

    run(script)


def test_viewers_alone_make_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_bounds, "MAX_CONNECTIONS", 2)

    async def script(page: Page, server: PageServer, address: Address) -> None:
        writers = []
        for count in (1, 2):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(GET % b"events")
            assert (await reader.readline()).split()[1] == b"200"
            await until(lambda count=count: len(page.viewers) == count)
            writers.append(writer)
        late, _late_writer = await asyncio.open_connection(*address)
        assert await late.read() == b""
        assert len(page.viewers) == 2
        for writer in writers:
            writer.close()

    run(script)


def test_an_answer_that_is_not_read_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_bounds, "UNREAD_S", 0.2)
    monkeypatch.setattr(connection_bounds, "PERIOD_S", 0.02)

    async def script(page: Page, server: PageServer, address: Address) -> None:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            deaf.setblocking(False)
            await asyncio.get_running_loop().sock_connect(deaf, address)
            await asyncio.get_running_loop().sock_sendall(deaf, GET % b"static/big.js")
            await until(lambda: any(each.writing() for each in server.connections._open))
            await until(lambda: not server._connections)
            assert await status_of_health(address) == b"200"

    run(script)


class FakeStream:
    """A stream as far as its bounds look at it."""

    def __init__(self) -> None:
        self.is_closed = False
        self.is_writing = True
        self._total_write_done_index = 0

    def writing(self) -> bool:
        return self.is_writing

    def closed(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


def test_a_slow_reader_and_a_viewer_are_left_alone() -> None:
    async def script() -> None:
        slow, deaf, idle, viewer = (FakeStream() for _ in range(4))
        every = (slow, deaf, idle, viewer)
        idle.is_writing = False
        bounds = Connections(10, lambda: {cast(IOStream, viewer)})
        assert all(bounds.admit(cast(IOStream, stream)) for stream in every)
        began_s = time.monotonic()
        for turns in (0.6, 1.2):
            slow._total_write_done_index += 1
            bounds.close_unread(began_s + turns * connection_bounds.UNREAD_S)
        assert [stream.is_closed for stream in every] == [False, True, False, False]

    asyncio.run(script())


def test_few_descriptors_make_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    reserved, most = connection_bounds.RESERVED_DESCRIPTORS, connection_bounds.MAX_CONNECTIONS
    for soft, expected in (
        (256, 256 - reserved),
        (10, 1),
        (1 << 20, most),
        (resource.RLIM_INFINITY, most),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, soft=soft: (soft, soft))
        assert connection_bounds.limit() == expected
