"""The nodes that a pass keeps for the next one: each is as it would be found anew."""

from __future__ import annotations

from typing import Any

import pytest

from nodemgr.core.cluster import events
from nodemgr.core.cluster.entities import ClusterNode
from nodemgr.core.cluster.head import step
from nodemgr.core.cluster.rooms import NodeUse, NodeUses, Room
from nodemgr.core.cluster.state import ClusterDraft
from tests.core.cluster.test_gpu_shares import gpu, share, site
from tests.core.cluster.test_walks import Walk
from tests.core.cluster.world import PlainNode
from tests.support.examples import seeds


def facts(draft: ClusterDraft, uses: NodeUses) -> dict[str, Any]:
    """All that a pass reads of the nodes."""
    uses.check_shares(draft)
    return {
        "nodes": {name: of_node(draft, use) for name, use in uses.of_node.items()},
        "used": +uses.used,
        "ahead": uses.ahead,
        **{
            name: {key: found for key, found in getattr(uses, name).items() if found}
            for name in ("by_free", "by_rest", "of_env", "rest_of")
        },
    }


def of_node(draft: ClusterDraft, use: NodeUse) -> dict[str, Any]:
    shares = use.held(draft)
    names = ("node", "is_open", "free", "used", "uses", "ahead", "terms", "times")
    return {
        **{name: getattr(use, name) for name in names},
        "gpus": shares and [shares.gpus, shares.used, shares.counted, shares.left],
    }


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Compares the nodes of each pass with those made anew. Whether any was a kept one."""
    real, seen = NodeUses.begin, list[bool]()

    def begin(draft: ClusterDraft) -> NodeUses:
        before = {} if draft.node_uses is None else dict(draft.node_uses.of_node)
        found = real(draft)
        draft.node_uses = None
        assert facts(draft, found) == facts(draft, real(draft))
        draft.node_uses = found
        seen.extend(
            found.of_node[name] is use for name, use in before.items() if name in draft.nodes
        )
        return found

    monkeypatch.setattr(NodeUses, "begin", begin)
    return seen


@pytest.mark.parametrize("seed", seeds(pytest.mark.slow))
def test_a_walk(seed: int, kept: list[bool]) -> None:
    walked = Walk(seed, PlainNode)
    walked.steps()
    walked.cluster.calm()
    assert True in kept
    assert False in kept


def test_a_pass_that_uses_a_room_up_leaves_what_is_kept(kept: list[bool]) -> None:
    """The step is undone: the next one finds the node as it was."""
    head = site(quota="{}", gn1=[gpu(), gpu(40)], gn2=[gpu()])
    share(head, 30, memory=2)
    head.passes()
    share(head, 30, memory=2)
    head.submits(1, "b")
    for _ in range(2):
        step(head.state, events.Pass(), head.now_ns).discard()
    head.passes()
    assert True in kept


def test_the_ends_of_a_room_are_those_to_come() -> None:
    node = ClusterNode("gn1", "g", "b", 1, 4)
    room = Room(node, 100, 0, [(90, 5, 1), (None, 20, 2), (95, 10, 1)], [], {}, None)
    assert room.ends() == [(105, 1), (120, 2)]
    assert [room.first(gpus) for gpus in (1, 3)] == [105, 120]
