"""Figures are read when a view asks, once a second for all views, and never hold up the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from nodemgr.core.model.entities import Config
from nodemgr.core.state.node_state import State
from nodemgr.core.views.figures import GpuSensors
from nodemgr.edge.gpu import figure_reader as module
from nodemgr.edge.gpu.figure_reader import FigureReader
from nodemgr.edge.gpu.gpu_inventory import GpuWatcher
from nodemgr.edge.gpu.sensors import ProcessUse, Sensed
from nodemgr.edge.ledger.registry import Ledgers
from tests.edge.hub import turn
from tests.edge.simulated_clock import SimulatedClock
from tests.support.local import FakeGpus

S = 1_000_000_000
GPU = "GPU-00000000"


class World:
    """A reader on four GPUs; the first has sensors, and process 10 has memory there."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.clock = SimulatedClock(1_000 * S)
        self.gpus = FakeGpus()
        self.gpus.processes[GPU] = {10: 5}
        self.use(10)
        first = self.gpus.read(self.clock.monotonic_ns())
        self.watcher = GpuWatcher(self.gpus, self.clock, loop, first, lambda reading: None)
        ledgers = Ledgers(lambda env, files: None)
        self.reader = FigureReader(
            State(Config()), self.clock, loop, lambda: self.watcher, ledgers, dict, frozenset, dict
        )
        self.answers = 0

    def use(self, *pids: int) -> None:
        """From now on NVML shows a use by these processes alone."""
        shown = ProcessUse(dict.fromkeys(pids, 40), frozenset(pids))
        self.gpus.sensed[GPU] = Sensed(GpuSensors(40, 50, 60.0), shown)

    def ask(self) -> None:
        """One view asks, and is answered."""
        before = self.answers
        self.reader.when_read(self.answered)
        turn(self.loop, lambda: self.answers > before)

    def answered(self) -> None:
        self.answers += 1

    def at(self, seconds: float) -> None:
        self.clock.advance(round(seconds * S))


@pytest.fixture
def world() -> Iterator[World]:
    loop = asyncio.new_event_loop()
    world = World(loop)
    yield world
    world.gpus.gate.set()
    world.watcher.stop()
    loop.close()


def test_nothing_is_read_until_a_view_asks(world: World) -> None:
    assert (world.gpus.senses, world.watcher._thread) == (0, None)
    assert world.reader.now().sensors == {}
    world.ask()
    assert world.reader.now().sensors == {GPU: GpuSensors(40, 50, 60.0)}
    assert world.reader.now().memory[GPU] == {10: 5}
    assert world.gpus.senses == 1


def test_all_views_of_a_second_share_a_reading(world: World) -> None:
    for _ in range(10):
        world.reader.when_read(world.answered)
    turn(world.loop, lambda: world.answers == 10)
    world.at(0.9)
    world.ask()
    assert world.gpus.senses == 1
    world.at(0.1)
    world.ask()
    assert world.gpus.senses == 2


def test_nothing_is_read_when_the_views_have_gone(world: World) -> None:
    world.ask()
    world.at(60)
    turn(world.loop, lambda: True)
    assert world.gpus.senses == 1
    assert world.reader.now().sensors == {}, "too old to be reported"


def test_an_old_reading_of_the_driver_is_renewed(world: World) -> None:
    world.at(30)
    world.gpus.processes[GPU] = {10: 7}
    world.ask()
    assert world.reader.now().memory[GPU] == {10: 7}


def test_time_without_use_counts_from_the_last_use(world: World) -> None:
    world.ask()
    used_ns = world.clock.monotonic_ns()
    world.use()
    for _ in range(5):
        world.at(1)
        world.ask()
    use = world.reader.now().use[GPU]
    assert (use.percent, use.used_ns, use.since_ns) == ({}, {10: used_ns}, used_ns)


def test_after_a_pause_a_use_may_have_been_missed(world: World) -> None:
    world.ask()
    world.use()
    world.at(60)
    world.ask()
    use = world.reader.now().use[GPU]
    assert (use.used_ns, use.since_ns) == ({}, world.clock.monotonic_ns())


def test_samples_of_a_short_pause_are_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    since_us = []
    sense = world.gpus.sense
    monkeypatch.setattr(
        world.gpus, "sense", lambda uuids, since: (since_us.append(since), sense(uuids, since))[1]
    )
    world.ask()
    world.at(5)
    world.ask()
    assert world.clock.wall_ns() // 1_000 - since_us[1] >= 5_000_000


def test_a_process_that_ended_is_forgotten(world: World) -> None:
    world.ask()
    world.use()
    world.gpus.processes[GPU] = {}
    world.at(2)
    world.ask()
    assert world.reader.now().use[GPU].used_ns == {}


def test_a_gpu_that_vanished_begins_anew(world: World) -> None:
    world.ask()
    sensed = world.gpus.sensed.pop(GPU)
    world.at(1)
    world.ask()
    assert world.reader.now().use == {}
    world.gpus.sensed[GPU] = sensed
    world.at(1)
    world.ask()
    assert world.reader.now().use[GPU].since_ns == world.clock.monotonic_ns()


def test_a_driver_that_hangs_delays_one_view_and_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READING_TIMEOUT_S", 0.02)
    world.gpus.gate.clear()
    world.ask()
    assert world.reader.now().sensors == {}
    world.at(1)
    world.reader.when_read(world.answered)
    assert world.answers == 2, "at once"
    world.gpus.gate.set()
    turn(world.loop, lambda: world.reader.now().sensors or world.reader._last.sensors)
    assert world.answers == 2, "each view is answered once"


def test_a_fault_in_a_reading_ends_neither_the_thread_nor_the_view(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(world.gpus, "sense", lambda uuids, since_us: 1 // 0)
        world.ask()
    assert "ZeroDivisionError" in capsys.readouterr().err
    world.at(1)
    world.ask()
    assert world.reader.now().sensors
