"""The suspension process as the manager holds it: started at the first order, replaced when killed.

Knows: its socket, one order at a time, the order that a killed process leaves. Must not know: the
driver's calls, the core's reasons for an order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.module_path import command
from nodemgr.edge.suspension.driver_file import LIBRARY, driver_file
from nodemgr.edge.suspension.order_lines import MAX_LINE_BYTES, LineError, Order, OrderEnd

LOCK_FILE = "suspension.lock"
MAX_TRIES = 5
"""So many processes in a row may end in one order; then the order has failed."""
RETRY_S = 0.1
MODULE = "nodemgr.edge.suspension.process"


class Suspender:
    """Takes orders, and reports the end of each."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        run_dir: Path,
        simulator: Path | None,
        answered: Callable[[Order, OrderEnd], None],
    ) -> None:
        """`simulator`: the directory of its libraries. `answered` is called in the loop."""
        self._loop, self._answered = loop, answered
        self._lock = run_dir / LOCK_FILE
        self._simulated = None if simulator is None else str(simulator / LIBRARY)
        self._orders: deque[Order] = deque()
        """The first one is under way."""
        self._tries = 0
        self._control: socket.socket | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._children: list[int] = []
        """Not waited for yet; the last one runs."""

    @property
    def pid(self) -> int | None:
        """Of the process; None: there is none now."""
        return self._children[-1] if self._control is not None else None

    @property
    def under_way(self) -> Order | None:
        return self._orders[0] if self._orders else None

    def order(self, order: Order) -> None:
        self._orders.append(order)
        if len(self._orders) == 1:
            self._send()

    def close(self) -> None:
        """The process ends after the call that it is in. Its order is the next manager's."""
        self._orders.clear()
        if self._retry is not None:
            self._retry.cancel()
        self._drop()
        self._reap()

    def _send(self) -> None:
        self._retry = None
        if not self._orders:
            return
        try:
            if self._control is None:
                self._control = self._start()
                self._loop.add_reader(self._control.fileno(), self._readable)
            self._control.send(self._orders[0].line().encode())
        except OSError as error:
            stderr_log.say(
                f"the suspension process cannot be reached ({error}); another one continues the "
                "order"
            )
            self._died()

    def _readable(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(MAX_LINE_BYTES)
            answer = OrderEnd.parse(data.decode("ascii", "replace")) if data else None
        except BlockingIOError:
            return
        except (OSError, LineError):
            answer = None
        if answer is None or not self._orders or answer.task_id != self._orders[0].task_id:
            self._died()
            return
        self._end(answer)

    def _died(self) -> None:
        """Of the process, in an order or between two; another one continues the order."""
        self._drop()
        if not self._orders:
            return
        self._tries += 1
        order = self._orders[0]
        stderr_log.say(
            f"the suspension process has ended in the order {order.verb} {order.task_id}; another "
            f"one continues it, {MAX_TRIES - 1} times at most"
        )
        if self._tries < MAX_TRIES:
            self._retry = self._loop.call_later(RETRY_S * (self._tries - 1), self._send)
        else:
            self._end(OrderEnd(self._orders[0].task_id, False, "process"))

    def _end(self, answer: OrderEnd) -> None:
        order = self._orders.popleft()
        self._tries = 0
        if self._orders:
            self._loop.call_soon(self._send)
        self._answered(order, answer)

    def _drop(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            self._loop.remove_reader(control.fileno())
            control.close()

    def _start(self) -> socket.socket:
        """Raises OSError."""
        self._reap()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        told = {
            "control": theirs.fileno(),
            "lock": str(self._lock.absolute()),
            "library": self._simulated or driver_file(),
        }
        arguments = command(MODULE, json.dumps(told))
        nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)]
        environment = {"PATH": os.defpath, "LANG": "C.UTF-8"}
        try:
            os.set_inheritable(theirs.fileno(), True)
            self._children.append(
                os.posix_spawn(
                    sys.executable, arguments, environment, file_actions=nothing, setsid=True
                )
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def _reap(self) -> None:
        for child in tuple(self._children):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(child, os.WNOHANG)[0] == 0:
                    continue
            self._children.remove(child)
