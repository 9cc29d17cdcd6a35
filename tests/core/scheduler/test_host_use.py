"""CPUs and host memory of jobs: what they reserve of a quota and of the node, and who waits."""

from __future__ import annotations

from typing import Any

import pytest

from nodemgr.core.model.causes import WaitCause
from nodemgr.core.model.effects import StartJob, SubmitAnswered
from nodemgr.core.model.entities import Cause, DenyCode, JobState
from nodemgr.core.requests import notify
from tests.core.world import GIB, Node

SMALL = {"node_cpus": 8, "node_memory_bytes": 64 * GIB}


def node_of(gpus: int = 2, **config: Any) -> Node:
    node = Node(gpus, **{**SMALL, **config})
    node.quota("alice", gpus, cpus=6, host_memory_bytes=48 * GIB)
    node.quota("bob", gpus)
    return node


def started(node: Node, *jobs: str | None) -> list[bool]:
    return [node.job(job or "").state is not JobState.QUEUED for job in jobs]


def why(node: Node, job: str | None) -> str:
    return next(
        standing.why
        for request, standing in notify.listing(node.state, node.now_ns)
        if request.job_id == job
    )


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_job_waits_for_the_cpus_of_its_quota_and_delays_no_other_env(gpus: int) -> None:
    node = node_of(4, node_cpus=64)
    first, second = (node.submits("alice", gpus=gpus, cpus=4) for _ in range(2))
    third = node.submits("alice", gpus=gpus, cpus=1)
    other = node.submits("bob", gpus=gpus, cpus=4)
    assert started(node, first, second, third, other) == [True, False, False, True]
    assert why(node, second).endswith(
        "needs 4 CPUs; jobs of alice reserve 4 CPUs of 6 CPUs; waits for one of them to end"
    )
    assert f"an earlier job, {second}, waits" in why(node, third)
    plain = node.submits("alice", gpus=gpus)
    assert started(node, plain) == [True], "a job that reserves nothing waits for none"
    node.begins(first or "")
    node.job_ends(first or "")
    assert started(node, second, third) == [True, True]


def test_a_job_that_lacks_the_nodes_memory_keeps_its_gpu_and_later_ones_wait() -> None:
    node = node_of(2)
    first = node.submits("bob", gpus=1, host_memory_bytes=40 * GIB)
    second = node.submits("alice", gpus=1, host_memory_bytes=30 * GIB)
    later = node.submits("bob", gpus=1)
    small = node.submits("bob", gpus=0, host_memory_bytes=GIB)
    assert started(node, first, second, later, small) == [True, False, False, False]
    assert "jobs of this node reserve 40 GiB of host memory of 64 GiB" in why(node, second)
    node.restart()
    assert started(node, second, later, small) == [False, False, False]
    node.begins(first or "")
    node.job_ends(first or "")
    assert started(node, second, later, small) == [True, True, True]


@pytest.mark.parametrize(
    ("env", "more", "code", "says"),
    [
        ("alice", {"cpus": 7}, DenyCode.OVER_QUOTA, "quota set alice --cpus"),
        ("alice", {"host_memory_bytes": 49 * GIB}, DenyCode.OVER_QUOTA, "49 GiB of host memory"),
        ("bob", {"cpus": 9}, DenyCode.MORE_THAN_NODE, "this node has 8 CPUs"),
        ("bob", {"host_memory_bytes": 65 * GIB}, DenyCode.MORE_THAN_NODE, "--host-memory"),
    ],
)
def test_what_never_fits_is_refused(
    env: str, more: dict[str, int], code: DenyCode, says: str
) -> None:
    node = node_of()
    assert node.submits(env, gpus=0, **more) is None
    (answer,) = node.of(SubmitAnswered)
    assert answer.code is code
    assert says in answer.reason


def test_a_small_amount_has_its_own_unit() -> None:
    node = node_of(1)
    node.quota("alice", 1, host_memory_bytes=20 << 20)
    first, second = (node.submits("alice", gpus=0, host_memory_bytes=12 << 20) for _ in range(2))
    assert started(node, first, second) == [True, False]
    said = "needs 12 MiB of host memory; jobs of alice reserve 12 MiB of host memory of 20 MiB"
    assert said in why(node, second)


def test_defaults_per_gpu_are_off_until_set_and_within_the_quota() -> None:
    node = node_of()
    node.submits("alice", gpus=2)
    (start,) = node.of(StartJob)
    assert (start.run.cpus, start.run.host_memory_bytes) == (None, None)
    node = node_of(cpus_per_gpu=4, host_memory_per_gpu_bytes=16 * GIB)
    node.submits("alice", gpus=2)
    (start,) = node.of(StartJob)
    assert (start.run.cpus, start.run.host_memory_bytes) == (6, 32 * GIB)
    node.submits("bob", gpus=0)
    (start,) = node.of(StartJob)
    assert (start.run.cpus, start.run.host_memory_bytes) == (None, None)


def test_a_lowered_quota_takes_nothing_away_and_delays_no_other_job() -> None:
    node = node_of(4)
    first, second = (node.submits("alice", gpus=1, cpus=4) for _ in range(2))
    node.quota("alice", 4, cpus=2)
    small = node.submits("alice", gpus=1, cpus=2)
    assert started(node, first, second, small) == [True, False, False]
    node.begins(first or "")
    node.job_ends(first or "")
    assert started(node, second, small) == [False, True]
    node.quota("alice", 4, cpus=6)
    assert started(node, second) == [True]


def test_interactive_use_waits_for_no_cpus() -> None:
    node = node_of(2)
    node.submits("alice", gpus=1, cpus=6)
    node.submits("alice", gpus=0, cpus=6)
    node.asks("alice", 50, gpus=1)
    assert len(node.state.tasks) == 2


def test_an_end_at_the_limit_of_host_memory_uses_up_a_restart() -> None:
    node = node_of()
    job = node.submits("alice", gpus=0, host_memory_bytes=GIB, max_restarts=1) or ""
    for state in (JobState.STARTING, JobState.FAILED):
        node.begins(job)
        node.job_ends(job, None, signal=9, cause=Cause.HOST_MEMORY, why="host memory, 1024 MiB")
        row = node.state.jobs.get(job)
        assert (JobState.FAILED if row is None else row.state) is state


def test_a_waiting_job_has_the_cause_host() -> None:
    node = node_of()
    node.submits("alice", gpus=0, cpus=6)
    second = node.submits("alice", gpus=0, cpus=6)
    causes = {
        request.job_id: standing.cause
        for request, standing in notify.listing(node.state, node.now_ns)
    }
    assert causes[second] is WaitCause.HOST


@pytest.mark.parametrize("limit_ms", [10_000, 200_000, None])
def test_no_later_job_takes_what_a_host_short_job_needs(limit_ms: int | None) -> None:
    """Promise 9: it starts at the end that it waits for, whatever comes after it."""
    node = node_of(3)
    first = node.submits("bob", gpus=1, host_memory_bytes=40 * GIB, time_limit_ms=100_000) or ""
    node.begins(first)
    short = node.submits("bob", gpus=1, host_memory_bytes=30 * GIB, time_limit_ms=50_000)
    on_the_third = node.submits("alice", gpus=1, time_limit_ms=limit_ms)
    on_the_kept = node.submits("alice", gpus=1, time_limit_ms=limit_ms)
    reserving = node.submits("alice", gpus=0, host_memory_bytes=GIB, time_limit_ms=limit_ms)
    is_over = False, limit_ms == 10_000  # before the end that is waited for
    assert started(node, short, on_the_third, on_the_kept, reserving) == [False, True, *is_over]
    node.restart()
    assert started(node, short, on_the_kept, reserving) == [False, *is_over]
    node.job_ends(first)
    assert started(node, short, on_the_kept, reserving) == [True, True, True]


def test_the_end_of_a_job_without_gpus_starts_the_job_that_waits_for_its_cpus() -> None:
    """Also where a later job of the env waits for its GPU quota: passes still visit the env."""
    node = Node(1)
    node.quota("alice", 1, cpus=4)
    first = node.submits("alice", gpus=1, memory_bytes=GIB) or ""
    node.begins(first)
    without_gpus = node.submits("alice", gpus=0, cpus=4) or ""
    node.begins(without_gpus)
    short = node.submits("alice", gpus=1, memory_bytes=GIB, cpus=4)
    later = node.submits("alice", gpus=1)
    node.passes(0)
    assert started(node, short, later) == [False, False]
    node.job_ends(without_gpus)
    node.passes(0)
    assert started(node, short, later) == [True, False]


def limited(node: Node, env: str, ms: int | None = None, **asked: Any) -> str | None:
    """A job without a GPU, with this time limit."""
    return node.submits(env, gpus=0, time_limit_ms=ms, **asked)


def test_a_later_job_that_leaves_what_an_earlier_one_needs_does_not_wait_for_it() -> None:
    node = node_of(1)
    limited(node, "bob", host_memory_bytes=40 * GIB)
    short = limited(node, "bob", host_memory_bytes=30 * GIB, cpus=2)
    memory = limited(node, "bob", host_memory_bytes=GIB)
    assert started(node, short, memory) == [False, False]
    assert started(node, limited(node, "bob", cpus=6), limited(node, "bob", cpus=1)) == [
        True,
        False,
    ]
    node = node_of(1)
    limited(node, "alice", cpus=4)
    short = limited(node, "alice", cpus=4)
    memory = limited(node, "alice", host_memory_bytes=GIB)
    assert started(node, short, memory) == [False, True], "it takes no CPU"
    other = limited(node, "bob", cpus=4)
    assert started(node, other) == [True], "it is short of its quota alone"


@pytest.mark.parametrize(
    ("known_ms", "later_ms", "starts"),
    [(100_000, 70_000, True), (100_000, 70_001, False), (None, 1, False), (100_000, None, False)],
)
def test_a_later_job_starts_first_if_it_ends_before_every_known_end(
    known_ms: int | None, later_ms: int | None, starts: bool
) -> None:
    """With the grace of its end: 30 s."""
    node = node_of(1)
    running = [limited(node, "bob", ms, cpus=3) or "" for ms in (known_ms, 500_000)]
    for job in running:
        node.begins(job)
    short = limited(node, "bob", cpus=3)
    later = limited(node, "bob", later_ms, cpus=1)
    assert started(node, short, later) == [False, starts]
    if starts:
        assert started(node, limited(node, "bob", 70_000, cpus=1)) == [False], "not before that"
        node.begins(later or "")
        node.job_ends(later or "")
    node.job_ends(running[0])
    assert started(node, short) == [True]


def test_no_job_starts_first_where_suspended_tasks_or_an_ending_job_give_memory_back() -> None:
    node = node_of(1)
    first = limited(node, "bob", 500_000, host_memory_bytes=40 * GIB) or ""
    node.begins(first)
    short = limited(node, "bob", host_memory_bytes=30 * GIB)
    node.asks("alice", 1)
    (task,) = node.state.tasks
    node.suspends(task)
    node.is_measured(task, GIB)
    node.is_out(task)
    assert started(node, short, limited(node, "bob", 10, host_memory_bytes=GIB)) == [False, False]
    node.dies(1)
    node.withdraws(first)
    assert started(node, limited(node, "bob", 10, host_memory_bytes=GIB)) == [False]
