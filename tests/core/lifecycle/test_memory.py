"""Memory quotas while tasks run: lowered, raised, pending; and the charges of each."""

from __future__ import annotations

from nodemgr.core.manager import step
from nodemgr.core.model.effects import EnvChanged, SetLimit
from nodemgr.core.model.entities import DenyCode, Quota
from nodemgr.core.model.events import SetQuota
from nodemgr.core.state import accounting
from tests.core.world import GIB, MS, Node


def test_a_lowered_quota_limits_at_once_and_frees_what_is_not_used() -> None:
    node = Node(1)
    node.quota("alice", 1, 60)
    node.quota("bob", 1, 40)
    node.asks("alice", 10)
    node.asks("bob", 20)
    assert node.waiting() == [20]
    node.uses("alice", 0, 50)
    node.quota("alice", 1, 30)
    assert node.of(SetLimit) == [SetLimit("alice", "GPU-0", 0, 30 * GIB, 80 * GIB)]
    assert node.grant_gib("alice", 0) == (60, 30)
    node.passes(0)
    assert node.grant_gib("alice", 0) == (50, 30)
    assert node.waiting() == [20]
    node.uses("alice", 0, 35)
    node.passes(1_000)
    assert node.grant_gib("alice", 0) == (35, 30)
    assert node.gpus_of(20) == [0]
    node.uses("alice", 0, 5)
    node.passes(1_000)
    assert node.grant_gib("alice", 0) == (30, 30)
    node.passes(4_000)
    assert node.state.wake_ns() == node.now_ns + 1_000 * MS


def test_a_raised_quota_applies_as_far_as_the_gpu_has_room_and_the_rest_when_it_has() -> None:
    node = Node(1)
    node.quota("alice", 1, 30)
    node.quota("bob", 1, 30)
    node.asks("alice", 10)
    node.asks("bob", 20)
    node.quota("alice", 1, 60)
    assert node.grant_gib("alice", 0) == (50, 50)
    changed = node.published("grant.changed")[-1]
    assert (changed["memory_bytes"], changed["pending_bytes"]) == (50 * GIB, 10 * GIB)
    node.dies(20)
    assert node.grant_gib("alice", 0) == (60, 60)
    assert node.of(SetLimit)[-1] == SetLimit("alice", "GPU-0", 0, 60 * GIB, 80 * GIB)


def test_a_raised_quota_is_in_the_ledger_before_its_order_is_answered() -> None:
    """The answer follows the effects of its own step; the pass that follows may come later."""
    node = Node(1)
    node.quota("alice", 1, 30)
    node.asks("alice", 10)
    order = SetQuota("alice", Quota(1, 60 * GIB), "root", node.wall_ns)
    assert (
        SetLimit("alice", "GPU-0", 0, 60 * GIB, 80 * GIB)
        in step(node.state, order, node.now_ns).effects
    )


def test_a_pending_raise_comes_before_who_waits() -> None:
    node = Node(1)
    for env in ("alice", "bob", "carol"):
        node.quota(env, 1, 30)
    node.asks("alice", 10)
    node.asks("bob", 20)
    node.asks("carol", 30)
    node.quota("alice", 1, 50)
    node.dies(20)
    assert node.grant_gib("alice", 0) == (50, 50)
    assert node.gpus_of(30) == [0]


def test_a_lowered_quota_takes_no_gpu_away() -> None:
    node = Node(4)
    node.quota("alice", 2, 80)
    node.asks("alice", 10, 2)
    node.quota("alice", 0)
    assert node.gpus_of(10) == [0, 1]
    assert node.grant_gib("alice", 0) == (40, 40)
    node.asks("alice", 11)
    denied = node.denied(11)
    assert denied is not None
    assert denied.code is DenyCode.NO_GPU


def test_fewer_gpus_with_the_same_memory_is_more_for_each_within_the_whole() -> None:
    node = Node(4)
    node.quota("alice", 2, 60)
    node.asks("alice", 10, 2)
    node.quota("alice", 1, 60)  # 60 GiB for one GPU; but the env's 60 GiB are all granted already
    assert node.grant_gib("alice", 0) == (30, 30)
    assert accounting.env_remaining(node.state, "alice") == 0


def test_a_quota_lowered_below_a_waiting_request_fails_and_blocks_nothing() -> None:
    node = Node(2)
    node.quota("bob", 2)
    node.quota("alice", 2)
    node.asks("bob", 90, 2)
    node.asks("alice", 10, 2)
    node.asks("alice", 11, 1)
    node.quota("alice", 1)
    told = node.told(10)
    assert told is not None
    assert (
        told.why
        == "needs 2 GPUs, but the quota of alice is 1 now: waits until an"
        " admin raises it"
    )
    node.quota("alice", 0)
    told = node.told(11)
    assert told is not None
    assert "the quota of alice is 0 now" in told.why
    node.dies(90)
    assert node.waiting() == [10, 11]
    node.quota("carol", 2)
    node.asks("carol", 20, 2)
    assert node.gpus_of(20) == [0, 1], "what waits for a quota keeps no GPU"
    node.quota("alice", 1)
    node.dies(20)
    assert node.gpus_of(11) is not None, "the first one of its env is passed, too"
    node.quota("alice", 2)
    assert node.gpus_of(10) == [0, 1], "an interactive request shares its env's GPU"
    assert node.waiting() == []


def test_named_memory_above_a_lowered_quota_waits_until_it_is_raised() -> None:
    node = Node(1)
    node.quota("alice", 1, 40)
    node.quota("bob", 1)
    node.asks("bob", 90, 1)
    node.asks("alice", 10, 1, gib=30)
    node.quota("alice", 1, 20)
    told = node.told(10)
    assert told is not None
    assert "needs 30.0 GiB per GPU, but alice may have at most 20.0 GiB now" in told.why
    node.dies(90)
    assert node.waiting() == [10]
    node.quota("alice", 1, 30)
    assert node.gpus_of(10) == [0]


def test_a_request_that_its_quota_does_not_admit_may_still_end_by_its_deadline() -> None:
    node = Node(1)
    node.quota("alice", 2)
    node.quota("bob", 1)
    node.asks("bob", 90, 1)
    node.asks("alice", 10, 1, wait_ms=5_000)
    node.quota("alice", 0)
    node.passes(6_000)
    denied = node.denied(10)
    assert denied is not None
    assert denied.code is DenyCode.WAIT_TIMEOUT
    assert "the quota of alice is 0 now" in denied.reason


def test_a_removed_quota_denies_who_waits_and_fences_who_holds() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.asks("alice", 10)
    node.asks("alice", 11, gib=40, used_gib={0: 79})
    node.removes("alice")
    denied = node.denied(11)
    assert denied is not None
    assert denied.code is DenyCode.UNKNOWN_ENV
    fenced = node.fenced(10)
    assert fenced is not None
    assert "removed by root" in fenced.reason
    assert node.of(EnvChanged) == [EnvChanged("alice")]
    assert (node.state.envs, node.state.tasks) == ({}, {})
    assert node.remaining_gib(0) == 0  # the process lives on with what it has
    node.dies(10)
    assert node.remaining_gib(0) == 80
    assert node.removes("alice") == []


def test_lost_memory_of_a_living_process_is_inside_its_envs_grant() -> None:
    node = Node(1)
    node.quota("alice", 1, 40)
    node.quota("bob", 1, 40)
    node.asks("alice", 10, token="one")
    node.asks("alice", 11, token="two")
    node.releases("alice", 10)
    node.driver_shows(10, 0, 25)
    assert node.remaining_gib(0) == 40  # alice's ledger still sums it
    node.dies(11)
    assert node.remaining_gib(0) == 55
    node.asks("alice", 12)
    assert node.remaining_gib(0) == 40
    node.asks("bob", 20)
    assert node.gpus_of(20) == [0]


def test_lost_memory_counts_against_the_envs_own_quota() -> None:
    node = Node(2)
    node.quota("alice", 1, 40)
    node.asks("alice", 10)
    node.releases("alice", 10)
    node.driver_shows(10, 0, 25)
    assert accounting.env_remaining(node.state, "alice") == 15 * GIB
    node.asks("alice", 11)  # GPU 1 has more room, but the quota's memory would not suffice for it
    assert node.gpus_of(11) == [0]


def test_the_figures_of_what_is_gone_are_ignored() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.asks("alice", 10)
    assert node.driver_shows(10, 0, 5) == []
    node.dies(10)
    assert node.driver_shows(10, 0, 5) == []
    assert node.dies(10) == []


def test_a_second_task_beside_a_job_without_a_process_gets_its_memory() -> None:
    """The job's ledger is opened by the second task's step, which changes the grant as well."""
    node = Node(1)
    node.quota("a", 1, 8)
    job_id = node.submits("a", gpus=1)
    assert job_id is not None
    node.begins(job_id)
    node.asks("a", 1, 1)
    assert node.granted(1) is not None
    assert [effect.limit_bytes for effect in node.of(SetLimit)] == [8 * GIB]
