"""Suspension: whose room is given to others, when it comes back, and every end in between."""

from __future__ import annotations

import pytest

from nodemgr.core.model.effects import (
    Kill,
    LimitJob,
    ResumeProcesses,
    SendFence,
    SendNote,
    SuspendProcesses,
)
from nodemgr.core.model.entities import Suspension
from nodemgr.core.model.events import Seen
from nodemgr.core.requests.notify import Standings
from nodemgr.core.scheduler import own_tasks
from nodemgr.core.state import accounting
from tests.core.world import GIB, MS, Node, gpu, key

HOUR_MS = 3_600_000
NONE, SUSPENDING = Suspension.NONE, Suspension.SUSPENDING
SUSPENDED, RESUMING = Suspension.SUSPENDED, Suspension.RESUMING


@pytest.fixture
def node() -> Node:
    """One GPU of 80 GiB; alice and bob may have all of it."""
    made = Node(1)
    for env in ("alice", "bob"):
        made.quota(env, 1)
    return made


def state(node: Node, task: str) -> Suspension:
    return node.state.tasks[task].suspension


def charged_gib(node: Node, index: int = 0) -> int:
    return node.state.charged.get(f"GPU-{index}", 0) // GIB


def test_its_room_goes_to_the_next_request_and_its_quota_stays(node: Node) -> None:
    node.asks("alice", 1)
    node.asks("bob", 2)
    assert not node.granted(2)
    node.suspends("t1")
    assert node.of(SuspendProcesses) == [SuspendProcesses("t1", (key(1),))]
    assert (state(node, "t1"), charged_gib(node)) == (SUSPENDING, 80)
    node.is_out("t1")
    assert state(node, "t1") is SUSPENDED
    assert node.granted(2)
    assert accounting.used_gpus(node.state, "alice") == [node.state.gpus["GPU-0"]]
    assert node.state.env_charged["alice"] == 80 * GIB
    assert charged_gib(node) == 80


def test_the_note_names_what_brings_the_memory_back(node: Node) -> None:
    node.asks("alice", 1)
    node.is_suspended("t1")
    (note,) = node.of(SendNote)
    assert note.text.endswith("the next use of the GPU or `nodemgr resume t1` brings it back")


def test_a_resume_waits_for_room_and_then_charges_it_first(node: Node) -> None:
    node.asks("alice", 1)
    node.is_suspended("t1")
    node.asks("bob", 2)
    node.resumes("t1")
    assert not node.of(ResumeProcesses)
    assert list(node.state.requests) == ["r1"]
    node.dies(2)
    assert node.of(ResumeProcesses) == [ResumeProcesses("t1", (key(1),))]
    assert (state(node, "t1"), charged_gib(node)) == (RESUMING, 80)
    node.asks("bob", 3)
    assert not node.granted(3)
    node.is_back("t1")
    assert state(node, "t1") is NONE
    assert node.published("task.restored")[0]["task"] == "t1"


def test_a_resume_waits_its_turn_in_the_queue(node: Node) -> None:
    node.asks("alice", 1)
    node.is_suspended("t1")
    for pid in (2, 3):
        node.asks("bob", pid, gib=60)
    node.quota("carol", 1)
    node.asks("carol", 4)
    node.resumes("t1")
    assert [request.request_id for request, _ in node.state.waiting()] == ["r3", "r4", "r1"]
    node.dies(2)
    assert node.granted(3)
    node.dies(3)
    assert node.granted(4)
    node.dies(4)
    assert node.of(ResumeProcesses)


def test_no_later_request_takes_the_room_that_a_resume_waits_for(node: Node) -> None:
    for env, gib in (("alice", 60), ("bob", 30), ("carol", 30), ("dave", 30)):
        node.quota(env, 1, gib)
    node.asks("alice", 1)
    node.is_suspended("t1")
    node.asks("bob", 2)
    node.asks("carol", 3)
    node.resumes("t1")
    node.asks("dave", 4)
    node.dies(2)
    assert not node.granted(4)
    assert not node.of(ResumeProcesses)
    node.dies(3)
    assert node.of(ResumeProcesses)
    node.is_back("t1")
    assert charged_gib(node) == 60


def test_a_grant_that_a_running_task_shares_stays_on_the_gpu(node: Node) -> None:
    node.asks("alice", 1)
    node.asks("alice", 2)
    node.asks("bob", 3)
    node.is_suspended("t1")
    assert (charged_gib(node), node.granted(3)) == (80, None)
    node.is_suspended("t2")
    assert node.granted(3)


def test_the_end_of_a_task_beside_suspended_ones_frees_the_room(node: Node) -> None:
    node.asks("alice", 1)
    node.asks("alice", 2)
    node.asks("bob", 3)
    node.is_suspended("t1")
    node.dies(2)
    assert node.granted(3)


def test_a_new_task_of_the_env_takes_the_room_back_if_it_is_there(node: Node) -> None:
    node.asks("alice", 1)
    node.is_suspended("t1")
    node.asks("bob", 2)
    node.asks("alice", 3)
    assert not node.granted(3)
    node.dies(2)
    assert node.granted(3)
    assert charged_gib(node) == 80
    node.resumes("t1")
    assert node.of(ResumeProcesses)


def test_a_new_process_of_a_suspended_task_waits_for_the_resume(node: Node) -> None:
    node.asks("alice", 1, token="same")
    node.is_suspended("t1")
    node.asks("bob", 2)
    node.asks("alice", 3, token="same")
    told = node.told(3)
    assert told
    assert "t1 is suspended and needs 80.0 GiB again on GPU 0" in told.why
    node.dies(2)
    assert node.granted(3)
    assert node.of(ResumeProcesses)
    node.is_back("t1")
    assert node.state.tasks["t1"].processes == (key(1), key(3))


def test_a_new_process_during_the_suspension_waits_too(node: Node) -> None:
    node.asks("alice", 1, token="same")
    node.suspends("t1")
    node.asks("alice", 3, token="same")
    assert not node.granted(3)
    node.is_out("t1")
    assert node.granted(3)
    assert state(node, "t1") is RESUMING


@pytest.mark.parametrize("leaves", ["dies", "disconnects"])
def test_a_process_that_gives_up_leaves_the_resume_in_the_queue(node: Node, leaves: str) -> None:
    node.asks("alice", 1, token="same")
    node.is_suspended("t1")
    node.asks("bob", 2)
    node.asks("alice", 3, token="same")
    getattr(node, leaves)(3)
    node.passes(6_000)
    node.dies(2)
    assert state(node, "t1") is RESUMING
    assert node.state.tasks["t1"].processes == (key(1),)


def test_a_failed_suspension_leaves_all_as_it_was(node: Node) -> None:
    node.asks("alice", 1, token="same")
    node.suspends("t1")
    node.asks("alice", 2, token="same")
    node.suspension_fails("t1")
    assert (state(node, "t1"), charged_gib(node)) == (NONE, 80)
    assert node.granted(2)
    assert node.state.tasks["t1"].suspension_fault == "busy"
    assert node.published("task.suspension_failed")[0]["reason"] == "busy"
    assert "t1 is not suspended and goes on: busy" in node.of(SendNote)[0].text
    node.is_suspended("t1")
    assert node.state.tasks["t1"].suspension_fault == ""


def test_a_suspension_that_could_not_be_undone_frees_the_room(node: Node) -> None:
    node.asks("alice", 1)
    node.suspends("t1")
    node.suspension_fails("t1", is_out=True)
    assert (state(node, "t1"), charged_gib(node)) == (SUSPENDED, 0)


@pytest.mark.parametrize(("is_out", "after", "gib"), [(True, SUSPENDED, 0), (False, NONE, 80)])
def test_memory_that_did_not_come_back_is_charged_where_it_may_be(
    node: Node, is_out: bool, after: Suspension, gib: int
) -> None:
    node.asks("alice", 1)
    node.is_suspended("t1")
    node.resumes("t1")
    node.resume_fails("t1", is_out=is_out)
    assert (state(node, "t1"), charged_gib(node)) == (after, gib)
    assert not node.state.requests


def test_a_resume_whose_room_others_use_waits_in_the_queue_again(node: Node) -> None:
    """Its turn comes again at once here, since the books know of no other use."""
    node.asks("alice", 1)
    node.is_suspended("t1")
    node.resumes("t1")
    node.resume_fails("t1", again=True)
    assert state(node, "t1") is RESUMING
    assert node.of(ResumeProcesses)
    assert ["t1 is not resumed yet: no room" in note.text for note in node.of(SendNote)] == [True]
    node.loses(0)
    node.resume_fails("t1", again=True)
    assert not node.of(SendNote), "the same line is not repeated"
    assert (state(node, "t1"), list(node.state.requests)) == (SUSPENDED, ["r1"])
    node.gpus_are([gpu(0)])
    node.is_back("t1")
    assert state(node, "t1") is NONE


def test_a_suspended_task_is_not_found_stalled(node: Node) -> None:
    node.asks("alice", 1)
    node.is_suspended("t1")
    node.passes(30_000, silent=[1])
    assert state(node, "t1") is SUSPENDED
    assert not node.state.stalled
    node.resumes("t1")
    node.is_back("t1")
    node.passes(6_000, silent=[1])
    assert list(node.state.stalled) == ["t1"]


def test_a_stalled_task_is_not_suspended(node: Node) -> None:
    node.asks("alice", 1)
    node.passes(6_000, silent=[1])
    node.suspends("t1")
    assert not node.of(SuspendProcesses)


def test_a_task_over_udp_is_not_suspended(node: Node) -> None:
    node.asks("alice", 1, udp=True)
    node.suspends("t1")
    assert not node.of(SuspendProcesses)


def test_an_order_of_another_env_does_nothing(node: Node) -> None:
    node.asks("alice", 1)
    node.suspends("t1", env="bob")
    assert not node.of(SuspendProcesses)
    node.is_suspended("t1")
    node.resumes("t1", env="bob")
    assert state(node, "t1") is SUSPENDED


def test_a_suspend_order_takes_a_waiting_resume_back(node: Node) -> None:
    node.asks("alice", 1)
    node.is_suspended("t1")
    node.asks("bob", 2)
    node.resumes("t1")
    node.suspends("t1")
    assert not node.state.requests
    node.dies(2)
    assert state(node, "t1") is SUSPENDED


def test_the_request_of_a_resume_can_be_released_alone(node: Node) -> None:
    node.asks("alice", 1, token="same")
    node.is_suspended("t1")
    node.asks("bob", 2)
    node.asks("alice", 3, token="same")
    node.admin_releases("r1")
    assert node.denied(3)
    assert not node.state.requests
    assert state(node, "t1") is SUSPENDED


@pytest.mark.parametrize("until", [SUSPENDING, SUSPENDED, RESUMING])
@pytest.mark.parametrize("end", ["death", "release", "quota"])
def test_a_task_may_end_in_each_state(node: Node, until: Suspension, end: str) -> None:
    node.asks("alice", 1)
    node.suspends("t1")
    if until is not SUSPENDING:
        node.is_out("t1")
    if until is RESUMING:
        node.resumes("t1")
    assert state(node, "t1") is until
    if end == "death":
        node.dies(1)
    elif end == "release":
        node.admin_releases("t1")
    else:
        node.removes("alice")
    assert not node.state.tasks
    assert not node.state.grants
    node.is_out("t1")
    node.is_back("t1")
    assert not node.state.tasks
    node.asks("bob", 2)
    lost = end != "death" and until is not SUSPENDED
    assert (node.granted(2) is None) is lost
    if lost:
        node.driver_shows(1, 0, 0)
        assert node.granted(2)


@pytest.mark.parametrize("until", [NONE, SUSPENDING, SUSPENDED, RESUMING])
def test_no_process_is_left_without_its_memory(node: Node, until: Suspension) -> None:
    """Its calls would wait for ever. A process that has its memory goes on without a lease."""
    node.asks("alice", 1)
    if until is not NONE:
        node.suspends("t1")
    if until in (SUSPENDED, RESUMING):
        node.is_out("t1")
    if until is RESUMING:
        node.resumes("t1")
    node.removes("alice")
    is_ended = until in (SUSPENDING, SUSPENDED)
    assert node.of(Kill) == ([Kill(key(1), 1)] if is_ended else [])
    fence = node.of(SendFence)[0]
    assert ("it was suspended, so its processes are ended" in fence.reason) is is_ended


def test_processes_that_wait_for_a_task_that_ends_are_told(node: Node) -> None:
    node.asks("alice", 1, token="same")
    node.is_suspended("t1")
    node.asks("bob", 2)
    node.asks("alice", 3, token="same")
    node.dies(1)
    denied = node.denied(3)
    assert denied
    assert "t1 ended while it was suspended" in denied.reason


@pytest.mark.parametrize("until", [SUSPENDING, SUSPENDED, RESUMING])
def test_a_restart_in_each_state_continues(node: Node, until: Suspension) -> None:
    node.asks("alice", 1)
    node.suspends("t1")
    if until is not SUSPENDING:
        node.is_out("t1")
    if until is RESUMING:
        node.resumes("t1")
    node.restart()
    assert state(node, "t1") is until
    assert charged_gib(node) == (0 if until is SUSPENDED else 80)
    if until is SUSPENDING:
        node.is_out("t1")
    if until is not RESUMING:
        node.resumes("t1")
    node.is_back("t1")
    assert state(node, "t1") is NONE


def test_a_waiting_resume_survives_a_restart(node: Node) -> None:
    node.asks("alice", 1)
    node.is_suspended("t1")
    node.asks("bob", 2)
    node.resumes("t1")
    node.restart()
    node.dies(2)
    assert state(node, "t1") is RESUMING


def test_a_lost_gpu_keeps_a_resume_waiting(node: Node) -> None:
    node.asks("alice", 1)
    node.is_suspended("t1")
    node.loses(0)
    node.resumes("t1")
    assert state(node, "t1") is SUSPENDED
    (row,) = node.state.requests.values()
    reason = Standings(node.state, node.now_ns).of(row).why
    assert "t1 is suspended and waits for GPU 0, which the node has lost" in reason
    node.gpus_are([gpu(0)])
    assert state(node, "t1") is RESUMING


def test_a_lowered_quota_takes_nothing_from_the_memory_that_is_to_come_back(node: Node) -> None:
    node.quota("alice", 1, 40)
    node.asks("alice", 1)
    node.uses("alice", 0, 30)
    node.is_suspended("t1")
    node.quota("alice", 1, 10)
    node.passes(2_000)
    assert node.state.grants["alice", "GPU-0"].memory_bytes == 30 * GIB
    node.resumes("t1")
    assert charged_gib(node) == 30


def test_a_raised_quota_grows_the_grant_after_the_resume(node: Node) -> None:
    node.quota("alice", 1, 20)
    node.asks("alice", 1)
    node.is_suspended("t1")
    node.quota("alice", 1, 40)
    node.passes(2_000)
    assert node.state.grants["alice", "GPU-0"].memory_bytes == 20 * GIB
    node.resumes("t1")
    node.is_back("t1")
    node.passes(2_000)
    assert node.state.grants["alice", "GPU-0"].memory_bytes == 40 * GIB


def test_a_task_on_several_gpus_comes_back_to_all_or_none() -> None:
    node = Node(2)
    node.quota("alice", 2)
    node.quota("bob", 1)
    node.asks("alice", 1, 2)
    node.is_suspended("t1")
    node.asks("bob", 2)
    node.resumes("t1")
    node.quota("carol", 1)
    node.asks("carol", 3)
    assert not node.granted(3), "the other GPU is kept for the resume"
    node.dies(2)
    assert state(node, "t1") is RESUMING
    assert [charged_gib(node, index) for index in (0, 1)] == [80, 80]


def test_a_suspended_task_counts_for_no_task_limit() -> None:
    node = Node(1, max_tasks_per_gpu=1)
    for env in ("alice", "bob"):
        node.quota(env, 1, 20)
    node.asks("alice", 1)
    node.asks("bob", 2)
    assert not node.granted(2)
    node.is_suspended("t1")
    assert node.granted(2)
    node.resumes("t1")
    assert state(node, "t1") is SUSPENDED
    node.dies(2)
    assert state(node, "t1") is RESUMING


def test_the_audit_sees_memory_that_should_not_be_there(node: Node) -> None:
    node.asks("alice", 1)
    node.is_suspended("t1")
    node.audit_sees(Seen(key(1), 1, "GPU-0", 20 * GIB, "alice"))
    assert node.state.unbooked["GPU-0"] == 20 * GIB


def limited_job(node: Node, pid: int = 1, hours: int = 1) -> tuple[str, str]:
    """A job with a time limit and a process on the GPU, and its task."""
    job_id = node.submits("alice", time_limit_ms=hours * HOUR_MS)
    assert job_id is not None
    node.begins(job_id)
    task_id = node.state.jobs[job_id].task_id
    assert task_id is not None
    node.asks("alice", pid, token=node.state.tasks[task_id].token)
    return job_id, task_id


def test_the_time_limit_of_a_job_stands_still_while_it_is_suspended(node: Node) -> None:
    job_id, task = limited_job(node)
    node.passes(10_000)
    node.is_suspended(task)
    assert node.of(LimitJob) == [LimitJob(job_id, 1, None)]
    node.asks("bob", 2)
    node.passes(3 * HOUR_MS)
    assert own_tasks.end_ns(node.state.tasks[task], node.now_ns) is None
    node.restart()
    node.dies(2)
    node.resumes(task)
    node.resume_fails(task)
    node.passes(5_000)
    node.resumes(task)
    assert not node.of(LimitJob)
    node.is_back(task)
    row, away_ms = node.state.tasks[task], 3 * HOUR_MS + 5_000
    assert node.of(LimitJob) == [LimitJob(job_id, 1, HOUR_MS + away_ms)]
    assert own_tasks.end_ns(row, node.now_ns) == row.since_ns + (HOUR_MS + away_ms) * MS
    assert row.ran_ns(node.now_ns) == 10_000 * MS
    node.is_suspended(task)
    node.passes(1_000)
    node.resumes(task)
    node.is_back(task)
    assert node.of(LimitJob) == [LimitJob(job_id, 1, HOUR_MS + away_ms + 1_000)]


def test_a_suspension_that_failed_moves_no_limit(node: Node) -> None:
    job_id, task = limited_job(node)
    node.suspends(task)
    node.passes(2_000)
    node.suspension_fails(task)
    assert not node.of(LimitJob)
    assert node.state.tasks[task].extended_limit_ms == HOUR_MS
    node.suspends(task)
    node.suspension_fails(task, is_out=True)
    assert node.of(LimitJob) == [LimitJob(job_id, 1, None)]


def test_a_task_without_a_job_or_limit_has_no_supervisor_to_tell(node: Node) -> None:
    node.asks("alice", 1)
    node.is_suspended("t1")
    node.resumes("t1")
    node.is_back("t1")
    assert not node.of(LimitJob)


def test_the_known_end_of_a_suspended_job_moves(node: Node) -> None:
    """Backfill and the lines of waiting requests count on the moved end."""
    _, task = limited_job(node)
    node.asks("bob", 2)
    told = node.told(2)
    assert told
    assert "next known end 23:13 UTC: alice/" in told.why
    node.is_suspended(task)
    node.passes(HOUR_MS)
    node.resumes(task)
    node.dies(2)
    node.is_back(task)
    node.quota("carol", 1)
    node.asks("carol", 3)
    told = node.told(3)
    assert told
    assert "next known end 00:13 UTC: alice/" in told.why


def test_a_grant_has_the_named_memory_of_all_when_a_task_comes_back_to_it() -> None:
    """Both are served in one pass, with the figures of a Tick.

    The request begins in the parked grant, and then the task comes back.
    """
    node = Node(1)
    for env in "ab":
        node.quota(env, 1)
    node.asks("a", 1, 1, gib=10, most_gib=30)
    node.asks("a", 2, 1, token="token1")
    node.suspends("t1")
    node.is_out("t1")
    node.asks("b", 3, 1, udp=True)
    assert node.gpus_of(3, udp=True) == [0]
    node.asks("a", 4, 1, gib=10)
    node.resumes("t1")
    assert len(node.state.requests) == 2
    node.uses("a", 0, 0)
    node.passes(12_000, silent={3})
    assert not node.state.requests
    grant = node.state.grants["a", "GPU-0"]
    assert grant.kept_bytes == 20 * GIB <= grant.limit_bytes


def test_its_host_memory_counts_for_the_node_and_for_no_quota() -> None:
    node = Node(1, node_memory_bytes=100 * GIB)
    node.quota("alice", 1, host_memory_bytes=60 * GIB)
    node.asks("alice", 1)
    node.suspends("t1")
    node.is_measured("t1", 50 * GIB)
    assert node.of(SuspendProcesses) == [SuspendProcesses("t1", (key(1),), 50 * GIB)]
    node.is_out("t1")
    assert node.submits("alice", gpus=0, host_memory_bytes=40 * GIB) == "j1"
    node.begins("j1")
    node.submits("alice", gpus=0, host_memory_bytes=20 * GIB)
    standing = Standings(node.state, node.now_ns).of(
        node.state.requests[node.state.jobs["j2"].request_id or ""]
    )
    assert standing.why.endswith(
        "jobs of this node reserve 40 GiB of host memory of 100 GiB of host memory, and suspended "
        "tasks have 50 GiB of GPU memory there; waits for a job to end or a task to resume"
    )
    node.resumes("t1")
    node.is_back("t1")
    assert node.state.jobs["j2"].request_id is None, "it began"
    assert not node.state.tasks["t1"].suspended_bytes
    node.is_measured("t1", 5 * GIB)
    node.is_measured("t9", 5 * GIB)
    assert "" not in node.state.host_bytes, "a measure that comes late counts for nothing"


def test_a_suspended_task_that_ends_gives_its_host_memory_back(node: Node) -> None:
    node.asks("alice", 1)
    node.suspends("t1")
    node.is_measured("t1", GIB)
    node.is_measured("t1", 3 * GIB)
    assert node.state.host_bytes[""] == 3 * GIB
    node.dies(1)
    assert not node.state.host_bytes
