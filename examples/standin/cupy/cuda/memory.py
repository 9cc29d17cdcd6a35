"""An allocation, and the exception of a failed one."""

import ctypes

from . import driver


class OutOfMemoryError(MemoryError):
    """The driver refused an allocation for lack of memory."""


class Memory:
    """An allocation; freed with its last reference."""

    def __init__(self, ptr, size):
        self.ptr = ptr
        self.size = size

    def __del__(self, call=driver.call):
        call("cuMemFree_v2", ctypes.c_uint64(self.ptr))


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem = mem
        self.ptr = mem.ptr + offset
