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

from client_plugin.messages.form import stated
from nodemgr.edge.clients.descriptor_filter import close_all
from nodemgr.edge.executor.interface import LIMIT_OPTIONS, NoLimits
from nodemgr.edge.host import privileges, stderr_log
from nodemgr.edge.host.file_events import CAME, FileEvents
from nodemgr.edge.kernel import cgroups
from nodemgr.messages import doctor

PROGRAM = Path(__file__).resolve().parents[2] / "_bin" / "nodemgr-supervisor"
SOCKET_NAME = "launcher"
SERVICE = "nodemgr-jobs.service"
SCOPE_KNOWN = "scope"
"""Heard after the packet that names the scope."""
CAP_SETUID = 7
MAX_PACKET_BYTES = 512
RETRY_S, MAX_RETRY_S = 0.05, 5.0
OWN = 3
"""Launchers of our own, of which one works."""


class LauncherEndpoint:
    """Where a launcher is found: launchers of our own with their sockets, or the service's path.

    It is made before the manager has threads and gives its rights up; a Launcher then uses it.
    """

    def __init__(self, jobs_dir: Path, path: Path | None = None, scope: Path | None = None) -> None:
        """Fork launchers, which use the `scope`, or (`path`) name the socket of the service."""
        self.jobs_dir = jobs_dir = jobs_dir.absolute()
        self.path = path
        self.scope = "" if scope is None else str(scope)
        self.sockets: list[socket.socket] = []
        self.fault = "" if path is None else f"{path}: not reached yet"
        try:
            self.sockets += [_fork(jobs_dir, self.scope) for _ in range(OWN if path is None else 0)]
        except OSError as error:
            self.fault = f"{PROGRAM} cannot be started: {error.strerror}"

    @classmethod
    def fitting(cls, run_dir: Path, jobs_dir: Path) -> LauncherEndpoint:
        """The manager's own launcher, or the service's.

        The service's is used by root without the right to become other users.
        """
        can_fork = os.geteuid() != 0 or privileges.held() >> CAP_SETUID & 1
        scope = own_scope(os.geteuid(), jobs_dir.parent) if os.geteuid() != 0 else None
        return cls(jobs_dir, None if can_fork else run_dir / SOCKET_NAME, scope)

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
        self._controllers: list[str] | None = None
        """Those of the cgroups of jobs; None: the launcher has not named the scope yet."""
        self._is_limit_said = False
        if self._spare:
            self._begin(self._spare.pop())
        elif self._path is not None:
            self._news = FileEvents(loop, self._path.parent, CAME, self._check_again)
            self._connect()

    def state(self) -> tuple[bool, str]:
        """The connection's state, for the doctor."""
        if self._fault:
            fault = (
                self._fault
                if self._path is None
                else f"the service nodemgr-jobs does not answer ({self._fault})"
            )
            return False, f"no job can be started: {fault}"
        lost = self.no_limits()
        limits = doctor.JOBS_IN_CGROUPS() if lost is None else lost.of_jobs()
        if self._path is None:
            return True, doctor.JOBS_BY_OWN_LAUNCHER(limits=limits)
        return True, f"started by the service nodemgr-jobs ({self._path}); {limits}"

    def no_limits(self) -> NoLimits | None:
        """The limits that no cgroup keeps; None: all are kept, or the launcher is away."""
        if not self._is_ours or self._controllers is None:
            return None
        missing = [name for name in LIMIT_OPTIONS if name not in self._controllers]
        options = [LIMIT_OPTIONS[name] for name in missing]
        return NoLimits(self._why(missing), options) if missing else None

    def _why(self, missing: list[str]) -> str:
        if self.scope:
            lacking = f"their cgroups lack controllers ({' and '.join(missing)})"
            if self._path is None:
                return f"{lacking}: an administrator delegates them (Delegate= of user@.service)"
            return f"{lacking}: look at the kernel's options"
        if self._path is not None:
            return "systemd delegates no cgroup to them (journalctl -u nodemgr-jobs)"
        if self._endpoint.scope:
            return "the user's systemd delegates no cgroup to them (systemctl --user status)"
        return (
            "only jobs of the service nodemgr-jobs have cgroups of their own"
            if os.geteuid() == 0
            else "only jobs of the service nodemgr-jobs, and of a manager that"
            " `systemd-run --user` starts, have cgroups of their own"
        )

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
            self.scope = self._endpoint.scope
        if self.scope or self._path is not None:
            self._send("where")
        else:
            self._controllers = []
            self._say_limits()

    def _connect(self) -> None:
        self._retry = None
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            sock.setblocking(False)
            sock.connect(str(self._path))
        except OSError as error:
            sock.close()
            self._away(f"{self._path}: {error.strerror}")
            return
        self._begin(sock)

    def _away(self, fault: str) -> None:
        """Look again after a growing pause, because the service may be about to listen.

        Once the pause is long, look only after a change in the directory.
        """
        if fault != self._fault:
            stderr_log.say(
                f"no job can be started: {fault}",
                "`nodemgr doctor` names the cure; jobs wait meanwhile",
            )
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
                if self._path is not None:
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
        lost = self.no_limits()
        if lost is not None and not self._is_limit_said:
            self._is_limit_said = True
            stderr_log.say(
                f"CPUs and host memory of jobs have no limits: {lost.why}"
                if lost.is_of_all()
                else lost.of_jobs(),
                "nodemgr-jobs (`nodemgr setup`) keeps them, with cgroup version 2 and its "
                "controllers of both",
            )

    def _check_place(self, served: str) -> None:
        """Drops a service of another state directory, which could only refuse."""
        if served == str(self._jobs_dir):
            self._is_ours, self._fault, self._pause_s = True, "", RETRY_S
            self._scope_known()
            self._changed()
            return
        self._drop()
        self._away(
            f"{SERVICE} starts jobs of {served}, this manager's are in {self._jobs_dir}: systemctl "
            f"edit {SERVICE}"
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
            stderr_log.say("the launcher of jobs has died; a spare one takes over")
            self._begin(self._spare.pop())
        elif self._path is None:
            self._fault = line = stated(
                "its launchers have died, and the manager may start no other",
                "restart it (no task and no job is lost)",
            )
            stderr_log.say(line)
        else:
            self._away(f"{self._path}: {SERVICE} has ended")
        self._changed()

    def _drop(self) -> None:
        sock, self._socket = self._socket, None
        self._is_ours, self.scope, self._controllers = False, "", None
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


def own_scope(uid: int, state_dir: Path) -> Path | None:
    """Where the jobs of an ordinary user's manager have cgroups; None: they have none.

    The scope is made by the launcher, and is that of one state directory.
    """
    delegated = cgroups.delegated_to(uid)
    if delegated is None:
        return None
    found = state_dir.stat()
    return delegated / "app.slice" / f"nodemgr-jobs-{found.st_dev:x}-{found.st_ino:x}.scope"


def _fork(jobs_dir: Path, scope: str) -> socket.socket:
    """Forks a launcher that detaches at once. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.set_inheritable(True)
        try:
            words = [str(PROGRAM), "launcher", str(jobs_dir), str(theirs.fileno())]
            pid = os.posix_spawn(PROGRAM, [*words, scope] if scope else words, {})
            os.waitpid(pid, 0)
        except OSError:
            ours.close()
            raise
    return ours
