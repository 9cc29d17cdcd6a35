"""A job whose processes are stopped: shown as stalled, and in possession of its GPU."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.node.test_jobs import nodemgr, submit
from tests.node.test_life import BRISK, Make
from tests.support.limits import until
from tests.support.manager import HOLD, Manager

GIB = 2**30


def until_state(node: Manager, task: str, state: str) -> None:
    """On a busy machine a task that beats is silent for a moment, too."""
    until(lambda: node.task(task)["state"] == state, lambda: node.status()["tasks"])


def test_a_stopped_job_is_stalled_keeps_its_gpu_and_goes_on(make_manager: Make) -> None:
    node = make_manager(simulate="1x8GiB", environment=BRISK)
    node.quota("alice", 1)
    events = node.events()
    job = submit(node, "alice", script=f"exec {HOLD} -b {GIB} -s 60")
    events.expect("task.joined")
    pid = node.status()["tasks"][0]["pids"][0]
    os.kill(pid, signal.SIGSTOP)
    events.expect("task.stalled", task="t1")
    until_state(node, "t1", "stalled")
    (row,) = json.loads(nodemgr(node, "queue", "--json"))["queue"]
    told = json.loads(nodemgr(node, "history", job, "--json"))["jobs"][0]
    for shown in (row, told):
        assert shown["state"] == "stalled"
        assert re.match(r"stalled since \d\d:\d\d:\d\d UTC", shown["reason"])
    os.kill(pid, signal.SIGCONT)
    events.expect("task.resumed", task="t1")
    until_state(node, "t1", "running")
    assert node.status()["tasks"][0]["job"] == job
    nodemgr(node, "queue", "withdraw", job)
    events.expect("job.withdrawn", job=job)


@pytest.mark.parametrize("order", ["release", "queue withdraw"])
def test_a_filter_takes_the_jobs_that_are_shown_as_stalled(make_manager: Make, order: str) -> None:
    node = make_manager(simulate="2x8GiB", environment=BRISK)
    node.quota("alice", 2)
    events = node.events()
    stopped = submit(node, "alice", "--gpus", "1", script=f"exec {HOLD} -b {GIB} -s 60")
    pid = events.expect("task.joined")["pid"]
    running = submit(node, "alice", "--gpus", "1", script="exec sleep 60")  # no client, no beat
    events.expect("job.started", job=running)
    (task,) = [row for row in node.status()["tasks"] if row["job"] == stopped]
    os.kill(pid, signal.SIGSTOP)
    events.expect("task.stalled", task=task["id"])
    until_state(node, task["id"], "stalled")
    nodemgr(node, *order.split(), "--state", "stalled")
    with contextlib.suppress(ProcessLookupError):  # the supervisor's SIGCONT came first
        os.kill(pid, signal.SIGCONT)
    events.expect("job.withdrawn", job=stopped)
    assert [row["job"] for row in node.status()["tasks"]] == [running]
    nodemgr(node, "queue", "withdraw", running)
    events.expect("job.withdrawn", job=running)


@pytest.mark.slow
def test_a_stopped_job_is_ended_after_the_grace_where_the_policy_says_so(
    make_manager: Make, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('stalled = "kill"\nstalled_grace_ms = 100\n')
    options = ["--config", str(config)]
    node = make_manager(simulate="1x8GiB", options=options, environment=BRISK)
    node.quota("alice", 1)
    events = node.events()
    job = submit(node, "alice", script=f"exec {HOLD} -b {GIB} -s 60")
    events.expect("task.joined")
    pid = node.status()["tasks"][0]["pids"][0]
    os.kill(pid, signal.SIGSTOP)
    events.expect("job.stopping", job=job)
    with contextlib.suppress(ProcessLookupError):  # SIGKILL came first
        os.kill(pid, signal.SIGCONT)  # its SIGTERM waits for this
    assert "silent since" in events.expect("job.ended", job=job)["reason"]
    told = json.loads(nodemgr(node, "history", job, "--json"))["jobs"][0]
    assert (told["state"], told["attempts"][0]["cause"]) == ("failed", "policy")
