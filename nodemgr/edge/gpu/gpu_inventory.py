"""The node's GPUs as NVML reports them: inventory, health, memory per process.

Knows: NVML through nvidia-ml-py; the simulator has the same calls. Must not know: leases, ledgers.

A read or limit call can take long or never return (a GPU that fell off the bus), so the watcher's
own thread makes it. The thread reads once a period while one is set, and at once on request.
Otherwise it sleeps without a timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from client_plugin.messages.form import SpokenError
from nodemgr.core.model.entities import Gpu, Uuid
from nodemgr.core.views.gpu_minutes import GpuReading
from nodemgr.edge.gpu import device_memory
from nodemgr.edge.gpu.device_memory import DeviceMemory
from nodemgr.edge.gpu.driver_events import EventSet, NvmlEvents
from nodemgr.edge.gpu.sensors import Sensed, Sensors
from nodemgr.edge.host import threads
from nodemgr.edge.host.clock import Clock

NVML_LIBRARY = "libnvidia-ml.so.1"
SET_LIMITS = "nvmlDeviceSetMemoryLimits_v1"
MAX_GPUS = 16
"""Rows of a ledger."""
Result = TypeVar("Result")
READING_TIMEOUT_S = 1.0
"""After this timeout a request gets the last reading."""


class NvmlUnavailable(SpokenError):
    """No driver answers. One line, with the remedy."""


@dataclass(frozen=True, slots=True)
class DriverReading:
    """One reading of NVML."""

    gpus: tuple[Gpu, ...]
    used_bytes: Mapping[Uuid, int] = field(default_factory=dict)
    processes: Mapping[Uuid, Mapping[int, int]] = field(default_factory=dict)
    """Per GPU, bytes by PID."""
    at_ns: int = 0
    fault: str | None = None
    """Why the reading failed, one line; the GPUs not read count as unhealthy."""
    minors: Mapping[Uuid, int] = field(default_factory=dict)
    """The N of each GPU's /dev/nvidiaN, if it has one."""
    unmeasured: frozenset[tuple[Uuid, int]] = frozenset()
    """Processes that the driver lists without a figure; `processes` has them at zero."""
    ownerless_bytes: Mapping[Uuid, int] = field(default_factory=dict)
    """Bytes in use by no listed process; without the GPUs of which this is unknown."""
    cuda_version: int | None = None
    """The newest CUDA of the driver, 12080 for 12.8; None: unknown."""
    driver_version: str = ""
    """As the driver names it, 550.54.15; empty: unknown."""

    def of_process(self, pid: int) -> dict[Uuid, int]:
        """Bytes per GPU, without the GPUs at zero."""
        return {uuid: by_pid[pid] for uuid, by_pid in self.processes.items() if by_pid.get(pid)}


class GpuSource(Protocol):
    """The watcher's source: NVML, or a test's list."""

    @property
    def can_limit(self) -> bool:
        """Whether the driver supports memory limits for cgroups."""
        ...

    def read(self, now_ns: int) -> DriverReading: ...

    def limit(self, uuid: Uuid, cgroup: str, limit_bytes: int | None) -> str | None:
        """Sets the joint limit of a cgroup's processes; None lifts it.

        Returns one line on failure.
        """
        ...

    def sense(self, uuids: Iterable[Uuid], since_us: int) -> dict[Uuid, Sensed]:
        """Sensors and samples per process of the GPUs that can be found (sensors.py)."""
        ...

    def recent_use(self, uuids: Iterable[Uuid], since_us: int) -> dict[Uuid, GpuReading]:
        """Utilisation since then, and memory, of the GPUs that can be found (sensors.py)."""
        ...

    def events(self) -> EventSet:
        """The driver's events about failing hardware, from now on. Raises EventsEnded."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _DriverDevice:
    uuid: Uuid
    name: str
    memory_total_bytes: int
    handle: Any


class Nvml:
    """NVML, loaded from the driver or from a simulated node's directory."""

    def __init__(self, library_directory: Path | None = None, known: Iterable[Gpu] = ()) -> None:
        """`known`: GPUs of earlier runs; they keep their indices. Raises NvmlUnavailable."""
        if library_directory is not None:
            self._preload(library_directory / NVML_LIBRARY)
        import pynvml

        self._nvml: ModuleType = pynvml
        self._known = {gpu.uuid: gpu for gpu in known}
        self._measured: dict[Uuid, _DriverDevice] = {}
        """The constant facts of each GPU read in this run."""
        self._minors: dict[Uuid, int] = {}
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlUnavailable(
                f"the NVIDIA driver does not answer ({error})",
                "install or load it (nvidia-smi must work), or simulate a node with --simulate "
                "4x80GiB",
            ) from None

    @staticmethod
    def _preload(path: Path) -> None:
        """Loads the library first: nvidia-ml-py then finds this one by its soname."""
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise NvmlUnavailable(
                f"the simulated NVML cannot be loaded ({error})",
                "if the file system is mounted noexec, name another --run-dir",
            ) from None

    def read(self, now_ns: int) -> DriverReading:
        """Reads all GPUs. Raises no NVMLError: an unreadable GPU is unhealthy."""
        memories: dict[Uuid, DeviceMemory] = {}
        seen: list[Gpu] = []
        fault = None
        try:
            for index in range(self._nvml.nvmlDeviceGetCount()):
                device = self._device(index)
                if device is None:
                    continue
                memory = self._memory(device)
                if memory is not None:
                    memories[device.uuid] = memory
                self._note_minor(device)
                seen.append(self._remember(device, index, memory is not None))
        except self._nvml.NVMLError as error:
            fault = f"NVML: {error}"
            self._begin_anew()
        ill = {uuid: replace(gpu, healthy=False) for uuid, gpu in self._known.items()}
        gpus = tuple(
            sorted({**ill, **{gpu.uuid: gpu for gpu in seen}}.values(), key=lambda gpu: gpu.index)
        )
        return DriverReading(
            gpus,
            {uuid: memory.used_bytes for uuid, memory in memories.items()},
            {uuid: memory.by_pid for uuid, memory in memories.items()},
            now_ns,
            fault,
            dict(self._minors),
            frozenset(
                (uuid, pid) for uuid, memory in memories.items() for pid in memory.unmeasured
            ),
            {
                uuid: memory.ownerless_bytes
                for uuid, memory in memories.items()
                if memory.ownerless_bytes is not None
            },
            self._cuda_version(),
            self._driver_version(),
        )

    def _driver_version(self) -> str:
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return ""

    def _cuda_version(self) -> int | None:
        try:
            return int(self._nvml.nvmlSystemGetCudaDriverVersion_v2())
        except self._nvml.NVMLError:
            return None

    def _memory(self, device: _DriverDevice) -> DeviceMemory | None:
        """None: the GPU is unhealthy."""
        try:
            return device_memory.read(self._nvml, device.handle)
        except self._nvml.NVMLError:
            return None

    def _device(self, index: int) -> _DriverDevice | None:
        """None: NVML cannot identify the GPU (it is a known one, or was never seen)."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(nvml.nvmlDeviceGetUUID(handle))
            if uuid not in self._measured:
                name, total_bytes = (
                    str(nvml.nvmlDeviceGetName(handle)),
                    int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                )
                self._measured[uuid] = _DriverDevice(uuid, name, total_bytes, handle)
            return replace(self._measured[uuid], handle=handle)
        except nvml.NVMLError:
            return None

    def _note_minor(self, device: _DriverDevice) -> None:
        """Keep the last number if the driver does not answer, until another GPU has that number."""
        try:
            minor = int(self._nvml.nvmlDeviceGetMinorNumber(device.handle))
        except self._nvml.NVMLError:
            return
        self._minors = {uuid: other for uuid, other in self._minors.items() if other != minor} | {
            device.uuid: minor
        }

    def _remember(self, device: _DriverDevice, index: int, healthy: bool) -> Gpu:
        """A GPU keeps its index: NVML renumbers when one disappears."""
        known = self._known.get(device.uuid)
        if known is not None:
            index = known.index
        elif index in (taken := {gpu.index for gpu in self._known.values()}):
            index = next(free for free in range(len(taken) + 1) if free not in taken)
        gpu = Gpu(device.uuid, index, device.name, device.memory_total_bytes)
        if index < MAX_GPUS:
            self._known[device.uuid] = gpu
        return replace(gpu, healthy=healthy and index < MAX_GPUS)

    @property
    def can_limit(self) -> bool:
        try:
            return bool(self._nvml._nvmlGetFunctionPointer(SET_LIMITS))
        except (self._nvml.NVMLError, AttributeError):  # the driver or nvidia-ml-py is too old
            return False

    def limit(self, uuid: Uuid, cgroup: str, limit_bytes: int | None) -> str | None:
        nvml = self._nvml
        device = self._measured.get(uuid)
        if device is None:
            return f"{uuid} is not there"
        hard_bytes = nvml.NVML_DEVICE_MEMORY_LIMIT_MAX if limit_bytes is None else limit_bytes
        try:
            nvml.nvmlDeviceSetMemoryLimits_v1(
                device.handle, nvml.c_nvmlSetMemoryLimits_v1_t(os.fsencode(cgroup), 0, hard_bytes)
            )
        except nvml.NVMLError as error:
            return f"{cgroup} on {uuid}: {error}"
        return None

    def sense(self, uuids: Iterable[Uuid], since_us: int) -> dict[Uuid, Sensed]:
        return Sensors(self._nvml).read(uuids, since_us)

    def recent_use(self, uuids: Iterable[Uuid], since_us: int) -> dict[Uuid, GpuReading]:
        return Sensors(self._nvml).recent_use(uuids, since_us)

    def events(self) -> EventSet:
        return NvmlEvents(self._nvml)

    def _begin_anew(self) -> None:
        """Opens a new session: the old one is dead after a driver reset."""
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlInit()

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


ReadingCallback = Callable[[DriverReading], None]
DriverCall = Callable[[], Callable[[], None]]
"""Runs in the watcher's thread; the loop calls the function that it returns."""


class GpuWatcher:
    """Reads a source in its own thread and reports to the loop."""

    def __init__(
        self,
        source: GpuSource,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        first: DriverReading,
        on_reading: Callable[[DriverReading], None],
    ) -> None:
        """The loop calls `on_reading` after each reading, before the callbacks of read_soon()."""
        self._source = source
        self._clock = clock
        self._loop = loop
        self._on_reading = on_reading
        self.last = first
        self._condition = threading.Condition()
        self._period_s: float | None = None
        self._callbacks: list[ReadingCallback] = []
        self._orders: list[DriverCall] = []
        self._stopping = False
        self._thread: threading.Thread | None = None

    def set_period(self, period_s: float | None) -> None:
        """Sets the read interval; None: only on request. The thread starts at the first need."""
        before_s = self._period_s
        if period_s != before_s:
            with self._condition:
                self._period_s = period_s
                if before_s is None or (period_s is not None and period_s < before_s):
                    self._condition.notify()
            if period_s is not None:
                self._start()

    def read_soon(self, then: ReadingCallback) -> None:
        """Call `then` in the loop with a reading that began after this call.

        On timeout: the last reading.
        """
        answered = False

        def once(reading: DriverReading) -> None:
            nonlocal answered
            if not answered:
                answered = True
                timer.cancel()
                then(reading)

        timer = self._loop.call_later(READING_TIMEOUT_S, lambda: once(self.last))
        with self._condition:
            self._callbacks.append(once)
            self._condition.notify()
        self._start()

    @property
    def can_limit(self) -> bool:
        return self._source.can_limit

    def limit(
        self, uuid: Uuid, cgroup: str, limit_bytes: int | None, then: Callable[[str | None], None]
    ) -> None:
        """Call the source's limit() in the watcher's thread, in call order.

        `then` runs in the loop.
        """
        self.call(lambda: self._source.limit(uuid, cgroup, limit_bytes), then)

    def sense(self, uuids: Iterable[Uuid], since_us: int) -> dict[Uuid, Sensed]:
        """The source's; only for the watcher's thread (`call`)."""
        return self._source.sense(uuids, since_us)

    def recent_use(self, uuids: Iterable[Uuid], since_us: int) -> dict[Uuid, GpuReading]:
        """The source's; only for the watcher's thread (`call`)."""
        return self._source.recent_use(uuids, since_us)

    def call(self, work: Callable[[], Result], then: Callable[[Result], None]) -> None:
        """Call `work` in the watcher's thread, in call order, and `then` in the loop.

        `work` raises nothing.
        """

        def order() -> Callable[[], None]:
            return partial(then, work())

        with self._condition:
            self._orders.append(order)
            self._condition.notify()
        self._start()

    def stop(self) -> None:
        """Stops the thread; waits READING_TIMEOUT_S at most."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(timeout=READING_TIMEOUT_S)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threads.start(self._run, "gpus")

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._callbacks and not self._orders and not self._stopping:
                    self._condition.wait(self._period_s)
                if self._stopping:
                    return
                callbacks, self._callbacks = self._callbacks, []
                orders, self._orders = self._orders, []
                reads = callbacks or (self._period_s is not None and not orders)
            for order in orders:
                self._notify(order())
            if reads:
                reading = self._source.read(self._clock.monotonic_ns())
                self._notify(partial(self._deliver, reading, callbacks))

    def _notify(self, what: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(what)

    def _deliver(self, reading: DriverReading, callbacks: list[ReadingCallback]) -> None:
        self.last = reading
        self._on_reading(reading)
        for read_soon in callbacks:
            read_soon(reading)
