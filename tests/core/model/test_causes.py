"""The codes of causes: each has a meaning, and stands in the event or count that it explains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from nodemgr.core.manager import step
from nodemgr.core.model.causes import LEASE_ENDS, WAIT_CAUSES, LeaseEnd, WaitCause
from nodemgr.core.model.entities import LEDGER_SLOTS, RunSpec
from nodemgr.core.model.events import Acquire
from nodemgr.core.requests import notify
from nodemgr.core.scheduler.allocator import Shortage
from tests.core.world import WALL, Node, S, seen


def test_each_cause_has_a_meaning() -> None:
    assert list(LEASE_ENDS) == list(LeaseEnd)
    assert list(WAIT_CAUSES) == list(WaitCause)


def test_each_shortage_is_a_cause_of_a_wait() -> None:
    assert {shortage.value for shortage in Shortage} <= {cause.value for cause in WaitCause}


def node_of(gpus: int = 1, **config: object) -> Node:
    """alice's process 10 and bob's queue of none; each may have all GPUs."""
    node = Node(gpus, **config)
    for env in ("alice", "bob"):
        node.quota(env, gpus, 40 * gpus)
    node.asks("alice", 10)
    return node


def dies(node: Node) -> None:
    node.dies(10)


def releases(node: Node) -> None:
    node.releases("alice", 10)


def cancels(node: Node) -> None:
    node.cancels("alice", 10)


def is_silent(node: Node) -> None:
    node.asks("bob", 20, udp=True)
    node.passes(20_000, silent=[20])


def is_not_resumed(node: Node) -> None:
    node.passes(6_000, silent=[10])
    node.loses(0)
    node.beats_again("alice", 10)


def is_taken_back(node: Node) -> None:
    node.admin_releases("t1")


def loses_its_quota(node: Node) -> None:
    node.removes("alice")


def is_fenced_by_the_audit(node: Node) -> None:
    node.quota("alice", 1, 40, enforce="fence")
    for _ in range(2):
        node.now_ns += S
        node.audit_sees(seen(10, 0, 45, "alice", charged_gib=30))


def its_job_ends(node: Node) -> None:
    job = node.submits("bob")
    assert job is not None
    node.begins(job)
    node.job_ends(job)


def its_job_does_not_start(node: Node) -> None:
    job = node.submits("bob")
    assert job is not None
    node.gives_back((job, node.job(job).attempt))


ENDS: dict[LeaseEnd, Callable[[Node], None]] = {
    LeaseEnd.PROCESS_ENDED: dies,
    LeaseEnd.RELEASED: releases,
    LeaseEnd.CANCELLED: cancels,
    LeaseEnd.SILENT: is_silent,
    LeaseEnd.NOT_RESUMED: is_not_resumed,
    LeaseEnd.TAKEN_BACK: is_taken_back,
    LeaseEnd.QUOTA_REMOVED: loses_its_quota,
    LeaseEnd.AUDIT: is_fenced_by_the_audit,
    LeaseEnd.JOB_ENDED: its_job_ends,
    LeaseEnd.JOB_NOT_STARTED: its_job_does_not_start,
}


@pytest.mark.parametrize("cause", ENDS)
def test_the_event_of_an_ended_lease_has_its_cause(cause: LeaseEnd) -> None:
    node = node_of()
    ENDS[cause](node)
    assert [event["cause"] for event in node.published("task.ended")] == [cause.value]


def test_a_lease_without_a_slot_ends_at_once_with_its_cause() -> None:
    node = node_of(2)
    node.state.slots["alice"] = (1 << LEDGER_SLOTS) - 1
    asked = Acquire(
        node.caller("alice", 2), "a2", "two", RunSpec("python", 1, None, None), 1, None, WALL
    )
    published = step(node.state, asked, node.now_ns).published
    (ended,) = [event.fields for event in published if event.name == "task.ended"]
    assert ended["cause"] == LeaseEnd.NO_SLOT.value
    assert {*ENDS, LeaseEnd.NO_SLOT} == set(LeaseEnd), "each cause has its test"


def causes(node: Node, most: int = 100) -> Counter[tuple[str, WaitCause]]:
    found, judged = notify.counts(node.state, node.now_ns, most)
    assert judged.total() == found.total()
    return found


def test_waiting_requests_are_counted_by_queue_and_cause() -> None:
    node = node_of()
    node.quota("carol", 1, priority="high")
    node.quota("dave", 1)
    node.asks("dave", 20)
    for pid in (30, 31):
        node.asks("carol", pid)
    assert causes(node) == {("normal", WaitCause.NODE): 1, ("high", WaitCause.NODE): 2}
    node.quota("carol", 0)
    assert causes(node) == {("normal", WaitCause.NODE): 1, ("high", WaitCause.ABOVE_QUOTA): 2}
    node.place(up=False, why="no launcher")
    node.submits("dave")
    assert causes(node)["normal", WaitCause.PLACE_DOWN] == 1


def test_requests_that_wait_for_their_own_env_have_a_cause_of_their_own() -> None:
    node = node_of(2)
    node.quota("alice", 1)
    node.submits("alice")
    node.submits("alice")
    assert causes(node) == {("normal", WaitCause.OWN_GPUS): 1, ("normal", WaitCause.BEHIND_OWN): 1}


def test_only_the_first_requests_are_judged() -> None:
    node = node_of()
    node.quota("dave", 1)
    for pid in range(20, 30):
        node.asks("dave", pid, gpus=1)
    found, judged = notify.counts(node.state, node.now_ns, 4)
    assert judged == {"normal": 4}
    assert found.total() == 4
