"""The CUDA driver as the stand-in frameworks use it, through ctypes.

It remembers a failed initialisation as CUDA's runtime does.
"""

import ctypes
import functools


class DriverError(RuntimeError):
    pass


def _check(result):
    if result != 0:
        raise DriverError(f"CUDA error {result}")


@functools.cache
def _library():
    return ctypes.CDLL("libcuda.so.1")


_first_answer = None


def initialise():
    """cuInit, once: what it answered first it answers for ever."""
    global _first_answer
    if _first_answer is None:
        _first_answer = _library().cuInit(0)
    _check(_first_answer)


def device_count():
    initialise()
    count = ctypes.c_int()
    _check(_library().cuDeviceGetCount(ctypes.byref(count)))
    return count.value


def total_bytes(index):
    initialise()
    total = ctypes.c_size_t()
    _check(_library().cuDeviceTotalMem_v2(ctypes.byref(total), index))
    return total.value


def hold_context():
    """The first device's primary context, current: from here on the process is seen on the GPU."""
    initialise()
    context = ctypes.c_void_p()
    _check(_library().cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    _check(_library().cuCtxSetCurrent(context))


def allocate(size):
    hold_context()
    pointer = ctypes.c_uint64()
    _check(_library().cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
    return pointer.value
