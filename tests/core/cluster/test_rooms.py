"""The nodes that a pass keeps for the next one: each is as it would be found anew."""

from __future__ import annotations

from typing import Any

import pytest

from nodemgr.core.cluster import events, gpu_shares
from nodemgr.core.cluster.entities import ClusterNode
from nodemgr.core.cluster.head import step
from nodemgr.core.cluster.rooms import NodeUse, NodeUseCache, Room
from nodemgr.core.cluster.state import ClusterDraft
from tests.core.cluster.test_gpu_shares import gpu, share, site
from tests.core.cluster.test_walks import Walk
from tests.core.cluster.world import PlainNode
from tests.support.examples import examples


def facts(draft: ClusterDraft, use: NodeUse) -> dict[str, Any]:
    shares = use.held(draft)
    return {
        **{name: getattr(use, name) for name in ("free", "used", "ahead", "terms")},
        "uses": {env: gpus for env, gpus in use.uses.items() if gpus},
        "gpus": shares and [shares.gpus, shares.used, shares.counted, shares.left],
    }


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Compares each look at a node with one made anew. Whether it was a kept one."""
    real, seen = NodeUseCache.of, list[bool]()

    def of(self: NodeUseCache, draft: ClusterDraft, node: ClusterNode) -> NodeUse:
        before = self._of_node.get(node.name)
        found = real(self, draft, node)
        unassigned = gpu_shares.unassigned(draft)
        fresh = NodeUse(draft, node, draft.at(node.name), by_report=node.name in unassigned)
        assert facts(draft, found) == facts(draft, fresh)
        seen.append(found is before)
        return found

    monkeypatch.setattr(NodeUseCache, "of", of)
    return seen


@pytest.mark.parametrize("seed", range(examples(20)))
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
