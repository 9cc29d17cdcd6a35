"""Over UDP: no ledger, no death notice.

Fixed caps instead of a shared limit, silence instead of a pidfd.
"""

from __future__ import annotations

from nodemgr.core.model.effects import BeginSlot, SetLimit, Watch
from nodemgr.core.model.entities import DenyCode
from tests.core.world import GIB, Node, key


def node_with_alice(gib: int | None = 40) -> Node:
    node = Node(1)
    node.quota("alice", 1, gib)
    return node


def test_a_process_that_names_nothing_gets_the_whole_grant() -> None:
    node = node_with_alice()
    node.asks("alice", 10, udp=True)
    granted = node.granted(10)
    assert granted is not None
    assert (granted.process.slot, granted.limits) == (None, (40 * GIB,))
    assert node.grant_gib("alice", 0) == (40, 0)  # nothing is left for a ledger
    assert node.of(BeginSlot) == []
    assert node.of(Watch) == [Watch(key(10, udp=True), None)]


def test_caps_and_the_ledger_together_never_exceed_the_grant() -> None:
    node = node_with_alice()
    node.asks("alice", 10, udp=True, gib=15)
    assert node.grant_gib("alice", 0) == (40, 25)
    node.asks("alice", 11)
    granted = node.granted(11)
    assert granted is not None
    assert granted.limits == (25 * GIB,)
    node.asks("alice", 12, udp=True, gib=10, used_gib={0: 20})
    assert node.task(12, udp=True) is None
    assert "needs 10.0 GiB free" in node.state.standings["r3"].why
    node.uses("alice", 0, 12)
    node.passes(1_000)
    assert node.gpus_of(12, udp=True) == [0]
    assert node.grant_gib("alice", 0) == (40, 15)
    assert SetLimit("alice", "GPU-0", 0, 15 * GIB, 80 * GIB) in node.of(SetLimit)


def test_a_cap_is_given_back() -> None:
    node = node_with_alice()
    node.asks("alice", 10, udp=True, gib=15)
    node.asks("alice", 11)
    node.releases("alice", 10, udp=True)
    assert node.grant_gib("alice", 0) == (40, 40)
    assert key(10, udp=True) not in node.state.processes


def test_the_processes_of_one_task_share_a_grant_equally_where_they_were_announced() -> None:
    node = Node(2)
    node.quota("alice", 2, 80)
    node.asks("alice", 10, 2, udp=True, world=2, token="job")
    node.asks("alice", 11, 2, udp=True, world=2, token="job", used_gib={0: 0, 1: 0})
    for pid in (10, 11):
        granted = node.granted(pid) if pid == 11 else None
        assert granted is None or granted.limits == (20 * GIB, 20 * GIB)
    assert node.grant_gib("alice", 0) == (40, 0)


def test_a_process_for_which_no_cap_is_left_is_refused_in_its_own_task() -> None:
    node = node_with_alice()
    node.asks("alice", 10, udp=True, token="job")
    node.asks("alice", 11, udp=True, token="job", used_gib={0: 0})
    denied = node.denied(11)
    assert denied is not None
    assert denied.code is DenyCode.MEMORY_ABOVE_LIMIT
    assert "fixed caps" in denied.reason
    assert node.published("request.denied")[0]["task"] == "t1"


def test_a_task_of_its_own_waits_for_a_cap() -> None:
    node = node_with_alice()
    node.asks("alice", 10, udp=True)
    node.asks("alice", 11, udp=True, used_gib={0: 0})
    assert "needs its share free" in node.state.standings["r2"].why
    node.releases("alice", 10, udp=True)
    assert node.gpus_of(11, udp=True) == [0]


def test_a_silent_task_is_reclaimed_and_told_so_when_it_is_heard_again() -> None:
    node = node_with_alice()
    node.asks("alice", 10, udp=True)
    node.passes(5_100, silent=[10])
    assert node.state.tasks == {}
    assert node.published("task.ended")[0]["why"] == "reclaimed: silent for too long"
    assert node.remaining_gib(0) == 80
    assert node.fenced(10) is not None


def test_a_silent_waiter_loses_its_place() -> None:
    node = node_with_alice()
    node.quota("bob", 1)
    node.asks("alice", 10, udp=True)
    node.asks("bob", 20, udp=True)
    node.quota("carol", 1)
    node.asks("carol", 30, udp=True)
    node.passes(4_000, silent=[20])
    assert node.waiting() == [20, 30]
    node.passes(2_000, silent=[20])
    assert node.waiting() == [30]


def test_of_a_mixed_task_the_udp_processes_are_reclaimed_and_the_rest_is_stalled() -> None:
    node = node_with_alice()
    node.asks("alice", 10, token="job", gib=10)
    node.asks("alice", 11, udp=True, token="job", used_gib={0: 0})
    assert node.grant_gib("alice", 0) == (40, 30)
    node.passes(5_000, silent=[10, 11])
    assert list(node.state.stalled) == ["t1"]
    assert key(11, udp=True) not in node.state.processes
    assert node.grant_gib("alice", 0) == (0, 0)


def test_a_lowered_quota_does_not_touch_the_caps() -> None:
    node = node_with_alice()
    node.asks("alice", 10, udp=True, gib=30)
    node.quota("alice", 1, 20)
    assert node.grant_gib("alice", 0) == (40, 0)
    node.passes(2_000)
    assert node.grant_gib("alice", 0) == (30, 0)
    node.releases("alice", 10, udp=True)
    assert node.state.grants == {}


def test_a_cap_that_is_given_back_after_a_lowered_quota_serves_another_env() -> None:
    """The grant falls in the same step, so no later figures show that the GPU has room."""
    node = node_with_alice(80)
    node.asks("alice", 10, token="job", gib=0)
    node.asks("alice", 11, udp=True, token="job", used_gib={0: 0})
    node.quota("alice", 1, 20)
    node.quota("bob", 1, 60)
    node.asks("bob", 20)
    node.passes(2_000)
    assert node.waiting() == [20]
    node.releases("alice", 11, udp=True)
    assert node.grant_gib("alice", 0) == (20, 20)
    assert node.gpus_of(20) == [0]
