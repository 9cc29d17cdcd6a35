"""The lease of an elastic task over a real manager: offers, recalls, workers, restarts, faults."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.manager import Manager

CHILD = str(Path(__file__).with_name("lease_child.py"))
GIB = 2**30
Make = Callable[..., Manager]
Program = subprocess.Popen[str]


def lead(manager: Manager, env: str, least: int, most: int, **variables: str) -> Program:
    command = [sys.executable, CHILD, "lead", str(least), str(most)]
    return manager.spawn(env, command, **variables)


def work(manager: Manager, env: str, token: str, uuid: str) -> Program:
    bound = {"NODEMGR_TASK": token, "NODEMGR_WORKER_GPU": uuid, "CUDA_VISIBLE_DEVICES": uuid}
    return manager.spawn(env, [sys.executable, CHILD, "work"], **bound)


def told(program: Program) -> dict[str, Any]:
    assert program.stdout is not None
    line = program.stdout.readline()
    assert line, program.stderr and program.stderr.read()
    found: dict[str, Any] = json.loads(line)
    return found


def order(program: Program, *words: str) -> dict[str, Any]:
    assert program.stdin is not None
    program.stdin.write(" ".join(words) + "\n")
    program.stdin.flush()
    return told(program)


def node(make_manager: Make, recall_ms: int = 10_000) -> Manager:
    settings = {"NODEMGR_OFFER_CALM_MS": "100", "NODEMGR_RECALL_MS": str(recall_ms)}
    manager = make_manager(simulate="3x8GiB", environment=settings)
    for env in ("alice", "bob"):
        manager.quota(env, 3)
    return manager


def uuids(manager: Manager) -> list[str]:
    return [gpu["uuid"] for gpu in manager.status()["gpus"]]


def test_gpus_are_offered_recalled_and_left(make_manager: Make) -> None:
    manager = node(make_manager)
    rigid = manager.hold("bob", NODEMGR_GPUS="2")
    manager.events().expect("task.granted", env="bob")
    leader = lead(manager, "alice", 1, 3)
    assert told(leader)["gpus"] == [2]
    rigid.kill()
    offers = [told(leader) for _ in range(2)]
    assert [offer["event"] for offer in offers] == ["Offered", "Offered"]
    assert {offer["gpu"] for offer in offers} == set(uuids(manager)[:2])
    for offer in offers:
        order(leader, "accepted", offer["gpu"])
    assert order(leader, "gpus")["gpus"] == [0, 1, 2]
    (task,) = [task for task in manager.status()["tasks"] if task["env"] == "alice"]
    assert (len(task["gpus"]), task["gpus_min"], task["gpus_max"]) == (3, 1, 3)
    waiter = manager.hold("bob", NODEMGR_GPUS="1")
    recalled = told(leader)
    assert (recalled["event"], recalled["gpu"]) == ("Recalled", offers[1]["gpu"])
    assert "waits for it" in recalled["reason"]
    order(leader, "left", recalled["gpu"])
    assert len(order(leader, "gpus")["gpus"]) == 2
    assert json.loads(waiter.stdout.readline())["error"] is None if waiter.stdout else False


def test_a_recall_is_withdrawn_with_the_request(make_manager: Make) -> None:
    manager = node(make_manager)
    leader = lead(manager, "alice", 1, 3)
    assert told(leader)["gpus"] == [0, 1, 2]
    waiter = manager.hold("bob", NODEMGR_GPUS="1")
    assert told(leader)["event"] == "Recalled"
    waiter.kill()
    assert told(leader)["event"] == "Withdrawn"


def test_a_worker_sees_its_gpu_alone_and_ends_at_the_deadline(make_manager: Make) -> None:
    manager = node(make_manager, recall_ms=500)
    leader = lead(manager, "alice", 1, 3)
    token = told(leader)["token"]
    workers = [work(manager, "alice", token, uuid) for uuid in uuids(manager)]
    for worker, uuid in zip(workers, uuids(manager), strict=True):
        assert told(worker) == {"init": 0, "visible": uuid}
        assert told(worker) == {"devices": 1, "context": 0}
        assert order(worker, str(GIB)) == {"alloc": 0}
    waiter = manager.hold("bob", NODEMGR_GPUS="1")
    assert told(leader)["gpu"] == uuids(manager)[2]
    assert workers[2].wait() == -9
    assert waiter.stdout is not None
    assert json.loads(waiter.stdout.readline())["error"] is None
    assert order(leader, "gpus")["gpus"] == [0, 1]
    assert order(workers[0], str(GIB)) == {"alloc": 0}
    events = manager.events()
    assert "did not leave it within 0.5 s" in events.expect("task.shrunk")["reason"]


def test_a_restart_of_the_manager_keeps_lease_and_recall(make_manager: Make) -> None:
    manager = node(make_manager)
    leader = lead(manager, "alice", 1, 3)
    told(leader)
    waiter = manager.hold("bob", NODEMGR_GPUS="1")
    recalled = told(leader)
    manager.restart()
    assert told(leader)["event"] == "Rejoined"
    again = told(leader)
    assert (again["event"], again["gpu"]) == ("Recalled", recalled["gpu"])
    order(leader, "left", recalled["gpu"])
    assert waiter.stdout is not None
    assert json.loads(waiter.stdout.readline())["error"] is None


def test_a_lease_that_is_taken_back_is_lost(make_manager: Make) -> None:
    manager = node(make_manager)
    leader = lead(manager, "alice", 1, 3)
    told(leader)
    (task,) = manager.status()["tasks"]
    manager.call("release", task=task["id"])
    lost = told(leader)
    assert lost["event"] == "LeaseEnded"
    assert lost["reason"]


def test_what_can_never_be_granted_is_said_at_once(make_manager: Make) -> None:
    manager = node(make_manager)
    above = told(lead(manager, "alice", 1, 4))
    assert "the range ends at 4 GPUs; the quota of alice is 3" in above["fault"]
    assert above["code"] == 77
    absurd = told(lead(manager, "alice", 3, 2))
    assert "a range from 3 to 2 GPUs cannot be meant" in absurd["fault"]


def test_a_wait_ends_with_its_limit(make_manager: Make) -> None:
    manager = node(make_manager)
    rigid = manager.hold("bob", NODEMGR_GPUS="3")
    manager.events().expect("task.granted", env="bob")
    ended = told(lead(manager, "alice", 1, 3, NODEMGR_WAIT="0"))
    assert ended["code"] == 75
    rigid.kill()


def test_outside_of_an_environment_one_line_says_so(tmp_path: Path) -> None:
    command = [sys.executable, CHILD, "lead", "1", "2"]
    child = subprocess.run(
        command, env={"NODEMGR_ENV_DIR": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert "this process is in no environment" in json.loads(child.stdout)["fault"]
