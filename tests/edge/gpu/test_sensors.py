"""NVML's sensors: each call fails alone, and absurd values are none."""

from __future__ import annotations

import math
import types
from typing import Any

import pytest

from nodemgr.core.views.figures import GpuSensors
from nodemgr.core.views.gpu_minutes import GpuReading
from nodemgr.edge.gpu.sensors import ProcessUse, Sensors

GETTERS = {
    "nvmlDeviceGetUtilizationRates": "utilization_percent",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetPowerUsage": "power_w",
}
NOT_FOUND = 6


class NvmlFault(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


def sample(pid: int, sm: Any, at_us: int = 2_000, mem: int = 0, enc: int = 0, dec: int = 0) -> Any:
    return types.SimpleNamespace(
        pid=pid, timeStamp=at_us, smUtil=sm, memUtil=mem, encUtil=enc, decUtil=dec
    )


def buffered(at_us: int, percent: Any, member: str = "uiVal") -> Any:
    """A sample of the driver's buffer."""
    return types.SimpleNamespace(
        timeStamp=at_us, sampleValue=types.SimpleNamespace(**{member: percent})
    )


class Driver(types.ModuleType):
    """nvidia-ml-py as a test says it answers."""

    NVMLError = NvmlFault
    NVML_ERROR_NOT_FOUND = NOT_FOUND

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.present = {"GPU-a", "GPU-b"}
        self.failing: set[str] = set()
        self.rates: Any = 50
        self.temperature: Any = 40
        self.power: Any = 70_000
        self.samples: list[Any] | int = [sample(10, 30)]
        """Or the number of an error."""
        self.used_bytes: Any = 2**30
        self.buffer: Any = (1, [buffered(1_500, 20), buffered(2_000, 40)])

    def _check(self, name: str) -> None:
        if name in self.failing:
            raise NvmlFault(3)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.present:
            raise NvmlFault(15)
        return uuid

    def nvmlDeviceGetUtilizationRates(self, _handle: str) -> Any:
        self._check("nvmlDeviceGetUtilizationRates")
        return types.SimpleNamespace(gpu=self.rates, memory=0)

    def nvmlDeviceGetTemperature(self, _handle: str, sensor: int) -> Any:
        assert sensor == 0
        self._check("nvmlDeviceGetTemperature")
        return self.temperature

    def nvmlDeviceGetPowerUsage(self, _handle: str) -> Any:
        self._check("nvmlDeviceGetPowerUsage")
        return self.power

    def nvmlDeviceGetMemoryInfo(self, _handle: str) -> Any:
        self._check("nvmlDeviceGetMemoryInfo")
        return types.SimpleNamespace(used=self.used_bytes)

    def nvmlDeviceGetSamples(self, _handle: str, kind: int, _since_us: int) -> Any:
        assert kind == 1
        self._check("nvmlDeviceGetSamples")
        return self.buffer

    def nvmlDeviceGetProcessUtilization(self, _handle: str, _since_us: int) -> Any:
        if isinstance(self.samples, int):
            raise NvmlFault(self.samples)
        return self.samples


@pytest.fixture
def driver() -> Driver:
    return Driver()


def read(driver: Driver, since_us: int = 1_000) -> tuple[GpuSensors, ProcessUse | None]:
    sensed = Sensors(driver).read(["GPU-a"], since_us)["GPU-a"]
    return sensed.sensors, sensed.use


def test_all_sensors(driver: Driver) -> None:
    driver.power = 322_461
    assert read(driver) == (GpuSensors(50, 40, 322.5), ProcessUse({10: 30}, frozenset({10})))


@pytest.mark.parametrize(("call", "name"), GETTERS.items())
def test_a_call_that_fails_costs_its_figure_alone(driver: Driver, call: str, name: str) -> None:
    driver.failing.add(call)
    found, use = read(driver)
    assert found._asdict() == {
        **GpuSensors(50, 40, 70.0)._asdict(),
        name: None,
    }
    assert use is not None


@pytest.mark.parametrize(("call", "name"), GETTERS.items())
def test_a_call_that_nvidia_ml_py_lacks(
    driver: Driver, call: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Driver, call)
    assert read(driver)[0]._asdict()[name] is None
    monkeypatch.delattr(Driver, "nvmlDeviceGetProcessUtilization")
    assert read(driver)[1] is None


@pytest.mark.parametrize(
    ("attribute", "values"),
    [
        ("rates", [-1, 101, 2**32 - 1, math.nan, math.inf, None, "50"]),
        ("temperature", [-51, 201, 2**32 - 1, math.nan, None]),
        ("power", [-1, 10_000_001, 2**32 - 1, math.nan, None]),
    ],
)
def test_absurd_values_are_none(driver: Driver, attribute: str, values: list[Any]) -> None:
    place = ("rates", "temperature", "power").index(attribute)
    for value in values:
        setattr(driver, attribute, value)
        assert read(driver)[0][place] is None, value
    setattr(driver, attribute, 0)
    assert read(driver)[0][place] == 0


def test_a_gpu_that_vanished_is_absent_and_the_others_are_read(driver: Driver) -> None:
    driver.present.discard("GPU-a")
    assert list(Sensors(driver).read(["GPU-a", "GPU-b"], 0)) == ["GPU-b"]


@pytest.mark.parametrize("error", [NOT_FOUND, 0])
def test_no_samples_mean_no_use(driver: Driver, error: int) -> None:
    """The binding raises "success" where the driver has a list of no entries."""
    driver.samples = error
    assert read(driver)[1] == ProcessUse({}, frozenset())


@pytest.mark.parametrize("error", [3, 4, 15, 999])
def test_no_permission_and_no_support_mean_no_knowledge(driver: Driver, error: int) -> None:
    driver.samples = error
    assert read(driver) == (GpuSensors(50, 40, 70.0), None)


def test_the_newest_sample_of_a_process_counts(driver: Driver) -> None:
    driver.samples = [sample(10, 90, 3_000), sample(10, 20, 4_000), sample(10, 50, 2_000)]
    assert read(driver)[1] == ProcessUse({10: 20}, frozenset({10}))


def test_what_drivers_return_beside_samples_is_left_out(driver: Driver) -> None:
    driver.samples = [
        sample(0, 50),
        sample(11, 101),
        sample(12, math.nan),
        sample(13, 50, 1_000),
        sample(14, 0),
    ]
    assert read(driver)[1] == ProcessUse({14: 0}, frozenset())


def test_an_encoder_is_a_use_too(driver: Driver) -> None:
    driver.samples = [sample(10, 0, enc=3), sample(11, 0, dec=1), sample(12, 0, mem=1)]
    assert read(driver)[1] == ProcessUse({10: 0, 11: 0, 12: 0}, frozenset({10, 11, 12}))


# -- the use since the last reading --


def recent(driver: Driver, since_us: int = 1_000) -> GpuReading:
    return Sensors(driver).recent_use(["GPU-a"], since_us)["GPU-a"]


def test_all_samples_since_the_last_reading(driver: Driver) -> None:
    assert recent(driver) == GpuReading((20, 40), 2**30)
    assert recent(driver, 1_500) == GpuReading((40,), 2**30), "an old sample is left out"


@pytest.mark.parametrize(
    ("kind", "member"),
    [*enumerate(["dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal"])],
)
def test_samples_of_every_type(driver: Driver, kind: int, member: str) -> None:
    driver.buffer = kind, [buffered(2_000, 30, member)]
    assert recent(driver).percents == (30,)


@pytest.mark.parametrize(
    "buffer",
    [(1, []), (7, [buffered(2_000, 30)]), (-1, [buffered(2_000, 30)]),
     (1, [buffered(900, 30)]), (0, [buffered(2_000, 30)])],
)  # fmt: skip
def test_without_a_sample_the_rate_counts(driver: Driver, buffer: Any) -> None:
    driver.buffer = buffer
    assert recent(driver).percents == (50,)


def test_a_driver_without_the_buffer_has_its_rate(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.failing.add("nvmlDeviceGetSamples")
    assert recent(driver) == GpuReading((50,), 2**30)
    monkeypatch.delattr(Driver, "nvmlDeviceGetSamples")
    assert recent(driver) == GpuReading((50,), 2**30)


def test_each_figure_of_the_use_can_be_missing_alone(driver: Driver) -> None:
    driver.failing |= {"nvmlDeviceGetSamples", "nvmlDeviceGetUtilizationRates"}
    assert recent(driver) == GpuReading((), 2**30)
    driver.failing.add("nvmlDeviceGetMemoryInfo")
    assert recent(driver) == GpuReading((), None)


@pytest.mark.parametrize("absurd", [-1, 101, 2**32 - 1, math.nan, math.inf, None, "50"])
def test_an_absurd_sample_is_left_out(driver: Driver, absurd: Any) -> None:
    driver.buffer = 1, [buffered(2_000, absurd), buffered(2_001, 7)]
    assert recent(driver).percents == (7,)


@pytest.mark.parametrize("absurd", [-1, 2**63, math.nan, None])
def test_absurd_memory_is_unknown(driver: Driver, absurd: Any) -> None:
    driver.used_bytes = absurd
    assert recent(driver).memory_used_bytes is None


def test_a_gpu_that_is_gone_is_left_out_of_the_use(driver: Driver) -> None:
    found = Sensors(driver).recent_use(["GPU-a", "GPU-x"], 0)
    assert set(found) == {"GPU-a"}
