"""A range leaves the GPUs that other waiting requests would get beside its least number."""

from __future__ import annotations

import pytest

from nodemgr.core.model.entities import GpuRange
from tests.core.world import Node


@pytest.mark.parametrize("elastic", [False, True])
def test_it_leaves_the_gpus_that_other_waiting_requests_would_get(elastic: bool) -> None:
    node = Node(6)
    for env in "abcd":
        node.quota(env, 6)
    node.asks("d", 9, 6)
    node.asks("a", 1, 1, most=6, elastic=elastic)
    node.asks("b", 2, 2)
    node.asks("c", 3, 1)
    node.dies(9)
    held = [len(node.gpus_of(pid) or ()) for pid in (1, 2, 3)]
    assert held == [3, 2, 1]
    assert all(not lease.recalls for lease in node.state.elastics.values())


def test_one_that_can_never_start_now_keeps_nothing_unless_it_waits_for_the_node() -> None:
    """`b` waits for its own quota; `c` wants more than there is, and would keep every GPU."""
    node = Node(4)
    for env, gpus in (("a", 4), ("b", 1), ("c", 4), ("d", 4)):
        node.quota(env, gpus)
    node.submits("b", gpus=1)
    node.asks("d", 9, 3)
    node.asks("a", 1, 1, most=3)
    node.submits("b", gpus=1)
    node.dies(9)
    assert len(node.gpus_of(1) or ()) == 3
    node.dies(1)
    node.asks("d", 10, 3)
    node.asks("a", 2, 1, most=3)
    node.asks("c", 3, 4)
    node.dies(10)
    assert len(node.gpus_of(2) or ()) == 1


def test_two_ranges_that_wait_divide_what_becomes_free() -> None:
    """The first leaves the second its least number; the rest is the first's."""
    node = Node(4)
    for env in "abd":
        node.quota(env, 4)
    node.asks("d", 9, 4)
    node.asks("a", 1, 1, most=4)
    node.asks("b", 2, 1, most=4)
    node.dies(9)
    assert [len(node.gpus_of(pid) or ()) for pid in (1, 2)] == [3, 1]


def test_requests_of_one_env_count_against_one_quota() -> None:
    node = Node(4)
    node.quota("a", 3)
    node.quota("d", 4)
    node.asks("d", 9, 4)
    node.submits("a", gpus=1, gpu_range=GpuRange(3))
    for _ in range(3):
        node.submits("a", gpus=1)
    node.dies(9)
    assert sorted(len(task.gpus) for task in node.state.tasks.values()) == [1, 1, 1]
