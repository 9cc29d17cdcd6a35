"""Device memory, by the driver's own calls."""

import ctypes

from . import driver, memory, runtime

__all__ = ["alloc", "driver", "memory", "runtime"]


def alloc(size):
    """`size` bytes of device memory; raises memory.OutOfMemoryError where the driver has none."""
    driver.initialize()
    pointer = ctypes.c_uint64()
    result = driver.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    if result == driver.OUT_OF_MEMORY:
        raise memory.OutOfMemoryError(f"{driver.name_of(result)} allocating {size:,} bytes")
    driver.check(result)
    return memory.MemoryPointer(memory.Memory(pointer.value, size), 0)
