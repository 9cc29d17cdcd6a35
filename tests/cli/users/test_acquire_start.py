"""`run --acquire start`: the lease comes before the command starts, and lasts as long as it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from client_plugin.ways.faults import Exit
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import HOLD, ROOT, Manager

Make = Callable[..., Manager]


@pytest.fixture
def node(make_manager: Make) -> Manager:
    manager = make_manager(simulate="2x8GiB")
    for env in ("alice", "bob"):
        manager.quota(env, 2)
    return manager


def run(manager: Manager, env: str, *words: str) -> subprocess.Popen[str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("NODEMGR_", "CUDA_", "LD_"))
    }
    command = [sys.executable, "-m", "nodemgr", "run", "--run-dir", str(manager.run_dir)]
    return subprocess.Popen(
        [*command, "--env", env, "--acquire", "start", *words], env=kept, cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(program: subprocess.Popen[str], told: str = "") -> tuple[int, str, str]:
    out, err = program.communicate(told, timeout=WAIT_LIMIT_S)
    return program.returncode, out, err


def test_the_command_its_children_and_what_it_becomes_have_one_lease(node: Manager) -> None:
    events = node.events()
    hold = f"{HOLD} -s 0"
    program = run(node, "alice", "--", "sh", "-c", f"read go; {hold}; {hold}; exec {hold}")
    granted = events.expect("task.granted")
    assert granted["pids"] == [program.pid]
    assert granted["command"].startswith("sh -c read go")
    node.restart()
    (task,) = node.status()["tasks"]
    assert (task["id"], task["pids"], task["state"]) == (granted["task"], [program.pid], "running")
    events = node.events()
    code, out, _ = finish(program, "go\n")
    assert (code, [json.loads(line)["devices"] for line in out.splitlines()]) == (0, [2, 2, 2])
    assert events.expect("task.ended")["task"] == granted["task"]
    assert node.status()["tasks"] == []


def test_a_command_that_uses_no_cuda_holds_its_gpus_to_its_end(node: Manager) -> None:
    events = node.events()
    program = run(node, "alice", "--gpus", "1", "--", "cat")
    assert events.expect("task.granted")["pids"] == [program.pid]
    assert finish(program) == (0, "", "")
    events.expect("task.ended")


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("--gpus", "3"), Exit.QUOTA_REFUSES, "more than the quota of bob"),
        (("--wait", "0"), Exit.WAIT_TIMED_OUT, "not available at once"),
        (("--wait", "1s"), Exit.WAIT_TIMED_OUT, "timed out after [1-9][0-9]* s: "),
        (("--elastic", "--gpus", "1-2"), Exit.USAGE, "leave out --acquire"),
    ],
)
def test_what_is_refused_does_not_start(
    node: Manager, words: tuple[str, ...], code: int, line: str
) -> None:
    events = node.events()
    holder = run(node, "alice", "--", "cat")
    events.expect("task.granted")
    ended, out, err = finish(run(node, "bob", *words, "--", "echo", "started"))
    assert (ended, out) == (code, "")
    assert re.search(line, err.splitlines()[-1])
    finish(holder)


def test_ctrl_c_ends_the_wait(node: Manager) -> None:
    events = node.events()
    holder = run(node, "alice", "--", "cat")
    events.expect("task.granted")
    waiter = run(node, "bob", "--", "echo", "started")
    assert waiter.stderr is not None
    assert "place 1 in queue" in waiter.stderr.readline()
    waiter.send_signal(signal.SIGINT)
    code, out, err = finish(waiter)
    assert (code, out) == (Exit.INTERRUPTED, "")
    assert [line for line in err.splitlines() if "cancelled after" in line]
    assert "Traceback" not in err
    finish(holder)
    events.expect("task.ended")
    assert node.status()["tasks"] == []
