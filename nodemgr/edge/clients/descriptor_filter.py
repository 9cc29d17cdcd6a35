"""Packets with descriptors, and their sockets: received and closed in threads of their own.

Knows: the kernel's work when the last reference to a stranger's file goes. Must not know: the
meaning of a packet.

The sender of a descriptor chooses its file. To close a file can block on its owner: a TCP socket
with SO_LINGER waits for its peer, a file of a FUSE file system for its daemon. The kernel makes the
receiver wait even for a descriptor that it did not take. So the loop itself never receives one.
Since Linux 6.16 a socket can refuse them (SO_PASSRIGHTS). On older kernels, and where a ledger is
expected after a restart, the loop only peeks, and the rest is done here. Of the received files only
those are kept that may be a ledger's: small memory that cannot grow. To examine and close such a
file blocks on no other process. The memory of a large file, in contrast, is freed by its last
closer, and that takes seconds.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from nodemgr.edge.host import threads

SO_PASSRIGHTS = 83
MAX_FILE_BYTES = 2**20
"""A ledger's have far less."""
MAX_THREADS = 32
"""The most threads that may hang at once; further packets are never received."""
_CREDENTIALS_BYTES = socket.CMSG_SPACE(12)
ANCILLARY_BYTES = _CREDENTIALS_BYTES + socket.CMSG_SPACE(8)
"""Credentials and the two files of a ledger."""

Received = tuple[bytes, list[tuple[int, int, bytes]], int]
"""Packet, ancillary data and flags, as recvmsg returns them.

No packet and no data: the connection has ended.
"""


def refuse_rights(sock: socket.socket, refuse: bool) -> bool:
    """Whether the kernel refuses descriptors on this socket and on those accepted from it."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, not refuse)
    except OSError:
        return False
    return refuse


def brings_rights(sock: socket.socket) -> bool:
    """Whether the next packet does. Raises OSError."""
    return bool(sock.recvmsg(1, _CREDENTIALS_BYTES, socket.MSG_PEEK)[2] & socket.MSG_CTRUNC)


class DescriptorFilter:
    """Threads, each for one receipt or one close."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = 0
        self._given_up: list[socket.socket] = []

    def receive(
        self, sock: socket.socket, packet_bytes: int, then: Callable[[Received], None]
    ) -> bool:
        """Call `then` in the loop with the next packet and the possible ledger files in it.

        False: too many threads hang.
        """
        return self._start(lambda: _receive(sock, packet_bytes), then)

    def close(self, sock: socket.socket) -> None:
        """Close the socket; unread packets go with it."""
        if not self._start(sock.close, lambda _: None):
            self._given_up.append(sock)

    def _start(self, work: Callable[[], Any], then: Callable[[Any], None]) -> bool:
        if self._threads >= MAX_THREADS:
            return False
        self._threads += 1
        threads.start(partial(self._run, work, then), "descriptor filter")
        return True

    def _run(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        result = work()
        with contextlib.suppress(RuntimeError):  # the manager has ended meanwhile
            self._loop.call_soon_threadsafe(self._done, then, result)

    def _done(self, then: Callable[[Any], None], result: Any) -> None:
        self._threads -= 1
        then(result)


def _receive(sock: socket.socket, packet_bytes: int) -> Received:
    try:
        packet, ancillary, flags, _ = sock.recvmsg(
            packet_bytes, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
        )
    except OSError:
        return b"", [], 0
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
    passed_on = [entry for entry in ancillary if entry[:2] != rights]
    fds = [
        fd
        for level, kind, data in ancillary
        if (level, kind) == rights
        for fd in descriptors_of(data)
    ]
    memory = [fd for fd in fds if _may_be_ledger(fd)]
    if memory:
        passed_on.append((*rights, array.array("i", memory).tobytes()))
    close_all(set(fds).difference(memory))
    return packet, passed_on, flags


def descriptors_of(data: bytes) -> list[int]:
    return array.array("i", data[: len(data) // 4 * 4]).tolist()


def _may_be_ledger(fd: int) -> bool:
    """Whether the file is sealed memory of a small size; blocks on no process.

    The kernel reports seals of memory files alone. The size counts once it is sealed, because it
    cannot grow then.
    """
    try:
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_GROW:
            return False
        found = os.fstat(fd)
    except OSError:
        return False
    return max(found.st_size, found.st_blocks * 512) <= MAX_FILE_BYTES


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
