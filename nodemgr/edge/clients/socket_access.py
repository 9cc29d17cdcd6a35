"""The users that the kernel lets connect to a UNIX socket.

These are all users, or those in a POSIX ACL on the socket's file.

Knows: the kernel's format of an ACL. Must not know: envs, the reason for a restriction.

A connect(2) that the kernel refuses costs the listener nothing: no accept, no place in its backlog.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

ATTRIBUTE = "system.posix_acl_access"
VERSION = 2
OWNER, USER, OWNER_GROUP, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
NOBODY_ID = 0xFFFFFFFF
READ_WRITE, NONE = 6, 0
_ENTRY = struct.Struct("<HHI")


def open_to_all(path: Path) -> None:
    """Raises OSError."""
    with _socket_file(path) as file:
        with contextlib.suppress(OSError):  # there was none, or this file system has none
            os.removexattr(file, ATTRIBUTE)
        os.chmod(file, 0o666)


def open_to(path: Path, uids: Iterable[int], gids: Iterable[int]) -> None:
    """Open the socket to these users and groups.

    The socket's owner and processes that may override modes (CAP_DAC_OVERRIDE) can connect, too.
    Raises OSError.
    """
    with _socket_file(path) as file:
        os.setxattr(file, ATTRIBUTE, _acl(uids, gids))


def _acl(uids: Iterable[int], gids: Iterable[int]) -> bytes:
    entries = [
        (OWNER, READ_WRITE, NOBODY_ID),
        *((USER, READ_WRITE, uid) for uid in sorted(uids)),
        (OWNER_GROUP, NONE, NOBODY_ID),
        *((GROUP, READ_WRITE, gid) for gid in sorted(gids)),
        (MASK, READ_WRITE, NOBODY_ID),
        (OTHER, NONE, NOBODY_ID),
    ]
    return struct.pack("<I", VERSION) + b"".join(_ENTRY.pack(*entry) for entry in entries)


@contextlib.contextmanager
def _socket_file(path: Path) -> Iterator[str]:
    """A path of the socket that stays valid.

    A directory that was mounted into a container without :ro can be written by the container's
    root.
    """
    there = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(there).st_mode):
            raise FileExistsError(errno.EEXIST, "somebody else puts files there", str(path))
        yield f"/proc/self/fd/{there}"
    finally:
        os.close(there)
