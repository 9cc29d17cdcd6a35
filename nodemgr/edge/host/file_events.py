"""Reports changes of a file or directory, in place of repeated reads.

Knows: inotify. Must not know: the use of the file, the consequence.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path

TOUCHED = 0x4
"""IN_ATTRIB, of a file."""
CAME = 0x80 | 0x100
"""IN_MOVED_TO and IN_CREATE, of what is in a directory."""
_GREW_ONCE = 0x2 | 0x80000000
"""IN_MODIFY and IN_ONESHOT, of a file."""
_MANY_BYTES = 65_536
_EVENT = struct.Struct("iIII")
"""The watch, the event, a cookie, the length of a name behind it."""


def _inotify() -> tuple[ctypes.CDLL, int]:
    """libc, and a new descriptor; below 0: the kernel has none left."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc, libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)


class FileEvents:
    """Calls back in the loop after each event; several may be one call."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, path: Path, events: int, stirred: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._stirred = stirred
        libc, self._descriptor = _inotify()
        if (
            self._descriptor >= 0
            and libc.inotify_add_watch(self._descriptor, os.fsencode(path), events) < 0
        ):
            os.close(self._descriptor)
            self._descriptor = -1
        if self._descriptor >= 0:
            loop.add_reader(self._descriptor, self._read)

    @property
    def are_told(self) -> bool:
        """False: the kernel has no inotify left, and no event is reported."""
        return self._descriptor >= 0

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, _MANY_BYTES)
        self._stirred()

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


class Growth:
    """Reports once, in the loop, that a file has grown (or is gone); one inotify for all files."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._grown: dict[int, Callable[[], None]] = {}
        """By watch: the kernel has one for each file."""
        self._libc, self._descriptor = _inotify()
        if self._descriptor >= 0:
            loop.add_reader(self._descriptor, self._read)

    def when(self, descriptor: int, grown: Callable[[], None]) -> bool:
        """Calls `grown` at the file's next growth; of one file the last `grown` counts.

        False: the kernel does not report it. The descriptor may be closed.
        """
        path = f"/proc/self/fd/{descriptor}".encode()
        watch: int = self._libc.inotify_add_watch(
            self._descriptor, path, ctypes.c_uint32(_GREW_ONCE)
        )
        if watch >= 0:
            self._grown[watch] = grown
        return watch >= 0

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for watch, _event, _cookie, _length in _EVENT.iter_unpack(
                os.read(self._descriptor, _MANY_BYTES)
            ):
                if (grown := self._grown.pop(watch, None)) is not None:
                    grown()

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
