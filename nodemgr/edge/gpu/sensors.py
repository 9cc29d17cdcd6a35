"""Sensors of the GPUs and samples of use per process, by NVML.

Knows: NVML's calls for them and the values that a driver can mean. Must not know: tasks.

Each call can fail alone: an old driver lacks it, MIG or a missing permission forbids it, the GPU is
gone. A figure that fails or is absurd is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

from nodemgr.core.model.entities import Uuid
from nodemgr.core.views.figures import GpuSensors
from nodemgr.core.views.gpu_minutes import GpuReading

UTILIZATION_SAMPLES = 1
"""NVML's number of the buffer of samples of the compute units' utilisation."""
VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of a sample's union, by the number of its type."""
TEMPERATURE_GPU = 0
"""NVML's number of the sensor on the GPU's chip."""
SUCCESS = 0
MAX_PERCENT = 100
MIN_C, MAX_C = -50, 200
MAX_POWER_MW = 10_000_000
MAX_BYTES = 2**50
"""No GPU is beyond these; a driver that reports more has no figure."""


class ProcessUse(NamedTuple):
    """The samples of one GPU's processes."""

    percent: dict[int, int]
    """By PID: the newest sample of the compute units."""
    active: frozenset[int]
    """PIDs with any use: compute, memory, encoder or decoder."""


class Sensed(NamedTuple):
    sensors: GpuSensors
    use: ProcessUse | None
    """None: the driver has no samples per process."""


class Sensors:
    """Reads one NVML session. Raises nothing that NVML raises."""

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml

    def read(self, uuids: Iterable[Uuid], since_us: int) -> dict[Uuid, Sensed]:
        """The GPUs that can be found now. `since_us`: the oldest sample wanted, by the wall clock.

        The handle is asked for anew: one of before a driver's reset is invalid.
        """
        found = {}
        for uuid in uuids:
            handle = self._try(self._nvml.nvmlDeviceGetHandleByUUID, uuid)
            if handle is not None:
                found[uuid] = Sensed(self._sensors(handle), self._use(handle, since_us))
        return found

    def recent_use(self, uuids: Iterable[Uuid], since_us: int) -> dict[Uuid, GpuReading]:
        """Of the GPUs that can be found now: the samples since then, and the memory in use.

        A driver keeps about a hundred samples, of 1/6 second each. Without samples the utilisation
        rate is the only one.
        """
        found = {}
        for uuid in uuids:
            handle = self._try(self._nvml.nvmlDeviceGetHandleByUUID, uuid)
            if handle is not None:
                memory = self._try(self._nvml.nvmlDeviceGetMemoryInfo, handle)
                used_bytes = _between(0, getattr(memory, "used", None), MAX_BYTES)
                found[uuid] = GpuReading(self._percents(handle, since_us), used_bytes)
        return found

    def _percents(self, handle: Any, since_us: int) -> tuple[int, ...]:
        asked = self._call("nvmlDeviceGetSamples")
        kind, samples = self._try(asked, handle, UTILIZATION_SAMPLES, since_us) or (0, ())
        name = VALUES[kind] if 0 <= kind < len(VALUES) else ""
        percents = tuple(
            percent
            for sample in samples
            if sample.timeStamp > since_us
            and (percent := _between(0, getattr(sample.sampleValue, name, None), MAX_PERCENT))
            is not None
        )
        if percents:
            return percents
        rate = self._rate(handle)
        return () if rate is None else (rate,)

    def _rate(self, handle: Any) -> int | None:
        rates = self._try(self._call("nvmlDeviceGetUtilizationRates"), handle)
        return _between(0, getattr(rates, "gpu", None), MAX_PERCENT)

    def _sensors(self, handle: Any) -> GpuSensors:
        heat = self._try(self._call("nvmlDeviceGetTemperature"), handle, TEMPERATURE_GPU)
        power_mw = _between(
            0, self._try(self._call("nvmlDeviceGetPowerUsage"), handle), MAX_POWER_MW
        )
        return GpuSensors(
            self._rate(handle),
            _between(MIN_C, heat, MAX_C),
            None if power_mw is None else round(power_mw / 1_000, 1),
        )

    def _use(self, handle: Any, since_us: int) -> ProcessUse | None:
        nvml = self._nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
        except nvml.NVMLError as error:
            # without a process the driver has "not found", or success that the binding raises
            none_found = getattr(nvml, "NVML_ERROR_NOT_FOUND", None)
            is_empty = getattr(error, "value", None) in (SUCCESS, none_found)
            return ProcessUse({}, frozenset()) if is_empty else None
        except (AttributeError, TypeError, ValueError):
            return None
        return _newest(samples, since_us)

    def _call(self, name: str) -> Callable[..., Any] | None:
        """None: this nvidia-ml-py is older than the call."""
        found: Callable[..., Any] | None = getattr(self._nvml, name, None)
        return found

    def _try(self, call: Callable[..., Any] | None, *arguments: Any) -> Any:
        if call is None:
            return None
        try:
            return call(*arguments)
        except (self._nvml.NVMLError, TypeError, ValueError):
            return None


def _newest(samples: Iterable[Any], since_us: int) -> ProcessUse:
    """Drivers also return old samples, process 0 and percentages beyond 100: these are left out."""
    percent: dict[int, int] = {}
    active: set[int] = set()
    at_us: dict[int, int] = {}
    for sample in samples:
        pid, compute = int(sample.pid), _between(0, sample.smUtil, MAX_PERCENT)
        if pid == 0 or compute is None or sample.timeStamp <= since_us:
            continue
        others = (sample.memUtil, sample.encUtil, sample.decUtil)
        if compute or any(_between(1, other, MAX_PERCENT) for other in others):
            active.add(pid)
        if sample.timeStamp >= at_us.get(pid, 0):
            at_us[pid], percent[pid] = sample.timeStamp, compute
    return ProcessUse(percent, frozenset(active))


def _between(least: int, value: Any, most: int) -> int | None:
    """A whole number in these bounds; None for anything else, not-a-number included."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return int(value) if is_number and least <= value <= most else None
