"""Questions to the runtime."""

import ctypes

from . import driver


def memGetInfo():
    """(free, total) bytes of the current device."""
    driver.initialize()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.check(driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value


def getDeviceCount():
    driver.initialize()
    count = ctypes.c_int()
    driver.check(driver.call("cuDeviceGetCount", ctypes.byref(count)))
    return count.value
