"""A latency-sensitive request that lacks memory or a task slot: best effort goes, mildest first."""

from __future__ import annotations

from nodemgr.core.model.effects import StopJob
from nodemgr.core.model.entities import JobState, Suspension, TaskClass
from nodemgr.core.model.events import SuspendFailed, WithdrawJob
from tests.core.world import GIB, Node

LS, NORMAL, BE = TaskClass


def busy_node(gpus: int = 1, gib: int = 40, **config: int) -> Node:
    """Each env's grant takes half of an 80 GiB GPU."""
    node = Node(gpus, **config)
    for env in "abcdef":
        node.quota(env, gpus, gib * gpus, task_class=LS)
    return node


def runs(node: Node, env: str, percent: int, task_class: TaskClass = BE) -> str:
    job_id = node.submits(env, gpus=1, task_class=task_class, compute_percent=percent)
    assert job_id is not None
    assert node.state.jobs[job_id].state is JobState.STARTING
    node.begins(job_id)
    return job_id


def stopped(node: Node) -> list[str]:
    return [effect.job_id for effect in node.of(StopJob)]


def test_the_youngest_job_is_requeued_and_comes_back() -> None:
    node = busy_node()
    older = runs(node, "a", 30)
    node.passes(1_000)
    younger = runs(node, "b", 30)
    node.asks("c", 3, task_class=LS, percent=50)
    (stop,) = node.of(StopJob)
    assert (stop.job_id, stop.warns) == (younger, True)
    assert node.state.jobs[older].state is JobState.RUNNING
    job = node.state.jobs[younger]
    assert job.state is JobState.STOPPING
    assert "a latency-sensitive request of c needs the memory" in job.why
    assert "preempted for r" in job.deeds[-1].what
    node.job_ends(younger, None, signal=15)
    assert [task.env for task in node.state.tasks.values()] == ["a", "c"]
    assert node.state.jobs[younger].state is JobState.QUEUED
    node.dies(3)
    assert node.state.jobs[younger].state is JobState.STARTING
    assert (node.state.jobs[younger].restarts, node.state.jobs[younger].interruptions) == (0, 0)


def test_best_effort_goes_at_once_where_a_suspension_leaves_it_the_last_in_the_way() -> None:
    node = busy_node(2, gib=80)
    node.asks("a", 1, 1, percent=50)
    node.asks("b", 2, 1, task_class=BE, percent=50)
    node.asks("c", 3, 2, task_class=LS, percent=50)
    assert node.state.tasks["t2"].suspension is Suspension.NONE
    node.suspends("t1")
    assert node.state.tasks["t2"].suspension is Suspension.SUSPENDING


def test_best_effort_stays_for_a_time_after_its_start_and_after_its_return() -> None:
    node = busy_node(gib=80, preempt_exempt_ms=5_000)
    node.asks("a", 1, 1, task_class=BE, percent=50)
    node.asks("b", 2, 1, task_class=LS, percent=50)
    assert node.state.tasks["t1"].suspension is Suspension.NONE
    node.passes(5_000)
    assert node.state.tasks["t1"].suspension is Suspension.SUSPENDING
    node.is_out("t1")
    node.dies(2)
    node.is_back("t1")
    node.asks("b", 3, 1, task_class=LS, percent=50)
    node.passes(4_900)
    assert node.state.tasks["t1"].suspension is Suspension.NONE
    node.passes(100)
    assert node.state.tasks["t1"].suspension is Suspension.SUSPENDING


def test_a_preempted_job_keeps_its_place_and_starts_at_once_where_room_is() -> None:
    node = busy_node()
    runs(node, "a", 30)
    node.passes(1_000)
    first = runs(node, "b", 30)
    node.passes(1_000)
    behind = node.submits("d", gpus=1, task_class=BE, compute_percent=30)
    for asker in range(3, 20):  # as often as it has to go
        node.asks("c", asker, task_class=LS, percent=50)
        assert stopped(node) == [first]
        node.job_ends(first, None, signal=15)
        assert [request.job_id for request, _ in node.state.waiting()] == [first, behind]
        node.dies(asker)
        assert node.state.jobs[first].state is JobState.STARTING
        node.begins(first)


def test_a_job_that_goes_may_still_be_withdrawn() -> None:
    node = busy_node()
    runs(node, "a", 30)
    going = runs(node, "b", 30)
    node.asks("c", 3, task_class=LS, percent=50)
    node.happens(WithdrawJob(going, "root", node.wall_ns))
    node.job_ends(going, None, signal=15)
    assert going not in node.state.jobs
    assert node.history[going].job.state is JobState.WITHDRAWN


def test_no_second_job_goes_while_the_first_one_is_going() -> None:
    node = busy_node()
    runs(node, "a", 30)
    runs(node, "b", 30)
    node.asks("c", 3, task_class=LS, percent=50)
    assert len(stopped(node)) == 1
    node.asks("d", 4, task_class=BE, percent=1)
    node.passes(2_000)
    assert sum(job.state is JobState.STOPPING for job in node.state.jobs.values()) == 1


def test_a_task_slot_is_a_reason_too() -> None:
    node = busy_node(gib=10, max_tasks_per_gpu=1)
    job = runs(node, "a", 30)
    node.asks("c", 3, task_class=LS, percent=50)
    assert stopped(node) == [job]


def test_the_fewest_jobs_go() -> None:
    node = busy_node(2)
    node.quota("f", 2, 160, task_class=LS)
    for env in "abc":
        runs(node, env, 30)
    node.asks("f", 3, 1, task_class=LS, percent=50)
    (alone,) = [
        uuid for uuid in node.state.gpus if len(node.state.gpu_tasks[uuid]) == 1
    ]  # fmt: skip
    (gone,) = stopped(node)
    task = node.state.tasks[node.state.jobs[gone].task_id or ""]
    assert task.gpus == (alone,)


def test_nothing_goes_if_it_would_not_help() -> None:
    node = busy_node()
    runs(node, "a", 30)
    runs(node, "b", 60, NORMAL)
    node.quota("c", 1, 80, task_class=LS)
    node.asks("c", 3, task_class=LS, percent=30)
    assert stopped(node) == []


def test_only_a_latency_sensitive_request_makes_others_go() -> None:
    node = busy_node()
    runs(node, "a", 30)
    runs(node, "b", 30)
    node.asks("c", 3, task_class=NORMAL, percent=30)
    assert stopped(node) == []


def test_a_job_stays_while_compute_alone_is_short() -> None:
    """It shrinks in the step that serves the request."""
    node = busy_node(gib=10)
    job = runs(node, "a", 80)
    node.asks("c", 3, task_class=LS, percent=100)
    assert (stopped(node), node.state.jobs[job].state) == ([], JobState.RUNNING)
    assert node.state.grants["a", "GPU-0"].memory_bytes == 10 * GIB
    assert [task.granted_percent for task in node.state.tasks.values()] == [0, 100]


def test_a_task_without_a_job_is_suspended() -> None:
    node = busy_node()
    node.asks("a", 1, task_class=BE, percent=30)
    node.asks("b", 2, task_class=BE, percent=30)
    node.asks("c", 3, task_class=LS, percent=30)
    assert [request.env for request, _ in node.state.waiting()] == ["c", "b"]
    assert [task.suspension for task in node.state.tasks.values()] == [
        Suspension.NONE,
        Suspension.SUSPENDING,
    ]


def uses_cuda(node: Node, env: str, job_id: str, pid: int) -> str:
    """A process of the job joins its lease; returns the task."""
    task_id = node.state.jobs[job_id].task_id
    assert task_id is not None
    node.asks(env, pid, token=node.state.tasks[task_id].token)
    return task_id


def test_a_job_is_suspended_before_any_job_is_requeued() -> None:
    node = busy_node()
    older, younger = runs(node, "a", 30), runs(node, "b", 30)
    task = uses_cuda(node, "a", older, 50)
    node.asks("c", 3, task_class=LS, percent=50)
    assert stopped(node) == []
    assert node.state.tasks[task].suspension is Suspension.SUSPENDING
    assert node.state.jobs[younger].state is JobState.RUNNING
    node.is_out(task)
    assert node.granted(3)
    assert node.state.jobs[older].state is JobState.RUNNING
    assert [request.resumes for request, _ in node.state.waiting()] == [task]
    node.dies(3)
    node.is_back(task)
    assert node.state.tasks[task].suspension is Suspension.NONE
    assert node.state.jobs[older].attempt == 1


def test_a_job_that_cannot_be_suspended_is_requeued() -> None:
    node = busy_node()
    runs(node, "b", 60, NORMAL)
    job = runs(node, "a", 30)
    task = uses_cuda(node, "a", job, 50)
    node.asks("c", 3, task_class=LS, percent=30)
    node.suspension_fails(task)
    assert stopped(node) == [job]
    assert node.state.jobs[job].state is JobState.STOPPING
    assert [request.env for request, _ in node.state.waiting()] == ["c"]


def test_tasks_are_suspended_and_requeued_together_where_only_both_suffice() -> None:
    node = busy_node()
    node.quota("c", 1, 80, task_class=LS)
    without = runs(node, "a", 30)
    task = uses_cuda(node, "b", runs(node, "b", 30), 50)
    node.asks("c", 3, task_class=LS, percent=30)
    assert stopped(node) == [without]
    assert node.state.tasks[task].suspension is Suspension.SUSPENDING


def test_best_effort_goes_once_its_last_process_over_udp_has_left() -> None:
    """Until then it cannot be suspended; its grant stays as it is when that process leaves."""
    node = busy_node()
    node.asks("a", 1, 1, token="both", gib=10, udp=True, task_class=BE, percent=50)
    node.asks("a", 2, token="both")
    node.asks("b", 3, 1, task_class=NORMAL, percent=1)
    node.asks("c", 4, 1, task_class=LS, percent=50)
    assert node.state.tasks["t1"].suspension is Suspension.NONE
    node.releases("a", 1, udp=True)
    assert node.state.tasks["t1"].suspension is Suspension.SUSPENDING


def test_the_end_of_a_job_that_could_not_be_suspended_names_the_cause() -> None:
    node = busy_node(gib=80)
    job_id = runs(node, "a", 30)
    (task,) = node.state.tasks.values()
    node.asks("a", 1, token=task.token)
    node.asks("c", 3, task_class=LS, percent=50)
    node.happens(SuspendFailed(task.task_id, "it needs 58 GiB of host memory", node.wall_ns))
    job = node.state.jobs[job_id]
    assert job.state is JobState.STOPPING
    assert job.why.endswith("and the job could not be suspended (it needs 58 GiB of host memory)")
