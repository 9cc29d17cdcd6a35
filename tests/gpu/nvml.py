"""Whether a GPU answers, and NVML's figures of the first one: the judge of memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

ASK = """
import ctypes, sys
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
sys.exit(f"cuInit: {code}" if code else None if count.value else "it has no device")
"""


def missing_gpu(environ: Mapping[str, str]) -> str:
    """Why no GPU answers to a process with these variables; "": one does.

    A file of the name /dev/nvidiactl is no driver: NVIDIA's library, run by root, makes it.
    """
    asked = subprocess.run(
        [sys.executable, "-S", "-c", ASK],
        env=dict(environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if asked.returncode == 0:
        return ""
    return (asked.stderr.strip() or f"it ended with {asked.returncode}").splitlines()[-1]


def _first_gpu() -> tuple[Any, Any]:
    import pynvml

    pynvml.nvmlInit()
    return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)


def driver_bytes(pid: int) -> int:
    """Of a process; 0 where NVML does not list it, as in some containers."""
    nvml, device = _first_gpu()
    listed = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    return sum(process.usedGpuMemory or 0 for process in listed if process.pid == pid)


def driver_used_bytes() -> int:
    """Of all processes."""
    nvml, device = _first_gpu()
    return int(nvml.nvmlDeviceGetMemoryInfo(device).used)


def without_utilisation() -> str:
    """Why NVML has no utilisation of single processes, as in some virtual machines; "": it has."""
    nvml, device = _first_gpu()
    try:
        nvml.nvmlDeviceGetProcessUtilization(device, 0)
    except nvml.NVMLError_NotSupported:
        return "this driver has no utilisation of single processes"
    except nvml.NVMLError:
        return ""  # no process had any yet
    return ""
