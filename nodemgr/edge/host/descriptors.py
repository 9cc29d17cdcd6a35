"""The door through which descriptors leave the manager (no files), and the most that it may have.

Knows: fstat, seals. Must not know: the receiver.

A descriptor of a file can be opened again for writing through /proc, and turned into a setuid
program by a process that is its owner, so none of the state or run directory is ever sent. The
table in docs/security.md lists all that is sent; tests/edge/host/test_descriptors.py compares it
with the callers.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import resource
import socket
import stat
from collections.abc import Sequence

_MFD_NOEXEC_SEAL = 0x8
"""Linux 6.3: never executable, and no chmod makes it so."""
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
"""A file of a tmpfs has seals too, but can get none of these."""


def memory(name: str, size_bytes: int = 0) -> int:
    """A new memory file of zeros, which can be sealed. Raises OSError."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        descriptor = os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        descriptor = os.memfd_create(name, flags)
    try:
        os.ftruncate(descriptor, size_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def raise_limit() -> None:
    """This process may have as many descriptors as its hard limit says."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def may_leave(descriptor: int) -> bool:
    """Whether it is memory of a sealed size, an end of a pipe without a name, or a socket."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode):
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:")
    if not stat.S_ISREG(mode):
        return stat.S_ISSOCK(mode)
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SIZE_SEALS == _SIZE_SEALS
    except OSError:
        return False


def rights(descriptors: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    """The ancillary data that hands descriptors to the peer of a socket, for `sendmsg`.

    Nothing else in the manager makes such data. PermissionError: one of them may not leave.
    """
    if not all(map(may_leave, descriptors)):
        raise PermissionError(errno.EPERM, "a descriptor of a file does not leave the manager")
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
