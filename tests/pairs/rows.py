"""The table: a row for a pair of features, each a story of about ten lines.

A row is a function of a Driver; the pair stands above it.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.pairs.driver import Driver

Row = Callable[[Driver], None]
ROWS: dict[tuple[str, str], Row] = {}


def pair(one: str, other: str) -> Callable[[Row], Row]:
    def add(row: Row) -> Row:
        assert (one, other) not in ROWS
        assert (other, one) not in ROWS
        ROWS[one, other] = row
        return row

    return add


@pair("suspension", "drain")
def a_task_comes_back_to_a_drained_gpu_beside_a_wide_job(node: Driver) -> None:
    node.holds("alice")
    node.says("suspend", "t1")
    node.says("gpu", "drain", "0")
    wide = node.submits("bob", "--gpus", "2")
    assert "GPU 0 drained" in node.line(wide)
    node.says("resume", "t1")
    node.events.expect("task.restored", task="t1")
    assert node.state("t1") == "running"


@pair("suspension", "restart")
def a_suspended_task_and_its_wait_outlive_the_manager(node: Driver) -> None:
    node.holds("alice", mib=896)
    node.says("suspend", "t1")
    for _ in range(2):
        node.holds("bob", mib=896)
    node.says("resume", "t1")
    assert "bob/t" in node.line("r1")
    node.manager.restart()
    assert node.state("t1") == "suspended"
    assert "bob/t" in node.line("r1")


@pair("share", "quota")
def a_job_whose_share_is_above_a_lowered_quota_waits_and_says_so(node: Driver) -> None:
    node.says("quota", "set", "bob", "--class", "latency-sensitive", "--compute", "100%")
    running = node.submits("alice", "--gpus", "2")
    node.starts(running)
    waiting = node.submits("bob", "--gpus", "1", "--compute", "60%")
    assert f"alice/{running} holds GPUs 0 and 1" in node.line(waiting)
    node.says("quota", "set", "bob", "--compute", "30%")
    node.says("queue", "withdraw", running)
    node.events.expect("job.withdrawn", job=running)
    assert "60% of each GPU asked, but bob may have at most 30%" in node.line(waiting)


@pair("class", "memory")
def best_effort_leaves_for_memory_and_comes_back(node: Driver) -> None:
    for env in ("alice", "bob"):
        node.says("quota", "set", env, "--class", "latency-sensitive", "--compute", "100%")
    best = ("--class", "best-effort", "--compute", "50%", "--gpus", "2")
    _, task = node.submits_holder("alice", *best)
    urgent = node.submits("bob", "--gpus", "1", "--memory", "512MiB", "--compute", "50%")
    node.events.expect("task.suspended", task=task)
    node.starts(urgent)
    node.says("queue", "withdraw", urgent)
    node.events.expect("task.restored", task=task)


@pair("array", "held job")
def a_held_array_is_freed_and_withdrawn(node: Driver) -> None:
    array = node.submits("alice", "--gpus", "1", "--array", "0-3", "--hold")
    assert {row["state"] for row in node.queue()} <= {"held"}
    node.says("queue", "unhold", array)
    begun = {node.events.expect("job.started")["job"] for _ in range(2)}  # in any order
    assert begun == {f"{array}.0", f"{array}.1"}
    (row,) = node.queue()
    assert (row["id"], row["indices"]) == (f"{array}.*", "2-3")
    node.says("queue", "withdraw", array)
    ended = {node.events.expect("job.withdrawn")["job"] for _ in range(3)}
    assert ended == {array, f"{array}.0", f"{array}.1"}


@pair("dependency", "queue")
def a_dependent_job_moves_while_it_waits(node: Driver) -> None:
    first = node.submits("alice", "--gpus", "2")
    later = node.submits("alice", "--gpus", "1", "--after", first)
    node.starts(first)
    node.says("queue", "create", "night", "--rank", "50")
    node.says("queue", "move", later, "night")
    node.says("queue", "rm", "night", rc=1)
    node.gate.write_text("go\n")
    node.starts(later)


@pair("drain", "range of GPUs")
def a_range_starts_with_the_gpus_that_are_in_service(node: Driver) -> None:
    node.says("gpu", "drain", "1")
    wide = node.submits("alice", "--gpus", "2")
    narrow = node.submits("bob", "--gpus", "1-2")
    node.starts(narrow)
    assert "GPU 1 drained" in node.line(wide)
    node.says("gpu", "resume", "1")
    node.gate.write_text("go\n")
    node.starts(wide)


@pair("release", "job")
def the_release_of_a_jobs_task_withdraws_the_job(node: Driver) -> None:
    job, task = node.submits_holder("alice", "--gpus", "1")
    node.says("release", task)
    node.events.expect("job.withdrawn", job=job)
    assert node.manager.status()["tasks"] == []


@pair("idle policy", "job")
def the_quota_says_that_release_ends_no_job(node: Driver) -> None:
    said = node.says("quota", "set", "alice", "--idle", "10min", "--when-idle", "release")
    assert "--when-idle release ends no job of alice" in said
    said = node.says("quota", "set", "alice", "--when-idle", "suspend")
    assert "ends no job" not in said


@pair("time limit", "suspension")
def the_time_of_a_suspended_job_stands_still(node: Driver) -> None:
    job, task = node.submits_holder("alice", "--gpus", "1", "--time", "1h")
    node.says("suspend", task)
    waiting = node.submits("bob", "--gpus", "2")
    node.starts(waiting)
    node.says("resume", task)
    assert f"bob/{waiting} holds" in str(node.queue())
    node.says("queue", "withdraw", waiting)
    node.events.expect("task.restored", task=task)
    assert job in node.says("queue")


@pair("host limits", "array")
def an_array_reserves_cpus_by_the_job(node: Driver) -> None:
    node.says("quota", "set", "alice", "--cpus", "1")
    array = node.submits("alice", "--gpus", "1", "--cpus", "1", "--array", "0-2")
    node.starts(f"{array}.0")
    (row,) = node.queue()
    assert (row["id"], row["indices"]) == (f"{array}.*", "1-2")
    assert "alice reserve 1 CPU of 1 CPU" in row["reason"]
    node.says("queue", "withdraw", f"{array}.0")
    node.starts(f"{array}.1")


@pair("host limits", "quota")
def a_job_waits_for_cpus_of_a_lowered_quota(node: Driver) -> None:
    running = node.submits("alice", "--gpus", "1", "--cpus", "1", "--host-memory", "64MiB")
    node.starts(running)
    node.says("quota", "set", "alice", "--cpus", "1", "--host-memory", "2GiB")
    waiting = node.submits("alice", "--gpus", "1", "--cpus", "1")
    assert "alice reserve 1 CPU of 1 CPU" in node.line(waiting)
    over = node.says("submit", "--env", "alice", "--host-memory", "3GiB", "--", "true", rc=None)
    assert "3 GiB of host memory asked" in over
    node.says("queue", "withdraw", running)
    node.starts(waiting)


@pair("assigned job", "restart")
def an_assigned_job_waits_after_a_restart_for_its_head(node: Driver) -> None:
    running = node.submits("alice", "--gpus", "2")
    node.starts(running)
    assigned = node.assigned("bob", "hq/1/c1/1")
    node.manager.restart()
    assert "waits for the word of hq" in node.line(assigned)
    node.says("queue", "withdraw", running)
    node.events.expect("job.withdrawn", job=running)
    assert "waits for the word of hq" in node.line(assigned)
    assert "a job of the cluster of hq" in node.says("queue", "hold", assigned, rc=None)
    assert node.assigned("bob", "hq/1/c1/1") == assigned
    node.events.expect("job.ended", job=assigned, state="done")


@pair("assigned job", "drain")
def an_assigned_job_waits_for_a_drained_gpu_and_is_begun_once(node: Driver) -> None:
    for index in ("0", "1"):
        node.says("gpu", "drain", index, "--note", "a new fan")
    assigned = node.assigned("bob", "hq/1/c1/1")
    assert "GPUs 0 and 1 drained)" in node.line(assigned)
    node.manager.restart()
    node.says("gpu", "resume", "0")
    assert "waits for the word of hq" in node.line(assigned)
    assert node.assigned("bob", "hq/1/c1/1") == assigned
    node.events.expect("job.ended", job=assigned, state="done")


@pair("host limits", "restart")
def what_jobs_reserve_outlives_the_manager(node: Driver) -> None:
    node.says("quota", "set", "alice", "--cpus", "1")
    running = node.submits("alice", "--gpus", "1", "--cpus", "1")
    node.starts(running)
    waiting = node.submits("alice", "--gpus", "1", "--cpus", "1")
    node.manager.restart()
    assert "alice reserve 1 CPU of 1 CPU" in node.line(waiting)
    node.says("queue", "withdraw", running)
    node.events.expect("job.started", job=waiting)
