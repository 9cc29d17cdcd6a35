"""A job whose processes are all silent, and live: it is shown as stalled, and keeps its GPUs."""

from __future__ import annotations

import pytest

from nodemgr.core.model.effects import Kill, SendFence, SendGrant, SetLimit, SetSlot, StopJob
from nodemgr.core.model.entities import Cause, JobState
from tests.core.world import Node, S

STOPPED_MS = 5_100


def job_node(**config: object) -> Node:
    """alice's job j1 has GPU 0, and its process 10; bob may have one, too."""
    node = Node(1, **config)
    for env in ("alice", "bob"):
        node.quota(env, 1, 40)
    node.submits("alice")
    node.begins("j1")
    node.asks("alice", 10, token=node.state.tasks["t1"].token)
    node.uses("alice", 0, 30)
    return node


def test_a_stopped_job_is_stalled_and_keeps_all_that_it_has() -> None:
    node = job_node(max_tasks_per_gpu=1)
    before = node.state.grants["alice", "GPU-0"]
    node.asks("bob", 20)
    said = node.passes(STOPPED_MS, silent=[10])
    assert node.published("task.stalled")[0]["task"] == "t1"
    assert list(node.state.silent_jobs) == ["t1"]
    assert node.state.grants["alice", "GPU-0"] == before
    assert not [one for one in said if isinstance(one, (SetSlot, SetLimit, SendFence))]
    assert node.waiting() == [20]
    node.quota("carol", 1, 40)
    node.asks("carol", 30)
    assert "alice/j1 holds GPU 0" in node.state.standings["r3"].why
    assert "is silent" in node.state.standings["r3"].why
    node.passes(60_000, silent=[10])
    assert node.published("task.stalled") == []


@pytest.mark.parametrize("how", ["beats", "raises its word", "asks", "joined", "found by a tick"])
def test_it_runs_again_however_it_is_heard(how: str) -> None:
    node = job_node()
    node.passes(STOPPED_MS, silent=[10])
    node.now_ns += 7 * S
    if how == "beats":
        node.beats_again("alice", 10)
    elif how == "raises its word":
        node.raises_its_word(10)
    elif how == "asks":
        node.asks("alice", 10)
    elif how == "joined":
        node.asks("alice", 11, token=node.state.tasks["t1"].token)
    else:
        node.passes(5_000)
    assert node.published("task.resumed")[0]["stalled_ns"] >= 7 * S
    assert node.state.silent_jobs == {}
    assert node.fenced(10) is None
    assert node.gpus_of(10) == [0]


def test_one_process_that_beats_is_enough() -> None:
    node = job_node()
    node.asks("alice", 11, token=node.state.tasks["t1"].token)
    node.passes(20_000, silent=[10])
    assert node.state.silent_jobs == {}
    node.dies(11)
    node.passes(1_100, silent=[10])
    assert list(node.state.silent_jobs) == ["t1"]
    node.dies(10)
    assert node.state.silent_jobs == {}
    assert "t1" in node.state.tasks


def test_a_process_that_runs_another_program_does_not_make_its_job_stalled() -> None:
    node = job_node()
    node.disconnects(10)
    node.passes(STOPPED_MS, silent=[10])
    assert node.state.silent_jobs == {}


def test_its_end_by_the_policy_has_a_cause_of_its_own() -> None:
    node = job_node(stalled="kill", stalled_grace_ms=1_000)
    node.passes(STOPPED_MS, silent=[10])
    assert node.published("task.stalled")[0]["grace_ms"] == 1_000
    said = node.passes(1_100, silent=[10])
    assert [one.job_id for one in said if isinstance(one, StopJob)] == ["j1"]
    assert not [one for one in said if isinstance(one, Kill)]
    node.passes(5_000, silent=[10])
    assert node.of(StopJob) == []
    node.job_ends("j1", None, signal=9)
    job = node.history["j1"].job
    assert (job.state, job.attempts[-1].cause) == (JobState.FAILED, Cause.POLICY)
    assert "silent since" in job.why


def test_a_job_that_goes_on_within_the_grace_is_not_ended() -> None:
    node = job_node(stalled="kill", stalled_grace_ms=1_000)
    node.passes(STOPPED_MS, silent=[10])
    node.raises_its_word(10)
    assert not [one for one in node.passes(4_000) if isinstance(one, (StopJob, Kill, SendGrant))]


def test_after_a_restart_it_is_found_stalled_again() -> None:
    node = job_node()
    node.passes(STOPPED_MS, silent=[10])
    node.restart()
    assert node.state.silent_jobs == {}
    node.passes(STOPPED_MS, silent=[10])
    assert list(node.state.silent_jobs) == ["t1"]
