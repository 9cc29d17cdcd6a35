"""A job's start: stored by a step, then given to the executor once, in a turn of its own."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodemgr.core.model import events
from nodemgr.core.model.entities import Cause, JobState
from nodemgr.edge.executor.interface import RunOrder
from tests.jobs.world import TWO_NODES, World
from tests.session import TMP
from tests.support.local import FailingStore, FakeGpus


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()


@pytest.fixture
def world(store: FailingStore) -> Iterator[World]:
    """Two GPUs, and a stand-in for what executes jobs."""
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as name:
        world = World(Path(name), TWO_NODES, gpus=FakeGpus(2), store=store)
        yield world
        world.close()


class Orders:
    """Takes the place of the executor's `create`, notes each order and passes it on."""

    def __init__(self, world: World, store: FailingStore) -> None:
        self.given: list[tuple[str, JobState, int]] = []
        """Job, its state and the number of the last commit, as each order was given."""
        self.turns: list[int] = []
        """The turn of the loop in which each was given."""
        self._turn = 0
        self.broken = ""
        """A job with an order that fails."""
        self._daemon: Any = world.manager.daemon
        self._store = store
        self._create = world.jobs.factory.create
        world.manager.do(lambda: setattr(world.jobs.factory, "create", self.create))

    def count_turns(self) -> None:
        self._turn += 1
        self._daemon.loop.call_soon(self.count_turns)

    def create(self, order: RunOrder) -> None:
        job_id = order.job_id
        self.turns.append(self._turn)
        self.given.append((job_id, self._daemon.state.jobs[job_id].state, self._store.commits))
        if job_id == self.broken:
            raise OSError(28, "No space left on device")
        self._create(order)


def unhold_all(world: World, job_ids: list[str], *then: Callable[[], object]) -> None:
    """One pass starts them all, and `then` follows in the same turn of the loop."""
    daemon = world.manager.daemon

    def step() -> None:
        for job_id in job_ids:
            daemon.submit(events.UnholdJob(job_id, "root (uid 0)", daemon.clock.wall_ns()))
        daemon.engine.run_pass()
        for each in then:
            each()

    world.settle()
    world.manager.do(step)


def test_a_start_is_stored_before_its_order_is_given(world: World, store: FailingStore) -> None:
    orders, commits = Orders(world, store), 0
    job_id = world.submit("true", hold=True)

    def note() -> None:
        nonlocal commits
        commits = store.commits

    unhold_all(world, [job_id], note)
    assert world.until_ended(job_id).job.state is JobState.DONE
    assert orders.given == [(job_id, JobState.STARTING, commits)]
    assert world.manager.call("status")["queue_loop"]["started"] == 1


def test_each_start_has_a_turn_of_its_own_and_each_environment_the_next_one(
    world: World, store: FailingStore
) -> None:
    charged: list[str] = []
    orders = Orders(world, store)
    world.manager.do(lambda: setattr(world.jobs, "_took", lambda env, _ns: charged.append(env)))
    of_alice = [world.submit("true", gpus=0, hold=True) for _ in range(5)]
    of_bob = [world.submit("true", env="bob", gpus=0, hold=True) for _ in range(2)]
    unhold_all(world, of_alice + of_bob, orders.count_turns)
    for job_id in of_alice + of_bob:
        assert world.until_ended(job_id).job.state is JobState.DONE
    first, second, *others = of_alice
    assert [given[0] for given in orders.given] == [first, of_bob[0], second, of_bob[1], *others]
    assert len(set(orders.turns)) == len(orders.turns)
    for_each = 4  # its start, the reports of its begin and its end, what follows its end
    world.until_seen(lambda: len(charged) == 7 * for_each)
    assert Counter(charged) == {"alice": 5 * for_each, "bob": 2 * for_each}


def test_a_job_that_is_stopped_before_its_turn_gets_no_order_and_frees_its_gpus(
    world: World, store: FailingStore
) -> None:
    orders, daemon = Orders(world, store), world.manager.daemon
    stopped, behind = (world.submit("true", gpus=2, hold=True) for _ in range(2))

    def withdraw() -> None:
        assert daemon.state.jobs[stopped].state is JobState.STARTING
        daemon.submit(events.WithdrawJob(stopped, "root (uid 0)", daemon.clock.wall_ns()))
        assert daemon.state.jobs[stopped].state is JobState.STOPPING

    unhold_all(world, [stopped, behind], withdraw)
    assert world.until_ended(stopped).job.state is JobState.WITHDRAWN
    assert world.until_ended(behind).job.state is JobState.DONE
    assert [given[0] for given in orders.given] == [behind]


def test_the_starts_behind_one_that_fails_follow(world: World, store: FailingStore) -> None:
    orders = Orders(world, store)
    job_ids = [world.submit("true", gpus=0, hold=True) for _ in range(4)]
    orders.broken = job_ids[1]
    unhold_all(world, job_ids)
    for job_id in (job_ids[0], *job_ids[2:]):
        assert world.until_ended(job_id).job.state is JobState.DONE
    world.until("job.paused", job=orders.broken)
    assert [given[0] for given in orders.given] == job_ids


def test_jobs_that_are_submitted_and_withdrawn_again_and_again_leave_nothing(world: World) -> None:
    daemon = world.manager.daemon
    for number in range(6):
        submissions = [world.submission("true", gpus=number % 3) for _ in range(8)]
        for answer in world.submit_all(submissions):
            world.order(events.WithdrawJob, answer.job_id)
    world.until_seen(lambda: not daemon.state.jobs and not daemon.state.tasks)
    assert world.until_ended(world.submit("true", gpus=2)).job.state is JobState.DONE


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
