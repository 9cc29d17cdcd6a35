"""A head whose store is a copy: it waits for all nodes, and takes their word for what it lacks."""

from __future__ import annotations

import pytest

from nodemgr.core.cluster import events
from nodemgr.core.cluster.entities import STAGES, ClusterJob, ClusterStage, StageEvent
from nodemgr.core.cluster.events import NodeAnswer
from nodemgr.core.cluster.messages import GiveBack, to_say
from nodemgr.core.cluster.restoring import ENDED_LATER, GAP
from nodemgr.core.cluster.state import ClusterDraft, restore
from nodemgr.core.model.entities import Cause, JobState
from tests.core.cluster.test_passes import Head


class Restored(Head):
    """A copy of a head of two nodes, of which no node has been heard yet."""

    def __init__(self, jobs: int, assigned: bool) -> None:
        super().__init__(gn1=2, gn2=2)
        self.jobs = [self.submits() for _ in range(jobs)]
        if assigned:
            self.passes()
            for job in self.jobs:
                self.reports(self.node_of(job) or "", self.answer(job))
        self.state: ClusterDraft = restore("hq", list(self.state.rows()), self.state.config)
        self.happens(events.Restored())

    def is_restoring(self) -> bool:
        return self.state.counters[""].is_restoring


def lives(key: str, number: int, **given: bool) -> NodeAnswer:
    facts = {"over": False, "began": True, "is_refusal": False, "confirmed": True} | given
    state = JobState.DONE if facts["over"] else JobState.RUNNING
    return NodeAnswer(key, number, state=state, **facts)


def test_it_gives_no_job_until_each_node_is_heard_or_lost() -> None:
    head = Restored(1, assigned=False)
    head.passes()
    head.syncs("gn1", session=2)
    head.passes()
    assert head.is_restoring()
    assert head.stage("c1") is ClusterStage.QUEUED
    head.happens(events.NodeLost("gn2"))
    assert not head.is_restoring()
    head.passes()
    row = head.state.assignments[head.state.jobs["c1"].assigned or 0]
    assert (row.key, row.number) == ("hq/2/c1/1", GAP + 1)
    assert head.submits() == f"c{1 + 2 * GAP + 1}"


def test_an_attempt_of_after_the_copy_becomes_the_jobs() -> None:
    head = Restored(1, assigned=False)
    head.answers["gn2"] = [lives("hq/1/c1/1", 7)]
    head.syncs("gn1", session=2)
    head.syncs("gn2", session=2)
    assert (head.stage("c1"), head.node_of("c1")) == (ClusterStage.RUNNING, "gn2")
    assert list(to_say(head.state, "gn2")) == []
    done = lives("hq/1/c1/1", 7, over=True)
    assert [one.keys for one in head.reports("gn2", done, session=2)] == [(done.key,)]
    assert head.state.jobs == {}


def test_an_end_that_the_node_has_forgotten_is_not_run_again() -> None:
    head = Restored(2, assigned=True)
    node = head.node_of("c1") or ""
    head.answers[node] = [lives("hq/1/c2/1", 2)]
    for name in ("gn1", "gn2"):
        head.syncs(name, session=2, below=2)
    assert sorted(head.state.jobs) == ["c2"]
    assert head.ended["c1"].why == ENDED_LATER


def test_a_job_of_after_the_copy_stays_and_is_listed() -> None:
    head = Restored(1, assigned=False)
    head.answers["gn1"] = [lives("hq/1/c2/1", 9)]
    head.syncs("gn1", session=2)
    head.syncs("gn2", session=2)
    assert head.state.unknown == {"hq/1/c2/1": "gn1"}
    assert list(to_say(head.state, "gn1")) == []
    done = head.reports("gn1", lives("hq/1/c2/1", 9, over=True), session=2)
    assert [effect.keys for effect in done] == [("hq/1/c2/1",)]
    assert head.state.unknown == {}


def test_numbers_go_on_behind_the_largest_that_a_node_knows() -> None:
    head = Restored(1, assigned=False)
    head.syncs("gn1", session=2, below=50_000)
    assert head.state.counters[""].number == 49_999 + GAP
    assert not head.state.counters[""].is_copy


def test_a_key_that_was_given_up_before_the_copy_is_ended() -> None:
    head = Restored(1, assigned=True)
    head.happens(events.NodeLost("gn1"))
    head.syncs("gn2", session=2)
    head.passes()
    head.answers["gn1"] = [lives("hq/1/c1/1", 1)]
    head.syncs("gn1", session=2)
    assert list(to_say(head.state, "gn1")) == [GiveBack("hq/1/c1/1")]


@pytest.mark.parametrize("stage", [stage for stage, event in STAGES if event is StageEvent.FOUND])
def test_a_job_of_any_stage_is_found_on_a_node(stage: ClusterStage) -> None:
    head = Head(gn1=2, gn2=2)
    first = head.submits()
    after = (first,) if stage is ClusterStage.DEPENDENCY else ()
    held = ClusterStage.HELD if stage is ClusterStage.HELD else ClusterStage.QUEUED
    if after or stage is ClusterStage.HELD:
        head.happens(events.Submit((ClusterJob("", "a", "ann", 1, stage=held, after=after),)))
    job = f"c{head.state.counters[''].job}"
    if stage not in (ClusterStage.QUEUED, ClusterStage.HELD, ClusterStage.DEPENDENCY):
        head.passes()
        head.begins(job)
    if stage is ClusterStage.PAUSED:
        head.ends(job, JobState.FAILED, cause=Cause.SUPERVISOR_LOST)
    elif stage is ClusterStage.STOPPING:
        head.happens(events.Withdraw(job))
    attempt = head.state.jobs[job].attempt + 1
    head.state = restore("hq", list(head.state.rows()), head.state.config)
    head.happens(events.Restored())
    head.answers["gn2"] = [lives(f"hq/1/{job}/{attempt}", 7)]
    head.syncs("gn1", session=2)
    head.syncs("gn2", session=2)
    assert (head.stage(job), head.node_of(job)) == (ClusterStage.RUNNING, "gn2")
    assert head.state.jobs[job].after == ()
    begun = (ClusterStage.ASSIGNED, ClusterStage.RUNNING, ClusterStage.STOPPING)
    why = ENDED_LATER if stage in begun else ""
    starts = stage is ClusterStage.PAUSED or stage in begun
    assert [one.why for one in head.state.jobs[job].past] == [why] * starts
