"""A range of GPUs: the most that are free at the start, the least that it waits for."""

from __future__ import annotations

import pytest

from nodemgr.core.model.entities import DenyCode, GpuRange
from tests.core.world import Node


@pytest.mark.parametrize(("busy", "got"), [(0, 3), (1, 3), (2, 2), (3, 1)])
def test_it_gets_the_most_that_are_free(busy: int, got: int) -> None:
    node = Node(4)
    node.quota("a", 4)
    node.quota("b", 4)
    if busy:
        node.asks("b", 9, busy)
    node.asks("a", 1, 1, most=3)
    assert len(node.gpus_of(1) or ()) == got
    node.passes(60_000)
    assert len(node.gpus_of(1) or ()) == got  # decided once
    assert not node.state.elastics


def test_it_waits_for_the_least_number() -> None:
    node = Node(4)
    node.quota("a", 4)
    node.quota("b", 4)
    node.asks("b", 8, 2)
    node.asks("b", 9, 1)
    node.asks("a", 1, 2, most=4)
    assert node.waiting() == [1]
    node.dies(9)
    assert len(node.gpus_of(1) or ()) == 2


def test_a_job_has_a_range_too() -> None:
    node = Node(4)
    node.quota("a", 4)
    assert node.submits("a", gpus=2, gpu_range=GpuRange(3)) is not None
    assert [len(task.gpus) for task in node.state.tasks.values()] == [3]


@pytest.mark.parametrize(
    ("most", "elastic", "code", "line"),
    [
        (3, False, DenyCode.OVER_QUOTA, "ends at 3 GPUs; the quota of a is 2, and it may borrow 0"),
        (4, True, DenyCode.OVER_QUOTA, "ends at 4 GPUs; the quota of a is 2, and it may borrow 1"),
    ],
)
def test_a_range_above_the_quota_is_refused_at_once(
    most: int, elastic: bool, code: DenyCode, line: str
) -> None:
    node = Node(8)
    node.quota("a", 2, borrow=1)
    node.asks("a", 1, 1, most=most, elastic=elastic)
    denied = node.denied(1)
    assert denied is not None
    assert denied.code is code
    assert line in denied.reason


def test_a_range_above_the_node_is_refused_at_once() -> None:
    node = Node(2)
    node.quota("a", 8)
    node.asks("a", 1, 1, most=3)
    denied = node.denied(1)
    assert denied is not None
    assert denied.code is DenyCode.MORE_THAN_NODE
