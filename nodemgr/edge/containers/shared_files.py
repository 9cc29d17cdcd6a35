"""Files that all containers have mounted, kept open: no container gets a write lease on one.

A write lease (F_SETLEASE) makes each open by another process wait until the kernel ends the lease,
after 45 s by default. Root of a container may ask for one, because the files are root's. The kernel
grants none while another process has the file open.

Knows: how a file stays open. Must not know: which files the containers mount.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
from collections.abc import Iterable
from pathlib import Path

_PROT_NONE = 0
_PATH_ONLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def files_below(roots: Iterable[Path]) -> list[Path]:
    """The roots themselves, or all that is in them where they are directories."""
    return [path for root in roots for path in (root.rglob("*") if root.is_dir() else (root,))]


def keep_open(paths: Iterable[Path]) -> None:
    """Keeps these files open until this process ends. Blocks while another process has a lease.

    The first try breaks each lease that a container took while no manager ran, so the kernel ends
    all of them at the same time.
    """
    refused = [path for path in paths if not _keep_open(path, os.O_NONBLOCK)]
    for path in refused:
        _keep_open(path, 0)


def _keep_open(path: Path, flag: int) -> bool:
    """Whether the file is open now, or cannot be opened at all."""
    try:
        descriptor = os.open(path, _PATH_ONLY | flag)
    except BlockingIOError:
        return False
    except OSError:  # a link, or gone meanwhile
        return True
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            _map(descriptor)
    finally:
        os.close(descriptor)
    return True


def _map(descriptor: int) -> None:
    """A mapping keeps its file open, and takes no descriptor."""
    call = ctypes.CDLL(None).mmap
    call.restype = ctypes.c_void_p
    address, offset = ctypes.c_void_p(None), ctypes.c_long(0)
    call(address, ctypes.c_size_t(mmap.PAGESIZE), _PROT_NONE, mmap.MAP_PRIVATE, descriptor, offset)
