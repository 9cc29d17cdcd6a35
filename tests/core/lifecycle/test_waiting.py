"""Waiting requests: their messages, the rules of overtaking, the ends of a wait."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from client_plugin.messages.form import Reason, reason_of
from nodemgr.core.model import events
from nodemgr.core.model.causes import Standing, WaitCause
from nodemgr.core.model.effects import SendWait, Unwatch, Watch
from nodemgr.core.model.entities import BY_LENDER, DenyCode
from tests.core.world import Node, S, gpu, key


def full_node(gpus: int = 1) -> Node:
    """bob's task 90 holds every GPU."""
    node = Node(gpus)
    node.quota("bob", gpus)
    node.asks("bob", 90)
    for env in ("alice", "carol", "dave"):
        node.quota(env, gpus)
    return node


def test_a_request_that_cannot_be_served_waits_and_is_told_why() -> None:
    node = full_node()
    node.asks("alice", 10)
    why = reason_of("needs 1 GPU, 0 free; bob/t1 holds GPU 0 since 22:13 UTC")
    standing = Standing("normal", 1, 0, WaitCause.NODE, why)
    assert node.of(SendWait) == [SendWait(10, "a10", standing)]
    assert standing.line == f"place 1 in queue normal: {why}"
    assert node.of(Watch) == [Watch(key(10), 10)]
    waiting = node.published("task.waiting")[0]
    assert (waiting["task"], waiting["position"], waiting["gpus_wanted"]) == ("r2", 1, 1)
    assert (waiting["cause"], waiting["ahead"], waiting["reason"]) == ("node", 0, why)
    need, holder = waiting["clauses"]
    assert need == ["needs {need}, {free} free", {"need": "1 GPU", "free": 0}]
    assert holder[1] == {
        "env": "bob", "task": "t1", "gpus": "GPU 0", "since_minute": node.wall_ns // S,
    }  # fmt: skip


def test_a_request_that_named_no_number_is_told_with_how_many_it_would_start_now() -> None:
    node = Node(4)
    for env in ("alice", "bob", "carol"):
        node.quota(env, 4)
    node.asks("bob", 90, 2)
    node.asks("alice", 10)
    assert (
        "needs 4 GPUs, 2 free; `--gpus 2` would start now; bob/t1 holds"
        in node.state.standings["r2"].why
    )
    # behind alice, and before any new request of hers: now nothing can be promised
    node.asks("carol", 20, 1)
    assert "would start" not in node.state.standings["r2"].why
    node.dies(20)
    assert "`--gpus 2` would start now" in node.state.standings["r2"].why
    node.dies(10)
    node.asks("alice", 11, 2)
    assert node.gpus_of(11) == [2, 3], "it is so"


@pytest.mark.parametrize(("gpus", "world"), [(4, 1), (None, 4)])
def test_a_number_that_was_named_is_not_doubted(gpus: int | None, world: int) -> None:
    node = Node(4)
    for env in ("alice", "bob"):
        node.quota(env, 4)
    node.asks("bob", 90, 2)
    node.asks("alice", 10, gpus, world=world)
    assert "would start" not in node.state.standings["r2"].why


def test_no_number_is_proposed_where_none_would_do() -> None:
    node = Node(2)
    for env in ("alice", "bob"):
        node.quota(env, 2)
    node.asks("bob", 90, 2)
    node.asks("alice", 10)
    assert "would start" not in node.state.standings["r2"].why


def test_first_come_first_served_and_the_others_move_up() -> None:
    node = full_node()
    for env, pid in (("alice", 10), ("carol", 20), ("dave", 30)):
        node.asks(env, pid)
    assert node.waiting() == [10, 20, 30]
    node.now_ns += 3 * S
    node.dies(90)
    assert node.gpus_of(10) == [0]
    granted = node.published("task.granted")[0]
    assert (granted["task"], granted["request"], granted["waited_ns"]) == ("t2", "r2", 3 * S)
    told = node.told(20)
    assert told is not None
    assert told.position == 1
    assert "alice/t2 holds GPU 0" in told.why
    assert node.waiting() == [20, 30]


def test_only_those_whose_line_changed_are_told() -> None:
    node = full_node(2)
    node.asks("alice", 10, 2)
    node.asks("carol", 20, 1)
    assert node.told(10) is None
    node.asks("dave", 30, 1)
    assert [told.connection for told in node.of(SendWait)] == [30]


def test_the_ranks_of_queues_go_before_times() -> None:
    node = full_node()
    node.quota("alice", 1, priority="low")
    node.quota("carol", 1, priority="high")
    for env, pid in (("alice", 10), ("dave", 30), ("carol", 20)):
        node.asks(env, pid)
    assert node.waiting() == [20, 30, 10]
    standing = node.state.standings["r2"]
    assert (standing.queue, standing.position, standing.ahead) == ("low", 1, 2)
    line = standing.line
    assert line.startswith("place 1 in queue low (after 2 in other queues): needs 1 GPU, 0 free")
    node.dies(90)
    assert node.gpus_of(20) == [0]


def test_a_queue_that_nobody_configured_is_served_last() -> None:
    node = full_node()
    node.quota("alice", 1, priority="whenever")
    node.asks("alice", 10)
    node.quota("carol", 1, priority="low")
    node.asks("carol", 20)
    assert node.waiting() == [20, 10]


def test_a_gang_of_all_gpus_is_not_starved_by_a_stream_of_small_ones() -> None:
    node = Node(4)
    for env in ("gang", *(f"small{index}" for index in range(12))):
        node.quota(env, 4)
    for index in range(4):
        node.asks(f"small{index}", 100 + index, 1)
    node.asks("gang", 1, 4)
    for index in range(4, 12):  # each time one ends, another small one comes
        node.asks(f"small{index}", 100 + index, 1)
        if index < 8:
            node.dies(100 + index - 4)
    assert node.gpus_of(1) == [0, 1, 2, 3]
    assert node.waiting() == list(range(104, 112))


def test_what_the_blocked_one_could_not_use_goes_to_a_later_one() -> None:
    node = Node(0)
    node.gpus_are([gpu(0), gpu(1), gpu(2, 16)])
    for env in ("big", "other", "small"):
        node.quota(env, 2)
    node.asks("other", 1, 2)
    assert node.gpus_of(1) == [0, 1]
    node.asks("big", 2, 1, gib=40)  # GPU 2 is too small for it, for ever
    node.asks("small", 3, 1)
    assert node.gpus_of(3) == [2]
    assert node.waiting() == [2]


def test_a_gpu_with_room_is_kept_for_an_earlier_request_that_needs_more_of_it() -> None:
    node = Node(1)
    node.quota("big", 1, 60)
    node.quota("small", 1, 10)
    node.quota("other", 1, 40)
    node.asks("other", 1)
    node.asks("big", 2)
    node.asks("small", 3)  # 10 GiB would fit; but then big would have to wait for small as well
    assert node.waiting() == [2, 3]
    assert "kept for big/r2" in node.state.standings["r3"].why
    node.dies(1)
    assert (node.gpus_of(2), node.gpus_of(3)) == ([0], [0])


def test_reuse_of_what_its_env_holds_overtakes_since_it_takes_nothing() -> None:
    node = Node(2)
    node.quota("gang", 2)
    node.quota("alice", 2)
    node.asks("alice", 1, 1)
    node.asks("gang", 2, 2)
    node.asks("alice", 3, 1)  # GPU 1 is free, but kept; GPU 0 is alice's own
    assert node.gpus_of(3) == [0]
    node.dies(1)
    node.dies(3)
    assert node.gpus_of(2) == [0, 1]


def test_a_request_short_of_its_own_memory_quota_holds_no_more_than_it_needs_beside_its_env() -> (
    None
):
    node = Node(4)
    node.quota("alice", 2, 80)
    node.quota("bob", 4)
    node.asks("alice", 1, 1)
    node.asks("alice", 2, 1)
    # a third GPU, with 26 GiB each; the running tasks hold 40 each until they free it
    node.quota("alice", 3, 80)
    node.uses("alice", 0, 40)
    node.uses("alice", 1, 40)
    node.passes(2_000)
    node.asks("alice", 3, 3)
    node.asks("alice", 4, 3)
    assert node.waiting() == [3, 4]
    assert "of alice's memory quota per GPU, 0.0 GiB left" in node.state.standings["r3"].why
    assert "r3 of its own environment comes first" in node.state.standings["r4"].why
    node.asks("bob", 5, 1)
    assert node.gpus_of(5) == [2]
    node.quota("carol", 1)
    node.asks("carol", 6, 1)
    assert node.gpus_of(6) is None
    node.cancels("alice", 3)
    node.cancels("alice", 4)
    assert node.gpus_of(6) == [3]


def test_named_memory_waits_until_the_envs_ledger_has_it_free() -> None:
    node = Node(1)
    node.quota("alice", 1, 40)
    node.quota("bob", 1, 40)
    node.asks("alice", 1)
    node.uses("alice", 0, 35)
    node.asks("alice", 2, gib=10, used_gib={0: 35})
    assert node.waiting() == [2]
    assert "needs 10.0 GiB free on a GPU that alice holds" in node.state.standings["r2"].why
    node.asks("bob", 3)  # keeps nothing from others
    assert node.gpus_of(3) == [0]
    node.passes(3_000)
    assert node.waiting() == [2]
    node.uses("alice", 0, 30)
    node.passes(1_000)
    assert node.gpus_of(2) == [0]


def test_named_memory_is_kept_for_who_was_promised_it() -> None:
    node = Node(1)
    node.quota("alice", 1, 40)
    node.asks("alice", 1, gib=30)
    node.asks("alice", 2, gib=15, used_gib={0: 0})  # nothing used yet, but 30 are spoken for
    assert node.gpus_of(2) is None
    node.asks("alice", 3, gib=10, used_gib={0: 0}, wait_ms=0)  # fits, but 2 came first
    assert node.denied(3) is not None
    node.cancels("alice", 2)
    node.asks("alice", 4, gib=10, used_gib={0: 0})
    assert node.gpus_of(4) == [0]


def test_ranks_that_wait_together_are_one_request_and_all_are_answered() -> None:
    node = full_node(4)
    node.asks("alice", 10, 1, token="job")
    node.asks("alice", 11, 2, token="job", world=2)
    node.asks("alice", 12, 1, token="another token", ancestors=(10,))
    assert len(node.state.requests) == 1
    (request,) = node.state.requests.values()
    assert (request.run.gpus, len(request.askers)) == (2, 3)
    assert node.told(12) is not None
    node.dies(90)
    assert [node.gpus_of(pid) for pid in (10, 11, 12)] == [[0, 1]] * 3
    assert (
        len({granted.process.slot for pid in (10, 11, 12) if (granted := node.granted(pid))}) == 3
    )


def test_a_rank_that_asks_for_too_much_is_refused_alone() -> None:
    node = full_node(4)
    node.asks("alice", 10, 1, token="job")
    node.asks("alice", 11, 9, token="job")
    denied = node.denied(11)
    assert denied is not None
    assert denied.code is DenyCode.OVER_QUOTA
    assert node.waiting() == [10]


def test_a_request_goes_on_waiting_for_those_who_are_left() -> None:
    node = full_node()
    node.asks("alice", 10, token="job")
    node.asks("alice", 11, token="job")
    node.dies(10)
    assert node.waiting() == [11]
    node.dies(90)
    assert node.gpus_of(11) == [0]


def test_who_will_not_wait_gets_an_answer_at_once() -> None:
    node = full_node()
    node.asks("alice", 10, wait_ms=0)
    denied = node.denied(10)
    assert denied is not None
    assert denied.code is DenyCode.WAIT_TIMEOUT
    assert "bob/t1 holds GPU 0" in denied.reason
    assert node.waiting() == []
    assert node.of(SendWait) == []
    assert [name for name in ("task.waiting", "request.withdrawn") if node.published(name)] == []
    node.dies(90)
    node.asks("alice", 10, wait_ms=0)
    assert node.gpus_of(10) == [0]


def test_a_deadline_names_what_was_waited_for() -> None:
    node = full_node()
    node.asks("alice", 10, wait_ms=7_000)
    node.asks("carol", 20)
    assert node.passes(6_900) is not None
    assert node.waiting() == [10, 20]
    node.passes(200)
    denied = node.denied(10)
    assert denied is not None
    assert denied.code is DenyCode.WAIT_TIMEOUT
    assert "timed out after 7 s" in denied.reason
    assert "bob/t1 holds GPU 0" in denied.reason
    assert node.told(20) is not None
    assert node.waiting() == [20]


def test_a_cancelled_request_leaves_the_queue_and_frees_what_it_kept() -> None:
    node = Node(2)
    for env in ("alice", "bob", "carol"):
        node.quota(env, 2)
    node.asks("bob", 90, 1)
    node.asks("alice", 10, 2)
    node.asks("carol", 20, 1)
    assert node.waiting() == [10, 20]
    node.cancels("alice", 10)
    denied = node.denied(10)
    assert denied is not None
    assert denied.code is DenyCode.CANCELLED
    assert node.gpus_of(20) == [1]
    assert node.of(Unwatch) == [Unwatch(key(10))]
    assert node.published("request.withdrawn")[0]["why"] == "cancelled"
    node.cancels("alice", 10)  # twice is once
    assert node.denied(10) is not None


def test_a_dead_waiter_is_withdrawn() -> None:
    node = full_node()
    node.asks("alice", 10)
    node.dies(10)
    assert node.waiting() == []
    assert node.published("request.withdrawn")[0]["why"] == "its process ended"


def test_a_disconnected_waiter_has_the_timeout_to_come_back_to_its_place() -> None:
    node = full_node()
    node.asks("alice", 10)
    node.asks("carol", 20)
    node.disconnects(10)
    assert node.waiting() == [10, 20]
    node.dies(90)  # no later request overtakes it
    assert node.waiting() == [10, 20]
    node.passes(2_000)
    node.asks("alice", 10)
    assert node.gpus_of(10) == [0]


def test_a_tick_with_figures_keeps_no_more_gpus_for_a_waiter_that_is_away() -> None:
    """bob's waiter needs 30 GiB of his own GPU 0, which the figures show as free; it is away.

    carol's grant on GPU 1 shrinks in the same tick: alice gets the room.
    """
    node = Node(2)
    node.quota("bob", 2)
    node.quota("carol", 1, 80)
    node.quota("alice", 1, 40)
    node.asks("bob", 10, 1)
    node.asks("carol", 20)
    node.asks("bob", 11, 1, gib=30, used_gib={0: 80})
    node.disconnects(11)
    node.asks("alice", 30)
    node.quota("carol", 1, 40)
    assert (node.waiting(), node.gpus_of(10)) == ([11, 30], [0])
    node.uses("bob", 0, 0)
    node.uses("carol", 1, 40)
    node.ticks()
    assert (node.waiting(), node.gpus_of(30)) == ([11], [1])


def test_who_does_not_come_back_loses_his_place() -> None:
    node = full_node()
    node.asks("alice", 10)
    node.asks("carol", 20)
    node.disconnects(10)
    node.dies(90)
    node.passes(5_000)
    assert node.waiting() == []
    assert node.gpus_of(20) == [0]


def test_a_waiter_that_sends_its_request_again_is_told_again_and_keeps_its_place() -> None:
    node = full_node()
    node.asks("alice", 10)
    node.asks("carol", 20)
    node.asks("alice", 10)
    told = node.told(10)
    assert told is not None
    assert told.position == 1
    assert node.waiting() == [10, 20]


def test_the_holder_of_a_disconnected_connection_keeps_his_lease() -> None:
    node = Node()
    node.quota("alice", 1)
    node.asks("alice", 10)
    assert node.disconnects(10) == []
    assert node.gpus_of(10) == [0]
    node.rejoins("alice", 10, "t1", 0, 1)
    granted = node.granted(10)
    assert granted is not None
    assert granted.rid == "j10"


@pytest.mark.parametrize(
    ("task", "slot", "generation"), [("t2", 0, 1), ("t1", 1, 1), ("t1", 0, 2), ("t1", None, 1)]
)
def test_who_comes_back_with_another_lease_than_his_own_is_fenced(
    task: str, slot: int | None, generation: int
) -> None:
    node = Node()
    node.quota("alice", 1)
    node.asks("alice", 10)
    node.rejoins("alice", 10, task, slot, generation)
    assert node.granted(10) is None
    assert node.fenced(10) is not None


def test_an_admin_withdraws_a_request() -> None:
    node = full_node()
    node.asks("alice", 10)
    node.admin_releases("r2")
    denied = node.denied(10)
    assert denied is not None
    assert denied.code is DenyCode.RELEASED
    assert node.waiting() == []


def test_a_blocked_queue_does_not_wake_the_manager() -> None:
    node = full_node()
    for pid in range(10, 20):
        node.asks("alice", pid)
    node.passes(60_000)
    assert node.wakes == 12  # once a timeout, for the task that runs
    assert node.of(SendWait) == []


def test_several_holders_are_named_but_not_all_of_many() -> None:
    node = Node(5)
    for index in range(5):
        node.quota(f"env{index}", 1)
        node.asks(f"env{index}", 50 + index)
    node.quota("alice", 2)
    node.asks("alice", 10)
    reason = node.state.standings["r6"].why
    assert reason.count("holds GPU") == 3
    assert reason.endswith("and 2 more")


def test_a_lost_gpu_is_named() -> None:
    node = Node(1)
    node.loses(0)
    node.quota("alice", 1)
    node.asks("alice", 10)
    assert node.state.standings["r1"].why == (
        "needs 1 GPU, but the node has 0 in service for it (GPU 0 lost):"
        " keeps no GPU, and takes its place again when enough are back"
    )


def test_a_lost_gpu_that_slurm_has_closed_is_named_with_the_reason() -> None:
    node = Node(1)
    node.happens(events.DrainGpu("GPU-0", BY_LENDER, "its time ends", node.wall_ns))
    node.loses(0)
    node.quota("alice", 1)
    node.asks("alice", 10)
    assert "(GPU 0 lost: its time ends)" in node.state.standings["r1"].why


@pytest.mark.parametrize("made", [copy.deepcopy, lambda reason: pickle.loads(pickle.dumps(reason))])
def test_a_copy_of_a_reason_has_its_clauses(made: Callable[[Reason], Reason]) -> None:
    reason = reason_of("{env} waits since {since_minute}", env="alice", since_minute=0)
    assert made(reason) == reason == "alice waits since 00:00 UTC"
    assert made(reason).clauses == reason.clauses
