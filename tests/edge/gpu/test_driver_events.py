"""Events of the driver: which reach the manager, and that a fault of the driver ends none of it."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from pathlib import Path

import pynvml
import pytest

from nodemgr.core.model.entities import FailureKind
from nodemgr.edge.gpu import driver_events
from nodemgr.edge.gpu.driver_events import (
    DriverEvent,
    DriverEventWatcher,
    EventsEnded,
    EventSet,
    NvmlEvents,
)
from nodemgr.edge.gpu.gpu_inventory import NVML_LIBRARY, Nvml
from nodemgr.simulator import SimulatedNode, create
from tests.support.limits import WAIT_LIMIT_S

SOON_MS = 50
WAIT_MS = int(WAIT_LIMIT_S * 1_000)
GIB = 1 << 30


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedNode:
    """A node whose NVML is nvidia-ml-py's, whatever was loaded before."""
    made = create(tmp_path / "node", 2, GIB)
    library = ctypes.CDLL(str(made.directory / NVML_LIBRARY))
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return made


def test_a_hardware_xid_of_the_simulated_driver_is_reported(node: SimulatedNode) -> None:
    nvml = Nvml()
    events = nvml.events()
    try:
        node.raise_xid(1, 79)
        found = events.wait(WAIT_MS)
        assert found is not None
        assert (found.kind, found.detail) == (FailureKind.XID, "XID 79: fell off the bus")
        assert found.uuid == nvml.read(1).gpus[1].uuid
        node.raise_ecc_error(0)
        found = events.wait(WAIT_MS)
        assert found is not None
        assert found.kind is FailureKind.ECC
        assert events.wait(SOON_MS) is None
    finally:
        events.close()
        nvml.close()


def test_a_programs_xid_is_no_failure(node: SimulatedNode) -> None:
    nvml = Nvml()
    events = nvml.events()
    try:
        for xid in (13, 31, 43, 45):
            node.raise_xid(0, xid)
        node.raise_xid(0, 94)
        found = [events.wait(WAIT_MS) for _ in range(5)]
        assert [event is not None for event in found] == [False, False, False, False, True]
    finally:
        events.close()
        nvml.close()


def test_a_gpu_that_fell_off_the_bus_is_still_named(node: SimulatedNode) -> None:
    nvml = Nvml()
    uuid = nvml.read(1).gpus[0].uuid
    events = nvml.events()
    try:
        node.lose(0)
        node.raise_xid(0, 79)
        found = events.wait(WAIT_MS)
        assert found is not None
        assert found.uuid == uuid
    finally:
        events.close()
        nvml.close()


def test_a_wait_ends_with_an_event_of_another_process(node: SimulatedNode) -> None:
    """The thread sleeps in the driver; the event wakes it."""
    nvml = Nvml()
    events = nvml.events()
    found: list[DriverEvent | None] = []
    waiter = threading.Thread(target=lambda: found.append(events.wait(WAIT_MS)))
    try:
        waiter.start()
        node.raise_xid(0, 48)
        waiter.join(WAIT_LIMIT_S)
        assert [event is not None and event.kind for event in found] == [FailureKind.XID]
    finally:
        events.close()
        nvml.close()


class NoDriver:
    """An NVML whose every call fails."""

    class NVMLError(Exception):
        value = 1

    NVML_ERROR_TIMEOUT = 10

    def nvmlEventSetCreate(self) -> None:
        raise self.NVMLError("uninitialised")


def test_a_driver_without_events_is_said_so() -> None:
    with pytest.raises(EventsEnded, match="uninitialised"):
        NvmlEvents(NoDriver())  # type: ignore[arg-type]


class Scripted:
    """An event set that ends after its events."""

    def __init__(self, events: list[DriverEvent | None]) -> None:
        self._events = events

    def wait(self, timeout_ms: int) -> DriverEvent | None:
        if not self._events:
            raise EventsEnded("the driver was reset")
        return self._events.pop(0)

    def close(self) -> None:
        pass


def test_after_a_reset_of_the_driver_a_new_set_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_events, "RETRY_S", 0.001)
    first, second = (DriverEvent(f"GPU-{at}", FailureKind.XID, "XID 79") for at in (0, 1))
    sets = [Scripted([first, None]), Scripted([second])]
    loop = asyncio.new_event_loop()
    found: list[DriverEvent] = []

    def make() -> EventSet:
        if not sets:
            raise EventsEnded("no driver")
        return sets.pop(0)

    def on_event(event: DriverEvent) -> None:
        found.append(event)
        if len(found) == 2:
            loop.stop()

    watcher = DriverEventWatcher(make, loop, on_event)
    watchdog = loop.call_later(WAIT_LIMIT_S, loop.stop)
    try:
        loop.run_forever()
    finally:
        watcher.stop()
        watchdog.cancel()
        loop.close()
    assert found == [first, second]
