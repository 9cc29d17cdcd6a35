"""Silence: stalled if the kernel knows that the process lives, reclaimed if that is unknown.

Also the events after it.
"""

from __future__ import annotations

import pytest

from nodemgr.core.model.effects import Kill, SetLimit, SetSlot
from tests.core.world import GIB, Node, S


def stalled_node(gpus: int = 1, **config: object) -> Node:
    """alice's process 10 uses 30 of its 40 GiB on GPU 0, and stops for more than the timeout."""
    node = Node(gpus, **config)
    for env in ("alice", "bob"):
        node.quota(env, 1, 40)
    node.asks("alice", 10)
    node.uses("alice", 0, 30)
    node.passes(5_000, silent=[10])
    return node


def test_a_task_is_stalled_when_all_its_processes_were_silent_for_the_timeout() -> None:
    node = Node()
    node.quota("alice", 1)
    for pid in (10, 11):
        node.asks("alice", pid, token="one")
    node.passes(20_000, silent=[10])
    assert node.state.stalled == {}
    node.passes(4_900, silent=[10, 11])
    assert node.state.stalled == {}
    node.passes(200, silent=[10, 11])
    assert list(node.state.stalled) == ["t1"]
    assert {(slot.slot, slot.state) for slot in node.of(SetSlot)} == {
        (0, "stalled"),
        (1, "stalled"),
    }
    assert node.published("task.stalled")[0]["task"] == "t1"


def test_a_stalled_tasks_memory_stays_charged_and_the_rest_is_offered() -> None:
    node = stalled_node()
    assert node.grant_gib("alice", 0) == (30, 0)
    assert node.remaining_gib(0) == 50
    assert SetLimit("alice", "GPU-0", 0, 0, 80 * GIB) in node.of(SetLimit)
    assert node.used_gpus("alice") == []
    node.asks("bob", 20)
    assert node.gpus_of(20) == [0]
    node.dies(10)
    assert node.remaining_gib(0) == 40


def test_its_place_goes_to_who_waits_first() -> None:
    node = Node(1)
    node.quota("alice", 1, 60)
    node.quota("bob", 1, 40)
    node.asks("alice", 10)
    node.asks("bob", 20)
    node.uses("alice", 0, 30)
    node.passes(5_100, silent=[10])
    assert node.gpus_of(20) == [0]


def test_a_stalled_task_does_not_count_as_a_task_on_its_gpu() -> None:
    node = Node(1, max_tasks_per_gpu=1)
    node.quota("alice", 1, 40)
    node.quota("bob", 1, 40)
    node.asks("alice", 10)
    node.asks("bob", 20)
    assert "alice/t1 holds GPU 0" in node.state.standings["r2"].why
    node.passes(5_100, silent=[10])
    assert node.gpus_of(20) == [0]


def test_it_resumes_with_the_same_lease_if_nobody_else_needed_it() -> None:
    node = stalled_node()
    node.now_ns += 60 * S
    node.beats_again("alice", 10)
    granted = node.granted(10)
    assert granted is not None
    assert (
        granted.task.task_id,
        granted.limits,
        granted.process.slot,
        granted.process.generation,
    ) == (
        "t1",
        (40 * GIB,),
        0,
        1,
    )
    assert node.of(SetSlot) == [SetSlot("alice", 0, 1, "live")]
    assert node.grant_gib("alice", 0) == (40, 40)
    assert node.published("task.resumed")[0]["stalled_ns"] >= 60 * S


@pytest.mark.parametrize(
    "how", ["beats", "raises its word", "asks", "rejoins", "another process of it joins"]
)
def test_however_it_is_heard_again(how: str) -> None:
    node = stalled_node()
    if how == "beats":
        node.beats_again("alice", 10)
    elif how == "raises its word":
        node.raises_its_word(10)
    elif how == "asks":
        node.asks("alice", 10)
    elif how == "rejoins":
        node.rejoins("alice", 10, "t1", 0, 1)
    else:
        node.asks("alice", 11, token="token10")
        assert node.gpus_of(11) == [0]
    assert node.gpus_of(10) == [0]
    assert node.state.stalled == {}
    assert node.granted(10) is not None


def test_it_is_fenced_when_its_room_went_to_another() -> None:
    node = stalled_node()
    node.asks("bob", 20)
    node.quota("carol", 1, 10)
    node.asks("carol", 30)
    node.beats_again("alice", 10)
    fenced = node.fenced(10)
    assert fenced is not None
    assert "GPU 0 went to others" in fenced.reason
    assert node.of(SetSlot) == [SetSlot("alice", 0, 1, "fenced")]
    assert node.task(10) is None
    assert node.remaining_gib(0) == 0  # 30 of its own, bob's 40, carol's 10
    node.driver_shows(10, 0, 20)
    assert node.remaining_gib(0) == 10
    node.asks("alice", 10)  # it asks anew: 20 more beside its 20, but only 10 are there
    assert node.waiting() == [10]
    node.dies(30)
    assert node.gpus_of(10) == [0]


def test_the_env_has_its_slot_back_meanwhile_and_the_stalled_task_no_room_in_the_quota() -> None:
    node = stalled_node(gpus=2)
    # the env's one GPU: fresh again, on the same GPU, since 30 of its 40 GiB are there
    node.asks("alice", 11)
    assert node.gpus_of(11) == [0]
    assert node.grant_gib("alice", 0) == (40, 40)
    node.beats_again("alice", 10)  # the env uses the GPU again: reuse takes nothing
    assert node.gpus_of(10) == [0]


def test_a_stalled_task_is_not_resumed_above_the_quotas_gpus() -> None:
    node = Node(2)
    node.quota("alice", 1)
    node.asks("alice", 10)
    node.uses("alice", 0, 70)
    node.passes(5_100, silent=[10])
    node.asks("alice", 11)  # the other GPU has more room
    assert node.gpus_of(11) == [1]
    node.beats_again("alice", 10)
    assert node.fenced(10) is not None


def test_a_stalled_task_on_a_lost_gpu_is_not_resumed() -> None:
    node = stalled_node()
    node.loses(0)
    node.beats_again("alice", 10)
    fenced = node.fenced(10)
    assert fenced is not None
    assert "GPU 0 was lost" in fenced.reason


def test_by_default_a_stalled_task_is_kept() -> None:
    node = stalled_node()
    node.passes(3_600_000, silent=[10])
    assert list(node.state.stalled) == ["t1"]


def test_by_policy_it_is_ended_after_a_grace_time() -> None:
    node = stalled_node(stalled="kill", stalled_grace_ms=60_000)
    node.passes(59_000, silent=[10])
    assert node.of(Kill) == []
    node.passes(2_000, silent=[10])
    assert node.of(Kill) == [Kill("unix:10:1", 10)]
    node.passes(600_000, silent=[10])
    assert node.of(Kill) == []
    node.dies(10)
    assert node.state.tasks == {}


def test_a_task_that_is_heard_in_time_is_not_ended() -> None:
    node = stalled_node(stalled="kill", stalled_grace_ms=60_000)
    node.beats_again("alice", 10)
    node.passes(600_000)
    assert node.of(Kill) == []
    assert node.gpus_of(10) == [0]


def test_a_process_of_a_stalled_task_dies() -> None:
    node = stalled_node()
    node.asks("bob", 20)
    node.dies(10)
    assert node.state.grants.keys() == {("bob", "GPU-0")}
    assert node.state.wake_ns() is not None
    node.dies(20)
    assert node.state.wake_ns() is None


def test_beats_that_the_edge_does_not_know_of_count_as_heard() -> None:
    node = Node()
    node.quota("alice", 1)
    node.asks("alice", 10)
    node.now_ns += 100 * S
    node.beats.clear()
    node.ticks()
    assert node.state.stalled == {}


def test_a_task_with_one_gpu_reused_and_one_its_own_stalls_on_both() -> None:
    node = Node(2)
    node.quota("alice", 2, 80)
    node.asks("alice", 10, 1)
    node.asks("alice", 11, 2)
    node.passes(5_100, silent=[11])
    assert node.used_gpus("alice") == ["GPU-0"]
    assert node.grant_gib("alice", 0) == (40, 40)
    assert node.grant_gib("alice", 1) == (0, 0)
    node.beats_again("alice", 11)
    assert node.grant_gib("alice", 1) == (40, 40)


def test_a_word_of_a_process_without_a_connection_resumes_its_task() -> None:
    """Nothing is sent: the ledger says that the slot is live again."""
    node = stalled_node()
    node.disconnects(10)
    node.raises_its_word(10)
    assert node.granted(10) is None
    assert node.of(SetSlot) == [SetSlot("alice", 0, 1, "live")]
    assert node.state.stalled == {}


def test_a_word_is_heeded_of_a_stalled_task_alone() -> None:
    node = stalled_node()
    node.raises_its_word(10)
    for pid in (10, 99):
        assert node.raises_its_word(pid) == []
    node.admin_releases("t1")
    assert node.raises_its_word(10) == []


def test_a_word_of_a_task_whose_room_is_gone_fences_it() -> None:
    node = stalled_node()
    node.asks("bob", 20)
    node.quota("carol", 1, 10)
    node.asks("carol", 30)
    node.raises_its_word(10)
    assert node.fenced(10) is not None
    assert node.of(SetSlot) == [SetSlot("alice", 0, 1, "fenced")]


def test_a_request_that_names_its_memory_is_not_overtaken_beside_a_stalled_task() -> None:
    """alice's stopped process uses 10 GiB of GPU 0, and bob has the rest.

    alice's second process wants 40 GiB of it, and comes before carol's. When bob's process dies,
    nothing tells how much of alice's grant is in use, so the whole grant counts.
    """
    node = Node(1)
    for env, gib in (("alice", 80), ("bob", 70), ("carol", 70)):
        node.quota(env, 1, gib)
    node.asks("alice", 10)
    node.uses("alice", 0, 10)
    node.passes(5_000, silent=[10])
    node.asks("bob", 20)
    node.asks("alice", 11, gib=40)
    node.asks("carol", 30)
    assert node.gpus_of(20) == [0]
    node.passes(3_000, silent=[10])
    assert {request.env for request in node.state.requests.values()} == {"alice", "carol"}
    node.dies(20)
    assert node.gpus_of(11) == [0]
    assert [request.env for request in node.state.requests.values()] == ["carol"]


def test_a_program_that_got_its_lease_at_its_start_beats_from_its_own_request_on() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.asks("alice", 10, starts=True)
    node.asks("alice", 11, token="token10")
    node.passes(60_000, silent=[10, 11])
    assert node.state.stalled == {}
    node.asks("alice", 10, rid="of the program")
    assert [process.starts for process in node.state.processes.values()] == [False, False]
    node.passes(4_900, silent=[10, 11])
    assert node.state.stalled == {}
    node.passes(5_200, silent=[10, 11])
    assert list(node.state.stalled) == ["t1"]


def test_the_death_of_a_program_that_never_used_cuda_ends_its_lease() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.asks("alice", 10, starts=True)
    node.passes(60_000, silent=[10])
    node.dies(10)
    assert node.state.tasks == {}
