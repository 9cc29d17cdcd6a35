"""The tables of states: the code takes each row, and a change that no row allows is refused."""

from __future__ import annotations

from typing import Any

import pytest

from nodemgr.core.leases import begins, ends, stalls
from nodemgr.core.lifecycle import jobs
from nodemgr.core.manager import finish
from nodemgr.core.model import events, transitions
from nodemgr.core.model.entities import FINAL, Cause, JobState, TaskState
from nodemgr.core.model.transitions import (
    JOB_TRANSITIONS,
    TASK_TRANSITIONS,
    JobEvent,
    TransitionRefused,
)
from nodemgr.core.model.values import replace
from tests.core.invariants import transitions_taken
from tests.core.world import WALL, Node

PAUSE_MS = 10_001
GPU_REPORT_MS = 2_000


def node_of(gpus: int = 1) -> Node:
    node = Node(gpus)
    node.quota("alice", gpus)
    return node


def job_of(node: Node, **more: Any) -> str:
    job_id = node.submits("alice", **{"gpus": 1, **more})
    assert job_id is not None
    return job_id


def interrupted(node: Node) -> str:
    job_id = job_of(node)
    node.begins(job_id)
    node.job_ends(job_id, None, why="it was killed", cause=Cause.SUPERVISOR_LOST)
    assert node.job(job_id).state is JobState.PAUSED
    return job_id


def waiting_jobs(node: Node) -> dict[str, str]:
    """A job in each state of waiting, behind one that holds the GPU."""
    paused = interrupted(node)
    held = job_of(node, hold=True)
    job_of(node)
    return {
        "paused": paused,
        "held": held,
        "queued": job_of(node),
        "dependent": job_of(node, after=(held,)),
        "held dependent": job_of(node, after=(held,), hold=True),
    }


def waits_and_is_withdrawn() -> None:
    for name in waiting_jobs(node_of()):
        node = node_of()
        node.withdraws(waiting_jobs(node)[name])
    node = node_of()
    waiting_jobs(node)
    node.removes("alice")
    node = node_of()
    job_of(node, after=(job_of(node),))  # the first runs, and outlives its environment for a while
    node.removes("alice")
    node = node_of()
    child = job_of(node, after=(job_of(node),))
    node.withdraws(child)
    node.requeues(child)


def waits_and_is_moved() -> None:
    node = node_of()
    found = waiting_jobs(node)
    node.moves(found["queued"], first=True)
    for name in ("paused", "queued", "dependent"):
        node.holds(found[name])
        node.frees(found[name])
    node = node_of()
    node.frees(interrupted(node))
    node = node_of()
    interrupted(node)
    node.passes(PAUSE_MS)
    node = node_of()
    first = job_of(node)
    job_of(node, after=(first,))
    node.begins(first)
    node.job_ends(first)


def fails_and_is_judged() -> None:
    def failed(*, assigned: bool = False) -> tuple[Node, str]:
        node = node_of()
        job_id = node.assigns("alice", gpus=1) if assigned else job_of(node)
        assert job_id is not None
        node.begins(job_id)
        token = node.state.tasks[node.job(job_id).task_id or ""].token
        node.asks("alice", 1, token=token, job_id=job_id)
        node.job_ends(job_id, 1)
        return node, job_id

    failed()[0].passes(GPU_REPORT_MS)
    node, job_id = failed()
    node.frees(job_id)
    for assigned in (False, True):
        failed(assigned=assigned)[0].fails(0, after_ms=500)


def runs_and_ends() -> None:
    for has_begun in (True, False):
        for exit_code, more in (
            (0, {}),
            (1, {}),
            (1, {"max_restarts": 1}),
        ):
            node = node_of()
            job_id = job_of(node, **more)
            if has_begun:
                node.begins(job_id)
            node.job_ends(job_id, exit_code)
            if exit_code == 0:
                ended = node.history[job_id]
                node.happens(events.RequeueJob(job_id, "ann", WALL, job=ended.job, spec=ended.spec))
        node = node_of()
        job_id = job_of(node)
        if has_begun:
            node.begins(job_id)
        node.job_ends(job_id, None, why="it was killed", cause=Cause.SUPERVISOR_LOST)


def is_stopped() -> None:
    for has_begun in (False, True):
        for gives_back in (False, True):
            for then in (JobState.WITHDRAWN, JobState.FAILED, JobState.QUEUED, JobState.PAUSED):
                stops(has_begun=has_begun, gives_back=gives_back, then=then)
    node = node_of()
    node.gives_back((job_of(node), 1))


def stops(*, has_begun: bool, gives_back: bool, then: JobState) -> None:
    """FAILED follows from the audit alone: the test stops the job as the audit does."""
    node = node_of()
    job_id = job_of(node)
    if has_begun:
        node.begins(job_id)
    if then is JobState.FAILED:
        draft = node.state
        draft.begin(node.now_ns, node.wall_ns)
        jobs.stop(draft, draft.jobs[job_id], then, "offence")
        transition = finish(draft, must_apply=True)
        transition.apply()
        for save in transition.saved:
            node._save(save)
    elif then is JobState.WITHDRAWN:
        node.requeues(job_id)
        node.withdraws(job_id)
    else:
        node.requeues(job_id, by_admin=then is JobState.PAUSED)
    if gives_back and not has_begun:
        node.gives_back((job_id, 1))
    else:
        node.begins(job_id)
        node.job_ends(job_id, 1)


def task_lives() -> None:
    for awakes in (True, False):
        node = node_of()
        node.asks("alice", 1)
        node.passes(6_000, silent=[1])
        if awakes:
            node.beats_again("alice", 1)
        node.dies(1)


def test_each_row_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[tuple[object, ...]] = set()

    def recorded(table: Any, before: Any, event: Any, after: Any) -> Any:
        taken.add((before, event, after))
        return transitions.checked(table, before, event, after)

    for module in (jobs, begins, ends, stalls):
        monkeypatch.setattr(module, "checked", recorded)
    for story in (
        waits_and_is_withdrawn,
        waits_and_is_moved,
        fails_and_is_judged,
        runs_and_ends,
        is_stopped,
        task_lives,
    ):
        story()
    rows = {
        (before, event, after)
        for table in (JOB_TRANSITIONS, TASK_TRANSITIONS)
        for (before, event), row in table.items()  # type: ignore[attr-defined]
        for after in row.states
    }
    assert rows - taken == set()


def test_a_final_job_has_no_row() -> None:
    assert not FINAL & {before for before, _ in JOB_TRANSITIONS if before is not None}
    others = set(JobState) - FINAL
    assert others == {before for before, _ in JOB_TRANSITIONS if before is not None}
    assert set(JobEvent) == {event for _, event in JOB_TRANSITIONS}


def test_a_change_that_no_row_allows_is_refused_and_changes_nothing() -> None:
    node = node_of()
    job_id = job_of(node, hold=True)
    draft = node.state
    with pytest.raises(TransitionRefused, match="start does not lead from held to starting"):
        jobs.changed(draft, draft.jobs[job_id], JobEvent.START, JobState.STARTING)
    with pytest.raises(TransitionRefused):
        jobs.changed(draft, draft.jobs[job_id], JobEvent.UNHOLD, JobState.RUNNING)
    assert draft.changed == []


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.STARTING])
def test_the_invariants_find_a_state_that_was_set_past_the_table(state: JobState) -> None:
    node = node_of()
    job_id = job_of(node, hold=True)
    draft = node.state
    draft.jobs.put(job_id, replace(draft.jobs[job_id], state=state))
    event = events.Disconnected(1)
    (found,) = transitions_taken.check(draft, event)
    assert f"job {job_id} went from" in found


def test_the_invariants_find_a_task_that_was_set_past_the_table() -> None:
    node = node_of()
    node.asks("alice", 1)
    (task,) = node.state.tasks.values()
    draft = node.state
    draft.tasks.put("t99", replace(task, state=TaskState.STALLED))
    (found,) = transitions_taken.check(draft, events.Disconnected(1))
    assert "task t99 went from" in found


def test_several_orders_in_one_step_may_take_several_rows() -> None:
    node = node_of()
    job_id = job_of(node, hold=True)
    draft = node.state
    draft.jobs.put(job_id, replace(draft.jobs[job_id], state=JobState.STARTING))
    orders = events.OrderAll((), WALL)
    assert list(transitions_taken.check(draft, orders)) == []
