"""Who a process is, and when it dies: pidfds, SO_PEERCRED, /proc.

Knows: what the kernel says about processes. Must not know: tasks, leases, what a process wrote in a packet.

A process is named `unix:<pid>:<start ticks>`: the pair is never another process later. A pidfd taken from the socket
names the peer itself, so that a PID reused between accept() and a look into /proc deceives nobody. (csrc/manager/peer.c)
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
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from nodemgr._native import ffi, lib
from nodemgr.core.model.entities import ProcessKey
from nodemgr.core.model.values import value
from nodemgr.edge.kernel.timeouts import read_within, within

SO_PEERPIDFD = 77
MAX_COMMAND_CHARS = 200
_SEQPACKET = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK


class PeerGone(Exception):
    """The peer died before it could be identified, or lives where this host's kernel shows no PID for it."""


@value
class Identity:
    """A living process, as the kernel knows it. Owns `pidfd`."""

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
    """None: a client over UDP."""
    kind, _, rest = key.partition(":")
    return int(rest.partition(":")[0]) if kind == "unix" else None


def stat_fields(pid: int) -> list[bytes] | None:
    """/proc/PID/stat after the command's name, which may hold anything; None where there is no such process. A look at all processes
    reads many of these files: the bare system calls take half of what open() takes."""
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
    """When the process started, in clock ticks after boot; None: there is none."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields else None


def age_ms(key: ProcessKey) -> int:
    """How long ago the process began, by the clock since boot, which nobody sets."""
    began_ms = int(key.rpartition(":")[2]) * 1_000 // os.sysconf("SC_CLK_TCK")
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10**6 - began_ms


def ancestors(pid: int) -> tuple[int, ...]:
    """PIDs from parent to init, as the kernel has them now."""
    found = ffi.new("int32_t[]", lib.NM_ANCESTORS)
    return tuple(ffi.unpack(found, lib.nm_ancestors(pid, found)))


def seen_as(pid: int) -> tuple[int, ...]:
    """The process's PIDs: ours first, then those in the namespaces within; () where it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            text = file.read(8_192)
    except OSError:
        return ()
    _, _, rest = text.partition(b"\nNSpid:")
    return tuple(int(word) for word in rest.partition(b"\n")[0].split())


def command_line(pid: int) -> str:
    """For people: one line without control characters; empty where it cannot be read."""
    try:
        text = read_within(f"/proc/{pid}/cmdline", 4_096)
    except OSError:
        return ""
    return one_line(text.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace"))


def one_line(text: str) -> str:
    """What a stranger wrote, fit for a terminal: no control characters, not long."""
    if text.isprintable():
        return text[:MAX_COMMAND_CHARS].strip()
    return "".join(char if char.isprintable() else " " for char in text[: MAX_COMMAND_CHARS * 2]).strip()[:MAX_COMMAND_CHARS]


@lru_cache(maxsize=1_024)
def user_name(uid: int) -> str:
    """His number where there is no name, or none in time."""
    try:
        return within(lambda: pwd.getpwuid(uid).pw_name, f"the name of user {uid}")
    except (KeyError, TimeoutError):
        return str(uid)


def user_id(name: str) -> int | None:
    """A name of the user database, or a number."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return int(name) if name.isascii() and name.isdigit() and len(name) < 10 else None


def group_id(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return int(name) if name.isascii() and name.isdigit() and len(name) < 10 else None


@value
class Credentials:
    """The user and groups of a process."""

    uid: int
    gids: frozenset[int]


def credentials(pid: int) -> Credentials | None:
    """Whose process it is, by its real user and its groups; None: there is none."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            said = {name: numbers.split() for name, _, numbers in (line.partition(":") for line in file)}
    except OSError:
        return None
    return Credentials(int(said["Uid"][0]), frozenset(int(gid) for gid in (said["Gid"][0], *said["Groups"])))


def boot_id() -> str:
    """Another one after each boot: processes of an earlier boot are gone, whatever PIDs are in use now."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


_peer = ffi.new("struct nm_peer *")
"""Room for one answer: the functions below that use it are not to be called from several threads at once."""


def _raise_errno(result: int) -> int:
    """Raises OSError where it is negative."""
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def _peers_credentials() -> Credentials:
    """The groups that the peer had when it connected; of more than there is room for, those that it has now."""
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
    """The next connection, which does not block and brings credentials with each packet, and the user and groups of the process that
    connected, as they were then. Raises OSError."""
    fd = _raise_errno(lib.nm_peer_accept(listener.fileno(), _peer))
    return socket.socket(socket.AF_UNIX, _SEQPACKET, 0, fd), _peers_credentials()


def peer_credentials(sock: socket.socket) -> Credentials:
    """User and groups of the process that connected, as they were then. Raises OSError."""
    _raise_errno(lib.nm_peer_credentials(sock.fileno(), _peer))
    return _peers_credentials()


def identify_peer(sock: socket.socket, peer: Credentials) -> Identity:
    """The process that connected, with `peer` of the same socket. Raises PeerGone; OSError where descriptors are exhausted."""
    result = lib.nm_peer_identify(sock.fileno(), _peer)
    pid = _peer.pid
    if pid <= 0:
        raise PeerGone("the peer is in a PID namespace that this manager cannot see")
    if result == -errno.ESRCH:
        raise PeerGone(f"process {pid} ended before it could be identified")
    _raise_errno(result)
    return Identity(pid, _peer.start_ticks, peer.uid, _peer.gid, peer.gids, _peer.pidfd)


def identify(key: ProcessKey) -> Identity | None:
    """The process of a key that the store kept, if it still lives. The caller knows that the machine has not booted since. Raises
    OSError where that cannot be known now: descriptors are exhausted."""
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
"""What says that descriptors or memory are out: it says nothing of a process."""


class _Entry:
    __slots__ = ("holders", "identity", "watched")

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.holders = 0
        self.watched = False


class ProcessTable:
    """The living processes that matter, one pidfd each, and word of their death through the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_gone: Callable[[ProcessKey], None]) -> None:
        self._loop = loop
        self._on_gone = on_gone
        self._entries: dict[ProcessKey, _Entry] = {}
        self._retries: dict[ProcessKey, asyncio.TimerHandle] = {}
        """Processes to watch for which there was no descriptor."""

    def __len__(self) -> int:
        return len(self._entries)

    def hold(self, identity: Identity) -> None:
        """A connection of this process exists; takes the pidfd over."""
        entry = self._entries.get(identity.key)
        if entry is None:
            entry = self._entries[identity.key] = _Entry(identity)
        elif entry.identity.pidfd != identity.pidfd:
            os.close(identity.pidfd)
        entry.holders += 1

    def drop(self, key: ProcessKey) -> None:
        """One connection less."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.holders -= 1
            self._forget_unused(key, entry)

    def watch(self, key: ProcessKey) -> bool:
        """From now on its death is told, once. False: it is gone already (and was never told). Without a free descriptor it counts
        as living, and is tried again."""
        entry = self._entries.get(key)
        if entry is None:
            try:
                identity = identify(key)
            except OSError:
                if key not in self._retries:
                    self._retries[key] = self._loop.call_later(RETRY_S, self._watch_again, key)
                return True
            if identity is None:
                return False
            entry = self._entries[key] = _Entry(identity)
        if not entry.watched:
            entry.watched = True
            self._loop.add_reader(entry.identity.pidfd, self._ended, key)
        return True

    def _watch_again(self, key: ProcessKey) -> None:
        del self._retries[key]
        if not self.watch(key):
            self._on_gone(key)

    def unwatch(self, key: ProcessKey) -> None:
        if key in self._retries:
            self._retries.pop(key).cancel()
        entry = self._entries.get(key)
        if entry is not None and entry.watched:
            entry.watched = False
            self._loop.remove_reader(entry.identity.pidfd)
            self._forget_unused(key, entry)

    def is_watched(self, key: ProcessKey) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.watched

    def kill(self, key: ProcessKey, number: signal.Signals = signal.SIGKILL) -> bool:
        """A signal to exactly this process, be it watched or not; False: it is gone, or not ours to end."""
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
            if entry.watched:
                self._loop.remove_reader(entry.identity.pidfd)
            os.close(entry.identity.pidfd)
        self._entries.clear()

    def _ended(self, key: ProcessKey) -> None:
        self.unwatch(key)
        self._on_gone(key)

    def _forget_unused(self, key: ProcessKey, entry: _Entry) -> None:
        if entry.holders <= 0 and not entry.watched:
            del self._entries[key]
            os.close(entry.identity.pidfd)
