"""The view of monitors: in an environment its own part of the node, on the host all of it.

Real manager, real shim, nvidia-ml-py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.node.programs import finish, said
from tests.support.installed import require
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager

require("pynvml", "nvidia-ml-py")
MONITOR = Path(__file__).resolve().parents[1] / "clients" / "programs" / "monitor.py"
GIB = 2**30
Make = Callable[..., Manager]


@pytest.fixture
def node(make_manager: Make) -> Manager:
    manager = make_manager(simulate="4x8GiB")
    manager.quota("alice", 2, memory_bytes=4 * GIB)
    manager.quota("bob", 2)
    return manager


def look(node: Manager, env: str, *, shim: bool = True) -> list[dict[str, Any]]:
    code, out = seen(node.spawn(env, [sys.executable, str(MONITOR)], shim=shim))
    assert code == 0, out
    devices: list[dict[str, Any]] = json.loads(out)["devices"]
    return devices


def seen(program: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = program.communicate(timeout=WAIT_LIMIT_S)
    return program.returncode, out


def test_each_env_sees_its_own_tasks_and_the_host_sees_all(node: Manager) -> None:
    bob = node.hold("bob", "-b", str(3 * GIB))
    said(bob)
    assert [
        (gpu["total_bytes"], gpu["used_bytes"], gpu["processes"]) for gpu in look(node, "alice")
    ] == [(2 * GIB, 0, {})] * 2
    alice = node.hold("alice", "-b", str(GIB))
    said(alice)
    status = {task["env"]: task for task in node.status()["tasks"]}
    host = {gpu["uuid"]: gpu for gpu in look(node, "alice", shim=False)}
    assert len(host) == 4
    for env, program in (("alice", alice), ("bob", bob)):
        shown = look(node, env)
        assert [gpu["uuid"] for gpu in shown] == status[env]["gpus"]
        first, second = shown
        assert first["processes"] == {
            str(program.pid): host[first["uuid"]]["processes"][str(program.pid)]
        }
        assert first["used_bytes"] == first["processes"][str(program.pid)], (
            "contexts included: the ledger is the driver's figure"
        )
        assert (second["used_bytes"], second["processes"]) == (0, {})
        assert (
            first["total_bytes"]
            == second["total_bytes"]
            == (2 * GIB if env == "alice" else 8 * GIB)
        )
    assert finish(alice) == (0, "")
    assert finish(bob) == (0, "")


def test_what_ended_is_not_shown_and_a_question_takes_no_gpu(node: Manager) -> None:
    events = node.events(since=None)
    alice = node.hold("alice", "-b", str(GIB))
    said(alice)
    assert finish(alice) == (0, "")
    events.expect("task.ended", env="alice")
    assert [(gpu["used_bytes"], gpu["processes"]) for gpu in look(node, "alice")] == [(0, {})] * 2
    assert node.status()["tasks"] == []


def test_without_the_manager_a_monitor_says_at_once_what_the_env_may_have(node: Manager) -> None:
    said(node.hold("bob", "-b", str(3 * GIB)))
    node.kill()
    assert [
        (gpu["total_bytes"], gpu["used_bytes"], gpu["processes"]) for gpu in look(node, "alice")
    ] == [(2 * GIB, 0, {})] * 2
    node.start()
