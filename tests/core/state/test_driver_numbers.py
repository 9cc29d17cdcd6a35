"""The driver's numbers of GPUs: of the whole node, or behind the gate of the opened ones alone."""

from __future__ import annotations

import pytest

from nodemgr.core.state.driver_numbers import driver_numbers
from tests.core.world import Node


@pytest.mark.parametrize(
    ("gpus", "seen", "numbers"),
    [
        (("GPU-1", "GPU-3"), None, ("1", "3")),
        (("GPU-1", "GPU-3"), ("GPU-3", "GPU-1"), ("0", "1")),
        (("GPU-3",), ("GPU-1", "GPU-3"), ("1",)),
        ((), (), ()),
    ],
)
def test_the_numbers_follow_what_the_process_sees(
    gpus: tuple[str, ...], seen: tuple[str, ...] | None, numbers: tuple[str, ...]
) -> None:
    node = Node(4)
    node.quota("bob", 4)
    node.quota("alice", 2)
    node.asks("bob", 1, 1)
    node.asks("alice", 2, 1)
    node.asks("bob", 3, 1)
    node.asks("alice", 4, 1)
    assert [node.gpus_of(2), node.gpus_of(4)] == [[1], [3]]
    assert driver_numbers(node.state, gpus, seen) == numbers
