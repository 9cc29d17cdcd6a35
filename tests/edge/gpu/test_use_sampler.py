"""The use of the GPUs is read at the end of a minute, more often while some are held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nodemgr.core.views.gpu_minutes import GpuMinute, GpuReading
from nodemgr.edge.gpu.gpu_inventory import GpuWatcher
from nodemgr.edge.gpu.use_sampler import UseSampler
from tests.edge.hub import turn
from tests.edge.simulated_clock import SimulatedClock
from tests.support.local import FakeGpus

S = 1_000_000_000
MINUTE = 60 * S
GPU = "GPU-00000000"
START_WALL_NS = 1_000 * MINUTE + 20 * S


class Timers(asyncio.SelectorEventLoop):
    """A loop whose timer of the sampler the test rings."""

    timer: tuple[float, Callable[[], None]]

    def call_later(self, delay: float, callback: Any, *args: Any, **more: Any) -> Any:
        if getattr(callback, "__name__", "") == "_minute_ended":
            self.timer = delay, callback
            delay = 1e6
        return super().call_later(delay, callback, *args, **more)


class SetClock(SimulatedClock):
    """A simulated clock of which the wall clock can be set."""

    def __init__(self) -> None:
        super().__init__(5 * S, START_WALL_NS)
        self.ahead_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.ahead_ns


class World:
    """A sampler of four GPUs, of which the first has figures."""

    def __init__(self) -> None:
        self.loop = Timers()
        self.clock = SetClock()
        self.gpus = FakeGpus()
        self.asked: list[tuple[tuple[str, ...], int]] = []
        self.saved: list[GpuMinute] = []
        self.use(30)
        first = self.gpus.read(self.clock.monotonic_ns())
        self.watcher = GpuWatcher(
            self.gpus, self.clock, self.loop, first, lambda reading: self.sampler.gpus_read(reading)
        )
        real = self.gpus.recent_use

        def asked(uuids: Any, since_us: int) -> dict[str, GpuReading]:
            self.asked.append((tuple(uuids), since_us))
            return real(uuids, since_us)

        self.gpus.recent_use = asked  # type: ignore[method-assign]
        self.sampler = UseSampler(self.loop, self.clock, lambda: self.watcher, self.saved.extend)

    def use(self, *percents: int, memory_bytes: int | None = 7) -> None:
        self.gpus.recent = {GPU: GpuReading(percents, memory_bytes)}

    def passes(self, seconds: float) -> None:
        self.clock.advance(round(seconds * S))

    def rings(self) -> None:
        """The timer rings when it was set for."""
        delay_s, ring = self.loop.timer
        self.passes(delay_s)
        ring()

    def minute_ends(self) -> None:
        self.rings()
        self.is_taken()

    def is_taken(self) -> None:
        turn(self.loop, lambda: not self.sampler._is_reading)

    def gpus_are_read(self) -> None:
        done: list[object] = []
        self.watcher.read_soon(done.append)
        turn(self.loop, lambda: done)
        self.is_taken()

    def close(self) -> None:
        self.gpus.gate.set()
        self.watcher.stop()
        self.sampler.close()
        self.loop.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def test_an_idle_node_is_read_once_a_minute(world: World) -> None:
    assert world.loop.timer[0] == 40
    world.minute_ends()
    assert world.saved == [GpuMinute(1_000, GPU, 30.0, 7)]
    assert world.asked == [(tuple(gpu.uuid for gpu in world.gpus.gpus), START_WALL_NS // 1_000)]
    assert world.loop.timer[0] == 60
    world.use(50)
    world.minute_ends()
    assert world.saved[1:] == [GpuMinute(1_001, GPU, 50.0, 7)]
    assert world.gpus.reads == 1, "the GPUs themselves are not read for it"


def test_while_the_gpus_are_read_their_use_is_read_every_ten_seconds(world: World) -> None:
    for second in range(1, 31):
        world.passes(1)
        world.use(second)
        before = len(world.asked)
        world.gpus_are_read()
        assert len(world.asked) - before == (second % 10 == 0)
    since = [since_us * 1_000 - START_WALL_NS for _, since_us in world.asked]
    assert since == [0, 10 * S, 20 * S], "without a gap"
    world.use(40)
    world.loop.timer = 10, world.loop.timer[1]
    world.minute_ends()
    assert world.saved == [GpuMinute(1_000, GPU, 25.0, 7)]


def test_a_gpu_that_comes_and_goes_has_its_minutes(world: World) -> None:
    world.gpus.recent = {}
    world.minute_ends()
    assert world.saved == []
    world.use(10)
    world.minute_ends()
    world.gpus.recent = {}
    world.minute_ends()
    assert [row.minute for row in world.saved] == [1_001]


@pytest.mark.parametrize("jump_s", [-50_000, -90, -1, 1, 90, 86_400, 10**9])
def test_a_clock_that_is_set_loses_at_most_a_minute(world: World, jump_s: int) -> None:
    world.minute_ends()
    world.clock.ahead_ns = jump_s * S
    for _ in range(4):
        world.minute_ends()
    _, since_us = world.asked[-1]
    assert 0 < world.clock.wall_ns() // 1_000 - since_us <= 61_000_000
    minutes = [row.minute for row in world.saved]
    now = world.clock.wall_ns() // MINUTE
    assert minutes[0] == 1_000
    assert minutes[-2:] == [now - 2, now - 1]
    assert 0 < world.loop.timer[0] <= 60


def test_a_timer_that_is_early_comes_again_and_not_at_once(world: World) -> None:
    world.passes(40 - 1e-9)
    world.loop.timer[1]()
    world.is_taken()
    assert (world.saved, world.loop.timer[0]) == ([], 1.0)
    world.minute_ends()
    assert [row.minute for row in world.saved] == [1_000]


def test_a_driver_that_hangs_delays_nothing(world: World) -> None:
    world.minute_ends()
    world.gpus.gate.clear()
    for _ in range(5):
        world.rings()
    world.gpus.gate.set()
    world.is_taken()
    assert len(world.asked) == 2, "it is not asked again while it hangs"
    world.minute_ends()
    assert [row.minute for row in world.saved] == [1_000, 1_006]


def test_a_fault_in_a_reading_ends_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(world.gpus, "recent_use", lambda uuids, since_us: 1 // 0)
        world.minute_ends()
    assert "ZeroDivisionError" in capsys.readouterr().err
    world.minute_ends()
    assert len(world.saved) == 1
