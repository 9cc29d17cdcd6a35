"""Findings of the launch gates: certainty, each policy, and the offences of memory beside them."""

from __future__ import annotations

import pytest

from nodemgr.core.model.effects import Effect, Kill, SendNote
from nodemgr.core.model.entities import Offence, TaskState
from nodemgr.core.model.events import ComputeAudited, ComputeFinding
from nodemgr.core.sharing import compute_audit
from tests.core.world import WALL, Node, key, seen

BEAT_NS = 1_000_000_000
OVER = ComputeFinding(Offence.OVER_SHARE, key(10), "GPU-0", 90, 40)
GARBLED = ComputeFinding(Offence.GARBLED_GATE, key(10), "GPU-0")


def node_of(enforce: str = "warn") -> Node:
    node = Node(1, enforce=enforce)
    node.quota("alice", 1, 40)
    node.asks("alice", 10)
    return node


def sees(node: Node, *findings: ComputeFinding) -> list[Effect]:
    return node.happens(ComputeAudited(findings, WALL))


def later(node: Node, *findings: ComputeFinding) -> list[Effect]:
    node.now_ns += BEAT_NS
    return sees(node, *findings)


def test_use_beyond_a_share_is_certain_when_two_readings_agree() -> None:
    node = node_of()
    sees(node, OVER)
    assert node.published("audit.violation") == []
    later(node, OVER)
    (violation,) = node.published("audit.violation")
    assert (violation["env"], violation["task"], violation["pid"]) == ("alice", "t1", 10)
    assert (violation["offence"], violation["action"]) == ("over_share", "warned")
    assert (violation["used_percent"], violation["allowed_percent"]) == (90, 40)
    (note,) = node.of(SendNote)
    assert note.text.startswith("by the launch gate, process 10 of alice/t1 uses 90 % of GPU 0's")
    later(node, OVER)
    assert node.published("audit.violation") == [], "it is reported once"


def test_a_garbled_gate_is_proven_by_one_reading() -> None:
    node = node_of()
    sees(node, GARBLED)
    (violation,) = node.published("audit.violation")
    assert violation["offence"] == "garbled_gate"


def test_an_offence_ends_with_its_readings() -> None:
    node = node_of()
    sees(node, OVER)
    later(node, OVER)
    assert compute_audit.is_news(node.state, ())
    later(node)
    assert node.published("audit.ended")[0]["pid"] == 10
    assert node.state.violations == {}
    assert not compute_audit.is_news(node.state, ())


def test_killed_by_policy_after_the_grace() -> None:
    node = node_of("kill")
    sees(node, GARBLED)
    assert [kill.gently for kill in node.of(Kill)] == [True]
    node.now_ns += node.config.enforce_grace_ms * 1_000_000
    sees(node, GARBLED)
    assert [kill.gently for kill in node.of(Kill)] == [False]


def test_fenced_by_policy() -> None:
    node = node_of("fence")
    sees(node, GARBLED)
    assert node.fenced(10) is not None
    assert node.task(10) is None
    later(node, GARBLED)
    assert node.state.tasks == {}


@pytest.mark.parametrize(
    "finding",
    [
        ComputeFinding(Offence.GARBLED_GATE, key(99), "GPU-0"),
        ComputeFinding(Offence.GARBLED_GATE, key(10), "GPU-7"),
    ],
)
def test_a_finding_of_no_process_or_gpu_is_none(finding: ComputeFinding) -> None:
    node = node_of()
    sees(node, finding)
    assert node.state.violations == {}


def test_an_audit_of_memory_neither_ends_nor_acts_on_one_of_compute() -> None:
    node = node_of("kill")
    sees(node, OVER)
    node.now_ns += BEAT_NS
    node.audit_sees()
    node.now_ns += BEAT_NS
    node.audit_sees()
    assert node.of(Kill) == []
    assert len(node.state.violations) == 1


def test_an_offence_of_memory_comes_first() -> None:
    node = node_of()
    bypass = seen(10, 0, 45, "alice", charged_gib=30)
    sees(node, OVER)
    for _ in range(3):
        node.now_ns += BEAT_NS
        node.audit_sees(bypass)
        sees(node, OVER)
    (violation,) = node.state.violations.values()
    assert violation.offence is Offence.OVER_QUOTA
    assert violation.told
    assert node.task(10).state is TaskState.RUNNING  # type: ignore[union-attr]
