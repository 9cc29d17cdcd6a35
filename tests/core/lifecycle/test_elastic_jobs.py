"""Jobs with a range of GPUs: their start, their leader, their growth, their ends."""

from __future__ import annotations

import pytest

from nodemgr.core.model.effects import SendOffer, SendRecall, StartJob, SubmitAnswered
from nodemgr.core.model.entities import Cause, DenyCode, GpuRange, JobState, Word
from tests.core.world import Node

CALM_MS = 2_000
GPU_REPORT_MS = 2_000
RECALL_MS = 10_000
LEADER = 100


def node_with_job(gpus: int = 4, least: int = 1, most: int = 4) -> tuple[Node, str]:
    """`a` has an elastic job that runs, led by a process; `b` may use every GPU."""
    node = Node(gpus)
    node.quota("a", gpus)
    node.quota("b", gpus)
    job_id = node.submits("a", gpus=least, gpu_range=GpuRange(most, True), max_restarts=1)
    assert job_id is not None
    lead(node, job_id)
    return node, job_id


def lead(node: Node, job_id: str, pid: int = LEADER) -> None:
    """The attempt begins, and its leader asks by the token of the order."""
    node.begins(job_id)
    task = node.state.tasks[node.state.jobs[job_id].task_id or ""]
    node.asks("a", pid, 1, most=4, elastic=True, token=task.token)


def held(node: Node, job_id: str) -> tuple[str, ...]:
    """The GPUs of the job's attempt, which are those of its lease."""
    job = node.state.jobs[job_id]
    task = node.state.tasks[job.task_id or ""]
    assert job.attempts[-1].gpus == task.gpus
    return task.gpus


def test_a_job_starts_with_what_there_is_and_grows_and_shrinks() -> None:
    node = Node(4)
    node.quota("a", 4)
    node.quota("b", 4)
    node.asks("b", 9, 3)
    job_id = node.submits("a", gpus=1, gpu_range=GpuRange(4, True))
    assert job_id is not None
    (start,) = node.of(StartJob)
    assert start.gpus == ("GPU-3",)
    lead(node, job_id)
    node.dies(9)
    node.passes(CALM_MS)
    assert len(held(node, job_id)) == 4
    assert [offer.connection for offer in node.of(SendOffer)] == [LEADER] * 3
    for index in range(3):
        node.says("a", LEADER, Word.ACCEPTED, index)
    node.asks("b", 10, 1)
    (recall,) = node.of(SendRecall)
    node.says("a", LEADER, Word.LEFT, int(recall.uuid[-1]))
    node.driver_shows(LEADER, int(recall.uuid[-1]), 0)
    assert node.gpus_of(10) == [int(recall.uuid[-1])]
    assert len(held(node, job_id)) == 3
    node.job_ends(job_id)
    assert not node.state.elastics
    assert node.job(job_id).state is JobState.DONE


def test_a_range_without_elastic_is_decided_at_the_start() -> None:
    node = Node(4)
    node.quota("a", 4)
    node.quota("b", 4)
    node.asks("b", 9, 1)
    job_id = node.submits("a", gpus=2, gpu_range=GpuRange(4))
    assert job_id is not None
    assert len(held(node, job_id)) == 3
    node.dies(9)
    node.passes(60_000)
    assert len(held(node, job_id)) == 3
    assert not node.state.elastics


@pytest.mark.parametrize(
    ("least", "most", "elastic", "line"),
    [
        (4, 1, True, "a range of GPUs must begin with 1 or more, and end no lower"),
        (0, 2, True, "a range of GPUs must begin with 1 or more, and end no lower"),
        (1, 4, True, "ends at 4 GPUs; the quota of a is 2, and it may borrow 1"),
        (1, 3, False, "ends at 3 GPUs; the quota of a is 2, and it may borrow 0"),
        (3, 3, True, "3 GPUs asked, but the quota of a is 2"),
    ],
)
def test_a_range_that_cannot_be_is_refused_at_once(
    least: int, most: int, elastic: bool, line: str
) -> None:
    node = Node(8)
    node.quota("a", 2, borrow=1)
    assert node.submits("a", gpus=least, gpu_range=GpuRange(most, elastic)) is None
    (answer,) = node.of(SubmitAnswered)
    assert answer.code in (DenyCode.OVER_QUOTA, DenyCode.BAD_REQUEST)
    assert line in answer.reason


def test_a_job_waits_for_its_least_number_alone() -> None:
    node = Node(4)
    node.quota("a", 4)
    node.quota("b", 4)
    node.asks("b", 8, 2)
    node.asks("b", 9, 1)
    job_id = node.submits("a", gpus=2, gpu_range=GpuRange(4, True))
    assert node.queued_jobs() == [job_id]
    node.dies(9)
    assert node.queued_jobs() == []


@pytest.mark.parametrize("word", [None, Word.ACCEPTED])
def test_a_manager_that_dies_in_an_offer_offers_it_again(word: Word | None) -> None:
    node, job_id = node_with_job(least=1, most=2)
    node.asks("b", 9, 3)
    node.dies(9)
    node.passes(CALM_MS)
    before = held(node, job_id)
    if word is not None:
        node.says("a", LEADER, word, int(before[-1][-1]))
    node.restart()
    node.begins(job_id)
    node.rejoins("a", LEADER, node.state.jobs[job_id].task_id or "", 0, 1)
    assert held(node, job_id) == before


def test_a_manager_that_dies_in_a_recall_recalls_again_with_the_whole_time() -> None:
    node, job_id = node_with_job()
    node.passes(CALM_MS)
    node.asks("b", 9, 1)
    task_id = node.state.jobs[job_id].task_id or ""
    (recalled,) = node.state.elastics[task_id].recalls
    node.passes(4_000)
    node.restart()
    node.begins(job_id)
    token = node.state.tasks[task_id].token
    node.asks("a", LEADER, 1, most=4, elastic=True, token=token)
    assert [recall.uuid for recall in node.of(SendRecall)] == [recalled.uuid]
    node.asks("b", 9, 1)
    node.passes(RECALL_MS)
    assert recalled.uuid not in held(node, job_id)


def test_a_killed_leader_ends_the_attempt_and_the_next_starts_anew() -> None:
    node, job_id = node_with_job()
    node.passes(CALM_MS)
    node.dies(LEADER)
    node.job_ends(job_id, None, signal=9)
    node.passes(GPU_REPORT_MS)
    assert node.job(job_id).restarts == 1
    task_id = node.state.jobs[job_id].task_id or ""
    assert node.state.elastics.keys() == {task_id}
    assert node.state.elastics[task_id].leader == ""
    lead(node, job_id, LEADER + 1)
    node.job_ends(job_id, None, signal=9)
    assert not node.state.elastics
    node.passes(GPU_REPORT_MS)
    assert node.job(job_id).state is JobState.FAILED


@pytest.mark.parametrize("cause", [Cause.SUPERVISOR_LOST, Cause.NODE_DOWN])
def test_an_interrupted_job_is_back_at_its_place_with_its_range(cause: Cause) -> None:
    node, job_id = node_with_job()
    node.job_ends(job_id, None, cause=cause, why="it is gone")
    if cause is Cause.SUPERVISOR_LOST:
        assert node.job(job_id).state is JobState.PAUSED
        assert not node.state.elastics
        node.frees(job_id)
    assert len(held(node, job_id)) == 4
    assert node.state.elastics


def test_a_withdrawn_job_gets_no_more_gpus() -> None:
    node, job_id = node_with_job(least=1, most=4)
    node.withdraws(job_id)
    assert node.job(job_id).state is JobState.STOPPING
    node.job_ends(job_id, 0)
    assert node.job(job_id).state is JobState.WITHDRAWN
    assert not node.state.elastics
