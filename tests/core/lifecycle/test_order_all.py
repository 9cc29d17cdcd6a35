"""Several orders in one step: each sees the changes of the earlier ones.

tests/core/world.py checks that the books stay true.
"""

from __future__ import annotations

import random

import pytest

from nodemgr.core.manager import step
from nodemgr.core.model import events
from nodemgr.core.model.entities import JobState, QueueRow
from tests.core.world import WALL, Node
from tests.support.examples import examples


def node_of(**config: object) -> Node:
    node = Node(2, **config)
    node.quota("alice", 2)
    return node


def all_of(kind: type, *job_ids: str) -> events.OrderAll:
    return events.OrderAll(tuple(kind(job_id, "ann", WALL) for job_id in job_ids), WALL)


def test_a_job_that_went_with_the_one_it_waited_for_is_passed_over() -> None:
    node = node_of()
    first = node.submits("alice", gpus=1, hold=True)
    second = node.submits("alice", gpus=1, after=(first,))
    assert first is not None
    assert second is not None
    node.happens(all_of(events.WithdrawJob, first, second, first))
    assert node.state.jobs == {}
    assert [node.history[job_id].job.state for job_id in (first, second)] == [
        JobState.WITHDRAWN
    ] * 2
    assert len(node.published("job.withdrawn")) == 2


@pytest.mark.parametrize("kind", [events.HoldJob, events.WithdrawJob, events.UnholdJob])
def test_several_orders_are_written_as_each_of_them_is(kind: type) -> None:
    """A withdrawal that was answered survives a power failure, by one order or by many."""
    node = node_of()
    jobs = [node.submits("alice", gpus=1, hold=True) or "" for _ in range(2)]
    one = step(node.state, kind(jobs[0], "ann", WALL), node.now_ns)
    one.discard()
    many = step(node.state, all_of(kind, *jobs), node.now_ns)
    assert (many.durable, many.reserve, many.must_apply) == (
        one.durable,
        one.reserve,
        one.must_apply,
    )
    assert one.durable


def test_what_a_bound_lets_in_is_let_in_and_no_more() -> None:
    node = node_of()
    node.happens(events.SetQueue(QueueRow("normal", 200, 2), "ann", WALL))
    node.submits("alice", gpus=2)  # holds the node
    held = [node.submits("alice", gpus=2, hold=True) for _ in range(3)]
    node.happens(all_of(events.UnholdJob, *(job_id for job_id in held if job_id is not None)))
    assert [node.job(job_id or "").state for job_id in held] == [
        JobState.QUEUED,
        JobState.QUEUED,
        JobState.HELD,
    ]


def test_an_array_and_one_of_its_jobs_are_each_held_once() -> None:
    node = node_of()
    array = node.submits("alice", gpus=2, array=(0, 1, 2), hold=True)
    assert array is not None
    node.happens(all_of(events.UnholdJob, f"{array}.1", array))
    assert [node.job(f"{array}.{index}").state for index in range(3)] == [
        JobState.QUEUED,
        JobState.STARTING,
        JobState.QUEUED,
    ]
    node.happens(all_of(events.HoldJob, array, f"{array}.2"))
    assert [node.job(f"{array}.{index}").state for index in range(3)] == [
        JobState.HELD,
        JobState.STARTING,
        JobState.HELD,
    ]


KINDS = (events.WithdrawJob, events.HoldJob, events.UnholdJob, events.RequeueJob)


@pytest.mark.parametrize("seed", range(examples(12)))
def test_it_leaves_what_the_same_orders_leave_one_after_the_other(seed: int) -> None:
    """Nothing can start meanwhile: the node is taken."""
    dice = random.Random(seed)
    nodes = [node_of(), node_of()]
    for node in nodes:
        dice_of_one = random.Random(seed)
        node.submits("alice", gpus=2)
        for _ in range(6):
            node.submits(
                "alice",
                gpus=2,
                hold=dice_of_one.random() < 0.5,
                array=tuple(range(dice_of_one.randrange(3))),
            )
    kind, names = dice.choice(KINDS), [f"j{dice.randrange(2, 9)}" for _ in range(6)]
    together, held_or_dependent = nodes
    together.happens(all_of(kind, *names))
    for name in names:
        held_or_dependent.happens(kind(name, "ann", WALL))
    states = [
        {job.job_id: (job.state, job.why) for job in node.state.jobs.values()} for node in nodes
    ]
    assert states[0] == states[1]
    assert together.queued_jobs() == held_or_dependent.queued_jobs()
