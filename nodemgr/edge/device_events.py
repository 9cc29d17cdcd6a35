"""Word from a simulated node that one of its devices was lost or restored, so that somebody looks at once, and an idle node too.

Knows: inotify, which file a simulated node touches (nodemgr/simulator.py). Must not know: what is looked at, what follows.

A real driver is read while anybody holds or waits for a GPU, and at the next look else; its event sets tell of faults only, and keep
a thread in the driver that nobody could end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

IN_ATTRIB = 0x4
_MANY_BYTES = 65_536


class DeviceEvents:
    """Calls back in the loop after each touch of a file; several may be one call."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path, stirred: Callable[[], None]) -> None:
        """Where the kernel has no inotify to give, nothing is told: there are the looks."""
        self._loop = loop
        self._stirred = stirred
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor >= 0:
            libc.inotify_add_watch(self._descriptor, os.fsencode(path), IN_ATTRIB)
            loop.add_reader(self._descriptor, self._read)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, _MANY_BYTES)
        self._stirred()

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
