"""The verbs against a real manager on a simulated node."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodemgr.cli.admins.demo import HOLD
from nodemgr.edge.store.database import CommitBatch, Store
from tests.cli.conftest import Run, clean_environment, one_line
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager

GIB = 2**30

Node = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def node(make_manager: Callable[..., Manager]) -> Manager:
    return make_manager(simulate="2x16GiB")


@pytest.fixture
def verb(node: Manager, nodemgr: Run, nodemgr_process: Run) -> Node:
    """verb("status", …) on that manager."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        start = nodemgr_process if arguments[0] in ("run", "doctor") else nodemgr
        return start(*arguments, run_dir=node.run_dir)

    return run


@pytest.fixture
def start(node: Manager) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """start(env, command…): `nodemgr run`, not waited for."""
    started: list[subprocess.Popen[str]] = []

    def run(env: str, *command: object, wish: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "nodemgr", "run", "--env", env, *wish, "--",
                    *map(str, command)], text=True,
                env=clean_environment(NODEMGR_RUN_DIR=str(node.run_dir)),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def told(result: subprocess.CompletedProcess[str]) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_quota_s_life(verb: Node) -> None:
    assert told(verb("quota", "show", "--json"))["quotas"] == []
    flags = ["--gpus", "1", "--memory", "8GiB", "--acquire", "import", "--user", "root"]
    made = told(verb("quota", "set", "alice", *flags, "--json"))["quota"]
    assert (made["gpus"], made["memory_bytes"], made["acquire"], made["users"]) == (
        1,
        8 * GIB,
        "import",
        ["root"],
    )
    changed = told(verb("quota", "set", "alice", "--gpus", "2", "--json"))["quota"]
    assert (changed["gpus"], changed["memory_bytes"], changed["acquire"], changed["users"]) == (
        2,
        8 * GIB,
        "import",
        ["root"],
    )
    freed = told(
        verb("quota", "set", "alice", "--gpus", "2", "--memory", "none", "--nobody", "--json")
    )["quota"]
    assert (freed["memory_bytes"], freed["memory_per_gpu_bytes"], freed["users"]) == (
        None,
        None,
        [],
    )
    assert told(verb("quota", "show", "alice", "--json"))["quotas"] == [freed]
    assert verb("quota", "rm", "alice").returncode == 0
    gone = verb("quota", "show", "alice")
    assert (gone.returncode, "no environment 'alice'" in one_line(gone)) == (77, True)


def test_more_gpus_than_the_node_has(verb: Node) -> None:
    result = verb("quota", "set", "alice", "--gpus", "9")
    assert result.returncode == 0
    assert one_line(result).startswith("warning: ")


def test_an_unknown_queue(verb: Node) -> None:
    result = verb("quota", "set", "alice", "--gpus", "1", "--priority", "express")
    assert result.returncode == 2
    assert "high, normal, low" in one_line(result)


def test_a_program_s_life(
    verb: Node, start: Callable[..., subprocess.Popen[str]], node: Manager
) -> None:
    verb("quota", "set", "alice", "--gpus", "1", "--memory", "8GiB")
    events = node.events()
    program = start("alice", *HOLD)
    granted = events.expect("task.granted", env="alice")
    status = told(verb("status", "--json"))
    (task,) = status["tasks"]
    assert (task["id"], task["env"], task["state"], task["pids"]) == (
        granted["task"],
        "alice",
        "running",
        [program.pid],
    )
    assert [(env["name"], env["memory_remaining_bytes"]) for env in status["envs"]] == [
        ("alice", 0)
    ]
    lines = verb("status").stdout
    assert f"{task['id']}  " in lines
    assert "running" in lines
    assert told(verb("status", "--env", "alice", "--json"))["tasks"][0]["id"] == task["id"], (
        "asked as a user"
    )

    waiter = start("alice", *HOLD)
    joined = events.expect("task.granted", env="alice")
    assert joined["gpus"] == granted["gpus"], "the second task reuses the env's GPU"
    assert verb("release", joined["task"]).returncode == 0
    events.expect("task.ended", task=joined["task"])
    waiter.kill()
    program.kill()
    events.expect("task.ended", task=granted["task"])

    records = told(verb("allocations", "--json"))["allocations"]
    assert [record["task_id"] for record in records] == [granted["task"], joined["task"]]
    assert all(record["ended_wall_ns"] for record in records)
    assert told(verb("allocations", "alice", "--since", "1h", "--json"))["allocations"] == records
    assert len(verb("allocations").stdout.splitlines()) == 3
    names = [
        json.loads(line)["name"]
        for line in verb("events", "--json", "--name", "task").stdout.splitlines()
    ]
    assert names.count("task.granted") == names.count("task.ended") == 2
    assert verb("events").stdout.count("task.granted") == 2


def test_a_wait_and_its_release(
    verb: Node, start: Callable[..., subprocess.Popen[str]], node: Manager
) -> None:
    verb("quota", "set", "alice", "--gpus", "2")
    verb("quota", "set", "bob", "--gpus", "1")
    events = node.events()
    start("alice", *HOLD)
    events.expect("task.granted", env="alice")
    waiter = start("bob", *HOLD)
    events.expect("task.waiting", env="bob")
    (row,) = told(verb("status", "--json"))["queue"]
    assert (row["env"], row["position"], row["gpus"]) == ("bob", 1, 1)
    assert row["id"] in verb("status").stdout
    assert verb("release", row["id"]).returncode == 0
    _, stderr = waiter.communicate(timeout=WAIT_LIMIT_S)
    assert waiter.returncode != 0
    assert "nodemgr: " in stderr


@pytest.mark.parametrize(
    ("wish", "code"),
    [(["--gpus", "2"], 77), (["--memory", "9GiB", "--gpus", "1"], 77), (["--gpus", "1"], 0)],
)
def test_what_run_refuses_the_manager_would_refuse(verb: Node, wish: list[str], code: int) -> None:
    verb("quota", "set", "alice", "--gpus", "1", "--memory", "8GiB")
    assert verb("run", "--env", "alice", *wish, "--", "true").returncode == code


def test_unknown_task(verb: Node) -> None:
    result = verb("release", "t99")
    assert result.returncode == 1
    assert "t99" in one_line(result)


def test_doctor_of_a_node_that_is_well(verb: Node, node: Manager) -> None:
    verb("quota", "set", "alice", "--gpus", "1")
    result = verb("doctor", "--env", "alice", "--state-dir", node.state_dir)
    assert [line for line in result.stdout.splitlines() if line.startswith("FAIL")] == []
    assert result.returncode == 0


def test_doctor_within_an_environment(verb: Node) -> None:
    """The view of a user inside an environment: shim, hook, socket."""
    verb("quota", "set", "alice", "--gpus", "1")
    inside = ["env", "-u", "NODEMGR_RUN_DIR", sys.executable, "-m", "nodemgr"]
    result = verb("run", "--env", "alice", "--", *inside, "doctor", "--json")
    rows = {row["name"]: row["ok"] for row in json.loads(result.stdout)["checks"]}
    assert (rows["preload"], rows["hook"], rows["socket"], rows["env directory"]) == (
        True,
        True,
        True,
        True,
    ), result.stdout
    assert result.returncode == 0
    status = told(verb("run", "--env", "alice", "--", *inside, "status", "--json"))
    assert [env["name"] for env in status["envs"]] == ["alice"]


def test_doctor_after_the_manager_s_death(verb: Node, node: Manager) -> None:
    node.kill()
    result = verb("doctor", "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)["checks"]}
    assert result.returncode == 1
    assert rows["manager"]["ok"] is False
    assert "died and left" in rows["leftovers"]["detail"]


def test_a_manager_that_cannot_read_its_store_says_so_in_one_line(
    nodemgr_process: Run, short_dir: Path
) -> None:
    store = Store(short_dir)
    store.commit(
        CommitBatch({("env", "alice"): '{"colour": "red"}', ("env", "bob"): "{}"}, [], [], {})
    )
    store.close()
    result = nodemgr_process(
        "serve", "--simulate", "1x1GiB", "--state-dir", short_dir, "--run-dir", short_dir / "run"
    )
    assert result.returncode == 1
    assert "install the version that wrote it, or name another --state-dir" in one_line(result)
