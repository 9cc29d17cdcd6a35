"""The two sleeps of the scheduler's task, the signals and news that end them, and its imports."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Callable, Iterator

import pytest

from nodemgr.edge.engine import scheduler_loop
from nodemgr.edge.engine.informer import QUEUE_CHANGED, ClusterInformer, News, Resource
from nodemgr.edge.engine.scheduler_loop import REASONS, EventLoop
from tests.edge.hub import settle


class Script:
    """A matcher that counts its passes."""

    def __init__(self) -> None:
        self.queued = True
        self.passes = 0
        self.during: Callable[[], None] = lambda: None

    def is_queued(self) -> bool:
        return self.queued

    def run_pass(self) -> None:
        self.passes += 1
        self.during()


class World:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.matcher, self.informer = Script(), ClusterInformer(lambda: None)
        self.queue = EventLoop(self.matcher)
        self.informer.subscribe(self.queue.news, REASONS)
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
    world.queue.wake("a lease ended")
    settle(world.loop)
    assert world.matcher.passes == 2


@pytest.mark.parametrize("signals", [1, 2, 1_000])
def test_many_signals_are_one_pass(world: World, signals: int) -> None:
    for number in range(signals):
        world.queue.wake("inserted" if number % 2 else "a lease ended")
    settle(world.loop)
    assert (world.queue.wakes.total(), world.queue.passes) == (signals, 1)


def test_a_signal_during_a_pass_is_for_the_next_pass(world: World) -> None:
    """A signal during the pass, between the reading and the sleep, causes one more pass."""

    def stir_once() -> None:
        world.matcher.during = lambda: None
        world.queue.wake("while it looked")
        world.queue.wake("and again")

    world.matcher.during = stir_once
    world.queue.wake("inserted")
    settle(world.loop)
    assert world.matcher.passes == 2


def test_passes_that_signal_the_next_one_let_others_come_between(world: World) -> None:
    """As a pass does that starts as many jobs as one pass may."""
    seen: list[int] = []

    def stir() -> None:
        world.loop.call_soon(lambda: seen.append(world.matcher.passes))
        if world.matcher.passes < 5:
            world.queue.wake("there is more")

    world.matcher.during = stir
    world.queue.wake("inserted")
    settle(world.loop, 20)
    assert seen == [1, 2, 3, 4, 5]


GPU, QUOTA, LEASE = Resource("gpu", "GPU-0"), Resource("quota", "alice"), Resource("lease", "t1")


@pytest.mark.parametrize(
    "news",
    [
        News("added", GPU),
        News("added", QUOTA),
        News("changed", QUOTA),
        News("removed", LEASE),
        QUEUE_CHANGED,
    ],
)
def test_news_that_may_let_a_request_be_granted_wake_it(world: World, news: News) -> None:
    world.informer.notify("GpusChanged", [News("added", LEASE), news])
    settle(world.loop)
    assert (world.queue.wakes, world.matcher.passes) == ({"GpusChanged": 1}, 1)


@pytest.mark.parametrize(
    "news",
    [
        News("removed", GPU),
        News("removed", QUOTA),
        News("added", LEASE),
        News("changed", LEASE),
    ],
)
def test_other_news_do_not_wake_it(world: World, news: News) -> None:
    world.informer.notify("GpusChanged", [news])
    settle(world.loop)
    assert (world.queue.wakes, world.matcher.passes) == ({}, 0)


def test_the_news_of_one_step_are_one_signal(world: World) -> None:
    world.informer.notify("Release", [News("removed", LEASE), News("added", GPU), QUEUE_CHANGED])
    settle(world.loop)
    assert (world.queue.wakes.total(), world.matcher.passes) == (1, 1)


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
    world.queue.wake("inserted")
    settle(world.loop)
    assert world.matcher.passes == 2


def test_it_reaches_nothing_but_its_matcher() -> None:
    """It imports no process, no file, no core, no executor and no daemon."""
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
    assert names <= {
        "__future__.annotations",
        "asyncio",
        "collections.Counter",
        "collections.abc.Iterable",
        "typing.Protocol",
        "nodemgr.edge.host.stderr_log",
        "nodemgr.edge.engine.informer.News",
        "nodemgr.edge.engine.informer.NewsKinds",
    }
    assert {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "asyncio"
    } == {"Event", "sleep"}
    sleeps = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.sleep"
    ]
    assert sleeps == ["asyncio.sleep(0)"], "others come between; it waits for no time"
