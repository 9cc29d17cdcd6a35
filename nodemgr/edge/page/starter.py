"""The page process's starter: forks it, and forks it again when it was killed.

    python -m nodemgr.edge.page.starter JSON

Knows: fork, the pause before a new start, the end. Must not know: HTTP, the manager's state.

It was started before the manager gave up its rights, with the right to become another user, and it
reads nothing that a viewer sent. The page process needs no file after the fork, so that it works
where the installation is closed to other users. When the manager ends cleanly it says so, and the
page ends; when the manager is lost, the page stays for a while and reports that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from nodemgr.edge.host import privileges, stderr_log
from nodemgr.edge.page import process
from nodemgr.edge.page.server import PageFile, PageSettings, read_files
from nodemgr.messages import manager_log as log

RIGHTS = (5, 6, 7)
"""CAP_KILL, CAP_SETGID, CAP_SETUID: another user for the page process, and its end."""
END = b"end"
LINGER_S = 600.0
"""The page stays this long after a manager that was lost."""
END_TIMEOUT_S = 2.0
STARTER_PAUSE_S = 0.5
"""Before a starter that was killed is replaced."""
FIRST_PAUSE_S, MAX_PAUSE_S, SETTLED_S = 0.1, 30.0, 60.0


def pause_after(pause_s: float, lived_s: float) -> float:
    """The pause before the next start: it doubles, until a process has lived for a while."""
    return FIRST_PAUSE_S if lived_s >= SETTLED_S else min(2 * pause_s, MAX_PAUSE_S)


class Starter:
    """One page process after the other."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._uid: int | None = told["uid"]
        self._views = Path(told["views"])
        self._settings = PageSettings(tuple(told["names"]), told["base"])
        self._lock: int = told["lock"]
        """The next manager finds this starter by it."""
        self._control = socket.socket(fileno=told["control"])
        self._listeners = [socket.socket(fileno=number) for number in told["listeners"]]
        self._files: dict[str, PageFile] = read_files()
        self._ended = threading.Event()
        """The page is to end."""
        self._pid = os.getpid()

    def run(self) -> None:
        """Returns when the page is to end."""
        pause_s = FIRST_PAUSE_S / 2
        deadline_s: float | None = None
        while not self._ended.is_set():
            began_s = time.monotonic()
            child = self._fork()
            watched = os.pidfd_open(child)
            try:
                deadline_s = self._watch(watched, deadline_s)
            finally:
                if self._ended.is_set():
                    _end(child, watched)
                os.close(watched)
            if self._ended.is_set():
                return
            _, status = os.waitpid(child, 0)
            pause_s = pause_after(pause_s, time.monotonic() - began_s)
            stderr_log.say(log.PAGE_ENDED(ending=_word(status), pause=f"{pause_s:g}"))
            deadline_s = self._watch(None, deadline_s, pause_s)

    def _watch(
        self, child: int | None, deadline_s: float | None, pause_s: float | None = None
    ) -> float | None:
        """Until the child ends, the pause is over, or the page is to end. The new deadline."""
        until_s = None if pause_s is None else time.monotonic() + pause_s
        while not self._ended.is_set():
            limits = [limit for limit in (until_s, deadline_s) if limit is not None]
            left_s = None if not limits else max(0.0, min(limits) - time.monotonic())
            watched: list[Any] = [] if child is None else [child]
            if deadline_s is None:
                watched.append(self._control)
            ready, _, _ = select.select(watched, [], [], left_s)
            if self._control in ready:
                if self._control.recv(16) == END:
                    self._ended.set()
                deadline_s = time.monotonic() + LINGER_S
            elif ready:
                return deadline_s
            elif deadline_s is not None and time.monotonic() >= deadline_s:
                self._ended.set()
            elif until_s is not None and time.monotonic() >= until_s:
                return deadline_s
        return deadline_s

    def told_to_end(self, _number: int, _frame: object) -> None:
        """SIGTERM, from the next manager."""
        self._ended.set()
        raise SystemExit(0)

    def _fork(self) -> int:
        child = os.fork()
        if child == 0:
            self._be_the_page()
        return child

    def _be_the_page(self) -> NoReturn:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._control.close()
            os.close(self._lock)
            process.give_up_rights(self._uid)
            privileges.end_with_parent()
            if os.getppid() != self._pid:
                os._exit(0)  # the starter has ended meanwhile
            asyncio.run(process.run(self._views, self._settings, self._files, self._listeners))
        except OSError as error:
            stderr_log.say(log.PAGE_NOT_SERVED(error=error))
            os._exit(1)
        except BaseException as error:
            stderr_log.fault("that ends the web page's process", error)
            os._exit(1)
        os._exit(0)


def _word(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit {code}" if code >= 0 else signal.Signals(-code).name


def _end(child: int, watched: int) -> None:
    """SIGTERM, and SIGKILL if that is not heard."""
    for number, timeout_s in ((signal.SIGTERM, END_TIMEOUT_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)
        if select.select([watched], [], [], timeout_s)[0]:
            break
    os.waitpid(child, 0)


def _close_others(ours: set[int]) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 1 and number not in ours:
            with contextlib.suppress(OSError):
                os.close(number)


def _be_the_starter(told: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        os.ftruncate(told["lock"], 0)
        os.pwrite(told["lock"], f"{os.getpid()}\n".encode(), 0)
        starter = Starter(told)
        signal.signal(signal.SIGTERM, starter.told_to_end)
        starter.run()
        code = 0
    except SystemExit:
        code = 0
    except BaseException as error:
        stderr_log.fault("that ends the web page's starter", error)
    os._exit(code)


def keep(told: dict[str, Any]) -> None:
    """Forks the starter, and forks it again until it ends by itself.

    Either of the two processes can be killed, and the page stays or comes back.
    """
    while True:
        child = os.fork()
        if child == 0:
            _be_the_starter(told)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            return
        os.ftruncate(told["lock"], 0)  # its PID may be another process's soon
        stderr_log.say(log.STARTER_ENDED(ending=_word(status), pause=f"{STARTER_PAUSE_S:g}"))
        time.sleep(STARTER_PAUSE_S)


def main(argument: str) -> int:
    told = json.loads(argument)
    _close_others({2, told["control"], told["lock"], *told["listeners"]})
    privileges.keep_only(RIGHTS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.chdir("/")
    keep(told)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
