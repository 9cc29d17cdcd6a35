"""A job that is submitted in a container runs there, as its submitter.

It keeps to the environment's limits.
"""

from __future__ import annotations

import json
import sys

import pytest

from tests.containers.podman import Containers
from tests.elastic.led import TRAINEE
from tests.inside.boxes import outcome
from tests.support.limits import until
from tests.support.manager import HOLD, Manager
from tests.support.queue_pages import queue_rows

GIB = 1 << 30
CPU = ("--gpus", "0", "--max-restarts", "0")


def submit(containers: Containers, box: str, *words: str, user: str = "root") -> str:
    """The job's id: all that is said."""
    code, said = containers.execute(box, "nodemgr", "submit", *words, options=(f"--user={user}",))
    assert (code, said.count("\n")) == (0, 1), said
    return said.strip()


def test_it_runs_there_with_gpus_and_within_the_quota(
    node: Manager, containers: Containers
) -> None:
    """And the node's administrator sees where; the session that submitted it has long ended."""
    node.quota("alice", 1, memory_bytes=4 * GIB)
    box = containers.start("alice")
    once = ("--gpus", "1", "--max-restarts", "0", "--", str(HOLD), "-s", "0", "-b")
    job = submit(containers, box, *once, str(GIB))
    code, said = containers.execute(box, "nodemgr", "wait", job)
    assert (code, said) == (0, "")
    told = json.loads(containers.execute(box, "nodemgr", "logs", job)[1])
    assert (told["devices"], told["total_bytes"]) == (1, 4 * GIB)
    greedy = submit(containers, box, *once, str(5 * GIB))
    assert containers.execute(box, "nodemgr", "wait", greedy)[0] == 1
    assert "by quota" in containers.execute(box, "nodemgr", "logs", greedy)[1]
    (story,) = node.call("job_show", job=job)["jobs"]
    name = containers.inspect(box, "{{.Name}}")
    assert story["deeds"][0]["who"] == f"root (uid 0) in container {name}"
    assert node.status()["tasks"] == []


def test_it_sees_its_gpus_there_before_anything_uses_cuda(
    node: Manager, containers: Containers
) -> None:
    node.quota("alice", 2)
    box = containers.start("alice")
    script = "echo $CUDA_VISIBLE_DEVICES; CUDA_VISIBLE_DEVICES=1 exec " + str(HOLD) + " -s 0"
    job = submit(
        containers, box, "--gpus", "2", "--visible", "index", "--", "/bin/sh", "-c", script
    )
    assert containers.execute(box, "nodemgr", "wait", job) == (0, "")
    mask, told = containers.execute(box, "nodemgr", "logs", job)[1].splitlines()
    assert mask == "0,1"
    found = json.loads(told)
    assert found["devices"] == 1
    assert found["uuid"] == node.status()["gpus"][1]["uuid"]


@pytest.mark.slow
def test_an_elastic_job_has_its_leader_and_workers_there(
    node: Manager, containers: Containers
) -> None:
    node.quota("alice", 2)
    box = containers.start("alice")
    script = ("--", sys.executable, str(TRAINEE), "--done", "1")
    job = submit(containers, box, "--gpus", "2-2", "--elastic", *script)
    code, said = containers.execute(box, "nodemgr", "wait", job)
    lines = containers.execute(box, "nodemgr", "logs", job)[1]
    assert (code, said) == (0, ""), lines
    assert "the training runs on 2 GPUs\n" in lines
    assert "[worker 1] generation 1 rank 1 of 2 " in lines
    assert node.status()["tasks"] == []


def test_a_plain_user_follows_what_his_job_writes(node: Manager, containers: Containers) -> None:
    node.quota("alice", 1)
    box = containers.start("alice")
    job = submit(
        containers,
        box,
        *CPU,
        "--",
        "sh",
        "-c",
        "id -u; echo first; sleep 0.5; echo last; exit 3",
        user="nobody",
    )
    code, said = containers.execute(
        box, "nodemgr", "logs", "--follow", job, options=("--user=nobody",)
    )
    assert code == 0
    assert [line for line in said.splitlines() if not line.startswith("nodemgr:")] == [
        "65534",
        "first",
        "last",
    ]
    assert containers.execute(box, "nodemgr", "wait", job, options=("--user=nobody",))[0] == 3


def test_a_container_that_stops_takes_its_job_along_and_brings_it_back(
    node: Manager, containers: Containers
) -> None:
    """The job that ran there is tried again; the waiting one has kept its place.

    Both report what they wait for, until the container is back and a user runs a verb there.
    """
    node.quota("alice", 1)
    box = containers.start("alice")
    job = submit(
        containers,
        box,
        "--gpus",
        "1",
        "--",
        "sh",
        "-c",
        "test -e /again || { touch /again; sleep 600; }",
    )
    events = node.events()
    events.expect("job.started", job=job)
    second = submit(containers, box, "--gpus", "1", "--after", job, "--", "true")
    containers.tell(box, "kill")
    reason = until(lambda: _reason(node, job), "the job waits")
    name = containers.inspect(box, "{{.Name}}")
    assert f"waits for its container {name}: start it, then run `nodemgr queue` there" in reason
    assert node.status()["tasks"] == []
    until(
        lambda: containers.inspect(box, "{{.State.Running}}") == "false",
        "the container has stopped",
    )
    containers.tell(box, "start")
    code, said = containers.execute(box, "nodemgr", "queue")
    assert code == 0, said
    assert [outcome(node, each)["state"] for each in (job, second)] == ["done", "done"]


def _reason(node: Manager, job: str) -> str | None:
    rows = {row["id"]: row for row in queue_rows(node.call)}
    return rows[job]["reason"] if job in rows and rows[job]["state"] == "queued" else None
