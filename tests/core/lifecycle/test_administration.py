"""Orders of administrators and users on leases and requests. GPUs: test_gpus.py."""

from __future__ import annotations

import pytest

from nodemgr.core.lifecycle.administration import to_release
from tests.core.world import Node


@pytest.fixture
def node() -> Node:
    """Lease t1 of alice, lease t2 of bob, and request r3 of bob."""
    node = Node(1)
    node.quota("alice", 1, 10)
    node.quota("bob", 1, 10)
    node.asks("alice", 10)
    node.asks("bob", 20)
    node.quota("carl", 1, 80)
    node.asks("carl", 30)
    assert (list(node.state.tasks), list(node.state.requests)) == (["t1", "t2"], ["r3"])
    return node


@pytest.mark.parametrize(
    ("name", "env", "found"),
    [
        ("t1", None, "t1"),
        ("t1", "alice", "t1"),
        ("r1", "alice", "t1"),
        ("t1", "bob", None),
        ("r3", None, "r3"),
        ("t3", "carl", "r3"),
        ("t3", "alice", None),
        ("t9", None, None),
        ("", None, None),
        ("j1", None, None),
        ("t1 ", None, None),
    ],
)
def test_a_name_is_released_by_its_own_env_and_by_administrators(
    node: Node, name: str, env: str | None, found: str | None
) -> None:
    assert to_release(node.state, name, env) == found
