"""Facts of the driver in this process, as one JSON line.

    python driver_facts.py

Times of the first calls, bytes of a context, granularity, times of kernels by events, and the codes
of event calls in a thread without a current context. Standard library only; pynvml where it is.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from typing import Any

from driver_api import Address, Pointer, Size, cuda, free_and_total, module_text, timed

KERNELS_NS = {"sleep_us_5": 5_000, "sleep_us_50": 50_000, "sleep_us_500": 500_000,
    "sleep_us_20000": 20_000_000}  # fmt: skip
BLOCKS, THREADS = 1056, 32
"""As bench/programs/tenant.c."""
SIZES = (1, 1 << 20, 2 << 20, (2 << 20) + 1, 64 << 20)
TIMED_NS = 60_000_000
"""So long each kernel runs, repeated."""


def first_calls() -> dict[str, Any]:
    context, found = Pointer(), {}
    found["cuInit"], found["cuInit_ms"] = timed(cuda.cuInit, 0)
    found["retain"], found["retain_ms"] = timed(
        cuda.cuDevicePrimaryCtxRetain, ctypes.byref(context), 0
    )
    found["current"] = cuda.cuCtxSetCurrent(context)
    version, total = ctypes.c_int(), Size()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
    return found | {"version": version.value, "total": total.value, "info": free_and_total()}


def taken_bytes() -> dict[int, list[int]]:
    """By size: the code of its allocation and the bytes that cuMemGetInfo is less by."""
    found = {}
    for size in SIZES:
        address, before = Address(), free_and_total()[1]
        code = cuda.cuMemAlloc_v2(ctypes.byref(address), Size(size))
        found[size] = [code, before - free_and_total()[1]]
        if code == 0:
            cuda.cuMemFree_v2(address)
    return found


class Events:
    """A stream, two events around launches, and the kernels."""

    def __init__(self) -> None:
        self.module, self.stream, self.pair = Pointer(), Pointer(), (Pointer(), Pointer())
        self.load, self.load_ms = timed(
            cuda.cuModuleLoadData, ctypes.byref(self.module), module_text(KERNELS_NS)
        )
        cuda.cuStreamCreate(ctypes.byref(self.stream), 1)
        for event in self.pair:
            cuda.cuEventCreate(ctypes.byref(event), 0)

    def kernel_us(self, name: str) -> float:
        """Of one launch among many, after a first pair of launches."""
        kernel = Pointer()
        cuda.cuModuleGetFunction(ctypes.byref(kernel), self.module, name.encode())
        many = max(3, min(200, TIMED_NS // KERNELS_NS[name]))
        for count in (2, many):
            cuda.cuEventRecord(self.pair[0], self.stream)
            for _ in range(count):
                cuda.cuLaunchKernel(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, self.stream, None, None)
            cuda.cuEventRecord(self.pair[1], self.stream)
            cuda.cuStreamSynchronize(self.stream)
        return round(self.between()[1] * 1e3 / many, 2)

    def between(self) -> tuple[int, float]:
        """The code of cuEventElapsedTime, and milliseconds."""
        ms = ctypes.c_float()
        return cuda.cuEventElapsedTime(ctypes.byref(ms), *self.pair), ms.value


def without_context(events: Events) -> dict[str, Any]:
    """Codes of calls in a fresh thread: launch/meter.c reads events where no context is current."""
    found: dict[str, Any] = {}

    def ask() -> None:
        current, capturing, mode = Pointer(), ctypes.c_int(), ctypes.c_int(2)
        found["cuCtxGetCurrent"] = cuda.cuCtxGetCurrent(ctypes.byref(current))
        found["context"] = bool(current.value)
        found["cuEventQuery"] = cuda.cuEventQuery(events.pair[1])
        found["cuEventElapsedTime"], found["ms"] = events.between()
        found["cuStreamIsCapturing"] = cuda.cuStreamIsCapturing(
            events.stream, ctypes.byref(capturing)
        )
        found["cuStreamGetCtx"] = cuda.cuStreamGetCtx(events.stream, ctypes.byref(current))
        found["cuThreadExchangeStreamCaptureMode"] = cuda.cuThreadExchangeStreamCaptureMode(
            ctypes.byref(mode)
        )
        found["cuEventDestroy"] = cuda.cuEventDestroy_v2(events.pair[0])

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found


def nvml() -> dict[str, Any]:
    """Bytes by process, and of the device with the driver's own reserve."""
    try:
        import pynvml

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        listed = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
        memory = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    own = [process.usedGpuMemory for process in listed if process.pid == os.getpid()]
    return {"own_bytes": own, "reserved": memory.reserved, "used": memory.used}


def main() -> None:
    found = first_calls()
    if found["cuInit"] or found["retain"]:
        print(json.dumps(found))
        return
    found["context"] = nvml()
    found["taken"] = taken_bytes()
    events = Events()
    found |= {"load": events.load, "load_ms": events.load_ms}
    found["kernel_us"] = {name: events.kernel_us(name) for name in KERNELS_NS}
    found["without_context"] = without_context(events)
    print(json.dumps(found))


main()
