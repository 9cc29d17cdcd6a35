"""Jobs with a launch host that is down: they cannot be started now.

The queue treats them as absent, and they stand nowhere else.
"""

from __future__ import annotations

from typing import Any

import pytest

from nodemgr.core.model import events
from nodemgr.core.model.effects import StartJob
from nodemgr.core.model.entities import JobState
from nodemgr.core.requests import notify
from nodemgr.core.scheduler import passes
from nodemgr.core.scheduler.start_estimates import start_estimates
from tests.core.lifecycle.test_jobs import node_of, submitted
from tests.core.scheduler.test_backfill import asked, node, quickly, submit  # noqa: F401
from tests.core.scheduler.test_start_estimates import never
from tests.core.world import WALL, Node, S, submission

DEV = "alice/1000/dev"


def started(node: Node) -> list[str]:
    return [start.job_id for start in node.of(StartJob)]


def why(node: Node, job_id: str) -> str:
    request = node.state.requests[node.job(job_id).request_id or ""]
    return notify.Standings(node.state, node.now_ns).of(request).why


def test_nothing_is_started_where_nobody_starts_it_and_all_is_when_somebody_does() -> None:
    node = node_of()
    node.place(up=False, why="no job can be started: the service has ended")
    jobs = [submitted(node, gpus=gpus) for gpus in (1, 0, 1)]
    assert [node.job(job_id).state for job_id in jobs] == [JobState.QUEUED] * 3
    node.place()
    assert sorted(started(node)) == sorted(jobs)
    assert [event["place"] for event in node.published("place.up")] == [""]


def test_each_is_told_what_it_waits_for_and_in_which_place() -> None:
    node = node_of(4, 4)
    node.place(
        up=False, why="no job can be started: /run/nodemgr/launcher: nodemgr-jobs.service has ended"
    )
    here, there = submitted(node, gpus=2), submitted(node, gpus=1, place=DEV)
    bare = submitted(node, gpus=0)
    lines = [standing.why for _, standing in notify.listing(node.state, node.now_ns)]
    assert lines == [
        (
            "needs 2 GPUs; no job can be started: /run/nodemgr/launcher:"
            " nodemgr-jobs.service has ended"
        ),
        (
            "needs 1 GPU; waits for its container dev: start it, then run"
            " `nodemgr queue` there"
        ),
        (
            "no job can be started: /run/nodemgr/launcher:"
            " nodemgr-jobs.service has ended"
        ),
    ]
    assert [why(node, job_id) for job_id in (here, there, bare)] == lines
    node.place(DEV, up=False, why="its runner has another version")
    assert (
        why(node, there)
        == "needs 1 GPU; waits for its container dev (its runner has another version): start it,"
        " then run `nodemgr queue` there"
    )
    nameless = submitted(node, gpus=1, place="alice/1000/mnt:4026532001")
    assert (
        why(node, nameless)
        == "needs 1 GPU; waits for its container, of which no engine here knows (mnt:4026532001): "
        "run `nodemgr queue` there while it lives, or withdraw it"
    )


def test_who_waits_for_a_place_keeps_nothing_from_anybody() -> None:
    """A gang at the head of the queue would keep every GPU, and its env's turn.

    No other request would get either.
    """
    node = node_of(2, 2)
    node.quota("bob", 2)
    gang = submitted(node, gpus=2, priority="high", place=DEV)
    ours, theirs = submitted(node, gpus=1), submitted(node, "bob", gpus=1, time_limit_ms=1_000)
    assert [node.job(job_id).state for job_id in (gang, ours, theirs)] == [
        JobState.QUEUED,
        JobState.STARTING,
        JobState.STARTING,
    ]
    node.job_ends(ours)
    node.job_ends(theirs)
    node.asks("bob", 50, 2)
    assert node.granted(50) is not None
    node.place(DEV)
    assert why(node, gang).startswith("needs 2 GPUs, 0 free; bob/t")
    node.asks("bob", 51, 1, token="another")
    assert node.granted(51) is not None, (
        "who holds the GPU may share it: nothing is taken from the gang"
    )
    node.place(DEV, up=False)
    node.dies(50)
    node.dies(51)
    node.asks("bob", 52, 2)
    assert node.granted(52) is not None


def test_what_it_kept_is_free_as_soon_as_its_place_goes_down() -> None:
    node = node_of(2, 2)
    node.quota("bob", 2)
    node.place(DEV)
    node.asks("bob", 50, 1)
    gang, waiter = submitted(node, gpus=2, place=DEV), submitted(node, gpus=1)
    assert node.job(waiter).state is JobState.QUEUED
    node.place(DEV, up=False)
    assert started(node) == [waiter]
    assert [event["place"] for event in node.published("place.down")] == [DEV]
    assert node.job(gang).state is JobState.QUEUED


def test_its_old_place_in_the_queue_is_its_own() -> None:
    node = node_of(1, 1)
    early = submitted(node, gpus=1, place=DEV)
    first, second = submitted(node, gpus=1), submitted(node, gpus=1)
    node.place(DEV)
    assert node.queued_jobs() == [early, second]
    node.job_ends(first)
    assert started(node) == [early]


def test_a_change_that_is_none_looks_at_nothing(asked: list[str]) -> None:  # noqa: F811
    busy = node(1)
    submit(busy, "alice", 1)
    submit(busy, "bob", 1)
    asked.clear()
    busy.place()
    busy.place(DEV, up=False)
    busy.place(DEV, up=False, why="another reason")
    assert asked == []
    busy.place(DEV)
    assert asked == ["bob"], "one look"


def test_nobody_is_told_when_it_starts_and_nobody_behind_it_is_expected_later() -> None:
    busy = node(1)
    submit(busy, "bob", 1, 100)
    absent, next_one = submit(busy, "alice", 1, 1_000, place=DEV), submit(busy, "carol", 1, 50)
    expected = start_estimates(busy.state, busy.now_ns, never, 100)
    assert {
        busy.state.requests[request].job_id: (row.likely_ns - busy.now_ns) // S
        for request, row in expected.items()
    } == {next_one: 100}
    assert busy.job(absent).state is JobState.QUEUED


def test_a_restart_forgets_who_was_there() -> None:
    """Until it is reported anew: the runner may have gone with the manager."""
    node = node_of()
    node.quota("alice", 1)
    node.asks("alice", 50, 1)
    job_id = submitted(node, gpus=1, place=DEV)
    node.place(DEV)
    assert node.state.is_up(DEV)
    node.up.clear()
    node.restart(gone=[50])
    assert (node.state.is_up(DEV), node.state.is_up("")) == (False, False)
    assert (node.job(job_id).state, node.job(job_id).run.place) == (JobState.QUEUED, DEV)
    assert (
        why(node, job_id)
        == "needs 1 GPU; waits for its container dev: start it, then run `nodemgr queue` there"
    )
    node.place(DEV)
    assert started(node) == [job_id]


def test_ten_thousand_jobs_of_a_place_that_is_down_are_passed_at_one_look_and_wake_nobody(
    asked: list[str],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = node(1)
    for place, gpus in ((DEV, 1), (DEV, 0)):
        quickly(
            busy,
            events.SubmitJobs(
                tuple(submission("bob", ref=n, gpus=gpus, place=place) for n in range(5_000)), WALL
            ),
        )
    asked.clear()
    busy.passes(3_600_000)
    assert (busy.state.wake_ns(), busy.wakes, asked) == (None, 0, [])
    looked_at = []
    consider = passes.consider
    monkeypatch.setattr(
        passes,
        "consider",
        lambda draft, scheduling_pass, request, **more: looked_at.append(
            consider(draft, scheduling_pass, request, **more)
        ),
    )
    quickly(busy, events.Match(WALL))
    assert (looked_at, asked) == ([None, None], []), "at one of each kind"
    monkeypatch.undo()
    *_, (last, standing) = notify.listing(busy.state, busy.now_ns)
    assert (last.run.gpus, standing.position) == (0, 10_000)
    assert (
        standing.why
        == "waits for its container dev: start it, then run `nodemgr"
        " queue` there"
    )


# Attempts that no launcher could begin.


def test_what_nobody_could_begin_is_back_in_its_place_and_costs_nothing() -> None:
    node = node_of(2, 1)
    first, second, third = (submitted(node, gpus=1, max_restarts=0) for _ in range(3))
    node.place(up=False, why="gone")
    node.gives_back((first, 1), why="gone")
    assert (node.queued_jobs(), node.state.tasks) == ([first, second, third], {})
    job = node.job(first)
    assert (job.state, job.attempt, job.attempts, job.restarts, job.task_id) == (
        JobState.QUEUED,
        1,
        (),
        0,
        None,
    )
    assert [(event["job"], event["reason"]) for event in node.published("job.unbegun")] == [
        (first, "gone")
    ]
    node.place()
    (start,) = node.of(StartJob)
    assert (start.job_id, start.attempt) == (
        first,
        2,
    ), "under another number: nobody takes the one for the other"
    node.begins(first)
    node.job_ends(first)
    assert [attempt.number for attempt in node.history[first].job.attempts] == [2]


def test_an_array_of_which_some_could_not_be_begun_is_in_its_order_again() -> None:
    node = node_of(4, 3)
    array = submitted(node, gpus=1, array=tuple(range(6)))
    elements = [f"{array}.{index}" for index in range(6)]
    node.place(up=False)
    node.gives_back((elements[2], 1), (elements[0], 1))
    assert node.queued_jobs() == [elements[index] for index in (0, 2, 3, 4, 5)]
    node.gives_back((elements[1], 1))
    assert node.queued_jobs() == elements
    node.restart()
    assert node.queued_jobs() == elements


def test_it_is_before_those_who_came_after_a_boot_that_set_the_clock_back() -> None:
    """No request waited over the boot, so only the job itself has the queue's clock."""
    node = node_of(1, 1)
    first = submitted(node, gpus=1)
    node.now_ns = 5 * S
    node.restart()
    second = submitted(node, gpus=1)
    node.place(up=False)
    node.gives_back((first, 1))
    assert node.queued_jobs() == [first, second]


def test_its_wait_goes_on_from_when_it_began() -> None:
    node = node_of(1, 1)
    holder, job_id = submitted(node, gpus=1), submitted(node, gpus=1)
    entered = node.job(job_id).entered_wall_ns
    node.now_ns += 60 * S
    node.job_ends(holder, wall_ns=WALL + 60 * S)
    node.now_ns += 5 * S
    node.place(up=False)
    node.happens(events.JobRequeuedBeforeStart(((job_id, 1),), "gone", WALL + 65 * S))
    assert node.job(job_id).entered_wall_ns == entered
    node.place()
    assert [event["waited_ns"] for event in node.published("job.starting")] == [65 * S]


@pytest.mark.parametrize("then", [JobState.WITHDRAWN, JobState.QUEUED])
def test_one_that_was_being_ended_is_what_it_was_to_be(then: JobState) -> None:
    node = node_of(1, 1)
    job_id, behind = submitted(node, gpus=1), submitted(node, gpus=1)
    order: Any = node.withdraws if then is JobState.WITHDRAWN else node.requeues
    order(job_id)
    node.place(up=False)
    node.gives_back((job_id, 1))
    assert node.job(job_id).state is then
    assert node.queued_jobs() == ([behind] if then is JobState.WITHDRAWN else [behind, job_id])


def test_news_of_what_runs_or_of_another_attempt_is_none() -> None:
    node = node_of(2, 2)
    runs, starts = submitted(node, gpus=1), submitted(node, gpus=1)
    node.begins(runs)
    node.gives_back((runs, 1), (starts, 2), (starts, 0), ("j99", 1))
    assert (node.job(runs).state, node.job(starts).state) == (JobState.RUNNING, JobState.STARTING)
    assert node.published("job.unbegun") == []


def test_a_member_that_is_in_its_lease_all_the_same_is_fenced() -> None:
    """A process that guessed the token, say: no process of the job was ever begun."""
    node = node_of(1, 1)
    job_id = submitted(node, gpus=1)
    (start,) = node.of(StartJob)
    node.asks("alice", 50, 1, token=start.token)
    node.place(up=False)
    node.gives_back((job_id, 1))
    assert node.fenced(50)
    assert node.job(job_id).state is JobState.QUEUED


def test_a_job_that_comes_back_while_its_quota_is_low_waits_at_its_place() -> None:
    node = node_of(2, 2)
    job_id = submitted(node, gpus=2)
    node.quota("alice", 1)
    node.place(up=False)
    node.gives_back((job_id, 1))
    assert node.job(job_id).state is JobState.QUEUED
    node.place()
    assert node.job(job_id).state is JobState.QUEUED
    node.quota("alice", 2)
    assert node.job(job_id).state is JobState.STARTING
