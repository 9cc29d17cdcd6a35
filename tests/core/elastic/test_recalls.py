"""Which GPUs elastic tasks are asked to leave, and when a recall is taken back."""

from __future__ import annotations

from nodemgr.core.model.effects import Kill, SendFence, SendRecall, SendWithdrawn
from nodemgr.core.model.entities import GpuRange, Recall, Word
from nodemgr.core.views import job_rows
from tests.core.world import Node, key

RECALL_MS = 10_000


def held_by_one(gpus: int = 4, least: int = 1, **quota: int) -> Node:
    """`a` has an elastic task on all GPUs, led by process 1."""
    node = Node(gpus)
    node.quota("a", quota.pop("gpus", gpus), **quota)
    node.asks("a", 1, least, most=gpus, elastic=True)
    node.passes(5_000)
    assert node.gpus_of(1) == list(range(gpus))
    for env in "bc":
        node.quota(env, gpus)
    return node


def recalled(node: Node, task: str = "t1") -> dict[str, str]:
    return {recall.uuid: recall.receiver for recall in node.state.elastics[task].recalls}


def test_the_last_added_gpu_is_recalled_for_a_request_within_its_quota() -> None:
    node = held_by_one()
    node.asks("b", 2, 1)
    assert recalled(node) == {"GPU-3": "r2"}
    (effect,) = node.of(SendRecall)
    assert (effect.uuid, effect.in_ms) == ("GPU-3", RECALL_MS)
    (told,) = node.published("task.recalled")
    assert (told["receiver"], told["reason"]) == ("r2", "r2 of b waits for it")
    (row,) = job_rows.queue(node.state, node.now_ns, env=None, limit=9)
    (coming,) = row["receives"]
    assert (coming["gpu_index"], coming["task"], coming["env"]) == (3, "t1", "a")
    assert coming["within_seconds"] == RECALL_MS // 1_000
    node.says("a", 1, Word.LEFT, 3)
    assert node.gpus_of(2) is None  # until the driver shows no memory of the leader there
    node.driver_shows(1, 3, 0)
    assert (node.gpus_of(1), node.gpus_of(2)) == ([0, 1, 2], [3])


def test_the_least_number_is_never_recalled() -> None:
    node = held_by_one(least=3)
    node.asks("b", 2, 2)
    assert recalled(node) == {}
    node.asks("c", 3, 1)  # it waits behind b, which keeps every GPU
    assert recalled(node) == {}
    node.dies(2)
    assert recalled(node) == {"GPU-3": "r3"}


def test_borrowed_gpus_go_first() -> None:
    node = Node(4)
    for env, gpus, borrow in (("a", 2, 1), ("b", 4, 0), ("c", 2, 0)):
        node.quota(env, gpus, borrow=borrow)
    node.asks("b", 2, 1, most=2, elastic=True)
    node.asks("a", 1, 1, most=3, elastic=True)
    assert (node.gpus_of(2), node.gpus_of(1)) == ([0, 1], [2, 3])
    node.says("b", 2, Word.LEFT, 1)
    node.driver_shows(2, 1, 0)
    node.passes(2_000)
    assert node.gpus_of(1) == [1, 2, 3]
    node.quota("b", 1)
    node.asks("c", 3, 1)
    assert recalled(node, "t2") == {"GPU-1": "r3"}


def test_at_the_deadline_the_bound_processes_end_and_the_gpu_goes() -> None:
    node = held_by_one()
    token = node.state.tasks["t1"].token
    for pid, index in ((11, 2), (12, 3)):
        node.asks("a", pid, token=token, worker=index)
    node.asks("b", 2, 1)
    node.passes(RECALL_MS - 1)
    assert node.of(Kill) == []
    node.passes(1)
    assert [kill.process for kill in node.of(Kill)] == [key(12)]
    assert [fence.connection for fence in node.of(SendFence)] == [12]
    assert node.gpus_of(1) == [0, 1, 2]
    assert node.task(11) is not None
    assert node.task(12) is None
    (shrunk,) = node.published("task.shrunk")
    assert "did not leave it within 10 s" in shrunk["reason"]
    node.driver_shows(1, 3, 0)
    assert node.gpus_of(2) is None  # the ended process still has memory there
    node.dies(12)
    assert node.gpus_of(2) == [3]


def test_a_recall_is_withdrawn_when_no_request_needs_it() -> None:
    node = held_by_one()
    node.asks("b", 2, 1)
    node.cancels("b", 2)
    assert recalled(node) == {}
    assert [effect.uuid for effect in node.of(SendWithdrawn)] == ["GPU-3"]
    node.passes(2 * RECALL_MS)
    assert node.gpus_of(1) == [0, 1, 2, 3]


def test_a_task_may_leave_another_gpu_than_the_recalled_one() -> None:
    """The leader does so where the recalled GPU has the training's only state."""
    node = held_by_one(gpus=2)
    node.asks("b", 2, 1)
    assert recalled(node) == {"GPU-1": "r2"}
    node.says("a", 1, Word.LEFT, 0)
    assert recalled(node) == {}
    assert [effect.uuid for effect in node.of(SendWithdrawn)] == ["GPU-1"]
    node.driver_shows(1, 0, 0)
    node.passes(2 * RECALL_MS)
    assert (node.gpus_of(1), node.gpus_of(2)) == ([1], [0])


def test_another_request_takes_over_a_recall_with_its_deadline() -> None:
    node = held_by_one()
    node.asks("b", 2, 1)
    node.asks("c", 3, 1)
    assert recalled(node) == {"GPU-3": "r2", "GPU-2": "r3"}
    node.passes(4_000)
    node.cancels("b", 2)
    assert recalled(node) == {"GPU-3": "r3"}
    node.passes(RECALL_MS - 4_000)
    assert node.gpus_of(1) == [0, 1, 2]


def test_all_waiting_requests_are_recalled_for_at_once() -> None:
    node = held_by_one()
    jobs = [node.submits("b", gpus=1) for _ in range(3)]
    assert None not in jobs
    assert set(recalled(node)) == {"GPU-1", "GPU-2", "GPU-3"}


def test_an_own_job_within_the_quota_gets_what_its_env_holds_above_the_least() -> None:
    node = held_by_one()
    assert node.submits("a", gpus=2) is not None
    assert recalled(node) == {"GPU-3": "r2", "GPU-2": "r2"}
    for index in (3, 2):
        node.says("a", 1, Word.LEFT, index)
        node.driver_shows(1, index, 0)
    assert [task.gpus for task in node.state.tasks.values() if task.job_id] == [("GPU-2", "GPU-3")]


def test_what_recalls_cannot_serve_is_not_recalled() -> None:
    node = Node(4)
    for env in "abc":
        node.quota(env, 4)
    node.asks("c", 3, 2)
    node.asks("a", 1, 1, most=2, elastic=True)
    node.asks("b", 2, 3)
    assert node.state.elastics["t2"].recalls == ()


def test_a_restart_keeps_recalls_and_starts_their_deadlines_anew() -> None:
    node = held_by_one()
    node.asks("b", 2, 1)
    node.passes(9_000)
    node.restart()
    assert node.state.elastics["t1"].recalls == (Recall("GPU-3", "r2"),)
    process = node.state.processes[key(1)]
    node.rejoins("a", 1, "t1", process.slot, process.generation)
    assert [(effect.uuid, effect.in_ms) for effect in node.of(SendRecall)] == [("GPU-3", RECALL_MS)]
    node.asks("b", 2, 1, token="token2")
    node.passes(RECALL_MS)
    assert node.gpus_of(1) == [0, 1, 2]


def test_a_job_that_is_elastic_is_led_by_the_process_that_asks_so() -> None:
    node = Node(3)
    node.quota("a", 3)
    node.quota("b", 3)
    job_id = node.submits("a", gpus=1, gpu_range=GpuRange(3, True))
    assert job_id is not None
    node.begins(job_id)
    task = next(iter(node.state.tasks.values()))
    assert len(task.gpus) == 3
    node.asks("a", 5, 1, most=3, elastic=True, token=task.token)
    assert node.state.elastics[task.task_id].leader == key(5)
    node.asks("b", 2, 1)
    assert [effect.connection for effect in node.of(SendRecall)] == [5]


def test_a_quota_that_is_lowered_recalls_what_is_beyond_it() -> None:
    node = held_by_one()
    node.quota("a", 2)
    assert recalled(node) == {"GPU-3": "", "GPU-2": ""}
    reasons = {effect.reason for effect in node.of(SendRecall)}
    assert reasons == {"the quota of a was lowered to 2 GPUs, and it may borrow 0"}
    node.says("a", 1, Word.LEFT, 3)
    assert "left it for the lowered quota of a" in node.published("task.shrunk")[0]["reason"]
    node.passes(RECALL_MS)
    assert node.gpus_of(1) == [0, 1]
    node.passes(10_000)
    assert node.gpus_of(1) == [0, 1], "nothing is offered again"


def test_what_a_quota_lets_borrow_is_recalled_for_requests_alone() -> None:
    node = held_by_one(borrow=1)
    node.quota("a", 2, borrow=1)
    assert recalled(node) == {"GPU-3": ""}
    node.quota("a", 3, borrow=1)
    assert recalled(node) == {}
    assert len(node.of(SendWithdrawn)) == 1


def test_a_lowered_quota_takes_nothing_below_the_least_number() -> None:
    node = held_by_one(least=3)
    node.quota("a", 1)
    assert recalled(node) == {"GPU-3": ""}


def test_a_request_gets_the_gpu_that_a_lowered_quota_recalls() -> None:
    """The recall stands, with the same deadline, and has a receiver now."""
    node = held_by_one()
    node.quota("a", 3)
    node.passes(4_000)
    node.asks("b", 2, 1)
    assert recalled(node) == {"GPU-3": "r2"}
    node.passes(RECALL_MS - 4_000)
    assert node.gpus_of(1) == [0, 1, 2]


def test_a_restart_keeps_the_recall_of_a_lowered_quota() -> None:
    node = held_by_one()
    node.quota("a", 3)
    node.restart()
    assert recalled(node) == {"GPU-3": ""}


def test_a_plain_task_shares_a_gpu_that_is_never_recalled() -> None:
    """So the others stay recallable, though they have fewer tasks."""
    node = Node(4)
    node.quota("a", 1, borrow=3)
    node.quota("b", 4)
    node.asks("a", 1, 1, most=4, elastic=True)
    node.passes(20_000)
    assert node.gpus_of(1) == [0, 1, 2, 3]
    for pid in (2, 3):
        node.asks("a", pid, 1)
        assert node.gpus_of(pid) == [0]
    node.asks("b", 4, 3)
    assert set(recalled(node)) == {"GPU-1", "GPU-2", "GPU-3"}


def test_a_plain_task_that_needs_more_shares_what_its_quota_allows() -> None:
    """It keeps as many GPUs as the quota has, and all others can be recalled."""
    node = Node(4)
    node.quota("a", 2, borrow=2)
    node.quota("b", 4)
    node.asks("a", 1, 1, most=4, elastic=True)
    node.passes(20_000)
    node.asks("a", 2, 2)
    assert node.gpus_of(2) == [0, 1]
    node.asks("b", 3, 2)
    assert set(recalled(node)) == {"GPU-2", "GPU-3"}
