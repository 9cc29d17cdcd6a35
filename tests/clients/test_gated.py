"""numba-cuda and cuda.bindings with a class and a share: every launch of theirs passes the gate.

Each program runs in an env with a share and in one without: it finds the same.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

import pytest

from tests.clients.cells import CELLS, Cells
from tests.clients.launch_counts import on_device, through_gates
from tests.support.manager import Manager
from tests.support.programs import Program

GIB = 1 << 30
START = {
    "bindings": """
import os, sys
sys.path.insert(0, os.environ["PROGRAMS"])
from launches import *
start()
""",
    "numba": """
import os, sys
sys.path.insert(0, os.environ["PROGRAMS"])
from numba_launches import *
""",
}
CLIENTS = [
    pytest.param("bindings", marks=pytest.mark.frameworks),
    pytest.param("numba", marks=pytest.mark.frameworks),
]
PER_THREAD = {"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": "1"}


@pytest.fixture
def node(make_manager: Callable[..., Manager]) -> Manager:
    """A GPU on which alice has a share, and bob has none."""
    manager = make_manager(simulate="1x4GiB")
    manager.quota("alice", 1, memory_bytes=GIB, task_class="best-effort", compute_percent=80)
    manager.quota("bob", 1, memory_bytes=GIB)
    return manager


def start(node: Manager, env: str, client: str, **variables: str) -> Cells:
    variables["PROGRAMS"] = str(CELLS.parent)
    cells = Cells(Program(node.spawn(env, [sys.executable, str(CELLS)], **variables)))
    cells.run(START[client] + "None")
    return cells


def line(cells: Cells, text: str) -> None:
    """Until the program has printed a line with the text."""
    stderr = cells.program.process.stderr
    assert stderr is not None
    while text not in (found := stderr.readline()):
        assert found


@pytest.mark.parametrize(
    ("client", "variables"),
    [
        pytest.param("bindings", {}, id="bindings", marks=pytest.mark.frameworks),
        pytest.param("bindings", PER_THREAD, id="per thread", marks=pytest.mark.frameworks),
        pytest.param("numba", {}, id="numba", marks=pytest.mark.frameworks),
    ],
)
def test_a_gated_program_finds_what_an_ungated_one_finds(
    node: Manager, client: str, variables: dict[str, str]
) -> None:
    found = {}
    for number, env in enumerate(("alice", "bob"), 1):
        cells = start(node, env, client, **variables)
        found[env] = cells.run("work()")
        assert on_device(node, cells.pid) == found[env]["launches"]
        gated = env == "alice"
        assert node.task(f"t{number}")["gate"] == ("limited" if gated else "none")
        if gated:
            assert through_gates(node) == found[env]["launches"]
        cells.end()
    assert found["alice"] == found["bob"]
    assert found["alice"]["same_bytes"]


@pytest.mark.parametrize("client", CLIENTS)
def test_ctrl_c_ends_a_wait_in_the_gate(node: Manager, client: str) -> None:
    node.quota("bob", 1, memory_bytes=GIB, task_class="latency-sensitive", compute_percent=100)
    alice = start(node, "alice", client)
    alice.run("launch()\nsynchronize()")
    bob = node.hold("bob", "-b", str(1 << 20))
    node.events().expect("task.granted", env="bob")
    assert node.task("t1")["gate"] == "closed"
    alice.start("launch()")
    line(
        alice, "this task's GPU launches wait: it is best effort, and other tasks have all compute"
    )
    alice.program.process.send_signal(signal.SIGINT)
    assert alice.answer()["error"] == "KeyboardInterrupt"
    assert through_gates(node) == on_device(node, alice.pid) == 1
    bob.communicate()
    assert alice.run("launch()\nsynchronize()\n40 + 2") == 42
    assert through_gates(node) == on_device(node, alice.pid) == 2


@pytest.mark.parametrize("client", CLIENTS)
def test_a_suspended_process_waits_in_its_launch_and_finds_its_bytes(
    node: Manager, client: str
) -> None:
    alice = start(node, "alice", client)
    alice.run("keep()\nlaunch()\nsynchronize()")
    node.call("task_suspend", task="t1")
    node.quota("bob", 1, memory_bytes=4 * GIB)
    bob = node.hold("bob", "-b", str(1 << 20))
    node.events().expect("task.granted", env="bob")
    alice.start("launch()\nsynchronize()\nis_kept()")
    line(alice, "its launch waits until its GPU memory is back on the GPU")
    assert through_gates(node) == 1
    bob.communicate()
    assert alice.answer() == {"value": True}
    assert through_gates(node) == on_device(node, alice.pid) == 2


@pytest.mark.frameworks
def test_each_use_of_a_suspended_gpu_brings_it_back(node: Manager) -> None:
    """The first call of a cell is seldom a launch."""
    alice = start(node, "alice", "bindings")
    alice.run("keep()")
    for use in ("launch", "is_kept", "keep", "allocate", "load", "retain"):
        node.call("task_suspend", task="t1")
        alice.run(f"{use}()\nNone")
        assert node.task("t1")["state"] == "running", use
    node.call("task_suspend", task="t1")
    alice.run("synchronize()\nNone")
    assert node.task("t1")["state"] == "suspended", "nothing is left to wait for"


@pytest.mark.frameworks
@pytest.mark.parametrize("use", ["is_kept()", "allocate()"])
def test_ctrl_c_ends_the_wait_of_a_use_that_is_no_launch(node: Manager, use: str) -> None:
    alice = start(node, "alice", "bindings")
    alice.run("keep()")
    node.call("task_suspend", task="t1")
    node.quota("bob", 1, memory_bytes=4 * GIB)
    bob = node.hold("bob", "-b", str(1 << 20))
    node.events().expect("task.granted", env="bob")
    alice.start(use)
    line(alice, "waits until its GPU memory is back on the GPU")
    alice.program.process.send_signal(signal.SIGINT)
    assert alice.answer()["error"] == "KeyboardInterrupt"
    bob.communicate()
    node.events().expect("task.restored", task="t1")
    assert alice.run("is_kept()") is True
