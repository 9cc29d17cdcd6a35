"""The node's clock goes on over restarts and boots, and never back."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemgr.core.views.gpu_minutes import GpuMinute
from nodemgr.edge.store import node_time
from nodemgr.edge.store.database import Store
from nodemgr.edge.store.journal import Journal
from tests.edge.simulated_clock import SimulatedClock

S = 1_000_000_000


def test_it_goes_on_over_restarts_and_boots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)

    def begins(boot: str, uptime_s: int) -> SimulatedClock:
        monkeypatch.setattr(node_time, "boot_id", lambda: boot)
        clock = SimulatedClock(uptime_s * S)
        assert node_time.go_on(clock, Journal(store, clock)) is (boot == last)
        return clock

    last = ""
    first = begins("a", 5)
    assert first.monotonic_ns() == 5 * S
    last = "a"
    again = begins("a", 65)
    assert again.monotonic_ns() == 65 * S, "the manager was away for a minute"
    Journal(store, again).note("manager.started")
    again.advance(5 * S)
    Journal(store, again).save_gpu_minutes([GpuMinute(1, "GPU-1", 5.0, 6)])
    seen_ns = again.monotonic_ns()
    booted = begins("b", 3)
    assert booted.monotonic_ns() == seen_ns + 1 + 3 * S
    assert booted.of_boottime(0) == seen_ns + 1
    assert booted.is_least(seen_ns, booted.monotonic_ns())
    assert not booted.is_least(first.monotonic_ns(), seen_ns)
    assert not booted.is_least(booted.of_boottime(1), booted.monotonic_ns())
    store.close()
