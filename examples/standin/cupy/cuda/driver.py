"""libcuda.so.1, opened and initialised at the first use."""

import ctypes
import functools

OUT_OF_MEMORY = 2


class CUDADriverError(RuntimeError):
    """A call that the driver answered with an error; the message is the error's own name."""


@functools.cache
def library():
    return ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    return getattr(library(), name)(*arguments)


def name_of(result):
    text = ctypes.c_char_p()
    call("cuGetErrorName", ctypes.c_int(result), ctypes.byref(text))
    return (text.value or b"CUDA error %d" % result).decode()


def check(result):
    if result != 0:
        raise CUDADriverError(name_of(result))


@functools.cache
def initialize():
    """The first device's primary context, current in this thread."""
    check(call("cuInit", ctypes.c_uint(0)))
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0)))
    check(call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device))
    check(call("cuCtxSetCurrent", context))
