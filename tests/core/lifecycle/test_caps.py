"""Named memory: when a task gets it, and what its ledger is told."""

from __future__ import annotations

from nodemgr.core.model.effects import (
    BeginSlot,
    DropCap,
    OpenLedger,
    SendGrant,
    SendWait,
    SetCap,
    SetLimit,
    SetSlot,
)
from nodemgr.core.model.entities import Word
from tests.core.world import GIB, Node


def busy(**config: object) -> Node:
    """One GPU, and 8 GiB of it for alice."""
    node = Node(gpus=1, **config)
    node.quota("alice", 1, 8)
    return node


def order(node: Node, *kinds: type) -> list[type]:
    return [type(effect) for effect in node.effects if type(effect) in kinds]


def test_the_ledger_keeps_it_before_the_process_has_its_slot() -> None:
    node = busy()
    node.asks("alice", 1, gib=2)
    assert node.of(SetCap) == [SetCap("alice", "t1", (0,), 2 * GIB, 2 * GIB)]
    assert node.of(BeginSlot) == [BeginSlot("alice", 0, 1, "t1")]
    kinds = [OpenLedger, SetLimit, SetCap, BeginSlot, SendGrant]
    assert order(node, *kinds) == kinds


def test_a_range_has_its_least_for_sure_and_its_most_as_the_limit() -> None:
    node = busy()
    node.asks("alice", 1, gib=2, most_gib=6)
    assert node.of(SetCap) == [SetCap("alice", "t1", (0,), 2 * GIB, 6 * GIB)]


def test_children_share_it_and_a_task_without_a_name_has_none() -> None:
    node = busy()
    node.asks("alice", 1, gib=2, token="one")
    node.asks("alice", 2, token="one")
    assert [effect.capped for effect in node.of(BeginSlot)] == ["t1"]
    assert node.of(SetCap) == []
    node.asks("alice", 3)
    assert [effect.capped for effect in node.of(BeginSlot)] == [""]


def test_it_ends_with_its_task_after_the_slots_of_its_processes() -> None:
    node = busy()
    node.asks("alice", 1, gib=2)
    node.asks("alice", 2)
    node.releases("alice", 1)
    assert node.of(SetSlot) == [SetSlot("alice", 0, 1, "fenced")]
    assert order(node, SetSlot, DropCap) == [SetSlot, DropCap]
    assert node.of(DropCap) == [DropCap("alice", "t1")]


def test_a_process_that_asks_anew_is_held_to_its_new_task() -> None:
    node = busy()
    node.asks("alice", 1)
    node.asks("alice", 2)
    node.releases("alice", 1)
    node.driver_shows(1, 0, 0)
    node.asks("alice", 1, gib=2, token="anew", used_gib={0: 0})
    assert node.of(SetSlot) == [SetSlot("alice", 0, 1, "live", "t3")]


def test_admission_counts_what_is_kept_and_what_others_have_beside_it() -> None:
    """2 GiB are kept and not used, 3 GiB are used by a task that named nothing."""
    node = busy()
    node.asks("alice", 1, gib=2)
    node.asks("alice", 2)
    node.unkept["alice", "GPU-0"] = 3 * GIB
    node.asks("alice", 3, gib=4, used_gib={0: 3})
    assert node.of(SendGrant) == []
    assert node.of(SendWait)
    node.unkept["alice", "GPU-0"] = 2 * GIB
    node.uses("alice", 0, 2)
    node.ticks()
    assert node.of(SendGrant)
    assert sum(cap.kept_bytes for cap in node.caps.values()) == 6 * GIB


def test_a_job_has_it_before_its_first_process() -> None:
    """Its env's ledger is told at once, or when it is opened."""
    node = busy()
    node.submits("alice", gpus=1, memory_bytes=5 * GIB)
    assert node.of(SetCap) == []
    node.asks("alice", 1)
    assert node.of(SetCap) == [SetCap("alice", "t1", (0,), 5 * GIB, 5 * GIB)]
    node.submits("alice", gpus=1, memory_bytes=2 * GIB)
    node.ticks()
    assert [cap.kept_bytes for cap in node.caps.values()] == [5 * GIB, 2 * GIB]


def test_a_gpu_that_joins_an_elastic_task_keeps_it_too() -> None:
    node = Node(gpus=2, offer_calm_ms=0)
    node.quota("alice", 2, 16)
    node.quota("bob", 1)
    node.asks("bob", 9, gpus=1)
    node.asks("alice", 1, gib=2, gpus=1, most=2, elastic=True)
    assert {cap.rows for cap in node.caps.values()} == {(1,)}
    node.dies(9)
    node.passes(5_000)
    assert {cap.rows for cap in node.caps.values()} == {(0, 1)}
    node.says("alice", 1, Word.DECLINED, 0)
    assert {cap.rows for cap in node.caps.values()} == {(1,)}
