"""A job's start: the step that stores it gives the order to the executor, once and directly."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodemgr.core.model import events
from nodemgr.core.model.entities import Cause, JobState
from nodemgr.edge.executor.interface import RunOrder
from tests.jobs.world import TWO_NODES, World
from tests.support.local import FailingStore, FakeGpus


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()


@pytest.fixture
def world(store: FailingStore) -> Iterator[World]:
    """Two GPUs, and a stand-in for what executes jobs."""
    with tempfile.TemporaryDirectory(prefix="nm", dir="/tmp") as name:
        world = World(Path(name), TWO_NODES, gpus=FakeGpus(2), store=store)
        yield world
        world.close()


class Orders:
    """Takes the place of the executor's `create`, notes each order and passes it on."""

    def __init__(self, world: World, store: FailingStore) -> None:
        self.given: list[tuple[str, JobState, int]] = []
        """Job, its state and the number of the last commit, as each order was given."""
        self.broken = ""
        """A job with an order that fails."""
        self._daemon: Any = world.manager.daemon
        self._store = store
        self._create = world.jobs.factory.create
        world.manager.do(lambda: setattr(world.jobs.factory, "create", self.create))

    def create(self, order: RunOrder) -> None:
        job_id = order.job_id
        self.given.append((job_id, self._daemon.state.jobs[job_id].state, self._store.commits))
        if job_id == self.broken:
            raise OSError(28, "No space left on device")
        self._create(order)


def test_the_step_that_stores_a_start_gives_the_order(world: World, store: FailingStore) -> None:
    """When the step returns, the executor has the order: no list and no other task is between."""
    orders, daemon = Orders(world, store), world.manager.daemon
    job_id = world.submit("true", hold=True)
    world.settle()

    def step() -> tuple[int, int]:
        daemon.submit(events.UnholdJob(job_id, "root (uid 0)", daemon.clock.wall_ns()))
        before = len(orders.given)
        daemon.engine.run_pass()
        return before, store.commits

    before, commits = world.manager.do(step)
    assert before == 0
    assert orders.given == [(job_id, JobState.STARTING, commits)], "stored first, then given"
    assert world.until_ended(job_id).job.state is JobState.DONE
    assert world.manager.call("status")["queue_loop"]["started"] == 1


def test_an_order_that_fails_is_the_end_of_its_attempt_alone(
    world: World, store: FailingStore, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = Orders(world, store)
    broken, good = (world.submit("true", hold=True) for _ in range(2))
    orders.broken = broken
    for job_id in (broken, good):
        assert world.order(events.UnholdJob, job_id)
    assert world.until_ended(good).job.state is JobState.DONE
    world.until("job.paused", job=broken)
    (attempt,) = world.manager.do(lambda: world.manager.daemon.state.jobs[broken].attempts)
    assert attempt.cause is Cause.NOT_STARTED
    assert attempt.why == "could not be started: [Errno 28] No space left on device"
    assert {job_id for job_id, _, _ in orders.given} == {broken, good}
    assert f"starting job {broken}" in capsys.readouterr().err


def test_a_start_that_cannot_be_stored_is_given_to_nothing(
    world: World, store: FailingStore
) -> None:
    orders, daemon = Orders(world, store), world.manager.daemon
    job_id = world.submit("true", hold=True)
    world.settle()

    def step() -> None:
        daemon.submit(events.UnholdJob(job_id, "root (uid 0)", daemon.clock.wall_ns()))
        store.fault = "database or disk is full"
        daemon.engine.run_pass()

    world.manager.do(step)
    assert (orders.given, world.manager.do(lambda: daemon.state.jobs[job_id].attempt)) == ([], 0)
    store.fault = None
    assert world.until_ended(job_id).job.state is JobState.DONE
    assert [given[0] for given in orders.given] == [job_id]
