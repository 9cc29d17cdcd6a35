"""The page process as the manager starts it: its socket, its address, its starter.

Knows: the directory RUN/web, which user the page process becomes, how a starter is forked and
replaced. Must not know: views, tokens. Root without the right to become other users (the service)
starts nothing: the service nodemgr-web runs the page process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import grp
import json
import os
import pwd
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from client_plugin.messages.form import MessageLine
from nodemgr.edge.host import privileges, stderr_log
from nodemgr.edge.host.module_path import command
from nodemgr.edge.host.rundir import PAGE_GROUP, VIEWS_SOCKET, RunDirError, check_socket_path
from nodemgr.edge.page import address as addresses
from nodemgr.messages import manager_log as log
from nodemgr.messages import web as messages

STARTER_FILE = "web/starter"
"""Locked while a starter is kept; it holds the PID of the one that runs."""
CAP_SETUID = 7
END = b"end"
REAP_TIMEOUT_S = 0.1
END_TIMEOUT_S = 5.0
FREE_TIMEOUT_S = 5.0
"""An earlier page process that was killed gives its address back within this time."""
RETRY_S = 0.01
DYNAMIC_UIDS = range(61_184, 65_520)
"""The users that systemd gives to services for the time that they run."""
DYNAMIC_DIR = Path("/run/systemd/dynamic-uid")
MODULE = "nodemgr.edge.page.starter"


class PageHostFault(Exception):
    """The page cannot be served. One line."""

    def __init__(self, line: MessageLine) -> None:
        super().__init__(line)
        self.line = line


class PageHost:
    """The page process, as far as the manager holds it."""

    def __init__(
        self, listener: socket.socket, url: str, control: socket.socket | None = None, pid: int = 0
    ) -> None:
        self.listener = listener
        """For view_server.py."""
        self.url = url
        self._control = control
        self._pid = pid
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def begin(
        cls, run_dir: Path, address: tuple[str, int], names: tuple[str, ...], base: str
    ) -> PageHost:
        """Called in a process that has all its rights and no threads. Raises PageHostFault."""
        directory = (run_dir / VIEWS_SOCKET).parent
        directory.mkdir(mode=0o711, exist_ok=True)
        directory.chmod(0o711)
        try:
            check_socket_path(run_dir / VIEWS_SOCKET)
        except RunDirError as error:
            raise PageHostFault(error.line) from None
        wait_s = FREE_TIMEOUT_S if (run_dir / STARTER_FILE).exists() else 0.0
        end_earlier(run_dir)
        is_root = os.geteuid() == 0
        if is_root and not privileges.held() >> CAP_SETUID & 1:
            url = f"http://{address[0]}:{address[1]}{base}"
            return cls(_bind(run_dir / VIEWS_SOCKET, group=_service_group()), url)
        uid = free_uid(run_dir) if is_root else None
        listener = _bind(run_dir / VIEWS_SOCKET, uid=uid)
        try:
            listeners = _listen(address, wait_s)
            url, control, pid = _start(run_dir, listeners, uid, names, base)
        except OSError as error:
            listener.close()
            raise PageHostFault(
                messages.PAGE_UNBOUND(host=address[0], port=address[1], error=error.strerror)
            ) from None
        return cls(listener, url, control, pid)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reports the end of the starter and of the process that replaces it."""
        if self._control is not None:
            self._loop = loop
            loop.add_reader(self._control.fileno(), self._ended)

    def _ended(self) -> None:
        assert self._loop is not None
        assert self._control is not None
        self._loop.remove_reader(self._control.fileno())
        self._loop = None
        self._reap(REAP_TIMEOUT_S)
        stderr_log.say(log.PAGE_IS_OVER())

    def close(self) -> None:
        """The page ends with a manager that ends cleanly."""
        self.listener.close()
        if self._control is None:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._control.fileno())
        with contextlib.suppress(OSError):
            self._control.send(END)
        self._control.close()
        self._reap(END_TIMEOUT_S)

    def _reap(self, timeout_s: float) -> None:
        """A process that ends closes its sockets a moment before it can be reaped."""
        with contextlib.suppress(OSError):  # it has ended, and was reaped
            watched = os.pidfd_open(self._pid)
            select.select([watched], [], [], timeout_s)
            os.close(watched)
            os.waitpid(self._pid, os.WNOHANG)


def clear(run_dir: Path) -> None:
    """This manager serves no page: an earlier one's ends, and the service starts none."""
    end_earlier(run_dir)
    (run_dir / VIEWS_SOCKET).unlink(missing_ok=True)


def end_earlier(run_dir: Path) -> None:
    """A starter that outlived its manager ends, and its page with it."""
    try:
        descriptor = os.open(run_dir / STARTER_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        deadline_s = time.monotonic() + 3 * END_TIMEOUT_S
        while _is_locked(descriptor) and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError, ValueError):
                _end(int(os.pread(descriptor, 32, 0) or b"0"))
            time.sleep(RETRY_S)
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _end(pid: int) -> None:
    """Of the process that holds the lock. Raises OSError."""
    if pid <= 1:
        return
    watched = os.pidfd_open(pid)
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
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
    raise PageHostFault(messages.NO_FREE_UID(first=DYNAMIC_UIDS[0], last=DYNAMIC_UIDS[-1]))


def _service_group() -> int:
    try:
        return grp.getgrnam(PAGE_GROUP).gr_gid
    except KeyError:
        raise PageHostFault(messages.NO_PAGE_GROUP(group=PAGE_GROUP)) from None


def _bind(path: Path, *, uid: int | None = None, group: int | None = None) -> socket.socket:
    """Only that user, or the members of that group, can connect (and the manager's user)."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        if uid is not None:
            os.chown(path, uid, uid)
        if group is not None:
            os.chown(path, -1, group)
            path.chmod(0o660)
        listener.listen(8)
    except OSError as error:
        listener.close()
        raise PageHostFault(messages.VIEWS_SOCKET_FAILED(path=path, error=error.strerror)) from None
    return listener


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
) -> tuple[str, socket.socket, int]:
    """The process that keeps the starter, in a session of its own. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lock = os.open(run_dir / STARTER_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        told: dict[str, Any] = {
            "control": theirs.fileno(),
            "lock": lock,
            "listeners": [each.fileno() for each in listeners],
            "views": str((run_dir / VIEWS_SOCKET).absolute()),
            "names": names,
            "base": base,
            "uid": uid,
        }
        inherited = (theirs.fileno(), lock, *told["listeners"])
        for number in inherited:
            os.set_inheritable(number, True)
        arguments = command(MODULE, json.dumps(told))
        nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)]
        environment = {"PATH": os.defpath, "LANG": "C.UTF-8"}
        pid = os.posix_spawn(
            sys.executable, arguments, environment, file_actions=nothing, setsid=True
        )
        return addresses.url(listeners, base), ours, pid
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(lock)
        for each in listeners:
            each.close()
