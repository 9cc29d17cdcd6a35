"""A proxy between a node and its head, in an asyncio loop: it delays, swallows, cuts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable


class Wire:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, target: str | Callable[[], str],
        heard: Callable[[bytes], object] = lambda _raw: None, *, is_begun: bool = False,
    ) -> None:  # fmt: skip
        """`target`: an address, asked for each connection. `heard` takes what the node sends."""
        self._loop, self._heard = loop, heard
        self._target = target if callable(target) else lambda: target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.delay_s: Callable[[], float] = lambda: 0.0
        self.is_silent = self.is_shut = False
        self.passed = 0
        """Bytes."""
        self._ways: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        if not is_begun:
            loop.run_until_complete(self._begin())

    @classmethod
    async def begun(cls, loop: asyncio.AbstractEventLoop, target: str | Callable[[], str]) -> Wire:
        """In a loop that runs."""
        made = cls(loop, target, is_begun=True)
        await made._begin()
        return made

    async def _begin(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._listener)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_shut:
            writer.close()
            return
        host, _, port = self._target().rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError:
            writer.close()
            return
        self._ways += [writer, far_writer]
        for source, sink, listens in ((reader, far_writer, True), (far_reader, writer, False)):
            self._tasks.append(self._loop.create_task(self._pass(source, sink, listens)))

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, listens: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while raw := await source.read(random.choice((7, 300, 65_536))):
                if listens:
                    self._heard(raw)
                if delay_s := self.delay_s():
                    await asyncio.sleep(delay_s)
                while self.is_silent:
                    await asyncio.sleep(0.01)
                sink.write(raw)
                self.passed += len(raw)
        with contextlib.suppress(OSError, RuntimeError):
            sink.close()

    def cut(self) -> None:
        """All connections end, at any byte."""
        for way in self._ways:
            with contextlib.suppress(OSError, RuntimeError):
                way.transport.abort()
        self._ways = []

    async def ended(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        self._loop.run_until_complete(self.ended())
