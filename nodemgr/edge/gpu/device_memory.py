"""One GPU's memory in use by NVML: in all, of each process, and of no process.

Knows: NVML's calls for one device. Must not know: leases, other GPUs, threads.

Exported memory outlives its process while another one holds the descriptor or an import. The driver
counts such memory as in use and may list no process for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of one GPU, in bytes."""

    used_bytes: int
    """With the driver's own reserve, as nvidia-smi shows it."""
    by_pid: Mapping[int, int]
    unmeasured: frozenset[int]
    """Processes that the driver lists without a figure; `by_pid` has them at zero."""
    ownerless_bytes: int | None
    """In use by no listed process.

    None: a process has no figure, or the driver does not tell its reserve.
    """


class _InUse(NamedTuple):
    used_bytes: int
    reserved_bytes: int | None
    """The driver's own reserve, a part of `used_bytes`; None: unknown."""


def read(nvml: ModuleType, handle: Any) -> DeviceMemory:
    """Raises NVMLError where the GPU cannot be read.

    `handle`: of nvmlDeviceGetHandleByIndex. A driver that has no list of one kind of processes, of
    compute or of graphics, is read without it.
    """
    before = _in_use(nvml, handle)
    by_pid: dict[int, int] = {}
    unmeasured: set[int] = set()
    for query in (
        nvml.nvmlDeviceGetComputeRunningProcesses,
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        try:
            found = query(handle)
        except nvml.NVMLError_NotSupported:
            continue
        for process in found:
            # a compute and graphics process is in both lists, with the same figure
            by_pid[process.pid] = max(by_pid.get(process.pid, 0), int(process.usedGpuMemory or 0))
            if process.usedGpuMemory is None:
                unmeasured.add(process.pid)
    ownerless_bytes = None
    if before.reserved_bytes is not None and not unmeasured:
        explained_bytes = before.reserved_bytes + sum(by_pid.values())
        ownerless_bytes = max(0, before.used_bytes - explained_bytes)
        if ownerless_bytes:
            # A process that ended between the two questions is not listed, and its memory is in
            # the first answer: what is in use now decides.
            now_bytes = _in_use(nvml, handle).used_bytes
            ownerless_bytes = max(0, min(before.used_bytes, now_bytes) - explained_bytes)
    return DeviceMemory(before.used_bytes, by_pid, frozenset(unmeasured), ownerless_bytes)


def _in_use(nvml: ModuleType, handle: Any) -> _InUse:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (
        nvml.NVMLError_FunctionNotFound,
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_ArgumentVersionMismatch,
    ):  # a driver before 510
        return _InUse(int(nvml.nvmlDeviceGetMemoryInfo(handle).used), None)
    return _InUse(int(memory.used + memory.reserved), int(memory.reserved))
