"""The state file of a simulated node, where containers may write it: on a mount of its own.

Knows: mount, the flags of a mount. Must not know: the content of the file.

Root of a container may write the file and chmod it. On the node it is root's, so it would be a
setuid program of root's there. The flags of the container's own mount do not count.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

MOUNT_NAME = "apart"
SIZE_BYTES = 2**24
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_FLAGS = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC


def mount_alone(state: Path) -> None:
    """Puts the file on a small tmpfs, nosuid, nodev and noexec, and a link in its place.

    Does nothing where the mount is there, an earlier node's file is, or the kernel refuses:
    `may_be_shared` says whether it is there.
    """
    if may_be_shared(state) or (state.exists() and not state.is_symlink()):
        return
    place = state.with_name(MOUNT_NAME)
    place.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    options = f"mode=755,size={SIZE_BYTES}".encode()
    if libc.mount(b"nodemgr", os.fsencode(place), b"tmpfs", flags, options) == 0:
        state.unlink(missing_ok=True)
        state.symlink_to(Path(MOUNT_NAME) / state.name)


def may_be_shared(state: Path) -> bool:
    """Whether containers may write the file.

    They may where it is not root's, or where no path of the node leads to a program in it: the
    mount is in the mount namespace of the node's first process.
    """
    if os.geteuid() != 0:
        return True
    try:
        flags = os.statvfs(state.with_name(MOUNT_NAME)).f_flag
    except OSError:
        return False
    return _is_seen_by_all() and state.is_symlink() and flags & _FLAGS == _FLAGS


def _is_seen_by_all() -> bool:
    """Whether mounts of this process are the node's. A sandbox may hide its first process."""
    try:
        return os.stat("/proc/self/ns/mnt").st_ino == os.stat("/proc/1/ns/mnt").st_ino
    except OSError:
        return True
