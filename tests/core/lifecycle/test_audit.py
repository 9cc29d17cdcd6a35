"""The driver's figures against the books: the processes found, certainty, and each policy."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nodemgr.core.lifecycle import audit
from nodemgr.core.model.effects import Kill, SendNote
from nodemgr.core.model.entities import Offence
from nodemgr.core.model.events import Audited, Seen
from tests.core.world import GIB, WALL, Node, key, seen
from tests.support.examples import examples

BEAT_MS = 1_000


def node_of(enforce: str = "warn", **config: object) -> Node:
    """One GPU of 80 GiB, of which alice has 40 by process 10."""
    node = Node(1, enforce=enforce, **config)
    node.quota("alice", 1, 40)
    node.quota("bob", 1, 40)
    node.asks("alice", 10)
    return node


def twice(node: Node, *what: Seen) -> None:
    """Two readings, a beat apart."""
    node.audit_sees(*what)
    node.now_ns += BEAT_MS * 1_000_000
    node.audit_sees(*what)


CHILD = seen(11, 0, 2, "alice")
STRANGER = seen(99, 0, 5)
BYPASS = seen(10, 0, 45, "alice", charged_gib=30)


def test_one_look_says_nothing_and_a_second_at_once_neither() -> None:
    node = node_of()
    for _ in range(5):
        node.audit_sees(CHILD, STRANGER, BYPASS)
        assert node.published("audit.violation") == []


def test_what_was_seen_once_only_is_forgotten() -> None:
    node = node_of()
    node.audit_sees(CHILD)
    node.audit_sees()
    assert node.state.violations == {}
    node.now_ns += BEAT_MS * 1_000_000
    node.audit_sees(CHILD)
    assert node.published("audit.violation") == []


def test_a_process_without_a_lease_is_told_of_once_and_at_its_end() -> None:
    node = node_of()
    twice(node, CHILD)
    (violation,) = node.published("audit.violation")
    assert (violation["env"], violation["pid"], violation["offence"]) == ("alice", 11, "no_lease")
    assert (violation["memory_bytes"], violation["enforce"], violation["action"]) == (
        2 * GIB,
        "warn",
        "none",
    )
    twice(node, CHILD)
    assert node.published("audit.violation") == []
    node.audit_sees()
    assert node.published("audit.ended") == [], "one look that misses it ends nothing"
    node.now_ns += BEAT_MS * 1_000_000
    node.audit_sees()
    assert node.published("audit.ended")[0]["pid"] == 11
    assert node.state.violations == {}


def test_members_within_their_grant_are_no_news() -> None:
    node = node_of()
    at_the_limit = Audited(frozenset(["GPU-0"]), (seen(10, 0, 40, "alice", charged_gib=40),), WALL)
    assert not audit.is_news(node.state, at_the_limit)


@pytest.mark.parametrize(("shown_gib", "guilty"), [(41, False), (41.01, True)])
def test_contexts_and_modules_are_allowed_for(shown_gib: float, guilty: bool) -> None:
    node = node_of()
    twice(node, seen(10, 0, shown_gib, "alice", charged_gib=40))
    assert bool(node.published("audit.violation")) is guilty


def test_beyond_the_quota_those_are_to_blame_who_did_not_charge_it() -> None:
    node = node_of()
    node.asks("alice", 12, token="token10")
    twice(node, seen(10, 0, 20, "alice", charged_gib=20), seen(12, 0, 25, "alice", charged_gib=10))
    (violation,) = node.published("audit.violation")
    assert (violation["pid"], violation["offence"], violation["allowed_bytes"]) == (
        12,
        "over_quota",
        40 * GIB,
    )
    (note,) = node.of(SendNote)
    assert note.connection == 12
    assert "alice may use 40.0 GiB there" in note.text


def test_a_fenced_process_is_charged_and_not_blamed() -> None:
    node = node_of()
    node.releases("alice", 10)
    node.driver_shows(10, 0, 20)
    twice(node, seen(10, 0, 20, "alice"))
    assert node.state.violations == {}
    assert node.remaining_gib(0) == 60
    node.dies(10, {0: 20})
    twice(node, seen(10, 0, 20, None))
    assert node.state.violations == {}
    assert node.remaining_gib(0) == 60


def test_what_nobody_was_promised_is_promised_to_nobody_else() -> None:
    node = node_of()
    node.audit_sees(STRANGER)
    assert node.remaining_gib(0) == 35
    node.asks("bob", 20)
    assert node.gpus_of(20) is None
    told = node.told(20)
    assert told is not None
    node.audit_sees()
    assert node.gpus_of(20) == [0], "and when it is gone, it is"


def test_an_envs_own_bypass_takes_from_its_own_grant_first() -> None:
    node = node_of()
    node.audit_sees(seen(10, 0, 20, "alice", charged_gib=20), seen(11, 0, 15, "alice"))
    assert node.remaining_gib(0) == 40
    node.audit_sees(seen(10, 0, 20, "alice", charged_gib=20), seen(11, 0, 30, "alice"))
    assert node.remaining_gib(0) == 30


def test_a_little_memory_of_the_nodes_own_programs_is_overlooked() -> None:
    node = node_of()
    twice(node, seen(99, 0, 1))
    assert (node.state.violations, node.remaining_gib(0)) == ({}, 40)


def test_a_gpu_that_could_not_be_read_shows_nothing_new() -> None:
    node = node_of()
    twice(node, STRANGER)
    node.now_ns += BEAT_MS * 1_000_000
    node.audit_sees(gpus=())
    assert (len(node.state.violations), node.remaining_gib(0)) == (1, 35)


def test_unknown_processes_may_be_those_over_udp_as_far_as_their_caps_reach() -> None:
    node = node_of()
    node.asks("bob", 20, udp=True, gib=30, used_gib={0: 0})
    twice(node, seen(77, 0, 30))
    assert (node.state.violations, node.state.unbooked) == ({}, {})
    twice(node, seen(77, 0, 33))
    assert node.state.unbooked == {"GPU-0": 3 * GIB}


def test_memory_of_no_process_is_promised_to_no_env_and_blames_no_process() -> None:
    node = node_of()
    tolerated, exported = {"GPU-0": GIB}, {"GPU-0": 3 * GIB}
    nodes_own = seen(99, 0, 1)
    node.happens(Audited(frozenset(["GPU-0"]), (nodes_own,), WALL, tolerated))
    assert node.state.unbooked == {"GPU-0": 2 * GIB}, "together they exceed the tolerance"
    for _ in range(2):
        node.now_ns += BEAT_MS * 1_000_000
        node.happens(Audited(frozenset(["GPU-0"]), (nodes_own,), WALL, exported))
    assert (node.state.unbooked, node.state.violations) == ({"GPU-0": 4 * GIB}, {})
    assert node.remaining_gib(0) == 36
    node.happens(Audited(frozenset(["GPU-0"]), (), WALL, {"GPU-unknown": 9 * GIB}))
    assert (node.state.unbooked, node.remaining_gib(0)) == ({}, 40)


def test_memory_of_no_process_may_be_that_of_processes_over_udp() -> None:
    node = node_of()
    node.asks("bob", 20, udp=True, gib=30, used_gib={0: 0})
    node.happens(Audited(frozenset(["GPU-0"]), (), WALL, {"GPU-0": 30 * GIB}))
    assert node.state.unbooked == {}


def test_a_request_waits_for_memory_of_no_process_and_is_served_when_it_is_free() -> None:
    node = Node(1)
    node.quota("bob", 1, 80)
    node.happens(Audited(frozenset(["GPU-0"]), (), WALL, {"GPU-0": 3 * GIB}))
    node.asks("bob", 20)
    assert node.state.tasks == {}
    node.audit_sees()
    assert [task.env for task in node.state.tasks.values()] == ["bob"]


def test_a_member_on_a_gpu_that_its_env_does_not_hold() -> None:
    node = Node(2)
    node.quota("alice", 1, 40)
    node.asks("alice", 10)
    twice(node, seen(10, 1, 1, "alice"))
    (violation,) = node.published("audit.violation")
    assert (violation["offence"], violation["gpu_indices"], violation["action"]) == (
        "no_lease",
        [1],
        "warned",
    )


def test_fence_takes_the_lease_and_says_why() -> None:
    node = node_of("fence")
    twice(node, BYPASS)
    fenced = node.fenced(10)
    assert fenced is not None
    assert "45.0 GiB" in fenced.reason
    assert node.published("audit.violation")[0]["action"] == "fenced"
    assert node.state.tasks == {}


def test_fence_can_do_nothing_to_who_has_no_lease() -> None:
    node = node_of("fence")
    twice(node, CHILD, STRANGER)
    assert {row["action"] for row in node.published("audit.violation")} == {"none"}
    assert node.task(10) is not None


@pytest.mark.parametrize("what", [CHILD, BYPASS])
def test_kill_asks_first_and_kills_after_the_grace_time_once(what: Seen) -> None:
    node = node_of("kill", enforce_grace_ms=5_000)
    twice(node, what)
    assert node.of(Kill) == [Kill(what.process, what.pid, gently=True)]
    assert audit.is_acting(node.state)
    node.now_ns += 4_999 * 1_000_000
    node.audit_sees(what)
    assert node.of(Kill) == []
    node.now_ns += 1_000_000
    node.audit_sees(what)
    assert node.of(Kill) == [Kill(what.process, what.pid)]
    assert node.published("audit.killed")[0]["pid"] == what.pid
    assert not audit.is_acting(node.state)
    node.now_ns += 9_000 * 1_000_000
    node.audit_sees(what)
    assert node.of(Kill) == []


@pytest.mark.parametrize("policy", ["env", "quota"])
def test_a_policy_that_changes_after_a_kill_starts_with_sigterm_again(policy: str) -> None:
    """For one reading, the env of a killed process is unknown, or its quota says "warn"."""
    node = node_of("kill", enforce_grace_ms=5_000)
    twice(node, CHILD)
    node.now_ns += 5_000 * 1_000_000
    node.audit_sees(CHILD)
    assert node.of(Kill) == [Kill(key(11), 11)]
    if policy == "env":
        node.audit_sees(seen(11, 0, 2, None))
    else:
        node.quota("alice", 1, 40, enforce="warn")
        node.audit_sees(CHILD)
        node.quota("alice", 1, 40, enforce="kill")
    assert node.of(Kill) == []
    node.audit_sees(CHILD)
    assert node.of(Kill) == [Kill(key(11), 11, gently=True)]
    node.now_ns += 5_000 * 1_000_000
    node.audit_sees(CHILD)
    assert node.of(Kill) == [Kill(key(11), 11)]


def test_nobody_is_killed_who_is_not_provably_of_an_env() -> None:
    node = node_of("kill")
    twice(node, STRANGER)
    assert node.of(Kill) == []
    assert node.published("audit.violation")[0]["env"] is None


def test_a_quota_says_otherwise_than_the_node_and_a_change_holds_from_the_next_audit() -> None:
    node = node_of("kill")
    node.quota("alice", 1, 40, enforce="warn")
    twice(node, CHILD)
    assert node.of(Kill) == []
    node.quota("alice", 1, 40, enforce="kill")
    node.audit_sees(CHILD)
    assert node.of(Kill) == [Kill(key(11), 11, gently=True)]


def test_a_restart_forgets_and_finds_again() -> None:
    node = node_of()
    twice(node, CHILD)
    node.restart()
    assert node.state.violations == {}
    twice(node, CHILD)
    assert len(node.published("audit.violation")) == 1


def test_what_is_neither_gpu_nor_memory_is_nothing() -> None:
    node = node_of("kill")
    twice(node, seen(11, 7, 5, "alice"), seen(11, 0, 0, "alice"), seen(12, 0, 5, "nobody's"))
    assert [row.offence for row in node.state.violations.values()] == [Offence.NO_LEASE]
    assert node.of(Kill) == []


LOOK = st.lists(
    st.builds(
        seen, st.integers(8, 14), st.integers(0, 2), st.integers(0, 90),
        st.sampled_from([None, "alice", "bob", "gone"]),
        charged_gib=st.integers(0, 50),
    ),
    max_size=6, unique_by=lambda one: (one.pid, one.uuid),
)  # fmt: skip
MOVE = st.one_of(
    LOOK,
    st.integers(1, 3_000),
    st.sampled_from(["warn", "fence", "kill", None]),
    st.tuples(st.sampled_from(["asks", "releases", "dies", "loses"]), st.integers(8, 14)),
)


ENV_UNKNOWN_AFTER_THE_KILL: list[object] = [
    [seen(8, 0, 0), seen(8, 1, 0), seen(10, 0, 1, "alice")],
    1,
    1,
    998,
    [seen(8, 0, 0), seen(8, 1, 0, charged_gib=1), seen(10, 0, 1, "alice")],
    2823,
    [
        seen(13, 1, 0, charged_gib=3),
        seen(10, 0, 5, "alice"),
        seen(14, 1, 33, "gone", charged_gib=45),
        seen(9, 2, 7, charged_gib=18),
    ],
    [seen(8, 0, 0), seen(10, 0, 2)],
]


@settings(max_examples=examples(60), deadline=None)
@example(ENV_UNKNOWN_AFTER_THE_KILL)
@given(st.lists(MOVE, max_size=25))
def test_whatever_is_seen_in_whatever_order_the_books_stay_true(moves: list[object]) -> None:
    """`Node` checks the promises and the books at each step; a process of no env is never ended."""
    node = Node(2, enforce="kill", enforce_grace_ms=500)
    node.quota("alice", 1, 40)
    node.quota("bob", 2, 100)
    dead: set[int] = set()
    """A key names one process, and never another one later: none of these asks again."""
    for move in moves:
        match move:
            case list():
                node.audit_sees(*move)
                known = {one.process for one in move if one.env is not None}
                assert {effect.process for effect in node.of(Kill)} <= known
            case int():
                node.passes(move)
            case ("asks", int(pid)):
                if node.task(pid) is None and pid not in dead:
                    node.asks("alice" if pid % 2 else "bob", pid)
            case ("releases", int(pid)):
                node.releases("alice" if pid % 2 else "bob", pid)
            case ("dies", int(pid)):
                node.dies(pid, {pid % 2: 3})
                dead.add(pid)
            case ("loses", _):
                node.loses(1)
            case _:
                node.quota("alice", 1, 40, enforce=move)
