"""The main job on a real GPU: granted, held to the quota, waiting, killed, stopped, cancelled."""

from __future__ import annotations

import importlib.util
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu.nvml import driver_bytes
from tests.support.manager import Manager
from tests.support.programs import Program

pytestmark = pytest.mark.gpu
GIB = 2**30
LEARNED_S = 5.0
Start = Callable[..., Program]


def the_task(node: Manager) -> dict[str, Any]:
    (task,) = node.status()["tasks"]
    return task


def ledger_covers_the_driver(node: Manager, pid: int) -> bool:
    """Within some readings: a context has about 500 MiB, and its estimate begins at 64."""
    end = time.monotonic() + LEARNED_S
    while node.status()["gpus"][0]["memory_used_bytes"] < driver_bytes(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def test_a_program_gets_a_gpu_works_on_it_is_held_to_its_quota_and_gives_it_back(
    node: Manager, program: Start
) -> None:
    node.quota("alice", 1, memory_bytes=8 * GIB)
    story = program("alice", "story.py", 1 * GIB, 9 * GIB)
    before = story.line()
    assert before == {"available": True, "count": 1, "initialised": False}
    assert node.status()["tasks"] == []  # looking is free

    allocated = story.step()
    assert allocated["total"] == 8 * GIB
    assert 0 < allocated["free"] <= 7 * GIB
    assert the_task(node)["pids"] == [story.pid]
    assert story.step()["product"] == 512.0
    assert "out of memory" in story.step()["refused"]
    assert story.step()["again"] == 1 * GIB  # a refusal is no end: the allocator goes on
    assert ledger_covers_the_driver(node, story.pid)
    code, stderr = story.end()
    assert code == 0, stderr
    assert "quota" in stderr
    node.events().expect("task.ended")
    assert node.status()["tasks"] == []


def test_a_second_task_waits_and_gets_the_gpu_when_the_first_is_killed(
    node: Manager, program: Start
) -> None:
    for env in ("alice", "bob"):
        node.quota(env, 1)
    first = program("alice", "story.py", GIB, 500 * GIB)
    first.line()
    first.step()
    second = program("bob", "story.py", GIB, 500 * GIB)
    second.line()
    second.go()
    events = node.events()
    assert events.expect("task.waiting", env="bob")["position"] == 1
    killed_ns = time.time_ns()
    first.kill()
    granted = events.expect("task.granted", env="bob")
    print(f"kill -9 to the next grant: {(granted['time_ns'] - killed_ns) / 1e6:.1f} ms")
    assert second.line()["allocated"] == GIB  # and there is room: nothing of the dead task is left


def test_a_stopped_task_stalls_and_goes_on(
    make_manager: Callable[..., Manager], program: Start, node: Manager
) -> None:
    node.quota("alice", 1, memory_bytes=4 * GIB)
    story = program("alice", "story.py", GIB, 500 * GIB)
    story.line()
    story.step()
    events = node.events()
    story.process.send_signal(signal.SIGSTOP)
    events.expect("task.stalled", env="alice")
    assert node.status()["gpus"][0]["memory_granted_bytes"] >= GIB  # its memory stays charged
    story.process.send_signal(signal.SIGCONT)
    events.expect("task.resumed", env="alice")
    assert story.step()["product"] == 512.0


def test_a_cancelled_wait_then_a_successful_one_in_the_same_process(
    node: Manager, program: Start
) -> None:
    for env in ("alice", "bob"):
        node.quota(env, 1)
    holder = program("alice", "story.py", GIB, 500 * GIB)
    holder.line()
    holder.step()
    notebook = program("bob", "cancel.py")
    notebook.line()
    events = node.events()
    events.expect("task.waiting", env="bob")
    notebook.process.send_signal(signal.SIGINT)
    assert notebook.line() == {"cancelled": True}
    holder.kill()
    events.expect("task.ended", env="alice")
    assert notebook.step() == {"sum": 4.0}


def test_import_mode_acquires_at_import(node: Manager, program: Start) -> None:
    node.quota("alice", 1, acquire="import")
    story = program("alice", "story.py", GIB, 500 * GIB)
    story.line()
    assert the_task(node)["env"] == "alice"


def test_expandable_segments_and_the_async_allocator_are_held_to_the_quota(
    node: Manager, program: Start
) -> None:
    node.quota("alice", 1, memory_bytes=8 * GIB)
    for setting in ("expandable_segments:True", "backend:cudaMallocAsync"):
        story = program("alice", "story.py", GIB, 9 * GIB, PYTORCH_CUDA_ALLOC_CONF=setting)
        story.line()
        assert story.step()["total"] == 8 * GIB
        story.step()
        assert "out of memory" in story.step()["refused"].lower(), setting
        assert story.step()["again"] == GIB, setting
        assert story.end()[0] == 0


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_jax(node: Manager, program: Start) -> None:
    node.quota("alice", 1, memory_bytes=8 * GIB)
    ran = program("alice", "in_jax.py").line()
    assert ran == {"devices": ["gpu"], "sum": 8.0}
    assert the_task(node)["env"] == "alice"
