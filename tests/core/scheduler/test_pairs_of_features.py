"""Decisions where two features meet: suspension, drained GPUs, wide requests, classes.

Each test is a story that no test of one feature tells.
"""

from __future__ import annotations

from nodemgr.core.model.causes import WaitCause
from nodemgr.core.model.entities import Suspension, TaskClass
from nodemgr.core.requests import notify
from tests.core.world import GIB, Node, gpu

LATENCY, BEST = TaskClass.LATENCY_SENSITIVE, TaskClass.BEST_EFFORT


def test_a_resume_on_a_drained_gpu_beside_a_wide_waiting_job() -> None:
    node = Node(4)
    node.quota("a", 4)
    node.quota("b", 4)
    node.asks("a", 1, 1)
    node.is_suspended("t1")
    node.drains(0)
    limited = node.submits("b", gpus=1, time_limit_ms=600_000)
    assert limited is not None
    node.drains(3)
    wide = node.submits("b", gpus=2)
    assert wide is not None
    assert node.queued_jobs() == [wide]
    node.resumes("t1")
    assert node.state.tasks["t1"].suspension is Suspension.RESUMING


def test_two_best_effort_tasks_of_one_environment_leave_for_a_latency_sensitive_one() -> None:
    node = Node(1, 16)
    node.quota("a", 1, task_class=BEST)
    node.quota("b", 1, task_class=LATENCY)
    node.asks("a", 1, 1, task_class=BEST, percent=50)
    node.asks("a", 2, 1, task_class=BEST, percent=50)
    node.asks("b", 3, 1, task_class=LATENCY)
    node.is_out("t1")
    assert node.state.tasks["t1"].suspension is Suspension.SUSPENDED
    node.is_out("t2")
    assert node.gpus_of(3) == [0]
    node.dies(3)
    states = {task.suspension for task in node.state.tasks.values()}
    assert states == {Suspension.RESUMING}


def test_a_suspended_sibling_keeps_its_slot_free_for_a_latency_sensitive_request() -> None:
    """The request needs a slot on one GPU, and the memory of another one that is still going."""
    node = Node(2, 80, max_tasks_per_gpu=2)
    node.quota("a", 1, 20, task_class=BEST)
    node.quota("c", 1, task_class=BEST)
    node.quota("b", 2, 80, task_class=LATENCY)
    node.asks("c", 1, 1, task_class=BEST)
    node.asks("a", 2, 1, task_class=BEST, percent=50)
    node.asks("a", 3, 1, task_class=BEST, percent=50)
    node.asks("b", 4, 2, task_class=LATENCY, percent=10)
    assert node.state.tasks["t3"].suspension is Suspension.SUSPENDING
    node.is_out("t3")
    assert node.state.tasks["t3"].suspension is Suspension.SUSPENDED
    node.is_out("t1")
    assert node.gpus_of(4) == [0, 1]


def test_a_request_wider_than_the_usable_gpus_delays_no_other() -> None:
    node = Node(4)
    node.quota("a", 4)
    node.quota("b", 4)
    node.asks("b", 1, 1)
    node.asks("a", 2, 4)
    node.drains(3)
    node.dies(1)
    node.asks("b", 3, 3)
    assert node.gpus_of(3) == [0, 1, 2]
    assert node.told(2) is None
    node.dies(3)
    node.undrains(3)
    assert node.gpus_of(2) == [0, 1, 2, 3]


def test_a_request_above_the_usable_gpus_says_so() -> None:
    node = Node(4)
    node.quota("a", 4)
    node.asks("a", 1, 4)
    node.dies(1)
    node.drains(3)
    node.asks("a", 2, 4)
    told = node.told(2)
    assert told is not None
    assert "GPU 3" in told.why
    assert "drained" in told.why


def test_a_resume_on_a_lost_gpu_keeps_no_other_gpu() -> None:
    node = Node(2)
    node.quota("a", 2)
    node.quota("b", 2)
    node.asks("a", 1, 2)
    node.is_suspended("t1")
    node.loses(1)
    node.resumes("t1")
    node.asks("b", 2, 1)
    assert node.gpus_of(2) == [0]


def test_a_request_with_a_share_names_the_entry_that_its_gpus_are_kept_for() -> None:
    node = Node(2)
    for env in ("a", "b", "c"):
        node.quota(env, 2, task_class=LATENCY)
    node.asks("b", 1, 1, percent=100)
    node.asks("a", 2, 2, percent=100)
    node.asks("c", 3, 1, percent=50)
    told = node.told(3)
    assert told is not None
    assert told.why.endswith(
        "needs 1 GPU, 0 free; b/t1 holds GPU 0 since 22:13 UTC; GPU 1 kept for a/r2"
    )


def test_a_task_beside_suspended_ones_names_the_environment_that_has_their_room() -> None:
    node = Node(1)
    for env in ("a", "b"):
        node.quota(env, 1)
    node.asks("a", 1, 1)
    node.is_suspended("t1")
    node.asks("b", 2, 1)
    assert node.gpus_of(2) == [0]
    node.asks("a", 3, 1)
    told = node.told(3)
    assert told is not None
    assert told.why.endswith(
        "needs its share on GPU 0, where a's suspended tasks gave their room to others;"
        " b/t2 holds GPU 0 since 22:13 UTC"
    )


def test_a_resume_names_the_task_that_has_its_room_or_its_compute() -> None:
    node = Node(1)
    for env in ("a", "b"):
        node.quota(env, 1, 40, task_class=LATENCY)
    node.asks("a", 1, 1, percent=60)
    node.is_suspended("t1")
    node.asks("b", 2, 1, percent=60)
    node.resumes("t1")
    ((_, standing),) = notify.listing(node.state, node.now_ns)
    assert standing.why.endswith(
        "t1 is suspended and needs 60 % of the compute of GPU 0 again;"
        " b/t2 holds GPU 0 since 22:13 UTC"
    )


def test_the_line_of_a_resume_without_askers_is_made_anew() -> None:
    node = Node(1)
    for env in ("a", "b"):
        node.quota(env, 1)
    node.asks("a", 1, 1)
    node.is_suspended("t1")
    node.asks("b", 2, 1)
    node.asks("a", 3, 1, token="token1")
    node.dies(3)
    node.dies(2)
    node.asks("b", 4, 1)
    assert all("b/t2" not in row.why for _, row in notify.listing(node.state, node.now_ns))


def test_the_line_of_a_job_that_may_not_pass_a_held_gpu_names_its_holder() -> None:
    """a's job needs two GPUs, and holds one until its task ends; b's job would take longer.

    A listing is at the present time, as a pass is: else every time limit ends in time.
    """
    node = Node(0)
    node.gpus_are([gpu(0), gpu(1), gpu(2, 40)])
    for env in "ab":
        node.quota(env, 2)
    node.submits("a", gpus=1, time_limit_ms=30_000)
    first = node.submits("a", gpus=2)
    node.submits("b", gpus=1, time_limit_ms=90_000)
    node.submits("b", gpus=1, time_limit_ms=90_000)
    _, standing = list(notify.listing(node.state, node.now_ns))[-1]
    assert f"kept for a/{first}" in standing.why


def test_a_request_short_of_memory_quota_and_compute_of_its_env_keeps_no_gpu_from_others() -> None:
    node = Node(3)
    node.quota("a", 2, 120)
    node.quota("b", 1)
    node.asks("a", 1, 1, percent=100)
    node.quota("a", 2, 60)
    node.asks("a", 2, 2, percent=100)
    ((request, standing),) = notify.listing(node.state, node.now_ns)
    assert (request.env, standing.cause) == ("a", WaitCause.QUOTA_MEMORY)
    assert "needs 30.0 GiB" in standing.why
    assert "0.0 GiB" in standing.why
    node.asks("b", 3, 1)
    assert node.gpus_of(3) in ([1], [2])


def test_a_job_of_which_all_gpus_together_need_more_memory_quota_says_what_one_needs() -> None:
    node = Node(3)
    node.quota("a", 3, 180)
    node.asks("a", 1, 1)
    node.quota("a", 3, 150)
    node.submits("a", gpus=2)
    ((_, standing),) = notify.listing(node.state, node.now_ns)
    assert "needs 50.0 GiB of a's memory quota per GPU, 90.0 GiB left" in standing.why


def test_a_start_in_the_same_pass_does_not_move_a_hold_to_the_gpu_that_it_takes() -> None:
    """Only c may use GPUs 1 and 2, where its process may still have memory: a holds one of them.

    If the hold moved, the other GPU would be free for c's next job, and no pass would follow.
    """
    node = Node(3)
    for env in "ac":
        node.quota(env, 2, 120)
    node.asks("a", 1, 1)
    node.asks("c", 2, 2)
    assert (node.gpus_of(1), node.gpus_of(2)) == ([0], [1, 2])
    held = node.submits("a", gpus=2)
    node.submits("c", gpus=1, array=(0, 1))
    node.releases("c", 2)
    lines = [standing.why for _, standing in notify.listing(node.state, node.now_ns)]
    assert len(lines) == 2
    assert f"GPU 2 kept for a/{held}" in lines[1]


def test_the_memory_quota_is_spent_on_smaller_gpus_if_a_larger_one_leaves_too_little() -> None:
    """Otherwise another env's start on the larger GPU would open the way, and no pass is due."""
    node = Node(0)
    node.gpus_are([gpu(0, 80), gpu(1, 80), gpu(2, 40), gpu(3, 40)])
    node.quota("a", 3, 180)
    node.asks("a", 1, 1)
    node.quota("a", 3, 144)
    assert (node.gpus_of(1), node.grant_gib("a", 0)) == ([0], (60, 48))
    job = node.submits("a", gpus=2)  # 84 GiB are left; 48 and 40 would be needed with GPU 1
    assert node.queued_jobs() == []
    (task,) = [task for task in node.state.tasks.values() if task.job_id == job]
    assert task.gpus == ("GPU-2", "GPU-3")


def test_a_suspended_task_comes_back_where_a_later_job_of_its_env_brought_its_memory_back() -> None:
    """The job may have the GPU that is held for the other env, because it has a time limit."""
    node = Node(2)
    for env in ("a", "b"):
        node.quota(env, 2, 120)
    node.asks("a", 1, 1)
    node.asks("b", 2, 1)
    node.is_suspended("t2")
    held = node.submits("a", gpus=2)
    node.resumes("t2")
    assert node.state.tasks["t2"].suspension is Suspension.SUSPENDED
    node.submits("b", gpus=1, memory_bytes=10 * GIB, time_limit_ms=20_000)
    node.passes(0)
    assert node.queued_jobs() == [held]
    assert node.state.tasks["t2"].suspension is Suspension.RESUMING


def test_a_later_job_may_start_where_the_hold_for_an_env_moved_to() -> None:
    """It was kept for a gang before, which cannot have the held GPU."""
    node = Node(3)
    for env in ("a", "b", "c"):
        node.quota(env, 2)
    node.asks("a", 1, 1)
    node.submits("a", gpus=2)
    node.submits("b", gpus=2)
    node.submits("c", gpus=1, time_limit_ms=20_000, array=(0, 1))
    node.passes(0)
    assert node.queued_jobs() == ["j1", "j2"]
