"""Reports changes of a file or directory, in place of repeated reads.

Knows: inotify. Must not know: the use of the file, the consequence.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

TOUCHED = 0x4
"""IN_ATTRIB, of a file."""
CAME = 0x80 | 0x100
"""IN_MOVED_TO and IN_CREATE, of what is in a directory."""
_MANY_BYTES = 65_536


class FileEvents:
    """Calls back in the loop after each event; several may be one call."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, path: Path, events: int, stirred: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._stirred = stirred
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
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
