"""Named memory on a real node: a task's own for sure, and its limit.

Two tasks that named theirs, one beside a range, and each beside a task that named nothing; then
children, suspension, jobs, UDP, restarts, and what CUDA, NVML and the refusal say.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.node.programs import finish
from tests.support.manager import HOLD, Manager

GIB = 2**30
Make = Callable[..., Manager]

PROGRAM = """
import ctypes, json, subprocess, sys
cuda = ctypes.CDLL("libcuda.so.1")
blocks = []

def allocate(size):
    address = ctypes.c_uint64()
    result = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    if result == 0:
        blocks.append(address)
    return result

def free(_):
    return cuda.cuMemFree_v2(blocks.pop())

def info(_):
    sizes = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(*map(ctypes.byref, sizes)) == 0
    return [size.value for size in sizes]

def nvml(_):
    library, memory = ctypes.CDLL("libnvidia-ml.so.1"), (ctypes.c_uint64 * 3)()
    handle = ctypes.c_void_p()
    assert library.nvmlInit_v2() == 0
    assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    assert library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    return list(memory)  # total, free, used

def child(size):
    code = subprocess.run([sys.argv[1], "-b", str(size)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL).returncode
    return code

context = ctypes.c_void_p()
started = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
print(json.dumps(started or cuda.cuCtxSetCurrent(context)), flush=True)
for line in sys.stdin:
    word, size = line.split()
    print(json.dumps(globals()[word](int(size))), flush=True)
"""


class Taker:
    """A program that takes memory as a test tells it."""

    def __init__(self, manager: Manager, env: str = "alice", **variables: str) -> None:
        self.process = manager.spawn(env, [sys.executable, "-c", PROGRAM, str(HOLD)], **variables)

    def started(self) -> int:
        return int(self._line())

    def _line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        return json.loads(line)

    def says(self, word: str, size: float = 0) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word} {round(size)}\n")
        self.process.stdin.flush()
        return self._line()

    def takes(self, gib: float) -> bool:
        result = self.says("allocate", gib * GIB)
        assert result in (0, 2)
        return bool(result == 0)

    def most(self) -> float:
        """Takes all that it gets; in GiB, in steps of 1/8."""
        size = 8.0
        taken = 0.0
        while size >= 1 / 8:
            if self.takes(size):
                taken += size
            else:
                size /= 2
        return taken

    def ends(self) -> str:
        return finish(self.process)[1]


@pytest.fixture
def node(make_manager: Make) -> Manager:
    """One GPU of 16 GiB, and 8 GiB of it for alice."""
    manager = make_manager(simulate="1x16GiB", environment={"NODEMGR_OFFER_CALM_MS": "100"})
    manager.quota("alice", 1, memory_bytes=8 * GIB)
    return manager


def named(manager: Manager, memory: str) -> Taker:
    taker = Taker(manager, NODEMGR_MEMORY=memory)
    assert taker.started() == 0
    return taker


def size(gib: float) -> str:
    return str(round(gib * GIB))


def unnamed(manager: Manager) -> Taker:
    taker = Taker(manager)
    assert taker.started() == 0
    return taker


def test_two_tasks_that_named_theirs(node: Manager) -> None:
    a, b = named(node, size(2)), named(node, size(5))
    assert a.most() <= 2
    assert b.takes(4.5), "for sure, whatever the other tried"
    assert not b.takes(0.5), "its context counts, too"
    assert "this task's own --memory" in a.ends()
    b.ends()


def test_one_beside_a_range(node: Manager) -> None:
    wide = named(node, f"{GIB}-{6 * GIB}")
    assert 5 < wide.most() <= 6, "nothing else was promised the rest"
    sure = named(node, size(2))
    assert sure.takes(1.5)
    wide.ends()
    sure.ends()


def test_a_range_beside_one(node: Manager) -> None:
    sure, wide = named(node, size(5)), named(node, f"{GIB}-{6 * GIB}")
    assert 2 < wide.most() <= 3, "five are kept"
    assert sure.takes(4.5)
    wide.ends()
    sure.ends()


def test_one_beside_a_task_that_named_nothing(node: Manager) -> None:
    other, sure = unnamed(node), named(node, size(5))
    assert 2 < other.most() <= 3
    assert sure.takes(4.5)
    assert not sure.takes(0.5)
    sure.ends()
    line = other.ends()
    assert "by quota" in line
    assert "are kept for tasks that named their memory" in line


def test_a_range_beside_a_task_that_named_nothing(node: Manager) -> None:
    other, wide = unnamed(node), named(node, f"{2 * GIB}-{6 * GIB}")
    assert other.takes(3)
    assert 4 < wide.most() <= 5
    assert not other.takes(0.5)
    wide.ends()
    while not other.takes(1 / 8):
        pass  # its limit grows when the manager has noticed the end
    assert other.most() > 4 - 1 / 8, "the range has ended"
    other.ends()


def test_it_waits_for_what_a_task_that_named_nothing_has(node: Manager) -> None:
    other = unnamed(node)
    assert other.takes(4)
    events = node.events(None)
    late = Taker(node, NODEMGR_MEMORY=size(5))
    events.expect("task.waiting", env="alice")
    assert other.says("free") == 0
    assert late.started() == 0
    assert late.takes(4.5)
    other.ends()
    late.ends()


def test_inside_cuda_and_nvml_show_its_own(node: Manager) -> None:
    other, task = unnamed(node), named(node, size(2))
    other.takes(1)
    free, total = task.says("info")
    assert (total, free < 2 * GIB) == (2 * GIB, True)
    task.takes(1)
    after, _ = task.says("info")
    assert free - after == GIB
    assert task.says("nvml") == [total, after, total - after]
    row = next(row for row in node.status()["tasks"] if row["memory_named_bytes"])
    assert row["memory_named_bytes"] == 2 * GIB
    shown = subprocess.run(
        [sys.executable, "-m", "nodemgr", "status", "--run-dir", str(node.run_dir)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "its own, 2 GiB" in shown
    _, total = other.says("info")
    assert total == 8 * GIB
    task.ends()
    other.ends()


def test_children_share_their_tasks(node: Manager) -> None:
    parent = named(node, size(3))
    assert parent.says("child", 2 * GIB) == 0
    while not parent.takes(2):  # until the manager has seen the child's end
        pass
    assert parent.says("child", 2 * GIB) != 0
    other = unnamed(node)
    assert other.takes(4)
    parent.ends()
    other.ends()


def test_it_holds_after_a_killed_manager(node: Manager) -> None:
    other, task = unnamed(node), named(node, size(5))
    task.takes(1)
    node.kill()
    node.start()
    assert 2 < other.most() <= 3
    assert task.takes(3.5)
    assert not task.takes(0.5)
    late = Taker(node, NODEMGR_MEMORY=size(1))
    other.ends()
    assert late.started() == 0
    late.ends()
    task.ends()


def test_memory_of_a_dead_task_is_there_for_all(node: Manager) -> None:
    task, other = named(node, size(6)), unnamed(node)
    task.takes(5)
    assert not other.takes(3)
    events = node.events(None)
    task.process.send_signal(signal.SIGKILL)
    events.expect("task.ended", env="alice")
    assert other.most() > 7
    other.ends()


def test_a_suspended_task_keeps_its_own(node: Manager) -> None:
    task, other = named(node, size(3)), unnamed(node)
    task.takes(2)
    (row,) = [row for row in node.status()["tasks"] if row["memory_named_bytes"]]
    events = node.events(None)
    node.call("task_suspend", task=row["id"])
    events.expect("task.suspended", task=row["id"])
    assert 4 < other.most() <= 5
    node.call("task_resume", task=row["id"])
    events.expect("task.restored", task=row["id"])
    assert task.takes(0.5)
    task.ends()
    other.ends()


def test_a_job_has_it_from_its_start(node: Manager) -> None:
    """Before its first process uses the GPU."""
    other = unnamed(node)
    events = node.events(None)
    job = subprocess.run(
        [sys.executable, "-m", "nodemgr", "submit", "--run-dir", str(node.run_dir), "--env",
         "alice", "--gpus", "1", "--memory", "5GiB", "--", "sleep", "1000"],
        check=True, capture_output=True, text=True,
    ).stdout.split()[0]  # fmt: skip
    events.expect("job.started", env="alice")
    assert 2 < other.most() <= 3
    node.call("job_withdraw", job=job)
    events.expect("task.ended", env="alice")
    assert other.most() > 4
    other.ends()
