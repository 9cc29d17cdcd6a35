"""Worker processes that are kept from case to case: each initialises TensorFlow once.

A context for `Agent` whose `Process` is an order to an idle process. A worker that leaves ends by
SystemExit: its process leaves the agent, and takes the next order.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import Pipe, forkserver, popen_forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training import programs

SERVER = forkserver.ForkServer()
SERVER.set_forkserver_preload(["tests.training.tensorflow_preloaded"])
"""A process that has imported TensorFlow can be forked until its first operation."""


class _Forked(popen_forkserver.Popen):
    """A process of SERVER, in place of the server of PyTorch's workers."""

    def _launch(self, process_obj: Any) -> None:
        patch = pytest.MonkeyPatch()
        with patch.context() as patched:
            patched.setattr(forkserver, "connect_to_new_process", SERVER.connect_to_new_process)
            super()._launch(process_obj)


class _Host(ForkServerProcess):
    """A process of the pool."""

    @staticmethod
    def _Popen(process_obj: Any) -> _Forked:
        return _Forked(process_obj)


class WorkerPool:
    """Idle processes, and those that work."""

    def __init__(self) -> None:
        self._idle: list[tuple[_Host, Connection]] = []
        self._hosts: list[_Host] = []

    def Process(self, target: Callable[..., Any], args: Any, kwargs: Any, daemon: bool) -> _Order:
        """As of a context of multiprocessing."""
        return _Order(self, (target, args, kwargs, False))

    def result(self, target: Callable[..., Any], *args: Any) -> Any:
        """Of a function that is called in a process of the pool."""
        order = _Order(self, (target, args, {}, True))
        order.start()
        order.join()
        assert order.exitcode == 0
        return order.found

    def take(self) -> tuple[_Host, Connection]:
        if not self._idle:
            own, its = Pipe()
            host = _Host(target=_serve, args=(its,), daemon=True)
            host.start()
            its.close()
            self._hosts.append(host)
            self._idle.append((host, own))
        return self._idle.pop()

    def give(self, host: tuple[_Host, Connection]) -> None:
        self._idle.append(host)

    def close(self) -> None:
        for host in self._hosts:
            host.kill()
            host.join()


class _Order:
    """One call in a process of the pool, with the methods of a process."""

    def __init__(self, pool: WorkerPool, order: Any) -> None:
        self.exitcode: int | None = None
        self.found: Any = None
        self._pool, self._order = pool, order

    def start(self) -> None:
        self._host, self.sentinel = self._pool.take()
        self.sentinel.send(self._order)

    def kill(self) -> None:
        if self.exitcode is None:
            self._host.kill()

    def join(self) -> None:
        if self.exitcode is not None:
            return
        try:
            self.exitcode, self.found = self.sentinel.recv()
        except (EOFError, ConnectionError):
            self._host.join()
            self.exitcode = self._host.exitcode
            self.sentinel.close()
        else:
            self._pool.give((self._host, self.sentinel))


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    kept = WorkerPool()
    yield kept
    kept.close()


def _serve(orders: Connection) -> None:
    """One order after the other, until the pool is closed."""
    channel = programs.client()._module("training.channel")
    # The thread of a connection that was left ends, and not the process.
    channel.os = SimpleNamespace(getpid=os.getpid, _exit=sys.exit)
    programs.lines_said()
    variables = dict(os.environ)
    while True:
        target, args, kwargs, is_asked = orders.recv()
        os.environ.clear()
        os.environ.update(variables)
        found, code = None, 0
        try:
            found = target(*args, **kwargs)
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:
            traceback.print_exc()
            code = 1
        for each in channel._channels:
            with contextlib.suppress(OSError):
                each._connection.shutdown(socket.SHUT_RDWR)
        channel._channels.clear()
        orders.send((code, found if is_asked else None))
