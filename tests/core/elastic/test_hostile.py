"""Elastic tasks beside drained GPUs, lowered quotas, clocks set back and tasks with shares."""

from __future__ import annotations

from nodemgr.core.model.entities import Recall, TaskClass, Word
from tests.core.elastic.test_recalls import RECALL_MS, held_by_one, recalled
from tests.core.world import Node, S


def test_a_clock_that_is_set_back_moves_no_deadline() -> None:
    node = held_by_one()
    node.asks("b", 2, 1)
    node.passes(5_000)
    node.wall_ns -= 3_600 * S
    node.passes(RECALL_MS - 5_001)
    assert node.gpus_of(1) == [0, 1, 2, 3]
    node.passes(1)
    assert node.gpus_of(1) == [0, 1, 2]


def test_a_host_that_slept_through_a_deadline_recalls_at_once() -> None:
    """The monotonic clock of a suspended host stands; one that runs on finds the deadline past."""
    node = held_by_one()
    node.asks("b", 2, 1)
    node.now_ns += 3_600 * S
    node.passes(0)
    assert node.gpus_of(1) == [0, 1, 2]
    node.driver_shows(1, 3, 0)
    assert node.gpus_of(2) == [3]


def test_a_gpu_that_is_drained_during_its_recall_is_no_answer_to_the_request() -> None:
    node = held_by_one()
    node.asks("b", 2, 1)
    assert recalled(node) == {"GPU-3": "r2"}
    node.drains(3)
    assert recalled(node) == {"GPU-2": "r2"}
    node.passes(RECALL_MS)
    assert node.gpus_of(1) == [0, 1, 3]
    node.driver_shows(1, 2, 0)
    assert node.gpus_of(2) == [2]


def test_a_gpu_that_is_drained_during_its_offer_stays_until_it_is_left() -> None:
    node = Node(2)
    node.quota("a", 2)
    node.asks("a", 1, 1, most=2, elastic=True)
    (late,) = node.state.elastics["t1"].arrivals[1:]
    index = int(late[4:])
    node.drains(index)
    node.says("a", 1, Word.LEFT, index)
    node.driver_shows(1, index, 0)
    node.passes(120_000)
    assert len(node.gpus_of(1) or ()) == 1, "a drained GPU is offered to no task"
    node.undrains(index)
    node.passes(2_000)
    assert len(node.gpus_of(1) or ()) == 2


def test_an_offer_that_is_never_answered_can_be_recalled() -> None:
    node = Node(2)
    node.quota("a", 2)
    node.quota("b", 2)
    node.asks("b", 9, 1)
    node.asks("a", 1, 1, most=2, elastic=True)
    node.dies(9)
    node.passes(2_000)
    lease = node.state.elastics["t2"]
    assert len(lease.offered) == 1
    node.asks("b", 2, 1)
    node.passes(RECALL_MS)
    assert node.state.elastics["t2"].offered == ()
    assert node.gpus_of(1) is not None
    node.driver_shows(1, int(lease.offered[0][4:]), 0)
    assert node.gpus_of(2) == [int(lease.offered[0][4:])]


def test_an_accepted_offer_cannot_be_declined_into_two_leases() -> None:
    """Late and repeated words of a leader grant no GPU twice."""
    node = held_by_one(gpus=2)
    node.asks("b", 2, 1)
    node.says("a", 1, Word.LEFT, 1)
    node.driver_shows(1, 1, 0)
    assert node.gpus_of(2) == [1]
    for word in Word:
        node.says("a", 1, word, 1)
    assert (node.gpus_of(1), node.gpus_of(2)) == ([0], [1])


def test_a_quota_that_is_lowered_together_with_its_borrowing_keeps_the_least_number() -> None:
    node = Node(4)
    node.quota("a", 2, borrow=2)
    node.quota("b", 4)
    node.asks("a", 1, 1, most=4, elastic=True)
    node.passes(20_000)
    assert node.gpus_of(1) == [0, 1, 2, 3]
    node.quota("a", 1, borrow=0)
    assert recalled(node) == {"GPU-3": "", "GPU-2": "", "GPU-1": ""}
    node.asks("b", 2, 2)
    assert sorted(recalled(node).values()) == ["", "r2", "r2"]
    node.passes(RECALL_MS)
    for index in (1, 2, 3):
        node.driver_shows(1, index, 0)
    assert node.gpus_of(1) == [0]
    assert len(node.gpus_of(2) or ()) == 2


def test_a_quota_of_no_gpu_recalls_down_to_the_least_number() -> None:
    node = held_by_one()
    node.quota("a", 0)
    assert set(recalled(node).values()) == {""}
    node.passes(RECALL_MS)
    assert node.gpus_of(1) == [0]


def test_a_request_with_a_share_waits_for_a_recalled_gpu_as_any_other() -> None:
    node = held_by_one()
    node.asks("b", 2, 1, percent=40, task_class=TaskClass.NORMAL, gated=True)
    assert recalled(node) == {"GPU-3": "r2"}
    node.passes(RECALL_MS)
    node.driver_shows(1, 3, 0)
    assert node.gpus_of(2) == [3]


def test_a_gpu_with_a_share_in_use_is_offered_to_no_elastic_task() -> None:
    node = Node(2)
    node.quota("a", 2)
    node.quota("b", 2, 20)
    node.asks("b", 2, 1, percent=40, task_class=TaskClass.NORMAL, gated=True)
    node.asks("a", 1, 1, most=2, elastic=True)
    node.passes(60_000)
    assert len(node.gpus_of(1) or ()) == 1
    node.dies(2)
    node.passes(2_000)
    assert node.gpus_of(1) == [0, 1]


def test_a_lost_gpu_under_recall_is_replaced_by_another() -> None:
    node = held_by_one()
    node.asks("b", 2, 1)
    node.loses(3)
    assert recalled(node) == {"GPU-2": "r2"}
    node.passes(RECALL_MS)
    node.driver_shows(1, 2, 0)
    assert node.gpus_of(2) == [2]


def test_a_recall_without_a_leader_ends_at_its_deadline_too() -> None:
    node = held_by_one()
    node.asks("a", 5, token=node.state.tasks["t1"].token, worker=0)
    node.dies(1)
    node.asks("b", 2, 1)
    assert node.state.elastics["t1"].recalls == (Recall("GPU-3", "r2"),)
    node.passes(RECALL_MS)
    assert node.gpus_of(5) == [0, 1, 2]
    assert node.gpus_of(2) == [3]
