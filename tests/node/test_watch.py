"""`status --watch` on a whole node: figures of the simulated GPUs, a grant, a killed manager."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from nodemgr.simulator import SimulatedNode
from tests.golden.recorder import USE_CUDA, Node
from tests.support.limits import WAIT_LIMIT_S

HOLD_A_CONTEXT = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node(sys.executable)
    made.serve()
    try:
        yield made
    finally:
        made.close()


def until(process: subprocess.Popen[str], holds: Any) -> dict[str, Any]:
    """The first status for which `holds` returns true."""
    assert process.stdout is not None
    while line := process.stdout.readline():
        if line.startswith("{") and holds(shown := json.loads(line)):
            return dict(shown)
    raise AssertionError("it ended")


def test_figures_and_a_grant_over_a_restart(node: Node) -> None:
    assert node.call("quota", "set", "alice", "--gpus", "1").returncode == 0
    watch = node.begin("status", "--watch", "--json")
    until(watch, lambda shown: True)
    with SimulatedNode.open(node.directory / "run" / "sim") as simulated:
        simulated.set_utilisation(0, 87)
        simulated.set_temperature(0, 64)
        simulated.set_power(0, 512.3)
        task = node.begin(
            "run", "--env", "alice", "--gpus", "1", "--", sys.executable, "-c", USE_CUDA,
            until="holds",
        )  # fmt: skip
        figures = {"utilization_percent": 87, "temperature_c": 64, "power_w": 512.3}
        shown = until(
            watch,
            lambda shown: (
                figures.items() <= shown["gpus"][0].items()
                and shown["tasks"]
                and shown["tasks"][0]["host_memory_bytes"]
            ),
        )
        (row,) = shown["tasks"]
        assert row["gpu_indices"] == [0]
        assert row["host_memory_bytes"] > 1 << 20
        manager = node._children[0]
        manager.kill()
        manager.communicate(timeout=WAIT_LIMIT_S)
        node._children.pop(0)
        node.serve()
        node._children.insert(0, node._children.pop())
        again = until(watch, lambda shown: shown["manager"]["pid"] != manager.pid)
        assert [task["id"] for task in again["tasks"]] == [row["id"]]
        assert task.poll() is None


def test_a_task_becomes_idle(node: Node) -> None:
    assert node.call("quota", "set", "alice", "--gpus", "1").returncode == 0
    program = (sys.executable, "-c", HOLD_A_CONTEXT)
    with SimulatedNode.open(node.directory / "run" / "sim") as simulated:
        simulated.set_utilisation(0, 87)
        node.begin("run", "--env", "alice", "--gpus", "1", "--", *program, until="holds")
        watch = node.begin("status", "--watch", "--json", "--env", "alice")
        busy = until(watch, lambda shown: shown["tasks"][0]["utilization_percent"])["tasks"][0]
        assert (busy["utilization_percent"], busy["idle_seconds"]) == (87, 0)
        assert (busy["idle_source"], busy["gpu_utilization_percent"]) == ("nvml", [87])
        simulated.set_utilisation(0, 0)
        idle = until(
            watch,
            lambda shown: (
                shown["tasks"][0]["idle_seconds"] and shown["tasks"][0]["utilization_percent"] == 0
            ),
        )["tasks"][0]
        assert idle["idle_source"] == "nvml"
        simulated.lose(0)
        lost = until(watch, lambda shown: shown["gpus"][0]["state"] == "lost")["gpus"][0]
        assert (lost["utilization_percent"], lost["temperature_c"], lost["power_w"]) == (
            None,
            None,
            None,
        )
