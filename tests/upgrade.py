"""Replace an earlier version's manager under a running task and a running job.

    python -m tests.upgrade PYTHON [--other-layout]

PYTHON is an interpreter in which the earlier version is installed: its manager is started, and its
shim is in the task. Then its manager is killed, and this version's is started on the same
directories. The task must keep its lease, its charges and its limit; the job must end as it would.
With `--other-layout` the earlier version's ledger has another layout: the task must lose its lease,
and a new task of its environment must get the GPU.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from tests.golden.recorder import Node, node

PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
for line in sys.stdin:
    size = ctypes.c_size_t(int(line) << 30)
    print("took", cuda.cuMemAlloc_v2(ctypes.byref(address), size), flush=True)
"""
OUT_OF_MEMORY = 2
JOB = ("--env", "bob", "--gpus", "1", "--", "sh", "-c", "sleep 20; exit 3")


def take(task: subprocess.Popen[str], gib: int) -> int:
    """Have the task allocate; returns the driver's answer."""
    assert task.stdin is not None
    assert task.stdout is not None
    task.stdin.write(f"{gib}\n")
    task.stdin.flush()
    while line := task.stdout.readline():
        if line.startswith("took "):
            return int(line.split()[1])
    raise AssertionError("the task ended")


def tasks(asked: Node) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = asked.json("status")["tasks"]
    return found


def kept(asked: Node, task: subprocess.Popen[str], before: list[dict[str, Any]]) -> None:
    after = tasks(asked)
    same = ("id", "env", "state", "gpus", "pids")
    assert [[row[key] for key in same] for row in after] == [
        [row[key] for key in same] for row in before
    ], (before, after)
    assert take(task, 4) == 0
    assert take(task, 4) == OUT_OF_MEMORY, "the limit of 10 GiB holds"
    while not next(row["connected"] for row in tasks(asked) if row["env"] == "alice"):
        time.sleep(0.1)  # until then it reads the limits of the killed manager
    asked.call("quota", "set", "alice", "--gpus", "1", "--memory", "14GiB")
    assert take(task, 4) == 0, "a raised limit reaches the task"


def lost(asked: Node, task: subprocess.Popen[str], before: list[dict[str, Any]]) -> None:
    ids = {row["id"] for row in before if row["env"] == "alice"}
    while ids & {row["id"] for row in tasks(asked)}:
        time.sleep(0.1)
    assert task.poll() is None, "its processes live on"
    asked.stop(task)
    fresh = asked.begin("run", "--env", "alice", "--", sys.executable, "-c", PROGRAM)
    assert take(fresh, 4) == 0
    asked.stop(fresh)


def main() -> None:
    earlier, *options = sys.argv[1:]
    with node(earlier) as asked:
        manager = asked.serve()
        asked.call("quota", "set", "alice", "--gpus", "1", "--memory", "10GiB")
        asked.call("quota", "set", "bob", "--gpus", "1")
        job = asked.submit(*JOB)
        task = asked.begin("run", "--env", "alice", "--", earlier, "-c", PROGRAM)
        assert take(task, 4) == 0
        before = tasks(asked)
        manager.kill()
        asked.stop(manager)
        asked.python = sys.executable
        asked.serve()
        (lost if options == ["--other-layout"] else kept)(asked, task, before)
        assert asked.call("wait", job).returncode == 3
        if task.poll() is None:
            asked.stop(task)
        while tasks(asked):
            time.sleep(0.1)
    print("the task and the job went on as this upgrade promises")


if __name__ == "__main__":
    main()
