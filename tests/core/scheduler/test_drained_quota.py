"""A drained GPU counts against the quota of its holders until their tasks end (promise 2)."""

from __future__ import annotations

import pytest

from nodemgr.core.model.entities import JobState, Word
from nodemgr.core.requests import notify
from nodemgr.core.scheduler import start_estimates
from nodemgr.core.views import snapshot
from tests.core.world import MS, Node

DRAINED_LINE = (
    "needs 1 GPU; a's quota of 1 includes GPU 0 (drained, no new "
    "task): waits for the tasks there, or an administrator runs `nodemgr gpu resume 0` or raises "
    "the quota"
)


def drained(quota: int = 1, gpus: int = 2) -> Node:
    """Process 1 of `a` has GPU 0, which is drained then."""
    node = Node(gpus)
    node.quota("a", quota)
    node.quota("b", gpus)
    node.asks("a", 1, 1)
    node.drains(0)
    return node


def reason(node: Node, request: str) -> str:
    return node.state.standings[request].why


def test_the_next_request_waits_for_the_task_there_with_a_reason_of_its_own() -> None:
    node = drained()
    node.asks("a", 2, 1)
    assert node.gpus_of(2) is None
    assert reason(node, "r2") == DRAINED_LINE
    node.asks("b", 3, 1)
    assert node.gpus_of(3) == [1], "nothing is kept from others"
    node.dies(3)
    node.dies(1)
    assert node.gpus_of(2) == [1]


def test_after_resume_the_gpu_is_shared_again() -> None:
    node = drained()
    node.asks("a", 2, 1)
    node.undrains(0)
    assert node.gpus_of(2) == [0]


def test_a_raised_quota_serves_it_elsewhere() -> None:
    node = drained()
    node.asks("a", 2, 1)
    node.quota("a", 2)
    assert node.gpus_of(2) == [1]


def test_a_lost_gpu_does_not_count() -> None:
    """Its task cannot compute there."""
    node = drained()
    node.asks("a", 2, 1)
    node.loses(0)
    assert node.gpus_of(2) == [1]


def test_a_stalled_task_on_it_does_not_count_and_takes_nothing_back() -> None:
    node = drained()
    node.passes(6_000, silent=[1])
    node.asks("a", 2, 1)
    assert node.gpus_of(2) == [1]
    node.raises_its_word(1)
    assert (node.gpus_of(1), node.gpus_of(2)) == (None, [1])


def test_of_two_gpus_the_other_one_is_shared() -> None:
    node = Node(3)
    node.quota("a", 2)
    node.asks("a", 1, 2)
    node.drains(0)
    node.asks("a", 2, 1)
    assert node.gpus_of(2) == [1]
    node.asks("a", 3, 2)
    assert node.gpus_of(3) is None
    assert "includes GPU 0 (drained" in reason(node, "r3")
    assert node.state.records["t2"].remaining_gpus == 0


def test_the_rest_of_the_quota_is_fresh() -> None:
    node = drained(quota=2, gpus=3)
    node.asks("a", 2, 1)
    assert node.gpus_of(2) == [1]
    node.asks("a", 3, 1)
    assert node.gpus_of(3) == [1]


def test_a_request_for_all_of_the_quota_holds_what_the_quota_leaves() -> None:
    """It holds one GPU, the one that its quota leaves, and leaves the others to other envs."""
    node = drained(quota=2, gpus=4)
    node.asks("a", 2, 2)
    node.asks("b", 3, 2)
    assert node.gpus_of(3) is not None
    node.asks("b", 4, 3)
    assert node.gpus_of(4) is None
    node.dies(1)
    node.dies(3)
    assert len(node.gpus_of(2) or []) == 2


@pytest.mark.parametrize("gib", [None, 10])
def test_a_job_waits_too(gib: int | None) -> None:
    """With a named memory it would share a GPU of its env; else it waits as for any own task."""
    node = Node(2)
    node.quota("a", 1)
    node.asks("a", 1, 1)
    node.drains(0)
    more = {} if gib is None else {"memory_bytes": gib << 30}
    job = node.submits("a", gpus=1, **more)
    assert node.state.jobs[job].state is JobState.QUEUED
    node.dies(1)
    assert node.state.jobs[job].state is JobState.STARTING


def test_a_job_that_avoids_a_gpu_of_its_env_stays_within_the_quota() -> None:
    """It may share GPU 0 by its memory, and avoids it: so it waits for the task there."""
    node = Node(2, placement="spread")
    node.quota("a", 1)
    job = node.submits("a", gpus=1, memory_bytes=10 << 30)
    node.begins(job)
    node.asks("a", 1, 1)
    assert node.gpus_of(1) == [0]
    node.reports_failure(0)
    node.job_ends(job, exit_code=1)
    node.passes(60_000)
    assert node.state.jobs[job].state is JobState.QUEUED
    node.dies(1)
    assert node.state.jobs[job].state is JobState.STARTING
    assert [task.gpus for task in node.state.tasks.values()] == [("GPU-1",)]


def test_the_line_of_a_job_names_the_idle_gpu_that_failed_under_it() -> None:
    """GPU 0 is idle, and neither too small nor short of memory."""
    node = Node(2, placement="spread")
    for env in "ab":
        node.quota(env, 1)
    job = node.submits("a", gpus=1, memory_bytes=10 << 30)
    node.begins(job)
    node.asks("b", 1, 1)
    node.reports_failure(0)
    node.job_ends(job, exit_code=1)
    node.passes(60_000)
    assert node.state.jobs[job].state is JobState.QUEUED
    ((_, standing),) = notify.listing(node.state, node.now_ns)
    held, avoided = standing.why.split("; ")[1:]
    assert held.startswith("b/t2 holds GPU 1 since ")
    assert avoided == "GPU 0 failed under an earlier attempt of this job"
    node.drains(0)
    assert node.state.jobs[job].state is JobState.QUEUED
    node.undrains(0)
    node.dies(1)
    assert [task.gpus for task in node.state.tasks.values()] == [("GPU-1",)]


def test_elastic_tasks_are_offered_nothing_beyond_the_quota() -> None:
    node = Node(3)
    node.quota("a", 2)
    node.asks("a", 1, 1)
    node.drains(0)
    node.asks("a", 2, 1, most=2, elastic=True)
    node.passes(10_000)
    assert node.gpus_of(2) == [1]


def test_a_drained_gpu_above_the_least_number_is_recalled_for_its_own_quota() -> None:
    node = Node(3)
    node.quota("a", 2)
    node.asks("a", 1, 1, most=2, elastic=True)
    node.passes(5_000)
    assert node.gpus_of(1) == [0, 1]
    node.drains(1)
    job = node.submits("a", gpus=1)
    (recall,) = node.state.elastics["t1"].recalls
    assert recall.uuid == "GPU-1"
    node.says("a", 1, Word.LEFT, 1)
    node.driver_shows(1, 1, 0)
    node.passes(100)
    assert node.state.jobs[job].state is JobState.STARTING


def test_estimates_count_it_too() -> None:
    node = Node(2)
    node.quota("a", 1)
    running = node.submits("a", gpus=1, time_limit_ms=60_000)
    node.begins(running)
    node.drains(0)
    node.submits("a", gpus=1, time_limit_ms=60_000)
    (found,) = start_estimates.start_estimates(
        node.state, node.now_ns, lambda env, command: None, 10
    ).values()
    assert found.likely_ns == node.now_ns + 60_000 * MS


def test_status_counts_it_as_used() -> None:
    node = drained()
    assert [gpu.uuid for gpu in node.state.gpus.values() if gpu.drained] == ["GPU-0"]
    (row,) = [snapshot._env(node.state, node.state.envs["a"], list(node.state.gpus.values()), 0)]
    assert row["gpu_indices"] == [0]


def test_the_env_holds_no_gpu_beyond_its_quota_and_keeps_its_place() -> None:
    """Its job needs an idle GPU once GPU 0 is left: it is served before the later jobs of `b`."""
    node = Node(2)
    node.quota("a", 1)
    node.quota("b", 2)
    first = node.submits("a", gpus=1)
    node.begins(first)
    node.drains(0)
    waits = node.submits("a", gpus=1)
    running = node.submits("b", gpus=1)
    later = node.submits("b", gpus=1)
    assert node.state.jobs[running].state is JobState.STARTING
    node.begins(running)
    node.job_ends(first)
    node.job_ends(running)
    states = [node.state.jobs[job].state for job in (waits, later)]
    assert states == [JobState.STARTING, JobState.QUEUED]
