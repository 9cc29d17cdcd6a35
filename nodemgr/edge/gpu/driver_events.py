"""Events of the driver about failing hardware: XIDs and uncorrectable memory errors.

Knows: NVML's event sets, which wait in the driver without polling. Must not know: what an event
leads to (core/lifecycle/gpu_records.py).

A thread of its own waits. No call of NVML ends a wait, so the thread returns from it every WAIT_MS
to see whether it is to end; nothing is read then. The main thread does not wait for that. After a
fault of the driver, which ends all sets, the thread makes a new set after RETRY_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from nodemgr.core.model.entities import FailureKind, Uuid
from nodemgr.core.placement import xids
from nodemgr.edge.host import stderr_log, threads

WAIT_MS = 10_000
RETRY_S = 10.0


class DriverEvent(NamedTuple):
    """A failure of the hardware, as the driver reports it."""

    uuid: Uuid
    kind: FailureKind
    detail: str


class EventsEnded(Exception):
    """The set reports nothing any more: the driver failed, or has none."""


class EventSet(Protocol):
    """The events of all GPUs since it was made."""

    def wait(self, timeout_ms: int) -> DriverEvent | None:
        """The next failure of the hardware; None: none came, or another event.

        Raises EventsEnded.
        """
        ...

    def close(self) -> None: ...


class NvmlEvents:
    """An event set of NVML."""

    def __init__(self, nvml: ModuleType) -> None:
        """Raises EventsEnded."""
        self._nvml = nvml
        self._uuids: dict[int | None, Uuid] = {}
        """By the address of a device: a GPU that fell off the bus does not answer."""
        try:
            self._set = nvml.nvmlEventSetCreate()
            for index in range(nvml.nvmlDeviceGetCount()):
                self._register(index)
        except nvml.NVMLError as error:
            raise EventsEnded(str(error)) from None

    def _register(self, index: int) -> None:
        """A GPU that is ill, or has no such events, is left out."""
        nvml = self._nvml
        wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        with contextlib.suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(nvml.nvmlDeviceGetUUID(handle))
            types = nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted
            if types:
                nvml.nvmlDeviceRegisterEvents(handle, types, self._set)
                self._uuids[_address(handle)] = uuid

    def wait(self, timeout_ms: int) -> DriverEvent | None:
        nvml = self._nvml
        try:
            data = nvml.nvmlEventSetWait_v2(self._set, timeout_ms)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return None
            raise EventsEnded(str(error)) from None
        uuid = self._uuids.get(_address(data.device))
        return None if uuid is None else _failure(nvml, uuid, data.eventType, data.eventData)

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlEventSetFree(self._set)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _failure(nvml: ModuleType, uuid: Uuid, kind: int, data: int) -> DriverEvent | None:
    """The event, if the hardware is at fault; a program's fault is none."""
    if kind == nvml.nvmlEventTypeDoubleBitEccError:
        return DriverEvent(uuid, FailureKind.ECC, "uncorrectable memory error (ECC event)")
    detail = xids.of_hardware(int(data)) if kind == nvml.nvmlEventTypeXidCriticalError else None
    return None if detail is None else DriverEvent(uuid, FailureKind.XID, detail)


class DriverEventWatcher:
    """The thread that waits, and reports each failure to the loop."""

    def __init__(
        self,
        make: Callable[[], EventSet],
        loop: asyncio.AbstractEventLoop,
        on_event: Callable[[DriverEvent], None],
    ) -> None:
        """`make` makes an event set, or raises EventsEnded; it is called in the thread."""
        self._make, self._loop, self._on_event = make, loop, on_event
        self._ending = threading.Event()
        threads.start(self._run, "gpu-events")

    def stop(self) -> None:
        """No event is reported from now on. The thread ends after its last wait."""
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._read(self._make())
            except EventsEnded:
                pass
            except Exception as error:  # the manager goes on without events
                stderr_log.fault("in the wait for events of the GPUs", error)
            self._ending.wait(RETRY_S)

    def _read(self, events: EventSet) -> None:
        try:
            while not self._ending.is_set():
                found = events.wait(WAIT_MS)
                if found is not None and not self._ending.is_set():
                    with contextlib.suppress(RuntimeError):  # the loop is closed
                        self._loop.call_soon_threadsafe(partial(self._on_event, found))
        finally:
            events.close()
