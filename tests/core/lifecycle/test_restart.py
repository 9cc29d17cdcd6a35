"""kill -9 of the manager: what the store says is all that the next one knows, and it is enough."""

from __future__ import annotations

import pytest

from nodemgr.core.lifecycle.restart import restore
from nodemgr.core.manager import step
from nodemgr.core.model.effects import Kill
from nodemgr.core.model.entities import Config, RunSpec
from tests.core.world import GIB, Node, events, key


def busy_node() -> Node:
    node = Node(2)
    for env in ("alice", "bob", "carol"):
        node.quota(env, 1)
    node.asks("alice", 10)
    node.asks("bob", 20)
    node.asks("carol", 30, wait_ms=60_000)
    node.asks("alice", 11, gib=30, used_gib={0: 70})
    return node


def test_leases_and_places_are_found_again() -> None:
    node = busy_node()
    before = node.rows()
    node.restart()
    assert node.rows() == before
    assert node.waiting() == [30, 11]
    assert list(node.state.watched()) == [
        (key(10), 10),
        (key(20), 20),
        (key(30), 30),
        (key(11), 11),
    ]


def test_who_comes_back_gets_his_lease_or_his_place() -> None:
    node = busy_node()
    node.restart()
    node.rejoins("alice", 10, "t1", 0, 1)
    assert node.granted(10) is not None
    node.asks("carol", 30)
    told = node.told(30)
    assert told is not None
    assert told.position == 1


def test_waiters_that_do_not_come_back_lose_their_place() -> None:
    node = busy_node()
    node.restart()
    node.passes(5_100)
    assert node.waiting() == []


def test_a_waiter_is_not_overtaken_while_the_manager_is_away() -> None:
    node = busy_node()
    node.quota("dave", 1)
    node.restart(gone=[20])
    node.asks("dave", 40)
    assert node.waiting() == [30, 11, 40]
    node.asks("carol", 30)
    assert node.gpus_of(30) == [1]


def test_all_deadlines_start_anew() -> None:
    node = busy_node()
    node.passes(50_000)
    node.restart()
    node.asks("carol", 30)
    node.passes(59_000)
    assert 30 in node.waiting()
    node.passes(2_000)
    denied = node.denied(30)
    assert denied is not None


def test_nobody_is_silent_before_a_whole_timeout() -> None:
    node = busy_node()
    node.passes(4_000, silent=[10, 20])
    node.restart()
    node.passes(4_900, silent=[10, 20])
    assert node.state.stalled == {}
    node.passes(200, silent=[10, 20])
    assert len(node.state.stalled) == 2


def test_a_grace_time_starts_anew() -> None:
    node = Node(1, stalled="kill", stalled_grace_ms=60_000)
    node.quota("alice", 1)
    node.asks("alice", 10)
    node.passes(50_000, silent=[10])
    node.restart()
    node.passes(59_000, silent=[10])
    assert node.of(Kill) == []
    node.passes(2_000, silent=[10])
    assert node.of(Kill) == [Kill(key(10), 10)]


def test_numbers_go_on() -> None:
    node = busy_node()
    node.restart()
    node.quota("dave", 1)
    node.asks("dave", 40)
    assert node.waiting() == [30, 11, 40]
    assert "r5" in node.state.requests


def test_the_dead_are_buried_when_the_edge_has_looked() -> None:
    node = busy_node()
    node.restart(gone=[10, 20, 30, 11])
    assert (node.state.tasks, node.state.requests, node.state.processes) == ({}, {}, {})
    assert [node.remaining_gib(index) for index in (0, 1)] == [80, 80]
    assert node.state.wake_ns() is None


def test_what_is_lost_but_alive_stays_charged_over_a_restart() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.asks("alice", 10)
    node.releases("alice", 10)
    node.driver_shows(10, 0, 7)
    node.restart()
    assert node.remaining_gib(0) == 73
    node.dies(10)
    assert node.remaining_gib(0) == 80


def test_a_lowered_quota_waits_for_memory_over_a_restart() -> None:
    node = Node(1)
    node.quota("alice", 1, 60)
    node.asks("alice", 10)
    node.uses("alice", 0, 50)
    node.quota("alice", 1, 30)
    node.restart()
    node.passes(0)
    assert node.grant_gib("alice", 0) == (50, 30)


def test_a_row_of_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown kind"):
        restore(Config(), [("dream", "1", object())], 0)


def test_a_discarded_transition_has_happened_nowhere() -> None:
    """The edge discards it when the store cannot commit."""
    node = busy_node()
    before, version = node.rows(), node.state.version
    asked = events.Acquire(
        node.caller("bob", 99), "a99", "token99", RunSpec("python", 1, 1 * GIB, None), 1, None, 1
    )
    made = step(node.state, asked, node.now_ns)
    assert node.rows() != before
    made.discard()
    assert (node.rows(), node.state.version) == (before, version)


def test_a_transition_is_applied_or_discarded_once_before_the_next() -> None:
    node = Node(1)
    first = step(node.state, events.SetQuota("alice", node_quota(), "root", 1), node.now_ns)
    with pytest.raises(ValueError, match="applied or discarded"):
        step(node.state, events.SetQuota("bob", node_quota(), "root", 1), node.now_ns)
    first.apply()
    second = step(node.state, events.SetQuota("bob", node_quota(), "root", 1), node.now_ns)
    for again in (first.apply, first.discard):
        with pytest.raises(ValueError, match="once"):
            again()
    second.discard()
    with pytest.raises(ValueError, match="once"):
        second.apply()
    assert list(node.state.envs) == ["alice"]


def node_quota() -> object:
    from nodemgr.core.model.entities import Quota

    return Quota(1)
