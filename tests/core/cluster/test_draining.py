"""Nodes that get no job: jobs of several users fail there at once, and what it has not begun."""

from __future__ import annotations

import pytest

from nodemgr.core.cluster import events
from nodemgr.core.cluster.draining import QUICK_MS, QUICK_WHY
from nodemgr.core.cluster.entities import ClusterJob, ClusterStage
from nodemgr.core.cluster.messages import GiveBack, to_say
from nodemgr.core.model.entities import Cause, JobState
from tests.core.cluster.test_passes import Head


def fails(head: Head, user: str, ran_ms: int = 10, **how: object) -> None:
    head.happens(events.Submit((ClusterJob("", "a", user, 1),)))
    job = f"c{head.state.counters[''].job}"
    head.passes()
    given: dict[str, object] = {"cause": Cause.OWN, "exit_code": 1, "ran_ms": ran_ms} | how
    head.ends(job, JobState.FAILED, **given)


def test_a_node_where_jobs_of_two_users_fail_at_once_gets_no_further_one() -> None:
    head = Head(gn1=2)
    fails(head, "ann")
    fails(head, "bob")
    assert not head.state.nodes["gn1"].drained
    fails(head, "ann")
    node = head.state.nodes["gn1"]
    assert (node.drained, node.why) == (True, QUICK_WHY)
    waiting = head.submits()
    head.passes()
    assert head.node_of(waiting) is None
    head.happens(events.ResumeNode("gn1"))
    head.passes()
    assert head.node_of(waiting) == "gn1"
    fails(head, "bob")
    assert not head.state.nodes["gn1"].drained, "it is counted anew"


@pytest.mark.parametrize(
    "third",
    [
        {"user": "ann", "ran_ms": QUICK_MS},
        {"user": "ann", "is_refusal": True, "began": False},
    ],
)
def test_a_job_that_ran_and_one_that_the_node_refused_are_no_such_failures(
    third: dict[str, object],
) -> None:
    head = Head(gn1=2, gn2=0)
    fails(head, "ann")
    fails(head, "bob")
    fails(head, **third)  # type: ignore[arg-type]
    assert not head.state.nodes["gn1"].drained


def test_one_user_drains_no_node() -> None:
    head = Head(gn1=2)
    for _ in range(6):
        fails(head, "ann")
    assert not head.state.nodes["gn1"].drained


def test_a_drained_node_gives_back_what_it_has_not_begun_and_that_alone() -> None:
    head = Head(gn1=2)
    first, second = head.submits(), head.submits()
    head.passes()
    head.reports("gn1", head.answer(first), head.answer(second))
    head.happens(events.DrainNode("gn1", "a new disk"))
    words = list(to_say(head.state, "gn1"))
    assert words == [GiveBack(f"hq/1/{job}/1", if_waiting=True) for job in (first, second)]
    head.reports("gn1", head.answer(first, began=True))
    assert head.stage(first) is ClusterStage.RUNNING, "it began before it could be given back"
    assert list(to_say(head.state, "gn1")) == words[1:]
    head.ends(second, JobState.WITHDRAWN, began=False)
    assert head.stage(second) is ClusterStage.QUEUED


def test_a_node_with_assignments_is_not_removed() -> None:
    head = Head(gn1=2, gn2=2)
    job = head.submits()
    head.passes()
    head.happens(events.RemoveNode("gn1"))
    assert "gn1" in head.state.nodes
    head.ends(job)
    head.happens(events.RemoveNode("gn1"))
    assert sorted(head.state.nodes) == sorted(head.state.sessions) == ["gn2"]
    head.reports("gn1")
    assert sorted(head.state.nodes) == ["gn2"]
