"""The suspension process: carries out one order after the other on the processes of tasks.

    python -m nodemgr.edge.suspension.process JSON

Knows: its socket, its lock, the driver's library. Must not know: the manager's state.

The manager starts it at the first order and never loads the driver's calls itself. It ends when
the manager's end of the socket is closed. It takes a lock before its first call, so that a new
manager's process begins when the call that this one is in has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from nodemgr.edge.host import privileges
from nodemgr.edge.kernel.processes import is_alive
from nodemgr.edge.suspension import host_memory
from nodemgr.edge.suspension.driver_calls import CallFailed, DriverCalls, NoCalls, ProcessState
from nodemgr.edge.suspension.order_lines import MAX_LINE_BYTES, LineError, Order, OrderEnd
from nodemgr.edge.suspension.procedures import Outcome, Procedures

RIGHTS = (2, 5, 19, 40)
"""CAP_DAC_READ_SEARCH, CAP_KILL, CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE: other users' processes."""


class ManagerGone(Exception):
    """The manager has closed its end: no further call is made."""


class WatchedCalls:
    """The driver's calls, none of them after the manager has gone."""

    def __init__(self, library: str, control: socket.socket) -> None:
        self._library, self._control = library, control
        self._driver: DriverCalls | None = None

    def driver(self) -> DriverCalls:
        """Loaded at the first use. Raises NoCalls, ManagerGone."""
        if select.select([self._control], [], [], 0)[0] and not self._control.recv(
            1, socket.MSG_PEEK
        ):
            raise ManagerGone
        if self._driver is None:
            self._driver = DriverCalls(self._library)
        return self._driver

    def state(self, pid: int) -> ProcessState:
        return self.driver().state(pid)

    def lock(self, pid: int, timeout_ms: int) -> None:
        self.driver().lock(pid, timeout_ms)

    def checkpoint(self, pid: int) -> None:
        self.driver().checkpoint(pid)

    def restore(self, pid: int) -> None:
        self.driver().restore(pid)

    def unlock(self, pid: int) -> None:
        self.driver().unlock(pid)


def carry_out(order: Order, calls: WatchedCalls) -> OrderEnd:
    """The answer to one order."""
    ticks = {target.pid: target.start_ticks for target in order.targets}

    def lives(pid: int) -> bool:
        return is_alive(f"unix:{pid}:{ticks[pid]}")

    present = [target for target in order.targets if lives(target.pid)]
    pids = [target.pid for target in present]
    procedures = Procedures(calls, lives, order.lock_ms)
    try:
        calls.driver()
        if order.verb == "try":
            return OrderEnd(order.task_id)
        if order.verb == "resume":
            return _answer(order, procedures.resume(pids))
        needs = {
            target.pid: target.memory_bytes
            for target in present
            if calls.state(target.pid) is not ProcessState.CHECKPOINTED
        }
        short = host_memory.shortage(needs)
        if short is None:
            return _answer(order, procedures.suspend(pids))
        is_out = procedures.give_up_suspension(pids)
        kind, pid = ("node", 0) if short.pid is None else ("container", short.pid)
        fields = (str(pid), str(short.need_bytes), str(short.free_bytes))
        return OrderEnd(order.task_id, is_out, kind, fields)
    except NoCalls as error:
        return OrderEnd(order.task_id, order.verb == "resume", "driver", (str(error),))
    except CallFailed as fault:
        return _answer(order, Outcome(fault, False))


def _answer(order: Order, outcome: Outcome) -> OrderEnd:
    fault = outcome.fault
    if fault is None:
        return OrderEnd(order.task_id)
    fields = (str(fault.pid), fault.call, fault.error)
    return OrderEnd(order.task_id, outcome.is_out, "call", fields)


def run(control: socket.socket, library: str) -> None:
    """Until the manager's end is closed."""
    calls = WatchedCalls(library, control)
    while data := control.recv(MAX_LINE_BYTES):
        try:
            order = Order.parse(data.decode("ascii", "replace"))
        except LineError:
            return  # the manager and this process are of two versions: the next one is not
        control.send(carry_out(order, calls).line().encode())


def main(argument: str) -> int:
    told: dict[str, Any] = json.loads(argument)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    privileges.keep_only(RIGHTS)
    control = socket.socket(fileno=told["control"])
    lock = os.open(told["lock"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with contextlib.suppress(ManagerGone, ConnectionError):
        run(control, told["library"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
