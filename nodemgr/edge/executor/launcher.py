"""The manager's end of the launcher: forked by the manager, or the service nodemgr-jobs.

The fork happens before the manager gives its rights up.

Knows: the packets of csrc/supervisor/launcher.c, how a launcher is forked or found again. Must not
know: jobs, orders, the consequence of a packet.

The manager has no right to start programs of other users (edge/host/privileges.py); the launcher
has, and does nothing else. The manager's own launcher ends when the manager is gone and no job of
the launcher runs. None can be forked later, because the right is given up: so there are spare ones
from the start, in case one dies. The service's launcher is looked for a few times, and then at each
change in its directory.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path

from client_plugin.messages.form import MessageLine
from nodemgr.edge.clients.descriptor_filter import close_all
from nodemgr.edge.host import privileges, stderr_log
from nodemgr.edge.host.file_events import CAME, FileEvents
from nodemgr.messages import doctor
from nodemgr.messages import manager_log as log

PROGRAM = Path(__file__).resolve().parents[2] / "_bin" / "nodemgr-supervisor"
SOCKET_NAME = "launcher"
SERVICE = "nodemgr-jobs.service"
SCOPE_KNOWN = "scope"
"""Heard after the packet that names the scope."""
LIMITED = ("cpu", "memory")
"""The controllers of the limits of a job."""
CAP_SETUID = 7
MAX_PACKET_BYTES = 512
RETRY_S, MAX_RETRY_S = 0.05, 5.0
OWN = 3
"""Launchers of our own, of which one works."""


class LauncherEndpoint:
    """Where a launcher is found: launchers of our own with their sockets, or the service's path.

    It is made before the manager has threads and gives its rights up; a Launcher then uses it.
    """

    def __init__(self, jobs_dir: Path, path: Path | None = None) -> None:
        """Fork launchers, or (`path`) name the socket of the service."""
        self.jobs_dir = jobs_dir = jobs_dir.absolute()
        self.path = path
        self.sockets: list[socket.socket] = []
        self.fault = "" if path is None else doctor.SERVICE_NOT_REACHED(socket=path)
        try:
            self.sockets += [_fork(jobs_dir) for _ in range(OWN if path is None else 0)]
        except OSError as error:
            self.fault = doctor.LAUNCHER_CANNOT_START(program=PROGRAM, error=error.strerror)

    @classmethod
    def fitting(cls, run_dir: Path, jobs_dir: Path) -> LauncherEndpoint:
        """The manager's own launcher, or the service's.

        The service's is used by root without the right to become other users.
        """
        can_fork = os.geteuid() != 0 or privileges.held() >> CAP_SETUID & 1
        return cls(jobs_dir, None if can_fork else run_dir / SOCKET_NAME)

    def close(self) -> None:
        """Closes the sockets that no Launcher uses."""
        for spare in self.sockets:
            spare.close()
        self.sockets.clear()


class Launcher:
    """The connection to one launcher, and to the next one when it dies."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        endpoint: LauncherEndpoint,
        heard: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        """`heard` gets each packet; `changed` is called when the launcher is lost or there again.

        `changed` may be called before this constructor has returned.
        """
        self._loop, self._endpoint = loop, endpoint
        self._heard, self._changed = heard, changed
        self._jobs_dir, self._path = endpoint.jobs_dir, endpoint.path
        self._spare, self._fault = endpoint.sockets, endpoint.fault
        self._socket: socket.socket | None = None
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        """Packets with the descriptors that each brings along and owns."""
        self._retry: asyncio.TimerHandle | None = None
        self._pause_s = RETRY_S
        self._news: FileEvents | None = None
        """Events of the directory in which the service makes its socket."""
        self._is_ours = False
        """Whether the launcher at the other end serves our directory."""
        self._closed = False
        self.scope = ""
        """The directory below which jobs have cgroups; "": they have none."""
        self._controllers: list[str] = []
        self._is_limit_said = False
        if self._spare:
            self._begin(self._spare.pop())
        elif self._path is not None:
            self._news = FileEvents(loop, self._path.parent, CAME, self._check_again)
            self._connect()

    def state(self) -> tuple[bool, MessageLine]:
        """The connection's state, for the doctor."""
        if self._fault:
            fault = self._fault if self._path is None else doctor.SERVICE_SILENT(why=self._fault)
            return False, doctor.JOBS_CANNOT_START(why=fault)
        why = self.no_limits()
        limits = doctor.JOBS_WITHOUT_LIMITS(why=why) if why else doctor.JOBS_IN_CGROUPS()
        if self._path is None:
            return True, doctor.JOBS_BY_OWN_LAUNCHER(limits=limits)
        return True, doctor.JOBS_BY_SERVICE(path=self._path, limits=limits)

    def no_limits(self) -> MessageLine | None:
        """The reason why no cgroup limits a job; None: one does, or the launcher is away."""
        if not self._is_ours:
            return None
        if not self.scope:
            return doctor.NO_CGROUPS() if self._path is None else doctor.NO_SCOPE_MADE()
        missing = [name for name in LIMITED if name not in self._controllers]
        return doctor.NO_CONTROLLERS(names=" and ".join(missing)) if missing else None

    def request(self, text: str, *descriptors: int) -> bool:
        """False: there is none to hear it. Takes the descriptors over."""
        if not self._is_ours:
            close_all(descriptors)
            return False
        self._send(text, *descriptors)
        return True

    def close(self) -> None:
        """Close the connection; started jobs continue."""
        self._closed = True
        if self._news is not None:
            self._news.close()
        if self._retry is not None:
            self._retry.cancel()
        self._endpoint.close()
        self._drop()

    # -- inside --

    def _begin(self, sock: socket.socket) -> None:
        self._socket = sock
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._read)
        if self._path is None:
            self._is_ours, self._fault = True, ""
            self._say_limits()
        else:
            self._send("where")

    def _connect(self) -> None:
        self._retry = None
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            sock.setblocking(False)
            sock.connect(str(self._path))
        except OSError as error:
            sock.close()
            self._away(doctor.SERVICE_UNREACHABLE(socket=self._path, error=error.strerror))
            return
        self._begin(sock)

    def _away(self, fault: MessageLine) -> None:
        """Look again after a growing pause, because the service may be about to listen.

        Once the pause is long, look only after a change in the directory.
        """
        if fault != self._fault:
            stderr_log.say(log.NO_LAUNCHER(why=fault))
            self._fault = fault
            self._changed()
        if self._pause_s < MAX_RETRY_S or self._news is None or not self._news.are_told:
            self._retry = self._loop.call_later(self._pause_s, self._connect)
            self._pause_s = min(2 * self._pause_s, MAX_RETRY_S)

    def _check_again(self) -> None:
        """Something came: perhaps the socket of a service that was just started."""
        if self._socket is None and not self._closed:
            if self._retry is not None:
                self._retry.cancel()
            self._pause_s = RETRY_S
            self._connect()

    def _read(self) -> None:
        while self._socket is not None:
            try:
                packet = self._socket.recv(MAX_PACKET_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                packet = b""
            if not packet:
                self._lose()
                return
            text = packet.decode("utf-8", "replace")
            if text.startswith("jobs "):
                self._check_place(text.removeprefix("jobs "))
            elif text.startswith("scope "):
                self.scope = text.removeprefix("scope ").removeprefix("-")
                self._controllers = _controllers(self.scope)
                if self._is_ours:  # a launcher of the version before names it last
                    self._scope_known()
            else:
                self._heard(text)

    def _say_limits(self) -> None:
        """One line of a manager whose jobs have no limits."""
        why = self.no_limits()
        if why is not None and not self._is_limit_said:
            self._is_limit_said = True
            stderr_log.say(log.JOBS_UNLIMITED(why=why))

    def _check_place(self, served: str) -> None:
        """Drops a service of another state directory, which could only refuse."""
        if served == str(self._jobs_dir):
            self._is_ours, self._fault, self._pause_s = True, "", RETRY_S
            self._scope_known()
            self._changed()
            return
        self._drop()
        self._away(
            doctor.SERVICE_OF_OTHERS(service=SERVICE, served=served, directory=self._jobs_dir)
        )

    def _scope_known(self) -> None:
        self._say_limits()
        self._heard(SCOPE_KNOWN)

    def _send(self, text: str, *descriptors: int) -> None:
        self._unsent.append((text.encode(), list(descriptors)))
        self._flush()

    def _flush(self) -> None:
        sock = self._socket
        while sock is not None and self._unsent:
            try:
                socket.send_fds(sock, [self._unsent[0][0]], self._unsent[0][1])
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(sock.fileno(), self._flush)
                return
            except OSError:
                self._loop.call_soon(self._lose)  # not from within a verb
                return
            close_all(self._unsent.popleft()[1])
        if sock is not None:
            self._loop.remove_writer(sock.fileno())

    def _lose(self) -> None:
        if self._socket is None:
            return
        self._drop()
        if self._spare:
            stderr_log.say(log.SPARE_TAKES_OVER())
            self._begin(self._spare.pop())
        elif self._path is None:
            self._fault = line = log.LAUNCHERS_DIED()
            stderr_log.say(line)
        else:
            self._away(doctor.SERVICE_ENDED(socket=self._path, service=SERVICE))
        self._changed()

    def _drop(self) -> None:
        sock, self._socket = self._socket, None
        self._is_ours, self.scope = False, ""
        while self._unsent:
            close_all(self._unsent.popleft()[1])
        if sock is not None:
            self._loop.remove_reader(sock.fileno())
            self._loop.remove_writer(sock.fileno())
            sock.close()


def _controllers(scope: str) -> list[str]:
    """Those of the cgroups below it."""
    try:
        return (Path(scope) / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []


def _fork(jobs_dir: Path) -> socket.socket:
    """Forks a launcher that detaches at once. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.set_inheritable(True)
        try:
            pid = os.posix_spawn(
                PROGRAM, [str(PROGRAM), "launcher", str(jobs_dir), str(theirs.fileno())], {}
            )
            os.waitpid(pid, 0)
        except OSError:
            ours.close()
            raise
    return ours
