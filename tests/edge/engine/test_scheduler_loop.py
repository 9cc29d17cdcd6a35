"""The two sleeps of the queue's task and what ends them, by counting; and what it may reach."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator

import pytest

from nodemgr.core.model.entities import RunSpec
from nodemgr.edge.engine import scheduler_loop
from nodemgr.edge.engine.scheduler_loop import EventLoop
from nodemgr.edge.executor.interface import RunOrder
from tests.edge.hub import settle


def order(number: int) -> RunOrder:
    run = RunSpec("true", 0, None, None)
    return RunOrder(f"j{number}", 1, "alice", run, (), "alice", 1, 1, ("true",), "/", ())


class Script:
    """A matcher that serves what the test says, and notes when it was asked."""

    def __init__(self) -> None:
        self.queued = True
        self.served: list[list[RunOrder]] = []
        self.passes = 0
        self.refused: list[tuple[str, str]] = []
        self.during: Callable[[], None] = lambda: None

    def is_queued(self) -> bool:
        return self.queued

    def run_pass(self) -> Iterable[RunOrder]:
        self.passes += 1
        self.during()
        return self.served.pop(0) if self.served else []

    def not_started(self, order: RunOrder, why: str) -> None:
        self.refused.append((order.job_id, why))


class Door:
    """A factory of which the event loop may use one verb; the others are not even there."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.broken: str | None = None

    def create(self, order: RunOrder) -> None:
        if self.broken is not None:
            raise OSError(28, self.broken)
        self.created.append(order.job_id)


class World:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.matcher, self.door = Script(), Door()
        self.queue = EventLoop(self.matcher, self.door)  # type: ignore[arg-type]
        self.task = self.loop.create_task(self.queue.run())
        settle(self.loop)

    def close(self) -> None:
        self.task.cancel()
        self.loop.run_until_complete(asyncio.gather(self.task, return_exceptions=True))
        self.loop.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def test_it_sleeps_while_nothing_is_queued_whatever_stirs(world: World) -> None:
    world.matcher.queued = False
    for _ in range(5):
        world.queue.wake("a lease ended")
        settle(world.loop)
    assert (world.queue.wakes.total(), world.queue.passes) == (5, 0)
    world.matcher.queued = True
    world.queue.wake("something was inserted")
    settle(world.loop)
    assert world.queue.passes == 1


def test_it_sleeps_while_nothing_queued_fits_until_something_stirs(world: World) -> None:
    world.queue.wake("inserted")
    settle(world.loop)
    assert world.matcher.passes == 1
    settle(world.loop, 100)
    assert world.matcher.passes == 1, "nothing stirs, and nothing is looked at"
    world.matcher.served = [[order(1)]]
    world.queue.wake("a lease ended")
    settle(world.loop)
    assert (world.matcher.passes, world.door.created) == (2, ["j1"])


@pytest.mark.parametrize("signals", [1, 2, 1_000])
def test_many_signals_are_one_pass(world: World, signals: int) -> None:
    for number in range(signals):
        world.queue.wake("inserted" if number % 2 else "a lease ended")
    settle(world.loop)
    assert (world.queue.wakes.total(), world.queue.passes) == (signals, 1)


def test_a_signal_during_a_pass_is_for_the_next_pass(world: World) -> None:
    """Between the reading and the sleep nothing is lost: what stirs while it looks is looked at
    again, once.
    """

    def stir_once() -> None:
        world.matcher.during = lambda: None
        world.queue.wake("while it looked")
        world.queue.wake("and again")

    world.matcher.during = stir_once
    world.queue.wake("inserted")
    settle(world.loop)
    assert world.matcher.passes == 2


def test_each_start_goes_through_the_factory_in_order(world: World) -> None:
    world.matcher.served = [[order(1), order(2)], [order(3)]]
    world.queue.wake("inserted")
    settle(world.loop)
    world.queue.wake("inserted")
    settle(world.loop)
    assert world.door.created == ["j1", "j2", "j3"]
    assert world.queue.started == 3


def test_a_door_that_fails_is_told_and_the_others_are_started(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.matcher.served = [[order(1)], [order(2)]]
    world.door.broken = "No space left on device"
    world.queue.wake("inserted")
    settle(world.loop)
    ((job_id, why),) = world.matcher.refused
    assert (job_id, "No space left on device" in why) == ("j1", True)
    world.door.broken = None
    world.queue.wake("inserted")
    settle(world.loop)
    assert world.door.created == ["j2"]


def test_a_pass_that_fails_does_not_end_the_task(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        world.matcher.during = lambda: None
        raise RuntimeError("a fault of ours")

    world.matcher.during = fail
    world.queue.wake("inserted")
    settle(world.loop)
    assert "a fault of ours" in capsys.readouterr().err
    world.matcher.served = [[order(1)]]
    world.queue.wake("inserted")
    settle(world.loop)
    assert world.door.created == ["j1"]


def test_the_factory_is_its_only_way_to_what_executes() -> None:
    """It imports the door's words and nothing that could go round it: no process, no file, no core,
    no daemon.
    """
    tree = ast.parse(inspect.getsource(scheduler_loop))
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    allowed = {
        "__future__.annotations", "asyncio", "collections.Counter", "collections.abc.Iterable",
        "typing.Protocol",
        "nodemgr.edge.host.stderr_log",
        "nodemgr.edge.executor.interface.RunOrder",
        "nodemgr.edge.executor.interface.ResourceFactory",
    }  # fmt: skip
    assert names <= allowed
    reached = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self._factory"
    }
    assert reached == {"create"}
    assert {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "asyncio"
    } == {"Event"}
