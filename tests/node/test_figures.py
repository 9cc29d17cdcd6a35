"""`status` on a whole node: figures of the simulated GPUs, a grant, a killed manager."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
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


def until(node: Node, holds: Callable[[dict[str, Any]], Any], *words: str) -> dict[str, Any]:
    """The first status for which `holds` returns true; each call of the verb asks anew."""
    deadline_s = time.monotonic() + WAIT_LIMIT_S
    while not holds(shown := node.json("status", *words)):
        assert time.monotonic() < deadline_s, shown
    return dict(shown)


def test_figures_and_a_grant_over_a_restart(node: Node) -> None:
    assert node.call("quota", "set", "alice", "--gpus", "1").returncode == 0
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
            node,
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
        again = until(node, lambda shown: shown["manager"]["pid"] != manager.pid)
        assert [task["id"] for task in again["tasks"]] == [row["id"]]
        assert task.poll() is None


def test_a_task_becomes_idle(node: Node) -> None:
    assert node.call("quota", "set", "alice", "--gpus", "1").returncode == 0
    program = (sys.executable, "-c", HOLD_A_CONTEXT)
    with SimulatedNode.open(node.directory / "run" / "sim") as simulated:
        simulated.set_utilisation(0, 87)
        node.begin("run", "--env", "alice", "--gpus", "1", "--", *program, until="holds")
        busy = until(node, lambda shown: shown["tasks"][0]["utilization_percent"])["tasks"][0]
        assert (busy["utilization_percent"], busy["idle_seconds"]) == (87, 0)
        assert (busy["idle_source"], busy["gpu_utilization_percent"]) == ("nvml", [87])
        simulated.set_utilisation(0, 0)
        idle = until(
            node,
            lambda shown: (
                shown["tasks"][0]["idle_seconds"] and shown["tasks"][0]["utilization_percent"] == 0
            ),
        )["tasks"][0]
        assert idle["idle_source"] == "nvml"
        simulated.lose(0)
        lost = until(node, lambda shown: shown["gpus"][0]["state"] == "lost")["gpus"][0]
        assert (lost["utilization_percent"], lost["temperature_c"], lost["power_w"]) == (
            None,
            None,
            None,
        )
