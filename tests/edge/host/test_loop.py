"""The loop's selector: packets that it reads itself never reach asyncio.

asyncio misses nothing of the rest.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections.abc import Iterator

import pytest

from nodemgr.edge.host.loop import SwallowingSelector, new_loop
from tests.support.limits import WAIT_LIMIT_S


class World:
    def __init__(self) -> None:
        self.loop, self.selector = new_loop()
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.setblocking(False)
        self.read: list[bytes] = []
        self.swallows = True

    def reader(self) -> bool:
        self.read.append(self.ours.recv(100))
        if not self.swallows:
            self.loop.call_soon(self.loop.stop)
        return self.swallows

    def close(self) -> None:
        for sock in (self.ours, self.theirs):
            sock.close()
        self.loop.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def test_what_is_swallowed_lets_asyncio_sleep_on(world: World) -> None:
    world.selector.swallow(world.ours.fileno(), world.reader)
    for number in range(5):
        world.theirs.send(b"%d" % number)
    assert world.selector.select(0.01) == []
    assert world.read == [b"0", b"1", b"2", b"3", b"4"]


def test_what_is_not_swallowed_wakes_it(world: World) -> None:
    world.selector.swallow(world.ours.fileno(), world.reader)
    world.swallows = False
    world.theirs.send(b"work")
    world.loop.run_forever()  # until the reader has stopped it
    assert world.read == [b"work"]


def test_timers_and_other_threads_are_heard_through_a_flood(world: World) -> None:
    def flood() -> bool:
        world.read.append(world.ours.recv(100))
        world.theirs.send(b"again")
        return True

    def timer() -> None:
        if len(world.read) <= 10:
            world.loop.call_later(0.001, timer)
        else:
            world.loop.run_in_executor(None, world.loop.call_soon_threadsafe, world.loop.stop)

    world.selector.swallow(world.ours.fileno(), flood)
    world.theirs.send(b"first")
    world.loop.call_later(0.02, timer)
    world.loop.run_forever()


def test_signals_are_heard_through_a_flood(world: World) -> None:
    def flood() -> bool:
        world.ours.recv(100)
        world.theirs.send(b"again")
        return True

    world.selector.swallow(world.ours.fileno(), flood)
    world.theirs.send(b"first")
    world.loop.add_signal_handler(signal.SIGUSR1, world.loop.stop)
    world.loop.call_later(0.01, os.kill, os.getpid(), signal.SIGUSR1)
    world.loop.run_forever()
    world.loop.remove_signal_handler(signal.SIGUSR1)


def test_a_reader_of_ours_and_a_writer_of_asyncios_on_one_descriptor(world: World) -> None:
    written: list[bool] = []
    fd = world.ours.fileno()
    world.selector.swallow(fd, world.reader)

    def writable() -> None:
        written.append(True)
        world.loop.remove_writer(fd)
        world.loop.stop()

    world.loop.add_writer(fd, writable)
    world.theirs.send(b"beat")
    world.loop.run_forever()
    assert (written, world.read) == ([True], [b"beat"])
    world.theirs.send(b"beat")
    world.selector.select(0.01)
    assert world.read == [b"beat", b"beat"], "the reader stays when the writer goes"
    world.selector.forget(fd)
    world.theirs.send(b"beat")
    world.selector.select(0.01)
    assert len(world.read) == 2


def test_a_reader_that_fails_is_told_of_and_the_loop_goes_on(world: World) -> None:
    told: list[object] = []

    def reader() -> bool:
        world.ours.recv(100)
        if told:
            world.loop.stop()
        raise ValueError("a fault of ours")

    world.loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
    world.selector.swallow(world.ours.fileno(), reader)
    world.theirs.send(b"one")
    world.theirs.send(b"two")
    world.loop.run_forever()
    assert list(map(str, told)) == ["a fault of ours"] * 2


def test_the_end_of_a_connection_reaches_the_reader(world: World) -> None:
    world.selector.swallow(world.ours.fileno(), world.reader)
    world.swallows = False
    world.theirs.close()
    world.loop.run_forever()
    assert world.read == [b""]


def test_a_descriptor_that_was_closed_first_can_be_forgotten(world: World) -> None:
    ours, theirs = socket.socketpair()
    fd = ours.fileno()
    world.selector.swallow(fd, lambda: True)
    ours.close()
    world.selector.forget(fd)
    world.selector.forget(fd)
    theirs.close()


def test_it_is_a_selector_as_asyncio_knows_them(world: World) -> None:
    selector = SwallowingSelector()
    ours, theirs = socket.socketpair()
    key = selector.register(ours, select.EPOLLIN, "data")
    assert selector.get_key(ours) == key
    assert selector.get_map()[ours.fileno()] == key
    with pytest.raises(KeyError):
        selector.register(ours, 1)
    with pytest.raises(KeyError):
        selector.modify(theirs, 1)
    with pytest.raises(KeyError):
        selector.unregister(theirs)
    selector.modify(ours, 3, "other")
    ((found, events),) = selector.select(0)
    assert (found.data, events) == ("other", 2)
    selector.unregister(ours)
    assert selector.select(0) == []
    selector.close()
    for sock in (ours, theirs):
        sock.close()


def test_asyncio_streams_work_on_it(world: World) -> None:
    async def talk() -> bytes:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        data = await asyncio.wait_for(reader.read(), WAIT_LIMIT_S)
        writer.close()
        server.close()
        return data

    assert world.loop.run_until_complete(talk()) == b""
