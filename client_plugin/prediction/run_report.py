"""A run that is no job tells the manager which program it is, and how long it took.

Knows: the variables of a task, the process's age and end. Must not know: how a program is
recognised (verbs/launch/known_programs.py), any framework.

The first process of a task that loads a framework tells it: at the load, so that its request has
the time of earlier runs, and at its good end. A process beside it does both, so that a program
waits for neither: to start one takes some milliseconds. Where the request is made at the load, the
program waits until the manager knows it. `nodemgr run` itself does nothing for it, except with
`--acquire start`.
"""

from __future__ import annotations

import os
import sys

from .. import lease
from ..ways import locations
from . import closure, outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

TOLD = "-"
"""The value of closure.RUN_KEY in what such a process starts: nothing is told of it."""
LEAST_MS = 10_000
"""As in core/forecast/earlier_runs.py: a shorter time changes no plan."""
SEND_S = 5.0
NOTIFY_S = 2.0
"""The longest wait for the process beside, before a request at the load."""
_BESIDE = """
import sys
sys.path.insert(0, sys.argv[1])
from client_plugin.verbs.launch import known_programs
known_programs.report(0)
"""
_IN_BACKGROUND = '"$@" <&3 3<&- >/dev/null 2>&1 &'
"""Of a shell that ends at once: the program gets no child that it does not know."""


def begin(*, asks_now: bool) -> None:
    """`asks_now`: the task's request is made next, and is to have the expected time."""
    can_report = hasattr(os, "posix_spawn") and lease.TASK in os.environ
    if not can_report or is_followed() or not _has_manager():
        return
    lease.share(closure.RUN_KEY, TOLD)
    try:
        with open("/proc/self/cmdline", "rb") as file:
            command = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
        known = {"command": command, "token": os.environ[lease.TASK]}
        beside = _start_beside(known)
        import atexit

        main = getattr(sys.modules.get("__main__"), "__file__", None)
        atexit.register(_ended, os.getcwd(), None if main is None else os.path.abspath(main), known)
        with beside:
            if asks_now:
                _await_end(beside)
    except (OSError, ValueError):
        return  # nothing is known of this run


def is_followed() -> bool:
    """By its job, or by the process that started it, or by a look at it."""
    names = (closure.RUN_KEY, closure.JOB, "NODEMGR_ELASTIC", outcome.VARIABLE)
    return any(os.environ.get(name) for name in names)


def _has_manager() -> bool:
    """On a socket: the process beside this one speaks no UDP."""
    directory = locations.own_env_dir()
    return directory is not None and os.path.exists(os.path.join(directory, "socket"))


def _await_end(beside: Any) -> None:
    """Until the process beside has told the manager. Raises OSError: it takes too long."""
    import socket

    beside.shutdown(socket.SHUT_WR)
    beside.settimeout(NOTIFY_S)
    beside.recv(1)


def _ended(first_directory: str, main: Optional[str], known: Dict[str, Any]) -> None:
    if hasattr(sys, "last_value") or hasattr(sys, "last_exc") or not lease.gpus():
        return
    try:
        run_ms = _age_ms()
        if run_ms < LEAST_MS:
            return
        files = closure.loaded(first_directory, main)
        known.update(directory=first_directory, gpus=lease.gpus(), run_ms=run_ms, files=files)
        lease.report_status(_start_beside(known).detach())
    except Exception:  # a run of which nothing is known
        return


def _age_ms() -> int:
    """Of this process, which may have become another program since it began."""
    import time

    with open("/proc/self/stat") as file:
        started = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return int((time.clock_gettime(time.CLOCK_BOOTTIME) - started) * 1_000)


def _start_beside(order: Dict[str, Any]) -> Any:
    """The socket to a process that reads all of it; the order is written."""
    import json
    import socket

    ours, theirs = socket.socketpair()
    with theirs:
        payload = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        words = [sys.executable, "-I", "-S", "-c", _BESIDE, payload]
        variables = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        shell: List[str] = ["/bin/sh", "-c", _IN_BACKGROUND, "sh", *words]
        actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)]
        child = os.posix_spawn(shell[0], shell, variables, file_actions=actions)
    ours.settimeout(SEND_S)
    os.waitpid(child, 0)
    ours.sendall(json.dumps(order).encode() + b"\n", socket.MSG_NOSIGNAL)
    return ours
