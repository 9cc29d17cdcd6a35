"""An attempt that fails before the driver reports the fault of its GPU is judged 2 s later."""

from __future__ import annotations

import pytest

from nodemgr.core.model.entities import Cause, JobState
from nodemgr.core.views import job_rows
from tests.core.world import MS, Node

GPU_REPORT_MS = 2_000


def failed(*, max_restarts: int = 0, gpus: int = 3) -> tuple[Node, str]:
    """A job that had a process on GPU 0, and has just failed."""
    node = Node(gpus, placement="spread")
    node.quota("a", gpus)
    job = node.submits("a", gpus=1, max_restarts=max_restarts)
    assert job is not None
    node.begins(job)
    task = node.state.tasks[node.state.jobs[job].task_id or ""]
    node.asks("a", 7, token=task.token, job_id=job)
    node.dies(7)
    node.job_ends(job, exit_code=1)
    return node, job


def over(node: Node, job: str) -> JobState:
    return node.history[job].job.state


@pytest.mark.parametrize("restarts", [False, True])
def test_a_fault_within_two_seconds_is_the_gpus(restarts: bool) -> None:
    node, job = failed()
    assert node.state.jobs[job].state is JobState.PAUSED
    assert not node.state.tasks, "the GPU is free at once"
    if restarts:
        node.restart()
    node.fails(0, after_ms=500)
    if restarts:
        node.restart()
    row = node.state.jobs[job]
    last = row.attempts[-1]
    assert (row.state, row.restarts, row.interruptions) == (JobState.PAUSED, 0, 1)
    assert (last.cause, last.lost_gpu) == (Cause.GPU_LOST, "GPU-0")
    (failure,) = node.state.failures.values()
    assert job == failure.evidence[-1].job_id
    node.passes(20_000)
    assert node.state.jobs[job].state is JobState.STARTING
    assert node.state.jobs[job].attempts[-1].gpus == ("GPU-1",)


@pytest.mark.parametrize("restarts", [False, True])
def test_without_a_fault_the_failure_is_its_own(restarts: bool) -> None:
    node, job = failed()
    node.passes(GPU_REPORT_MS - 100)
    assert node.state.jobs[job].state is JobState.PAUSED
    if restarts:
        node.wall_ns += (GPU_REPORT_MS - 100) * MS
        node.restart()
    node.passes(100)
    assert over(node, job) is JobState.FAILED
    node.fails(0, after_ms=1)
    assert over(node, job) is JobState.FAILED, "too late"


def test_its_own_failure_uses_up_a_restart() -> None:
    node, job = failed(max_restarts=1)
    node.passes(GPU_REPORT_MS)
    row = node.state.jobs[job]
    assert (row.state, row.restarts, row.attempt) == (JobState.STARTING, 1, 2)


def test_the_fault_of_another_gpu_changes_nothing() -> None:
    node, job = failed()
    node.fails(1, after_ms=500)
    node.passes(GPU_REPORT_MS)
    assert over(node, job) is JobState.FAILED


def test_more_evidence_of_an_earlier_failure_counts_as_well() -> None:
    node = Node(2, placement="spread")
    node.quota("a", 2)
    node.fails(0)
    job = node.submits("a", gpus=1)
    assert job is not None
    node.begins(job)
    task = node.state.tasks[node.state.jobs[job].task_id or ""]
    assert task.gpus == ("GPU-0",)
    node.asks("a", 7, token=task.token, job_id=job)
    node.job_ends(job, exit_code=1)
    node.fails(0, after_ms=500)
    assert node.state.jobs[job].attempts[-1].cause is Cause.GPU_LOST


def test_a_gpu_that_vanishes_counts() -> None:
    node, job = failed()
    node.passes(500)
    node.loses(0)
    assert node.state.jobs[job].attempts[-1].cause is Cause.GPU_LOST


def test_a_job_that_never_used_its_gpu_fails_at_once() -> None:
    node = Node(1)
    node.quota("a", 1)
    job = node.submits("a", gpus=1)
    assert job is not None
    node.begins(job)
    node.job_ends(job, exit_code=1)
    assert over(node, job) is JobState.FAILED


def test_a_job_that_ends_well_is_done_at_once() -> None:
    node = Node(1)
    node.quota("a", 1)
    job = node.submits("a", gpus=1)
    assert job is not None
    node.begins(job)
    task = node.state.tasks[node.state.jobs[job].task_id or ""]
    node.asks("a", 7, token=task.token, job_id=job)
    node.job_ends(job)
    assert over(node, job) is JobState.DONE


def test_the_queue_says_when_it_is_decided() -> None:
    node, job = failed()
    line = job_rows._reason(node.state, node.state.jobs[job])
    assert line.startswith("exit code 1: counts as the job's own failure at ")


def test_orders_meanwhile() -> None:
    """A withdrawal holds; an order to hold or to go on comes after the verdict."""
    node, job = failed()
    node.withdraws(job)
    assert over(node, job) is JobState.WITHDRAWN
    node, job = failed()
    node.holds(job)
    assert over(node, job) is JobState.FAILED
    node, job = failed(max_restarts=1)
    node.holds(job)
    row = node.state.jobs[job]
    assert (row.state, row.restarts) == (JobState.HELD, 1)
    node, job = failed(max_restarts=1)
    node.frees(job)
    assert node.state.jobs[job].restarts == 1
    node, job = failed()
    node.removes("a")
    assert over(node, job) is JobState.WITHDRAWN


def test_a_clock_set_back_makes_the_judgement_no_later() -> None:
    node, job = failed()
    node.wall_ns -= 3_600_000_000_000
    node.restart()
    node.passes(GPU_REPORT_MS)
    assert over(node, job) is JobState.FAILED


def test_a_dependent_starts_after_the_judgement_alone() -> None:
    node, job = failed(max_restarts=1)
    waits = node.submits("a", gpus=1, after=(job,))
    assert waits is not None
    node.fails(0, after_ms=500)
    assert node.state.jobs[waits].state is JobState.DEPENDENCY
