"""In by one flag: a program in a container with an env's device gets GPUs within the quota.

This holds for any user and any way of starting it.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys

import pytest

from nodemgr.simulator import SimulatedNode
from tests.containers.podman import Containers, Program
from tests.support.manager import HOLD, ROOT, Events, Manager

GIB = 1 << 30
PYTHON = sys.executable
SYSTEM_PYTHON = "/usr/bin/python3"
CUDA = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int(-1)
print("cuInit", driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count)), "devices",
    count.value)
"""


def hold(node: Manager, containers: Containers, box: str) -> tuple[Events, Program, str]:
    """alice's program in that container, when it has its lease; and the id of its task."""
    events = node.events()
    holder = containers.spawn(box, str(HOLD))
    holder.json()
    return events, holder, events.expect("task.granted", env="alice")["task"]


def test_one_flag_is_all_that_it_takes(node: Manager, containers: Containers) -> None:
    """Also for the example with its own import of a framework, unmodified."""
    events = node.events()
    node.quota("alice", 1, memory_bytes=4 * GIB)
    code, out, said = containers.run("alice", str(HOLD), "-s", "0", "-b", str(GIB))
    assert code == 0, said
    told = json.loads(out)
    assert (told["devices"], told["total_bytes"]) == (1, 4 * GIB)
    code, out, said = containers.run("alice", str(HOLD), "-s", "0", "-b", str(5 * GIB))
    assert code == 1
    assert "by quota" in said
    training = [
        "env",
        f"PYTHONPATH={ROOT / 'examples' / 'standin'}",
        PYTHON,
        str(ROOT / "examples" / "train.py"),
        str(GIB),
        str(8 * GIB),
    ]
    code, out, said = containers.run("alice", *training)
    assert code == 0, said
    for _ in range(3):
        events.expect("task.ended", env="alice")


def test_it_holds_for_whatever_is_started_there(node: Manager, containers: Containers) -> None:
    """podman exec, an empty environment, another user, a virtual environment, `python -E`."""
    node.quota("alice", 1, memory_bytes=4 * GIB)
    box = containers.start("alice")
    seen = "cuInit 0 0 devices 1"
    hooked = (
        "import sys; print('hook', any(getattr(finder, 'nodemgr', False) for finder in"
        " sys.meta_path))"
    )
    as_others = f"{SYSTEM_PYTHON} -c '{CUDA}'"
    commands = {
        f"{SYSTEM_PYTHON} -c '{CUDA}'": seen,
        f"env -i {SYSTEM_PYTHON} -c '{CUDA}'": seen,
        f"{SYSTEM_PYTHON} -E -c '{CUDA}'": seen,
        f"{SYSTEM_PYTHON} -I -c '{CUDA}'": seen,
        f"{PYTHON} -c '{CUDA}'": seen,
        f"su nobody -s /bin/sh -c {shlex.quote(as_others)}": seen,
        f'env -i {PYTHON} -c "{hooked}"': "hook True",
        f'{PYTHON} -I -c "{hooked}"': "hook False",
    }
    code, said = containers.execute(box, "sh", "-c", "\n".join(commands))
    assert code == 0, said
    assert said.splitlines() == list(commands.values())
    code, said = containers.execute(box, SYSTEM_PYTHON, "-c", CUDA, options=["--user=4321"])
    assert seen in said


def test_two_containers_with_two_quotas_share_a_gpu(node: Manager, containers: Containers) -> None:
    node.quota("alice", 1, memory_bytes=4 * GIB)
    node.quota("bob", 1, memory_bytes=12 * GIB)
    node.quota("carol", 1, memory_bytes=16 * GIB)
    carol = containers.run_beside("carol", str(HOLD))
    carol.json()  # a whole GPU: the other two share what is left
    alice = containers.run_beside("alice", str(HOLD), "-b", str(3 * GIB))
    bob = containers.run_beside("bob", str(HOLD), "-b", str(11 * GIB))
    ours, theirs = alice.json(), bob.json()
    assert ours["uuid"] == theirs["uuid"]
    assert (ours["total_bytes"], theirs["total_bytes"]) == (4 * GIB, 12 * GIB)
    used = {gpu["uuid"]: gpu for gpu in node.status()["gpus"]}[ours["uuid"]]
    assert used["memory_granted_bytes"] == 16 * GIB
    with SimulatedNode.open(
        node.run_dir / "sim"
    ) as simulated:  # the driver itself, outside of all containers, has what both took
        assert {device.uuid: device for device in simulated.books()}[
            ours["uuid"]
        ].used_bytes >= 14 * GIB
    # a third container, of the same env as the first
    code, _, said = containers.run("alice", str(HOLD), "-s", "0", "-b", str(GIB))
    assert code == 1
    assert "by quota" in said


def test_the_end_of_a_container_is_the_end_of_its_tasks(
    node: Manager, containers: Containers
) -> None:
    """kill -9 of its first process, from outside."""
    node.quota("alice", 1)
    box = containers.start("alice")
    events, _, task = hold(node, containers, box)
    os.kill(containers.pid(box), signal.SIGKILL)
    events.expect("task.ended", task=task)
    assert node.status()["tasks"] == []


def test_a_restarted_manager_is_found_without_restarting_containers(
    node: Manager, containers: Containers
) -> None:
    node.quota("alice", 2, memory_bytes=8 * GIB)
    box = containers.start("alice")
    holder = containers.spawn(box, str(HOLD))
    before = holder.json()
    node.restart()
    later = containers.spawn(box, str(HOLD))
    assert later.json()["allocations"] == 1
    tasks = {task["state"]: task for task in node.status()["tasks"]}
    assert list(tasks) == ["running"]
    assert before["uuid"] in {uuid for task in node.status()["tasks"] for uuid in task["gpus"]}
    assert len(node.status()["tasks"]) == 2
    assert holder.end()[0] == 0


@pytest.mark.parametrize("timeout_ms", [2_000])
def test_a_paused_container_keeps_its_lease(node: Manager, containers: Containers) -> None:
    """The freezer, for longer than the timeout: stalled, and then the same lease again."""
    node.quota("alice", 1)
    box = containers.start("alice")
    events, holder, task = hold(node, containers, box)
    containers.pause(box)
    events.expect("task.stalled", task=task)
    containers.tell(box, "unpause")
    events.expect("task.resumed", task=task)
    assert holder.end()[0] == 0
    events.expect("task.ended", task=task)


def test_users_ask_in_the_container_and_the_node_knows_where_they_are(
    node: Manager, containers: Containers
) -> None:
    """`nodemgr` is in PATH there, for any user.

    PIDs are the container's inside; on the node they are the node's, with the container's name.
    """
    node.quota("alice", 1, memory_bytes=4 * GIB)
    box = containers.start("alice")
    holder = containers.spawn(box, str(HOLD))
    inside = holder.json()["pid"]
    (place,) = node.status()["tasks"][0]["places"]
    assert (place["pid_inside"], place["container_name"]) == (inside, box)
    assert place["pid"] != inside
    assert containers.inspect(box, "{{.Id}}").startswith(place["container"])
    code, said = containers.execute(box, "nodemgr", "status", options=["--user=4321"])
    assert code == 0, said
    assert f" {inside} " in said
    assert box in said
    code, said = containers.execute(box, "env", "-i", "/opt/nodemgr/bin/nodemgr", "doctor")
    assert code == 0, said
    for name in ("environment", "preload", "hook", "socket", "ledger", "driver"):
        assert f"ok    {name} " in said


def test_who_switches_the_client_off_is_his_containers_all_the_same(
    node: Manager, containers: Containers
) -> None:
    """No process of the env has ever spoken to the manager: its container's mounts name the env."""
    node.quota("alice", 1)
    node.quota("bob", 1)
    events = node.events()
    alice = containers.run_beside("alice", "env", "NODEMGR_OFF=1", str(HOLD), "-b", str(2 * GIB))
    assert alice.json()["devices"] == 2
    # while somebody holds a GPU the driver is looked at
    bob = containers.run_beside("bob", str(HOLD))
    bob.json()
    violation = events.expect("audit.violation", env="alice")
    assert violation["offence"] == "no_lease"
    assert violation["memory_bytes"] >= 2 * GIB
    assert alice.end()[0] == 0
