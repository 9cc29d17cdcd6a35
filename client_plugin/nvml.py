"""The size of a GPU, read from NVML.

A framework that takes its limit as a fraction needs it before it may touch CUDA.

Knows: four functions of libnvidia-ml.so.1 (NVML API reference). Must not know: leases.
"""

from __future__ import annotations

import ctypes


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def total_bytes(uuid: str) -> int:
    """Physical memory of the GPU "GPU-…". Raises OSError where NVML is not there or refuses."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    device, memory = ctypes.c_void_p(), _Memory()
    _check(nvml.nvmlInit_v2())
    try:
        _check(nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device)))
        _check(nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)))
    finally:
        nvml.nvmlShutdown()
    return int(memory.total)


def _check(result: int) -> None:
    if result != 0:
        raise OSError(f"NVML answered {result}")
