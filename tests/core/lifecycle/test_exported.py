"""Exported memory of ended processes: whose it is, how long, and what it bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.core.lifecycle import exported
from nodemgr.core.model.events import Audited, EndedUse
from tests.core.world import GIB, WALL, Node
from tests.support.examples import examples

TOLERANCE = 1
ALICE_2, ALICE_3, BOB_2 = ("alice", 2, 2), ("alice", 3, 1), ("bob", 2, 2)


def uses(*ended: tuple[str | None, int, int]) -> list[EndedUse]:
    return [EndedUse("GPU-0", env, had * GIB, word * GIB) for env, had, word in ended]


@pytest.mark.parametrize(
    ("stayed", "ended", "whose"),
    [
        (2, [], {}),
        (0, [ALICE_2], {}),
        (1, [ALICE_2], {"alice": 1}),
        (9, [ALICE_2], {"alice": 2}),  # at most what it had; the rest is unclear
        (4, [ALICE_2, ALICE_3], {"alice": 4}),  # of one environment: no split
        (4, [ALICE_2, BOB_2], {"alice": 2, "bob": 2}),
        (2, [ALICE_2, BOB_2], {"alice": 1, "bob": 1}),  # by their ledgers
        (3, [("alice", 3, 1), BOB_2], {"alice": 1, "bob": 2}),
        (3, [("alice", 1, 1), ("bob", 5, 0)], {"alice": 1}),  # 2 are unclear
        (2, [("alice", 2, 0), ("bob", 2, 0)], {}),  # no ledger tells
        (2, [ALICE_2, (None, 2, 2)], {"alice": 1}),  # an unknown one's part is nobody's
        (2, [(None, 2, 0)], {}),
    ],
)
def test_what_stays_is_split_by_ledgers(
    stayed: int, ended: list[tuple[str | None, int, int]], whose: dict[str, int]
) -> None:
    found = exported.split(stayed * GIB, uses(*ended))
    assert {env: part // GIB for env, part in found.items()} == whose


@pytest.mark.parametrize(
    ("before", "ownerless", "fresh", "now"),
    [
        ({}, 4, {"alice": 2}, {"alice": 2}),
        ({"alice": 2}, 4, {"alice": 2, "bob": 0}, {"alice": 4}),
        ({"alice": 2}, 3, {}, {"alice": 2}),  # the rest is unbooked
        ({"alice": 4}, 3, {}, {"alice": 3}),  # never beyond the driver's sum
        ({"alice": 4, "bob": 4}, 4, {}, {"alice": 2, "bob": 2}),
        ({"alice": 4}, TOLERANCE, {"bob": 1}, {}),
        ({"alice": 4}, 0, {}, {}),
    ],
)
def test_claims_follow_the_driver(
    before: dict[str, int], ownerless: int, fresh: dict[str, int], now: dict[str, int]
) -> None:
    assert exported.judged(before, ownerless, fresh, TOLERANCE) == now


SIZES = st.integers(0, 9)
USES = st.lists(st.tuples(st.sampled_from(["alice", "bob", None]), SIZES, SIZES), max_size=5)


@settings(max_examples=examples(100))
@given(SIZES, USES)
def test_nobody_is_charged_beyond_what_stayed_or_what_it_had(
    stayed: int, ended: list[tuple[str | None, int, int]]
) -> None:
    rows = uses(*ended)
    found = exported.split(stayed * GIB, rows)
    assert sum(found.values()) <= stayed * GIB
    for env, part in found.items():
        assert 0 < part <= sum(use.memory_bytes for use in rows if use.env == env)


def reads(node: Node, ownerless: int, stayed: int = 0, *ended: tuple[str | None, int, int]) -> None:
    grew = {"GPU-0": stayed * GIB}
    node.happens(
        Audited(frozenset(grew), (), WALL, {"GPU-0": ownerless * GIB}, tuple(uses(*ended)), grew)
    )


def test_it_bounds_the_next_grants_until_it_is_free() -> None:
    node = Node(2)
    node.quota("alice", 2, 80)
    reads(node, 3, 3, ("alice", 4, 4))
    assert node.published("memory.residue") == [], "one reading may see memory that is being freed"
    reads(node, 3)
    (told,) = node.published("memory.residue")
    assert (told["env"], told["pid"], told["memory_bytes"]) == ("alice", None, 3 * GIB)
    reads(node, 3)
    assert node.published("memory.residue") == []
    assert node.state.unbooked == {}, "it is charged"
    assert (node.state.charged["GPU-0"], node.state.env_charged["alice"]) == (3 * GIB, 3 * GIB)
    node.asks("alice", 10, 2)
    assert node.state.tasks == {}, "77 of 80 GiB are left"
    (standing,) = node.state.standings.values()
    assert standing.why.endswith("waits for 3.0 GiB of GPU 0 that its ended processes exported")
    node.cancels("alice", 10)
    node.asks("alice", 11, 1)
    assert len(node.state.tasks) == 1
    reads(node, 2)
    assert node.state.env_charged["alice"] == 42 * GIB
    node.restart()
    assert node.state.env_charged["alice"] == 42 * GIB
    reads(node, 0)
    assert node.state.unreclaimed == {}
    assert node.published("memory.residue")[0]["memory_bytes"] == 0


def test_a_charge_that_stays_is_reported_once_beside_another_envs() -> None:
    node = Node(1)
    node.quota("alice", 1, 40)
    node.quota("bob", 1, 40)
    reads(node, 2, 2, ALICE_2)
    reads(node, 2)
    assert [told["env"] for told in node.published("memory.residue")] == ["alice"]
    reads(node, 4, 2, BOB_2)
    reads(node, 4)
    assert [told["env"] for told in node.published("memory.residue")] == ["bob"]


def test_what_is_unclear_is_charged_to_nobody_and_shown() -> None:
    node = Node(1)
    node.quota("alice", 1, 40)
    reads(node, 6, 6, ("alice", 2, 2), ("gone", 2, 2))
    assert node.state.env_charged["alice"] == 2 * GIB
    assert node.state.unbooked == {"GPU-0": 4 * GIB}
    node.removes("alice")
    reads(node, 6)
    assert node.state.charged["GPU-0"] == 2 * GIB, "it is still there"
