"""Failures from the driver's events to the log: what an administrator has to act upon."""

from __future__ import annotations

import time

import pytest

from nodemgr.core.model.entities import FailureKind
from nodemgr.edge.gpu.driver_events import DriverEvent
from nodemgr.edge.host.clock import RealClock
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import FakeGpus, LocalManager

MINUTE_NS = 60_000_000_000


class AheadClock(RealClock):
    """The system's clocks, of which the monotonic clock can be put forward."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def monotonic_ns(self) -> int:  # type: ignore[override]
        return time.monotonic_ns() + self.ahead_ns


def failures(manager: LocalManager, index: int) -> int:
    return int(manager.call("status")["gpus"][index]["failures"])


def test_a_gpu_that_fails_again_and_again_is_drained_with_one_line_in_the_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock, gpus = AheadClock(), FakeGpus(2)
    with LocalManager(gpus=gpus, clock=clock) as manager:
        for count in (1, 2, 3):
            clock.ahead_ns += 2 * MINUTE_NS  # failures within a minute are one
            gpus.events_queue.put(DriverEvent("GPU-00000001", FailureKind.XID, "XID 79"))
            deadline = time.monotonic() + WAIT_LIMIT_S
            while failures(manager, 1) < count and time.monotonic() < deadline:
                time.sleep(0.01)
        assert manager.call("status")["gpus"][1]["drained"]
    lines = [line for line in capsys.readouterr().err.splitlines() if "drained" in line]
    assert lines == [
        "nodemgr: GPU 1 is drained (3 failures within an hour):"
        " nodemgr gpu repaired 1 brings it back after a repair"
    ]


def test_a_gpu_that_an_administrator_drains_is_in_the_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LocalManager(gpus=FakeGpus(2)) as manager:
        manager.call("gpu_drain", index=0, note="fan")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "drained" in line]
    assert "nodemgr gpu resume 0 ends that" in line
    assert "fan" in line
