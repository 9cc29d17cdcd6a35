"""GPUs: a stable index each, ill instead of forgotten, and a look that never holds up the loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from nodemgr.core.model.entities import Gpu
from nodemgr.edge.gpu import gpu_inventory as module
from nodemgr.edge.gpu.gpu_inventory import DriverReading, GpuWatcher, Nvml, NvmlUnavailable
from nodemgr.edge.host.clock import RealClock
from tests.edge.hub import turn
from tests.support.local import FakeGpus

GIB = 2**30


class NvmlError(Exception):
    pass


class NotSupported(NvmlError):
    pass


class FunctionNotFound(NvmlError):
    pass


class VersionMismatch(NvmlError):
    pass


class Driver(types.ModuleType):
    """nvidia-ml-py as a test says it answers."""

    NVMLError = NvmlError
    NVMLError_NotSupported = NotSupported
    NVMLError_FunctionNotFound = FunctionNotFound
    NVMLError_ArgumentVersionMismatch = VersionMismatch
    nvmlMemory_v2 = 2

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.uuids = ["GPU-a", "GPU-b", "GPU-c"]
        self.lost: set[str] = set()
        self.mute: set[str] = set()
        self.fault: str | None = None
        self.memory: list[tuple[int, int]] = [(5, 0)]
        """Bytes in use without the driver's reserve, and the reserve; the last answer stays."""
        self.second_form: type[NvmlError] | None = None
        """Why the driver refuses the second form of the question."""
        self.compute: dict[str, list[Any]] = {}
        self.graphics: dict[str, list[Any]] = {}
        self.inits = 0
        self.minors = {"GPU-a": 1, "GPU-b": 0}

    def _check(self) -> None:
        if self.fault:
            raise NvmlError(self.fault)

    def nvmlInit(self) -> None:
        self.inits += 1
        self._check()

    def nvmlShutdown(self) -> None:
        self._check()

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        self._check()
        return 12_080

    def nvmlSystemGetDriverVersion(self) -> str:
        self._check()
        return "550.54.15"

    def nvmlDeviceGetCount(self) -> int:
        self._check()
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if self.uuids[index] in self.mute:
            raise NvmlError("GPU is lost")
        return self.uuids[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"name of {handle}"

    def nvmlDeviceGetMinorNumber(self, handle: str) -> int:
        if handle in self.lost or handle not in self.minors:
            raise NotSupported
        return self.minors[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> Any:
        if handle in self.lost:
            raise NvmlError("GPU is lost")
        if version is None:
            return types.SimpleNamespace(total=80 * GIB, used=sum(self.memory[0]))
        if self.second_form is not None:
            raise self.second_form
        used, reserved = self.memory[0] if len(self.memory) == 1 else self.memory.pop(0)
        return types.SimpleNamespace(total=80 * GIB, used=used, reserved=reserved)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return self.compute.get(handle, [])

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[Any]:
        if handle not in self.graphics:
            raise NotSupported
        return self.graphics[handle]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    return driver


def shown(reading: DriverReading) -> list[tuple[int, str, bool]]:
    return [(gpu.index, gpu.uuid, gpu.healthy) for gpu in reading.gpus]


def used(pid: int, size: int | None) -> Any:
    return types.SimpleNamespace(pid=pid, usedGpuMemory=size)


def test_no_driver_is_said_with_its_cure(driver: Driver) -> None:
    driver.fault = "Driver Not Loaded"
    with pytest.raises(
        NvmlUnavailable, match=r"does not answer \(Driver Not Loaded\): .*--simulate 4x80GiB"
    ):
        Nvml()


def test_a_simulated_library_that_is_missing_is_said(tmp_path: Any) -> None:
    with pytest.raises(NvmlUnavailable, match=r"the simulated NVML cannot be loaded.*--run-dir"):
        Nvml(tmp_path)


def test_a_gpus_device_node_has_a_number_of_its_own_or_none(driver: Driver) -> None:
    assert Nvml().read(1).minors == {"GPU-a": 1, "GPU-b": 0}


def test_the_number_of_a_node_is_kept_while_nobody_answers_and_never_shared(driver: Driver) -> None:
    nvml = Nvml()
    nvml.read(1)
    driver.fault = "GPU is lost"
    assert nvml.read(2).minors == {"GPU-a": 1, "GPU-b": 0}
    driver.fault, driver.lost, driver.minors = None, {"GPU-a"}, {"GPU-b": 1, "GPU-c": 2}
    assert nvml.read(3).minors == {"GPU-b": 1, "GPU-c": 2}


def test_memory_by_process_from_both_lists(driver: Driver) -> None:
    driver.compute = {"GPU-a": [used(10, 3 * GIB), used(11, None)]}
    driver.graphics = {"GPU-a": [used(10, 3 * GIB), used(12, GIB)]}
    reading = Nvml().read(7)
    assert reading.processes["GPU-a"] == {10: 3 * GIB, 11: 0, 12: GIB}
    assert reading.unmeasured == {("GPU-a", 11)}
    assert reading.of_process(10) == {"GPU-a": 3 * GIB}
    assert reading.of_process(11) == {}
    assert (reading.used_bytes["GPU-b"], reading.at_ns, reading.fault) == (5, 7, None)


def test_the_driver_s_version_is_known_while_it_answers(driver: Driver) -> None:
    nvml = Nvml()
    assert nvml.read(1).driver_version == "550.54.15"
    driver.fault = "gone"
    assert nvml.read(2).driver_version == ""


def test_a_gpu_keeps_its_index_when_nvml_renumbers(driver: Driver) -> None:
    nvml = Nvml()
    assert shown(nvml.read(1)) == [(0, "GPU-a", True), (1, "GPU-b", True), (2, "GPU-c", True)]
    driver.uuids = ["GPU-b", "GPU-c"]
    assert shown(nvml.read(2)) == [(0, "GPU-a", False), (1, "GPU-b", True), (2, "GPU-c", True)]
    driver.uuids = ["GPU-c", "GPU-b", "GPU-d", "GPU-a"]
    assert shown(nvml.read(3)) == [
        (0, "GPU-a", True),
        (1, "GPU-b", True),
        (2, "GPU-c", True),
        (3, "GPU-d", True),
    ]


def test_an_index_of_an_earlier_life_is_kept(driver: Driver) -> None:
    driver.uuids = ["GPU-x", "GPU-b"]
    nvml = Nvml(known=[Gpu("GPU-b", 0, "name", 80 * GIB)])
    assert shown(nvml.read(1)) == [(0, "GPU-b", True), (1, "GPU-x", True)]


@pytest.mark.parametrize("how", ["lost", "mute"])
def test_a_gpu_that_falls_off_the_bus_is_ill_and_comes_back(driver: Driver, how: str) -> None:
    nvml = Nvml()
    nvml.read(1)
    getattr(driver, how).add("GPU-b")
    reading = nvml.read(2)
    assert shown(reading)[1] == (1, "GPU-b", False)
    assert "GPU-b" not in reading.processes
    getattr(driver, how).clear()
    assert shown(nvml.read(3))[1] == (1, "GPU-b", True)


def test_a_driver_that_is_reset_is_asked_anew(driver: Driver) -> None:
    nvml = Nvml()
    nvml.read(1)
    driver.fault = "Unknown Error"
    reading = nvml.read(2)
    assert reading.fault == "NVML: Unknown Error"
    assert [gpu.healthy for gpu in reading.gpus] == [False] * 3
    driver.fault = None
    assert all(gpu.healthy for gpu in nvml.read(3).gpus)
    assert driver.inits >= 2


def test_more_gpus_than_a_ledger_has_rows_are_never_granted(driver: Driver) -> None:
    driver.uuids = [f"GPU-{number:02}" for number in range(18)]
    healthy = [gpu.healthy for gpu in Nvml().read(1).gpus]
    assert healthy.count(True) == module.MAX_GPUS


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Watching:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.gpus = FakeGpus()
        self.seen: list[DriverReading] = []
        self.watcher = GpuWatcher(self.gpus, RealClock(), loop, self.gpus.read(0), self.seen.append)


def test_an_idle_node_is_not_read_and_has_no_thread(loop: asyncio.AbstractEventLoop) -> None:
    earlier = set(threading.enumerate())  # an earlier test's may still end
    watching = Watching(loop)
    watching.watcher.set_period(None)
    assert watching.gpus.reads == 1
    begun = set(threading.enumerate()) - earlier
    assert not [thread for thread in begun if thread.name == "gpus"]


def test_a_look_is_answered_with_a_reading_that_began_after_it(
    loop: asyncio.AbstractEventLoop,
) -> None:
    watching = Watching(loop)
    answers: list[DriverReading] = []
    watching.gpus.set_healthy(1, False)
    watching.watcher.read_soon(answers.append)
    watching.watcher.read_soon(answers.append)
    turn(loop, lambda: len(answers) == 2)
    assert not answers[0].gpus[1].healthy
    assert watching.watcher.last is watching.seen[-1]
    watching.watcher.stop()


def test_it_reads_on_while_somebody_needs_it(loop: asyncio.AbstractEventLoop) -> None:
    watching = Watching(loop)
    watching.watcher.set_period(0.005)
    turn(loop, lambda: len(watching.seen) >= 5)
    watching.watcher.set_period(None)
    answers: list[DriverReading] = []
    watching.watcher.read_soon(answers.append)
    turn(loop, lambda: answers)
    before = watching.gpus.reads
    watching.watcher.read_soon(answers.append)
    turn(loop, lambda: len(answers) == 2)
    assert watching.gpus.reads == before + 1, "nothing but the look that was asked for"
    watching.watcher.stop()


def test_a_driver_that_hangs_holds_up_nobody(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READING_TIMEOUT_S", 0.02)
    watching = Watching(loop)
    first = watching.watcher.last
    watching.gpus.gate.clear()
    answers: list[DriverReading] = []
    watching.watcher.read_soon(answers.append)
    turn(loop, lambda: answers)
    assert answers == [first], "the last that is known"
    watching.gpus.gate.set()
    turn(loop, lambda: watching.seen)
    assert answers == [first], "answered once"
    watching.watcher.stop()


def test_a_hanging_driver_keeps_no_manager_from_ending(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READING_TIMEOUT_S", 0.02)
    watching = Watching(loop)
    watching.gpus.gate.clear()
    watching.watcher.read_soon(lambda reading: None)
    turn(loop, lambda: watching.gpus.reads == 2)
    watching.watcher.stop()
    loop.close()
    watching.gpus.gate.set()  # its late answer finds the loop closed
