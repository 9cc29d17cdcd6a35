"""The manager's memory in huge pages: a request after a sleep finds its memory at once.

csrc/manager/huge.h has the reason.

Knows: Python's allocator, /proc/self/maps. Must not know: the contents. If the kernel or the
interpreter refuses, everything is as without it. It takes a few MiB more.
"""

from __future__ import annotations

import contextlib
import ctypes
import re

from nodemgr._native import ffi, lib


class _ArenaAllocator(ctypes.Structure):
    """CPython's PyObjectArenaAllocator."""

    _fields_ = (("context", ctypes.c_void_p), ("alloc", ctypes.c_void_p), ("free", ctypes.c_void_p))


def _address(function: str) -> int:
    return int(ffi.cast("uintptr_t", ffi.addressof(lib, function)))


def begin() -> None:
    """Take memory from there from now on.

    Call it before the import of the modules that a request runs through.
    """
    lib.nm_huge_heap()
    with contextlib.suppress(AttributeError):  # an interpreter without arenas
        set_allocator = ctypes.pythonapi.PyObject_SetArenaAllocator
        set_allocator(
            ctypes.byref(
                _ArenaAllocator(None, _address("nm_huge_arena"), _address("nm_huge_return"))
            )
        )


def gather_heap() -> bool:
    """Moves there what malloc has given away by now; False: the kernel will not."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
        heap = next(
            (
                re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
                for line in file
                if line.endswith("[heap]\n")
            ),
            None,
        )
    return heap is not None and lib.nm_huge_gather(int(heap[1], 16), int(heap[2], 16)) == 0
