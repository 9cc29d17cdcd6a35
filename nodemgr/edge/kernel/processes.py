"""The identity and the end of a process: pidfds, SO_PEERCRED, /proc.

Knows: the kernel's facts about processes. Must not know: tasks, leases, the content of a packet.

The key of a process is `unix:<pid>:<start ticks>`: no later process gets the same pair. A pidfd
from the socket refers to the peer itself, so a PID reused between accept() and a read of /proc does
no harm. (csrc/manager/peer.c)
"""

from __future__ import annotations

import asyncio
import errno
import grp
import os
import pwd
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nodemgr._native import ffi, lib
from nodemgr.core.model.entities import ProcessKey
from nodemgr.core.model.values import value
from nodemgr.edge.host import threads

SO_PEERPIDFD = 77
MAX_COMMAND_CHARS = 200
TIMEOUT_S = 0.1
LONG_TIMEOUT_S = 2.0
"""For what takes a while to read, and for that reason is not read in the loop's everyday work."""
MAX_STUCK = 2
"""The most reads of one owner that wait at once; beyond them none of that owner is begun."""
MAX_STUCK_IN_ALL = 32
MAX_USER_NAMES = 1_024
_SEQPACKET = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
T = TypeVar("T")

MemoryOwner = tuple[int, int]
"""Of what is read: a user, and the mount namespace, since a container's root has our root's id."""
USER_DATABASE: MemoryOwner = -1, -1
_stuck: dict[threading.Thread, MemoryOwner] = {}
_user_names: dict[int, str] = {}


class PeerGone(Exception):
    """The peer died before its identification, or its PID namespace is not visible from here."""


@value
class Identity:
    """A living process, as the kernel reports it. Owns `pidfd`."""

    pid: int
    start_ticks: int
    uid: int
    gid: int
    gids: frozenset[int]
    pidfd: int

    @property
    def key(self) -> ProcessKey:
        return process_key(self.pid, self.start_ticks)


def process_key(pid: int, start_ticks: int) -> ProcessKey:
    return f"unix:{pid}:{start_ticks}"


def pid_of(key: ProcessKey) -> int | None:
    """The PID; None: a UDP client."""
    kind, _, rest = key.partition(":")
    return int(rest.partition(":")[0]) if kind == "unix" else None


def stat_fields(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat after the command name (any bytes); None: no such process.

    A scan of all processes reads many of these files. Bare system calls take half the time of
    open().
    """
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(fd, 1_024)
    except OSError:
        return None
    finally:
        os.close(fd)
    return text[text.rfind(b")") + 2 :].split()


def start_ticks(pid: int) -> int | None:
    """Start time of the process in clock ticks after boot; None: no such process."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields else None


def is_alive(key: ProcessKey) -> bool:
    """False for a zombie: it has given back its memory. A UDP client is never known to live."""
    fields = stat_fields(pid_of(key) or 0)
    if not fields or fields[0] in (b"Z", b"X"):
        return False
    return key.endswith(f":{int(fields[19])}")


def age_ms(key: ProcessKey) -> int:
    """The process's age by CLOCK_BOOTTIME, which cannot be set."""
    began_ms = int(key.rpartition(":")[2]) * 1_000 // os.sysconf("SC_CLK_TCK")
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10**6 - began_ms


def ancestors(pid: int) -> tuple[int, ...]:
    """Current PIDs from parent to init, at most NM_ANCESTORS."""
    found = ffi.new("int32_t[]", lib.NM_ANCESTORS)
    return tuple(ffi.unpack(found, lib.nm_ancestors(pid, found)))


def seen_as(pid: int) -> tuple[int, ...]:
    """The process's PIDs: ours first, then those in inner namespaces; () if it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            text = file.read(8_192)
    except OSError:
        return ()
    _, _, rest = text.partition(b"\nNSpid:")
    return tuple(int(word) for word in rest.partition(b"\n")[0].split())


def command_line(pid: int) -> str:
    """For display: one line without control characters; empty if unreadable."""
    try:
        text = read_within(f"/proc/{pid}/cmdline", 4_096)
    except OSError:
        return ""
    return one_line(text.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace"))


def one_line(text: str) -> str:
    """Untrusted text, safe for a terminal: no control characters, short."""
    if text.isprintable():
        return text[:MAX_COMMAND_CHARS].strip()
    return "".join(
        char if char.isprintable() else " " for char in text[: MAX_COMMAND_CHARS * 2]
    ).strip()[:MAX_COMMAND_CHARS]


def known_user_name(uid: int) -> str:
    """The user's name; the number without a name. Raises TimeoutError."""
    name = _user_names.get(uid)
    if name is not None:
        return name
    return within(lambda: _learn_user_name(uid), f"the name of user {uid}", USER_DATABASE)


def _learn_user_name(uid: int) -> str:
    """A name that comes late is known from then on."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    if len(_user_names) >= MAX_USER_NAMES:
        _user_names.clear()
    _user_names[uid] = name
    return name


def user_name(uid: int) -> str:
    """For display: the number also on timeout."""
    try:
        return known_user_name(uid)
    except TimeoutError:
        return str(uid)


NO_ID = 2**32 - 1
"""The number by which a program asks the kernel for no change."""


def user_id(name: str) -> int | None:
    """`name` is in the user database, or a number: `54321`, `+54321`."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return _number(name)


def group_id(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return _number(name)


def _number(name: str) -> int | None:
    """A user or group of an image may have no entry on the node. The kernel has 32 bits."""
    digits = name.removeprefix("+")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 10
    return int(digits) if is_number and int(digits) < NO_ID else None


@value
class Credentials:
    """The user and groups of a process."""

    uid: int
    gids: frozenset[int]


def credentials(pid: int) -> Credentials | None:
    """The real user and the groups of a process; None: no such process."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            said = {
                name: numbers.split() for name, _, numbers in (line.partition(":") for line in file)
            }
    except OSError:
        return None
    return Credentials(
        int(said["Uid"][0]), frozenset(int(gid) for gid in (said["Gid"][0], *said["Groups"]))
    )


def boot_id() -> str:
    """Changes with each boot: a process of an earlier boot is gone, even if its PID is in use."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


_peer = ffi.new("struct nm_peer *")
"""Buffer for one answer: only one thread at a time may call the functions that use it."""


def _raise_errno(result: int) -> int:
    """Raises OSError if `result` is negative."""
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def _peers_credentials() -> Credentials:
    """User and groups at connect time; the current groups if the buffer is too small."""
    gid, count = _peer.gid, _peer.group_count
    groups = ffi.unpack(_peer.group, count) if count >= 0 else _groups_now(_peer.pid)
    return Credentials(_peer.uid, frozenset((gid, *groups)))


def _groups_now(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            line = next((line for line in file if line.startswith("Groups:")), "Groups:")
    except OSError:
        return []
    return [int(group) for group in line.split()[1:]]


def accept_peer(listener: socket.socket) -> tuple[socket.socket, Credentials]:
    """The next connection, and the peer's user and groups at connect time. Raises OSError.

    The socket does not block and brings credentials with each packet.
    """
    fd = _raise_errno(lib.nm_peer_accept(listener.fileno(), _peer))
    return socket.socket(socket.AF_UNIX, _SEQPACKET, 0, fd), _peers_credentials()


def peer_credentials(sock: socket.socket) -> Credentials:
    """The peer's user and groups at connect time. Raises OSError."""
    _raise_errno(lib.nm_peer_credentials(sock.fileno(), _peer))
    return _peers_credentials()


def identify_peer(sock: socket.socket, peer: Credentials) -> Identity:
    """The connected process; `peer` is of the same socket.

    Raises PeerGone; OSError if descriptors are exhausted.
    """
    result = lib.nm_peer_identify(sock.fileno(), _peer)
    pid = _peer.pid
    if pid <= 0:
        raise PeerGone("the peer is in a PID namespace that this manager cannot see")
    if result == -errno.ESRCH:
        raise PeerGone(f"process {pid} ended before it could be identified")
    _raise_errno(result)
    return Identity(pid, _peer.start_ticks, peer.uid, _peer.gid, peer.gids, _peer.pidfd)


def identify(key: ProcessKey) -> Identity | None:
    """The process of a stored key; None: it has ended. The machine must not have booted since.

    Raises OSError if the result is unknown, because descriptors are exhausted.
    """
    _, pid_text, ticks_text = key.split(":")
    pid = int(pid_text)
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise
        return None
    ticks = start_ticks(pid)
    if ticks != int(ticks_text) or has_ended(pidfd):
        unread = ticks is None and not has_ended(pidfd)
        os.close(pidfd)
        if unread:
            raise OSError(errno.EMFILE, f"/proc/{pid}/stat cannot be read")
        return None
    owner = os.stat(f"/proc/{pid}")
    return Identity(pid, int(ticks_text), owner.st_uid, owner.st_gid, frozenset(), pidfd)


RETRY_S = 1.0
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""Errors for exhausted descriptors or memory: they report nothing about a process."""


OnGone = Callable[[ProcessKey], None]


class _Entry:
    __slots__ = ("holders", "identity", "on_gone")

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.holders = 0
        self.on_gone: OnGone | None = None
        """None: it is not watched."""


class ProcessTable:
    """The held and watched processes, one pidfd each. The loop reports a watched one's end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._entries: dict[ProcessKey, _Entry] = {}
        self._retries: dict[ProcessKey, asyncio.TimerHandle] = {}
        """Processes to watch that had no free descriptor."""

    def __len__(self) -> int:
        return len(self._entries)

    def hold(self, identity: Identity) -> None:
        """Counts a connection of this process. Takes over the pidfd."""
        entry = self._entries.get(identity.key)
        if entry is None:
            entry = self._entries[identity.key] = _Entry(identity)
        elif entry.identity.pidfd != identity.pidfd:
            os.close(identity.pidfd)
        entry.holders += 1

    def drop(self, key: ProcessKey) -> None:
        """Counts one connection less."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.holders -= 1
            self._forget_unused(key, entry)

    def watch(self, key: ProcessKey, on_gone: OnGone) -> bool:
        """Reports the process's end once. False: it has already ended, without a report.

        Without a free descriptor the process counts as living, and the table retries.
        """
        entry = self._entries.get(key)
        if entry is None:
            try:
                identity = identify(key)
            except OSError:
                if key not in self._retries:
                    self._retries[key] = self._loop.call_later(
                        RETRY_S, self._watch_again, key, on_gone
                    )
                return True
            if identity is None:
                return False
            entry = self._entries[key] = _Entry(identity)
        if entry.on_gone is None:
            entry.on_gone = on_gone
            self._loop.add_reader(entry.identity.pidfd, self._ended, key)
        return True

    def _watch_again(self, key: ProcessKey, on_gone: OnGone) -> None:
        del self._retries[key]
        if not self.watch(key, on_gone):
            on_gone(key)

    def unwatch(self, key: ProcessKey) -> None:
        if key in self._retries:
            self._retries.pop(key).cancel()
        entry = self._entries.get(key)
        if entry is not None and entry.on_gone is not None:
            entry.on_gone = None
            self._loop.remove_reader(entry.identity.pidfd)
            self._forget_unused(key, entry)

    def is_watched(self, key: ProcessKey) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.on_gone is not None

    def kill(self, key: ProcessKey, number: signal.Signals = signal.SIGKILL) -> bool:
        """Signals exactly this process, watched or not; False: it is gone, or the signal failed."""
        entry = self._entries.get(key)
        try:
            identity = identify(key) if entry is None else entry.identity
        except OSError:
            return False
        if identity is None:
            return False
        try:
            signal.pidfd_send_signal(identity.pidfd, number)
        except OSError:
            return False
        finally:
            if entry is None:
                os.close(identity.pidfd)
        return True

    def close(self) -> None:
        for retry in self._retries.values():
            retry.cancel()
        for entry in self._entries.values():
            if entry.on_gone is not None:
                self._loop.remove_reader(entry.identity.pidfd)
            os.close(entry.identity.pidfd)
        self._entries.clear()

    def _ended(self, key: ProcessKey) -> None:
        on_gone = self._entries[key].on_gone
        self.unwatch(key)
        if on_gone is not None:
            on_gone(key)

    def _forget_unused(self, key: ProcessKey, entry: _Entry) -> None:
        if entry.holders <= 0 and entry.on_gone is None:
            del self._entries[key]
            os.close(entry.identity.pidfd)


# -- reads that may not return: /proc/PID/cmdline and environ come from the process's own memory. If
# a page of it belongs to a file system in user space, the read waits for that file system's server,
# perhaps without end. The name of a user may have to come over a network.


def read_within(path: str, size: int, timeout_s: float = TIMEOUT_S) -> bytes:
    """The first bytes of a process's file. Raises OSError, TimeoutError among them."""

    def read() -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.read(size) or b""

    return within(read, path, owner_of(path), timeout_s)


def owner_of(path: str) -> MemoryOwner:
    """The owner of a file below /proc/PID. Raises OSError; no process can delay it."""
    uid = os.stat(path).st_uid
    try:
        return uid, os.stat(f"{os.path.dirname(path)}/ns/mnt").st_ino
    except OSError:
        return uid, 0


def within(work: Callable[[], T], what: str, owner: MemoryOwner, timeout_s: float = TIMEOUT_S) -> T:
    """The result or exception of `work`; TimeoutError if it has neither in time.

    The work may then continue without end, in its thread. So one owner has few of them, and takes
    none from the others.
    """
    for thread in [thread for thread in _stuck if not thread.is_alive()]:
        del _stuck[thread]
    owners = list(_stuck.values())
    if owners.count(owner) >= MAX_STUCK or (
        owner != USER_DATABASE and len(owners) >= MAX_STUCK_IN_ALL
    ):
        raise TimeoutError(f"{what} is not asked: too many others do not answer")
    answers: list[T] = []
    faults: list[Exception] = []

    def run() -> None:
        try:
            answers.append(work())
        except Exception as fault:
            faults.append(fault)

    thread = threads.start(run, "timeout")
    thread.join(timeout_s)
    if faults:
        raise faults[0]
    if not answers:
        _stuck[thread] = owner
        raise TimeoutError(f"{what} does not answer")
    return answers[0]
