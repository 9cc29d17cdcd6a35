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
import threading
from collections.abc import Iterable
from pathlib import Path

_PROT_NONE, _FAILED = 0, 2 ** (8 * ctypes.sizeof(ctypes.c_size_t)) - 1
_PAGE = ctypes.c_size_t(mmap.PAGESIZE)
_LIBC = ctypes.CDLL(None)
_PATH_ONLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def files_below(roots: Iterable[Path]) -> list[Path]:
    """The roots themselves, or all files in them where they are directories.

    A directory that another manager removes meanwhile has no files to keep.
    """
    found = []
    for root in roots:
        if not root.is_dir():
            found.append(root)
        for directory, _, names in os.walk(root):  # it passes over what it cannot read
            found.extend(Path(directory, name) for name in names)
    return found


class OpenFiles:
    """Keeps files open until it is closed, each of them once. Another thread may close it.

    A mapping keeps its file open and takes no descriptor; the kernel allows a process some 65 000.
    """

    def __init__(self) -> None:
        self._mappings: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for address in self._mappings.values():
                _call("munmap", ctypes.c_void_p(address), _PAGE)
            self._mappings = {}

    def keep(self, paths: Iterable[Path]) -> None:
        """Blocks while another process has a lease on one of these files.

        The first try breaks each lease that a container took while no manager ran, so the kernel
        ends all of them at the same time.
        """
        refused = [path for path in paths if not self._keep(path, os.O_NONBLOCK)]
        for path in refused:
            self._keep(path, 0)

    def _keep(self, path: Path, flag: int) -> bool:
        """Whether the file is open now, or cannot be opened at all."""
        try:
            descriptor = os.open(path, _PATH_ONLY | flag)
        except BlockingIOError:
            return False
        except OSError:  # a link, or gone meanwhile
            return True
        try:
            with self._lock:
                self._hold(descriptor)
        finally:
            os.close(descriptor)
        return True

    def _hold(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        file = found.st_dev, found.st_ino
        if self._is_closed or not stat.S_ISREG(found.st_mode) or file in self._mappings:
            return
        address = _map(descriptor)
        if address != _FAILED:
            self._mappings[file] = address


def _map(descriptor: int) -> int:
    nowhere, offset = ctypes.c_void_p(None), ctypes.c_long(0)
    return _call("mmap", nowhere, _PAGE, _PROT_NONE, mmap.MAP_PRIVATE, descriptor, offset)


def _call(name: str, *words: object) -> int:
    call = getattr(_LIBC, name)
    call.restype = ctypes.c_size_t
    return int(call(*words))
