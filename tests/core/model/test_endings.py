"""The end of an attempt: its job fails, is tried again, or returns to its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemgr.core.lifecycle import job_actions
from nodemgr.core.model import events
from nodemgr.core.model.effects import StartJob, StopJob
from nodemgr.core.model.endings import NEXT, Next, pause_ns
from nodemgr.core.model.entities import MS, Cause, Config, DenyCode, JobState, QueueRow
from nodemgr.core.requests import notify
from nodemgr.core.views import job_rows
from tests.core.world import GIB, WALL, Node, gpu, submission

DOCS = Path(__file__).parents[3] / "docs" / "jobs.md"
FIRST_MS, LONGEST_MS = 10_000, 3_600_000
NOT_ITS_FAULT = [cause for cause in Cause if NEXT[cause] is Next.PAUSE]
HEARD = [cause for cause in NOT_ITS_FAULT if cause not in (Cause.GPU_LOST, Cause.PREEMPTED)]
"""The causes of them that a factory reports."""


def node_of(gpus: int = 1, quota: int = 1, **config: object) -> Node:
    node = Node(gpus, **config)
    node.quota("alice", quota)
    return node


def running(node: Node, **more: object) -> str:
    job_id = node.submits("alice", **({"gpus": 1} | more))
    assert job_id is not None
    node.begins(job_id)
    return job_id


def interrupted(node: Node, job_id: str) -> None:
    node.job_ends(job_id, None, why="its supervisor was killed", cause=Cause.SUPERVISOR_LOST)


def passes(node: Node, ms: int) -> None:
    node.wall_ns += ms * MS
    node.passes(ms)


# The table.


def test_each_cause_has_its_row_and_the_docs_show_it() -> None:
    assert NEXT.keys() == set(Cause)
    rows = [line.split("|") for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    shown = {row[1].strip(" `"): row[3].strip() for row in rows}
    words = {
        Next.RETRY: "tried again",
        Next.FAIL: "failed",
        Next.PAUSE: "back to its place",
        Next.RETURN: "back to its place at once",
    }
    assert {cause.value: words[NEXT[cause]] for cause in Cause} == {
        cause: text for cause, text in shown.items() if cause in set(Cause)
    }


def test_lack_of_memory_takes_away_a_figure_of_earlier_runs_once() -> None:
    """The job goes back to its place, and no restart is used."""
    node = node_of()
    node.quota("alice", 1, 40)
    known = {"memory_bytes": 4 * GIB, "memory_most_bytes": 40 * GIB, "is_memory_filled": True}
    job_id = running(node, **known)
    queued_ns = node.job(job_id).queued_ns
    node.job_ends(job_id, 1, cause=Cause.GPU_MEMORY)
    job = node.job(job_id)
    run = job.run
    assert (run.memory_bytes, run.memory_most_bytes, run.is_memory_filled) == (None, None, False)
    assert (job.restarts, job.queued_ns, job.state) == (0, queued_ns, JobState.STARTING)
    assert "more GPU memory than its earlier runs (exit code 1)" in job.why
    assert node.state.tasks[job.task_id or ""].run.memory_bytes is None
    node.job_ends(job_id, 1, cause=Cause.GPU_MEMORY)
    assert node.job(job_id).state is JobState.FAILED


def test_a_job_that_fails_by_itself_is_over() -> None:
    node = node_of()
    job_id = running(node)
    node.job_ends(job_id, 3)
    assert (node.job(job_id).state, node.job(job_id).why, node.job(job_id).max_restarts) == (
        JobState.FAILED,
        "exit code 3",
        0,
    )
    assert node.job(job_id).attempts[-1].cause is Cause.OWN
    assert node.of(StartJob) == []


@pytest.mark.parametrize("cause", [cause for cause in Cause if NEXT[cause] is Next.FAIL])
def test_what_would_fail_again_is_not_tried_again(cause: Cause) -> None:
    node = node_of()
    job_id = running(node, max_restarts=3)
    node.job_ends(job_id, None, why="it cannot be", cause=cause)
    assert (node.job(job_id).state, node.job(job_id).attempts[-1].cause) == (JobState.FAILED, cause)


@pytest.mark.parametrize("cause", HEARD)
def test_what_was_not_its_fault_goes_back_to_its_place_after_a_pause(cause: Cause) -> None:
    node = node_of()
    first = running(node)
    second, third = node.submits("alice", gpus=1), node.submits("alice", gpus=1)
    queued_ns = node.job(first).queued_ns
    node.job_ends(first, None, why="something went away", cause=cause)
    job = node.job(first)
    assert (job.state, job.restarts, job.interruptions, job.attempts[-1].cause) == (
        JobState.PAUSED,
        0,
        1,
        cause,
    )
    (paused,) = node.published("job.paused")
    assert (paused["cause"], paused["interruptions"], paused["pause_ms"]) == (
        cause.value,
        1,
        FIRST_MS,
    )
    assert [start.job_id for start in node.of(StartJob)] == [second], (
        "it keeps nothing from others meanwhile"
    )
    passes(node, FIRST_MS - 1)
    assert node.job(first).state is JobState.PAUSED
    passes(node, 1)
    assert (node.job(first).state, node.job(first).queued_ns) == (JobState.QUEUED, queued_ns)
    assert node.queued_jobs() == [first, third]
    node.job_ends(str(second))
    assert node.job(first).state is JobState.STARTING


def test_after_the_node_was_down_it_is_at_its_place_at_once() -> None:
    node = node_of()
    first = running(node)
    second, third = node.submits("alice", gpus=1), node.submits("alice", gpus=1)
    queued_ns = node.job(first).queued_ns
    node.job_ends(first, 0, why="the node went down while it ran", cause=Cause.NODE_DOWN)
    job = node.job(first)
    assert (job.state, job.attempt, job.restarts, job.interruptions, job.queued_ns) == (
        JobState.STARTING, 2, 0, 0, queued_ns,
    )  # fmt: skip
    assert job.attempts[0].cause is Cause.NODE_DOWN
    assert node.queued_jobs() == [second, third]


def test_a_failure_of_its_own_uses_up_its_tries_and_what_is_not_its_fault_does_not() -> None:
    node = node_of()
    job_id = running(node, max_restarts=1)
    interrupted(node, job_id)
    passes(node, FIRST_MS)
    node.job_ends(job_id, 1)
    assert (node.job(job_id).state, node.job(job_id).restarts, node.job(job_id).attempt) == (
        JobState.STARTING,
        1,
        3,
    )
    interrupted(node, job_id)
    passes(node, 2 * FIRST_MS)
    node.job_ends(job_id, 1)
    assert node.job(job_id).state is JobState.FAILED


def test_an_end_by_order_is_that_order_whatever_the_cause() -> None:
    node = node_of()
    job_id = running(node)
    node.withdraws(job_id)
    interrupted(node, job_id)
    assert node.job(job_id).state is JobState.WITHDRAWN


# A lost GPU.


def test_a_job_that_fails_on_a_lost_gpu_is_not_to_blame() -> None:
    node = node_of(2, 1)
    job_id = running(node)
    node.loses(0)
    assert node.job(job_id).state is JobState.RUNNING, "it may end well"
    node.job_ends(job_id, 1)
    job = node.job(job_id)
    assert (job.state, job.attempts[-1].cause) == (JobState.PAUSED, Cause.GPU_LOST)
    assert job.why == "GPU 0 was lost or failed while it ran (exit code 1)"
    passes(node, FIRST_MS)
    assert node.job(job_id).attempts[-1].gpus == ("GPU-1",)
    node.job_ends(job_id, 1)
    assert node.job(job_id).state is JobState.FAILED, "this attempt had none that was lost"


def test_an_attempt_that_ended_for_another_cause_beside_a_lost_gpu_has_that_reason() -> None:
    node = node_of(2, 1)
    job_id = running(node)
    node.loses(0)
    interrupted(node, job_id)
    job = node.job(job_id)
    assert (job.attempts[-1].cause, job.why) == (Cause.SUPERVISOR_LOST, "its supervisor was killed")


def test_a_gpu_that_is_back_was_lost_all_the_same() -> None:
    node = node_of(2, 1)
    job_id = running(node)
    node.loses(0)
    node.restart()
    node.gpus_are([gpu(0), gpu(1)])
    node.job_ends(job_id, None, signal=6)
    assert node.job(job_id).attempts[-1].cause is Cause.GPU_LOST


def test_a_job_that_ends_well_on_a_lost_gpu_is_done() -> None:
    node = node_of(2, 1)
    job_id = running(node)
    node.loses(0)
    node.job_ends(job_id, 0)
    assert node.job(job_id).state is JobState.DONE


def test_the_loss_of_a_gpu_of_others_is_no_excuse() -> None:
    node = node_of(2, 1)
    job_id = running(node)
    node.loses(1)
    node.job_ends(job_id, 1)
    assert node.job(job_id).state is JobState.FAILED


# Preempted.


def test_what_an_admin_requeues_while_it_runs_keeps_its_place_and_lets_others_go_first() -> None:
    node = node_of()
    first = running(node)
    second, third = node.submits("alice", gpus=1), node.submits("alice", gpus=1)
    node.requeues(first, by_admin=True)
    assert node.of(StopJob) == [StopJob(first, 1, "root (uid 0) requeued it")]
    node.job_ends(first, None, signal=15)
    assert [start.job_id for start in node.of(StartJob)] == [second]
    job = node.job(first)
    assert (job.state, job.attempts[-1].cause, job.restarts) == (
        JobState.PAUSED,
        Cause.PREEMPTED,
        0,
    )
    passes(node, FIRST_MS)
    assert node.queued_jobs() == [first, third]


def test_what_its_user_requeues_goes_to_the_end_at_once() -> None:
    node = node_of()
    first = running(node)
    second, third = node.submits("alice", gpus=1), node.submits("alice", gpus=1)
    node.requeues(first)
    node.job_ends(first, None, signal=15)
    assert [start.job_id for start in node.of(StartJob)] == [second]
    assert node.queued_jobs() == [third, first]


def test_a_preempted_job_that_was_never_begun_is_paused_too() -> None:
    node = node_of()
    first = node.submits("alice", gpus=1)
    assert first is not None
    node.requeues(first, by_admin=True)
    node.gives_back((first, 1))
    assert (node.job(first).state, node.job(first).interruptions) == (JobState.PAUSED, 1)


# The pause.


def test_the_pause_doubles_up_to_a_bound() -> None:
    node = node_of()
    job_id = running(node)
    pauses = []
    for _ in range(12):
        interrupted(node, job_id)
        (paused,) = node.published("job.paused")
        pauses.append(paused["pause_ms"])
        passes(node, pauses[-1])
        node.begins(job_id)
    assert pauses == [min(FIRST_MS * 2**n, LONGEST_MS) for n in range(12)]
    assert pause_ns(Config(), 10_000) == LONGEST_MS * MS


def test_an_attempt_that_ran_for_long_begins_the_count_anew() -> None:
    node = node_of()
    job_id = running(node)
    for _ in range(3):
        interrupted(node, job_id)
        passes(node, 100_000)
        node.begins(job_id)
    passes(node, LONGEST_MS)
    interrupted(node, job_id)
    assert node.job(job_id).interruptions == 1


def test_the_pause_goes_on_over_a_restart_of_the_manager() -> None:
    node = node_of()
    job_id = running(node)
    interrupted(node, job_id)
    passes(node, 4_000)
    node.restart()
    assert node.job(job_id).state is JobState.PAUSED
    passes(node, FIRST_MS - 4_000 - 1)
    assert node.job(job_id).state is JobState.PAUSED
    passes(node, 1)
    assert node.job(job_id).state is JobState.STARTING
    assert node.job(job_id).resumes_wall_ns is None


@pytest.mark.parametrize("jump_s", [-86_400, 86_400])
def test_a_wall_clock_that_jumps_while_the_manager_is_away_changes_no_pause(jump_s: int) -> None:
    node = node_of()
    job_id = running(node)
    interrupted(node, job_id)
    node.wall_ns += jump_s * 1_000 * MS
    node.restart()
    passes(node, FIRST_MS - 1)
    assert node.job(job_id).state is JobState.PAUSED
    passes(node, 1)
    assert node.job(job_id).state is JobState.STARTING


def test_nothing_else_to_do_and_the_manager_still_wakes() -> None:
    node = node_of()
    job_id = running(node)
    interrupted(node, job_id)
    assert node.state.wake_ns() == node.now_ns + FIRST_MS * MS
    node.withdraws(job_id)
    assert node.job(job_id).state is JobState.WITHDRAWN
    assert node.job(job_id).resumes_wall_ns is None
    assert node.state.wake_ns() is None


def test_the_pause_is_seen_in_every_list() -> None:
    node = node_of()
    job_id = running(node)
    for _ in range(2):
        interrupted(node, job_id)
        row = job_rows.queue(node.state, node.now_ns, env=None, limit=10)[-1]
        told = job_rows.told(node.job(job_id), None, {}, lambda *_: False, tails=False)
        passes(node, row["resumes"] * 1_000 - node.wall_ns // MS)
    assert (row["state"], row["position"], row["interruptions"]) == ("paused", None, 2)
    assert (row["resumes"], told["resumes"]) == (
        (WALL // MS + FIRST_MS + 2 * FIRST_MS) // 1_000,
    ) * 2
    assert (
        row["reason"]
        == "paused until 22:13:50 UTC, then back at its place: its supervisor was killed,"
        f" interruption 2 in a row (nodemgr queue unhold {job_id} ends the pause)"
    )
    assert (told["attempts"][-1]["cause"], told["interruptions"]) == ("supervisor_lost", 2)
    assert list(notify.listing(node.state, node.now_ns)) == []


def test_who_waits_for_it_waits_on() -> None:
    node = node_of()
    job_id = running(node)
    second = node.submits("alice", gpus=1, after=(job_id,))
    interrupted(node, job_id)
    assert node.job(str(second)).state is JobState.DEPENDENCY


@pytest.mark.parametrize("verb", ["frees", "holds", "moves", "requeues"])
def test_orders_on_a_paused_job(verb: str) -> None:
    node = node_of()
    job_id = running(node)
    second = node.submits("alice", gpus=1)
    interrupted(node, job_id)
    third = node.submits("alice", gpus=1, priority="low")
    if verb == "requeues":
        assert (
            job_actions.objection(node.state, events.RequeueJob(job_id, "ann", WALL))
            == f"{job_id} waits already (paused): `nodemgr queue position {job_id}` says why"
        )
        return
    if verb == "moves":
        node.moves(job_id, "low")
        passes(node, FIRST_MS)
        assert node.queued_jobs() == [third, job_id], "at the end, as of the move"
        return
    getattr(node, verb)(job_id)
    assert node.job(job_id).state is {"frees": JobState.QUEUED, "holds": JobState.HELD}[verb]
    passes(node, FIRST_MS)
    if verb == "holds":
        assert node.job(job_id).state is JobState.HELD
        node.frees(job_id)
    assert (node.job(str(second)).state, node.queued_jobs()) == (JobState.STARTING, [job_id, third])


def test_its_environment_takes_it_along() -> None:
    node = node_of()
    job_id = running(node)
    interrupted(node, job_id)
    node.removes("alice")
    assert node.job(job_id).state is JobState.WITHDRAWN
    assert node.state.wake_ns() is None


def test_run_again_by_order_it_begins_with_a_short_pause_again() -> None:
    node = node_of()
    job_id = running(node)
    for _ in range(3):
        interrupted(node, job_id)
        node.frees(job_id)
    node.job_ends(job_id, 1)
    node.requeues(job_id)
    interrupted(node, job_id)
    assert node.job(job_id).interruptions == 1


# A queue's own number of restarts.


def test_a_queue_says_how_often_its_jobs_are_tried_again() -> None:
    node = node_of()
    node.happens(events.SetQueue(QueueRow("patient", 150, None, 2), "root", WALL))
    by_queue, own, other = (
        node.submits("alice", gpus=1, **more)
        for more in (
            {"priority": "patient"},
            {"priority": "patient", "max_restarts": 0},
            {"priority": "low"},
        )
    )
    assert [node.job(str(job)).max_restarts for job in (by_queue, own, other)] == [2, 0, 0]
    node.withdraws(str(own))
    node.withdraws(str(other))
    for attempt in (1, 2, 3):
        assert node.job(str(by_queue)).attempt == attempt
        node.job_ends(str(by_queue), 1)
    assert (node.job(str(by_queue)).state, len(node.job(str(by_queue)).attempts)) == (
        JobState.FAILED,
        3,
    )


def test_a_number_of_restarts_is_checked() -> None:
    node = node_of()
    wrong = events.SetQueue(QueueRow("patient", 150, None, -1), "root", WALL)
    node.happens(wrong)
    assert "patient" not in node.state.queues
    node.happens(events.SubmitJobs((submission("alice", gpus=1, max_restarts=-1),), WALL))
    assert [effect.code for effect in node.effects if hasattr(effect, "ref")] == [
        DenyCode.BAD_REQUEST
    ]
