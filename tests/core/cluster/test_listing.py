"""A head's jobs as a list: its parts, the order of each, and the list behind each place."""

from __future__ import annotations

from nodemgr.core.cluster import events, listing
from nodemgr.core.cluster.entities import ClusterJob, ClusterStage
from nodemgr.core.cluster.state import restore
from nodemgr.core.model.entities import TaskClass
from tests.core.cluster.test_passes import Head


def listed(head: Head, env: str | None = None, after: int = 0) -> list[str]:
    return [job.job_id for _, job in listing.behind(head.state, env, after)]


def given() -> Head:
    """Two at a node; in the queue all classes, an array, one moved; others held or waiting."""
    head = Head(gn1=2)
    for _ in range(2):
        head.submits()
    head.passes()
    jobs = [
        ClusterJob("", env, "ann", 1, task_class=of) for of in reversed(TaskClass) for env in "ab"
    ]
    jobs += [
        ClusterJob("", "a", "ann", 1, stage=ClusterStage.HELD),
        ClusterJob("", "b", "ann", 1, indices=((0, 3),)),
        ClusterJob("", "a", "ann", 1, after=("c1",)),
        ClusterJob("", "a", "ann", 1),
    ]
    head.happens(events.Submit(tuple(jobs)))
    head.happens(events.ToFront("c12"))
    return head


def test_the_parts_and_the_order_of_service() -> None:
    head = given()
    in_order = ["c1", "c2", "c7", "c8", "c12", "c5", "c6", "c10", "c3", "c4", "c9", "c11"]
    assert listed(head) == in_order
    assert listed(head, "b") == [job for job in in_order if head.state.jobs[job].env == "b"]
    head.state = restore("hq", list(head.state.rows()), head.state.config)
    assert listed(head) == in_order


def test_the_list_goes_on_behind_each_place() -> None:
    head = given()
    for env in (None, "a", "b"):
        rows = list(listing.behind(head.state, env))
        for at, (place, _) in enumerate(rows, 1):
            assert 0 < place < listing.MOST
            assert listed(head, env, place) == [job.job_id for _, job in rows[at:]], place
    assert listed(head, after=listing.MOST) == []
