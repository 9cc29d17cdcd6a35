"""Idle GPUs go to elastic tasks after a calm: which task, within which limits."""

from __future__ import annotations

from nodemgr.core.elastic.offers import DECLINED_MS
from nodemgr.core.model.effects import SendGrant, SendOffer
from nodemgr.core.model.entities import Word
from tests.core.world import GIB, Node

CALM_MS = 2_000


def elastic(node: Node, env: str, pid: int, least: int, most: int) -> None:
    node.asks(env, pid, least, most=most, elastic=True)


def shrunk_node(**quota: int) -> Node:
    """`a` leads an elastic task of 1 to 4 GPUs, and got one: a plain task had the others."""
    node = Node(4)
    node.quota("a", 4, **quota)
    node.quota("b", 4)
    node.asks("b", 9, 3)
    elastic(node, "a", 1, 1, 4)
    assert node.gpus_of(1) == [3]
    return node


def test_idle_gpus_are_offered_after_a_calm() -> None:
    node = shrunk_node()
    node.dies(9)
    node.passes(CALM_MS - 1)
    assert node.gpus_of(1) == [3]
    node.passes(1)
    assert node.gpus_of(1) == [0, 1, 2, 3]
    assert [offer.uuid for offer in node.of(SendOffer)] == ["GPU-0", "GPU-1", "GPU-2"]
    assert [grant.task.gpus for grant in node.of(SendGrant)][-1] == node.task(1).gpus
    (first, *_) = node.published("task.grown")
    assert (first["held"], first["gpus_min"], first["gpus_max"]) == (2, 1, 4)


def test_a_gpu_that_was_used_meanwhile_has_its_calm_anew() -> None:
    node = shrunk_node()
    node.dies(9)
    node.passes(1_500)
    node.asks("b", 10, 3)
    node.dies(10)
    node.passes(1_500)
    assert node.gpus_of(1) == [3]
    node.passes(500)
    assert node.gpus_of(1) == [0, 1, 2, 3]


def test_the_task_with_the_least_part_of_its_greatest_number_comes_first() -> None:
    node = Node(4)
    for env in "abc":
        node.quota(env, 4)
    node.asks("c", 9, 2)
    elastic(node, "a", 1, 1, 3)
    elastic(node, "b", 2, 1, 4)
    node.says("a", 1, Word.LEFT, 3)
    node.driver_shows(1, 3, 0)
    assert (node.gpus_of(1), node.gpus_of(2)) == ([2], [3])
    node.dies(9)
    node.passes(CALM_MS)
    assert (node.gpus_of(1), node.gpus_of(2)) == ([1, 2], [0, 3])


def test_the_quota_ends_the_growth_and_borrowing_goes_beyond_it() -> None:
    for borrow, held in ((0, 2), (1, 3), (9, 4)):
        node = Node(4)
        node.quota("b", 4)
        node.quota("a", 2, borrow=borrow)
        node.asks("b", 9, 3)
        node.asks("a", 1, 1, most=2 + min(borrow, 2), elastic=True)
        node.dies(9)
        node.passes(CALM_MS)
        assert len(node.gpus_of(1) or ()) == held


def test_borrowed_memory_stands_beside_the_quota() -> None:
    node = Node(4)
    node.quota("a", 2, 80, borrow=1)
    node.asks("a", 1, 1, most=3, elastic=True)
    assert len(node.gpus_of(1) or ()) == 2
    node.passes(CALM_MS)
    assert len(node.gpus_of(1) or ()) == 3
    grants = [grant.memory_bytes for grant in node.state.grants.values()]
    assert grants == [40 * GIB] * 3


def test_a_gpu_that_a_request_waits_for_is_not_offered() -> None:
    node = Node(4)
    for env in "abc":
        node.quota(env, 4)
    node.asks("b", 9, 2)
    node.asks("c", 8, 1)
    elastic(node, "a", 1, 1, 4)
    node.asks("c", 7, 3)
    node.dies(8)
    node.passes(10 * CALM_MS)
    assert node.gpus_of(1) == [3]


def test_a_declined_offer_is_not_made_again_for_a_minute() -> None:
    node = shrunk_node()
    node.dies(9)
    node.passes(CALM_MS)
    node.says("a", 1, Word.DECLINED, 2)
    node.driver_shows(1, 2, 0)
    assert node.gpus_of(1) == [0, 1, 3]
    node.passes(DECLINED_MS - 1)
    assert node.gpus_of(1) == [0, 1, 3]
    node.passes(1)
    assert node.gpus_of(1) == [0, 1, 2, 3]


def test_a_leader_that_is_away_gets_no_offer() -> None:
    node = shrunk_node()
    node.dies(9)
    node.restart()
    node.passes(CALM_MS)
    assert node.gpus_of(1) == [3]
    task = node.task(1)
    process = node.state.processes["unix:1:1"]
    assert task is not None
    node.rejoins("a", 1, task.task_id, process.slot, process.generation)
    node.passes(CALM_MS)
    assert node.gpus_of(1) == [0, 1, 2, 3]
