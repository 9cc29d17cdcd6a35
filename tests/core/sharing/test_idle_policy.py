"""Idle tasks: warned, then suspended or released, only while a request waits for their room."""

from __future__ import annotations

import pytest

from nodemgr.core.model.effects import SendNote, SuspendProcesses
from nodemgr.core.model.entities import Suspension, TaskClass
from tests.core.world import Node

MINUTE_MS = 60_000
WARNING_MS = 30_000


def notebooks(when_idle: str = "suspend", gpus: int = 1) -> Node:
    """A GPU for each of alice's and bob's notebooks; idle after 10 minutes."""
    node = Node(gpus)
    for env in ("alice", "bob"):
        node.quota(env, 1, idle_ms=10 * MINUTE_MS, when_idle=when_idle)
    node.quota("carol", 1)
    node.asks("alice", 1)
    if gpus > 1:
        node.asks("bob", 2)
    return node


def acted(node: Node) -> bool:
    return bool(node.of(SendNote) or node.of(SuspendProcesses))


def test_nothing_happens_while_no_request_waits() -> None:
    node = notebooks()
    node.are_idle(t1=60 * MINUTE_MS)
    assert not node.of(SendNote)
    assert not node.of(SuspendProcesses)


def test_a_warning_before_the_first_minute_names_seconds() -> None:
    node = notebooks()
    node.quota("alice", 1, idle_ms=20_000, when_idle="suspend")
    node.asks("carol", 3)
    node.are_idle(t1=45_000)
    (note,) = node.of(SendNote)
    assert note.text.startswith("t1 has used no GPU for 45 s, and a task of carol waits")


def test_a_warning_goes_before_the_suspension() -> None:
    node = notebooks()
    node.asks("carol", 3)
    node.are_idle(t1=12 * MINUTE_MS)
    (note,) = node.of(SendNote)
    assert note.connection == 1
    assert note.text.startswith("t1 has used no GPU for 12 min, and a task of carol waits: in 30 s")
    assert "%gpu keep 2h" in note.text
    assert not node.of(SuspendProcesses)
    node.passes(WARNING_MS - 1_000)
    node.are_idle(t1=12 * MINUTE_MS + 29_000)
    assert not acted(node)
    node.passes(1_000)
    node.are_idle(t1=12 * MINUTE_MS + WARNING_MS)
    assert [effect.task_id for effect in node.of(SuspendProcesses)] == ["t1"]
    node.is_out("t1")
    assert node.granted(3)


def test_a_short_idle_time_is_none() -> None:
    node = notebooks()
    node.asks("carol", 3)
    node.are_idle(t1=9 * MINUTE_MS)
    assert not acted(node)


def test_a_use_after_the_warning_ends_it() -> None:
    node = notebooks()
    node.asks("carol", 3)
    node.are_idle(t1=12 * MINUTE_MS)
    node.passes(WARNING_MS)
    node.are_idle(t1=5_000)
    node.passes(12 * MINUTE_MS)
    node.are_idle(t1=12 * MINUTE_MS + 5_000)
    assert node.of(SendNote)
    assert not node.of(SuspendProcesses)


def test_a_warning_does_not_outlive_the_request() -> None:
    node = notebooks()
    node.asks("carol", 3)
    node.are_idle(t1=12 * MINUTE_MS)
    node.dies(3)
    node.are_idle()
    node.passes(WARNING_MS)
    node.asks("carol", 4)
    node.are_idle(t1=13 * MINUTE_MS)
    assert node.of(SendNote)
    assert not node.of(SuspendProcesses)


def test_only_as_many_go_as_are_needed() -> None:
    node = notebooks(gpus=2)
    node.asks("carol", 3)
    for _ in range(2):
        node.are_idle(t1=20 * MINUTE_MS, t2=20 * MINUTE_MS)
        node.passes(WARNING_MS)
    node.are_idle(t1=20 * MINUTE_MS, t2=20 * MINUTE_MS)
    states = [task.suspension for task in node.state.tasks.values()]
    assert sorted(states) == [Suspension.NONE, Suspension.SUSPENDING]


def test_a_kept_task_stays_until_its_time_is_over() -> None:
    node = notebooks()
    node.asks("carol", 3)
    node.keeps("t1", 60 * MINUTE_MS, env="bob")
    assert node.state.tasks["t1"].exempt_until_ns is None
    node.keeps("t1", 60 * MINUTE_MS)
    node.are_idle(t1=20 * MINUTE_MS)
    assert not acted(node)
    node.wall_ns += 60 * MINUTE_MS * 1_000_000
    assert not acted(node), "the clock was set"
    node.now_ns += 60 * MINUTE_MS * 1_000_000
    node.are_idle(t1=80 * MINUTE_MS)
    assert node.of(SendNote)


def test_keep_is_the_default_policy() -> None:
    node = notebooks(when_idle="keep")
    node.asks("carol", 3)
    node.are_idle(t1=20 * MINUTE_MS)
    assert not acted(node)


def test_release_takes_the_lease_back() -> None:
    node = notebooks(when_idle="release")
    node.asks("carol", 3)
    node.are_idle(t1=20 * MINUTE_MS)
    node.passes(WARNING_MS)
    node.are_idle(t1=21 * MINUTE_MS)
    fence = node.fenced(1)
    assert fence
    assert fence.reason.startswith("its GPUs were taken back after 21 min without a use")


@pytest.mark.parametrize("busy", [True, False])
def test_a_grant_goes_only_if_all_its_tasks_are_idle(busy: bool) -> None:
    node = notebooks()
    node.asks("alice", 2)
    node.asks("carol", 3)
    idle = {"t1": 20 * MINUTE_MS, "t2": 1_000 if busy else 20 * MINUTE_MS}
    node.are_idle(**idle)
    assert bool(node.of(SendNote)) is not busy


def test_a_task_that_could_not_be_suspended_is_left_alone() -> None:
    node = notebooks()
    node.suspends("t1")
    node.suspension_fails("t1")
    node.asks("carol", 3)
    node.are_idle(t1=20 * MINUTE_MS)
    assert not acted(node)


def test_best_effort_is_suspended_for_a_latency_sensitive_request_and_comes_back() -> None:
    node = Node(1)
    node.quota("alice", 1, task_class=TaskClass.BEST_EFFORT)
    node.quota("zoe", 1, task_class=TaskClass.LATENCY_SENSITIVE)
    node.asks("alice", 1, percent=50)
    node.asks("zoe", 2, percent=50)
    assert [effect.task_id for effect in node.of(SuspendProcesses)] == ["t1"]
    assert not node.granted(2)
    node.is_out("t1")
    assert node.granted(2)
    assert node.state.tasks["t1"].suspension is Suspension.SUSPENDED
    node.dies(2)
    assert node.state.tasks["t1"].suspension is Suspension.RESUMING
    node.is_back("t1")
    assert not node.state.requests


def test_an_idle_job_is_suspended_as_any_task() -> None:
    node = Node(1)
    node.quota("alice", 1, idle_ms=10 * MINUTE_MS, when_idle="suspend")
    node.quota("carol", 1)
    job = node.submits("alice", gpus=1)
    assert job is not None
    node.begins(job)
    node.asks("alice", 1, job_id=job)
    (task,) = node.state.tasks
    node.asks("carol", 3)
    node.are_idle(**{task: 12 * MINUTE_MS})
    node.passes(WARNING_MS)
    node.are_idle(**{task: 12 * MINUTE_MS + WARNING_MS})
    assert node.state.tasks[task].suspension is Suspension.SUSPENDING
