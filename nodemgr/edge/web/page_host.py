"""The page process as the manager starts it: its socket, its address, its end.

Knows: the directory RUN/web, which user the page process becomes, how an earlier one ends. Must not
know: views, tokens. Root without the right to become other users (the service) starts nothing: the
service nodemgr-web runs the page process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import json
import os
import pwd
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from client_plugin.messages.form import SpokenError
from nodemgr.edge.host import privileges, stderr_log
from nodemgr.edge.host.module_path import command
from nodemgr.edge.host.rundir import PAGE_GROUP, VIEWS_SOCKET, RunDirError, check_socket_path
from nodemgr.edge.kernel.processes import is_alive, pid_of, process_key, start_ticks
from nodemgr.edge.page import address as addresses
from nodemgr.edge.page.address import END, GO, ByHand
from nodemgr.paths import installed_version

PAGE_FILE = "web/page"
"""The key of the page process, for the next manager, if this one is lost.

Of one that was started by hand a second line has its settings (address.ByHand) as JSON.
"""
CAP_SETUID = 7
NOTHING: Mapping[str, Any] = {}
REAP_TIMEOUT_S = 0.1
END_TIMEOUT_S = 5.0
FREE_TIMEOUT_S = 5.0
"""An earlier page process that was killed gives its address back within this time."""
RETRY_S = 0.01
DYNAMIC_UIDS = range(61_184, 65_520)
"""The users that systemd gives to services for the time that they run."""
DYNAMIC_DIR = Path("/run/systemd/dynamic-uid")
MODULE = "nodemgr.edge.page.process"


class PageHostFault(SpokenError):
    """The page cannot be served. One line."""


class Child(NamedTuple):
    """The page process that the manager has started."""

    process: subprocess.Popen[bytes]
    control: socket.socket


class PageHost:
    """The page process, as far as the manager holds it. Without a page: a host of nothing."""

    def __init__(
        self,
        url: str | None = None,
        told: Mapping[str, Any] = NOTHING,
        uid: int | None = None,
        group: int | None = None,
        child: Child | None = None,
    ) -> None:
        """`told`: the answer to its `hello`. `uid`, `group`: those that may open the socket."""
        self.url, self.told = url, told
        self._uid, self._group = uid, group
        self._child = child
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def begin(
        cls, run_dir: Path, address: tuple[str, int] | None, names: tuple[str, ...], base: str
    ) -> PageHost:
        """Called in a process that has all its rights and no threads. Raises PageHostFault.

        `address`: None: there is no page, and that of an earlier manager ends.
        """
        if address is None:
            end_earlier(run_dir)
            (run_dir / VIEWS_SOCKET).unlink(missing_ok=True)
            return cls()
        directory = (run_dir / VIEWS_SOCKET).parent
        directory.mkdir(mode=0o711, exist_ok=True)
        directory.chmod(0o711)
        try:
            check_socket_path(run_dir / VIEWS_SOCKET)
        except RunDirError as error:
            raise PageHostFault(error.line) from None
        is_root, told = os.geteuid() == 0, hello(address, names, base)
        has_unit = is_root and not privileges.held() >> CAP_SETUID & 1
        other = None if has_unit else by_hand(run_dir, told)
        if other is not None:
            return cls(other.url, told, other.uid)
        wait_s = FREE_TIMEOUT_S if (run_dir / PAGE_FILE).exists() else 0.0
        end_earlier(run_dir)
        if has_unit:
            return cls(f"http://{address[0]}:{address[1]}{base}", told, group=_service_group())
        uid = free_uid(run_dir) if is_root else None
        try:
            listeners = _listen(address, wait_s)
            url, child = _start(run_dir, listeners, uid, names, base)
        except OSError as error:
            raise PageHostFault(
                f"the web page cannot listen on {address[0]}:{address[1]} ({error.strerror})",
                "name another address with --web",
            ) from None
        return cls(url, told, uid, child=child)

    def go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Has the process serve, and reports its end; it is not started again."""
        if self._child is not None:
            with contextlib.suppress(OSError):
                self._child.control.send(GO)
            self._loop = loop
            loop.add_reader(self._child.control.fileno(), self._ended, self._child)

    def let_in(self, path: Path) -> None:
        """Only that user, or the members of that group, can connect (and the manager's user)."""
        path.chmod(0o600 if self._group is None else 0o660)
        if self._uid is not None:
            os.chown(path, self._uid, self._uid)
        if self._group is not None:
            os.chown(path, -1, self._group)

    def _ended(self, child: Child) -> None:
        self._forget(child)
        how = _reaped(child, REAP_TIMEOUT_S)
        stderr_log.say(
            f"the web page's process has ended{how}; no task and no job is lost",
            "start it again: nodemgr web page",
        )

    def close(self) -> None:
        """The page ends with a manager that ends cleanly."""
        child = self._child
        if child is not None:
            self._forget(child)
            with contextlib.suppress(OSError):
                child.control.send(END)
            child.control.close()
            _reaped(child, END_TIMEOUT_S)

    def _forget(self, child: Child) -> None:
        if self._loop is not None:
            self._loop.remove_reader(child.control.fileno())
            self._loop = None


def _reaped(child: Child, timeout_s: float) -> str:
    """The way in which it ended, if that is known.

    A process that ends closes its sockets a moment before it can be reaped.
    """
    try:
        code = child.process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return ""
    return f" (exit {code})" if code >= 0 else f" ({signal.Signals(-code).name})"


def hello(address: tuple[str, int], names: tuple[str, ...], base: str) -> dict[str, Any]:
    """A page process that was started by hand is told this of itself."""
    host, port = address
    return {
        "host": host,
        "port": port,
        "names": [host, *names],
        "base": base,
        "version": installed_version(),
    }


def note(run_dir: Path, pid: int, page: ByHand | None = None) -> None:
    """The next manager ends this page process, or goes on with it (`begin`). Raises OSError."""
    path = run_dir / PAGE_FILE
    path.touch(0o600)
    more = "" if page is None else json.dumps(page)
    path.write_text(f"{process_key(pid, start_ticks(pid) or 0)}\n{more}")


def _noted(run_dir: Path) -> tuple[str, str]:
    """Both lines of PAGE_FILE, the second may be empty. Raises OSError, ValueError."""
    key, _, page = (run_dir / PAGE_FILE).read_text().partition("\n")
    return key, page


def by_hand(run_dir: Path, told: Mapping[str, Any]) -> ByHand | None:
    """The page process that was started by hand and lives, if it was told just this."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        key, text = _noted(run_dir)
        found = ByHand(*json.loads(text))
        if found.told == told and is_alive(key):
            return found
    return None


def end_earlier(run_dir: Path) -> None:
    """A page process that outlived its manager ends: by SIGTERM, else by SIGKILL."""
    try:
        key, _ = _noted(run_dir)
        pid = int(pid_of(key) or 0)
        watched = os.pidfd_open(pid)
    except (OSError, ValueError):
        return
    try:
        if not is_alive(key):
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(watched, number)
            if select.select([watched], [], [], END_TIMEOUT_S)[0]:
                return
    finally:
        os.close(watched)


def free_uid(run_dir: Path) -> int:
    """A user of no one else, the same at each start of this manager if it is still free."""
    first = os.stat(run_dir).st_ino % len(DYNAMIC_UIDS)
    for offset in range(len(DYNAMIC_UIDS)):
        uid = DYNAMIC_UIDS[(first + offset) % len(DYNAMIC_UIDS)]
        if (DYNAMIC_DIR / str(uid)).exists():
            continue
        with contextlib.suppress(KeyError):
            pwd.getpwuid(uid)
            continue
        with contextlib.suppress(KeyError):
            grp.getgrgid(uid)
            continue
        return uid
    raise PageHostFault(
        f"the web page needs a user of its own, and all from {DYNAMIC_UIDS[0]} to "
        f"{DYNAMIC_UIDS[-1]} are taken",
        "free one of these user ids",
    )


def _service_group() -> int:
    try:
        return grp.getgrnam(PAGE_GROUP).gr_gid
    except KeyError:
        raise PageHostFault(
            f"the web page of a service needs the group {PAGE_GROUP} and the unit nodemgr-web",
            "run `nodemgr setup` again",
        ) from None


def _listen(address: tuple[str, int], wait_s: float) -> list[socket.socket]:
    """Waits so long for an address that is taken. Raises OSError.

    An earlier page process holds it for a moment after the lock is free: the kernel closes the
    files of a process that has ended in any order, and a page whose starter was killed ends last.
    """
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            return addresses.listen(*address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline_s:
                raise
        time.sleep(RETRY_S)


def _start(
    run_dir: Path,
    listeners: list[socket.socket],
    uid: int | None,
    names: tuple[str, ...],
    base: str,
) -> tuple[str, Child]:
    """Its address, and the page process, in a session of its own. Raises OSError.

    It serves once the manager answers it: one that is lost before it has noted it leaves no page
    that nothing ends.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    passed = [theirs.fileno(), *(each.fileno() for each in listeners)]
    told: dict[str, Any] = {
        "control": theirs.fileno(),
        "listeners": passed[1:],
        "views": str((run_dir / VIEWS_SOCKET).absolute()),
        "names": names,
        "base": base,
        "uid": uid,
    }
    try:
        process = subprocess.Popen(
            command(MODULE, json.dumps(told)),
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=passed,
            start_new_session=True,
        )
        note(run_dir, process.pid)
        return addresses.url(listeners, base), Child(process, ours)
    except OSError:
        ours.close()
        raise
    finally:
        for each in (theirs, *listeners):
            each.close()
