"""PyTorch's CUDA build with a class and a share: it launches through the gate, and sees no gate.

Each program runs in an env with a share and in one without: it finds the same.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.clients.launch_counts import on_device, through_gates
from tests.support.manager import Manager

from .conftest import GIB, Cells

Open = Callable[..., Cells]
SHARE = {"task_class": "best-effort", "compute_percent": 80}

STREAMS = """
import torch
side, other = torch.cuda.Stream(), torch.cuda.Stream()
a = torch.ones(1 << 16, device='cuda')
event = torch.cuda.Event()
for _ in range(20):
    with torch.cuda.stream(side):
        a.add_(1)
        event.record()
    other.wait_event(event)
    with torch.cuda.stream(other):
        a.mul_(2)
    torch.cuda.current_stream().wait_stream(other)
torch.cuda.synchronize()
[a.shape[0], a.device.index, event.query(), side.query(), torch.cuda.memory_allocated()]
"""
EVENTS = """
start, end = (torch.cuda.Event(enable_timing=True) for _ in '12')
start.record()
for _ in range(50): a.add_(1)
end.record()
end.synchronize()
[start.elapsed_time(end) > 0, end.query()]
"""
GRAPH = """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    kept = a + 1
    for _ in range(30): kept = kept * 2
torch.cuda.synchronize()
kept.shape[0]
"""
REPLAY = """
for _ in range(10): graph.replay()
torch.cuda.synchronize()
torch.cuda.memory_reserved()
"""
ALLOCATOR = """
blocks = [torch.empty(1 << 24, dtype=torch.uint8, device='cuda').fill_(n) for n in range(8)]
del blocks
blocks = [torch.zeros(1 << 20, device='cuda') for _ in range(8)]
torch.cuda.empty_cache()
[torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[1]]
"""
TRAINING = """
w = torch.ones(64, 64, device='cuda', requires_grad=True)
for _ in range(5):
    loss = (w * 2).sum()
    loss.backward()
    with torch.no_grad(): w -= w.grad
    w.grad = None
torch.cuda.synchronize()
list(w.shape)
"""
BYTES = "torch.arange(1 << 16, dtype=torch.int64).cuda()"


@pytest.fixture
def gated_node(make_manager: Callable[..., Manager]) -> Manager:
    """A GPU on which alice has a share, and bob has none."""
    node = make_manager(simulate="1x16GiB")
    node.quota("alice", 1, memory_bytes=8 * GIB, **SHARE)
    node.quota("bob", 1, memory_bytes=8 * GIB)
    return node


@pytest.fixture
def node(gated_node: Manager) -> Manager:
    """The node of this file's cells."""
    return gated_node


def line(alice: Cells, text: str) -> None:
    """Until the program has printed a line with the text."""
    stderr = alice.program.process.stderr
    assert stderr is not None
    while text not in (found := stderr.readline()):
        assert found


def passed(node: Manager, alice: Cells, source: str) -> int:
    """The launches of the cell: all that reached the device passed the gate."""
    before = through_gates(node), on_device(node, alice.pid)
    alice.run(source)
    after = through_gates(node), on_device(node, alice.pid)
    assert after[0] - before[0] == after[1] - before[1]
    return after[1] - before[1]


def test_a_gated_program_finds_what_an_ungated_one_finds(node: Manager, cells: Open) -> None:
    alice = cells("alice")
    found = [alice.run(source) for source in (STREAMS, EVENTS, GRAPH, REPLAY, ALLOCATOR, TRAINING)]
    launches = through_gates(node)
    assert launches == on_device(node, alice.pid) > 100
    assert node.task("t1")["gate"] == "limited"
    alice.end()
    bob = cells("bob")
    plain = [bob.run(source) for source in (STREAMS, EVENTS, GRAPH, REPLAY, ALLOCATOR, TRAINING)]
    assert found == plain
    assert on_device(node, bob.pid) == launches
    assert node.task("t2")["gate"] == "none"
    bob.end()


def test_a_capture_passes_no_gate_and_each_replay_is_one_launch(node: Manager, cells: Open) -> None:
    alice = cells("alice")
    assert passed(node, alice, STREAMS) >= 40
    assert passed(node, alice, GRAPH) == 0
    assert passed(node, alice, REPLAY) == 10


def test_a_suspended_process_waits_in_its_launch_and_finds_its_bytes(
    node: Manager, cells: Open
) -> None:
    node.quota("bob", 1, memory_bytes=12 * GIB)
    alice = cells("alice")
    alice.run(f"import torch\na = torch.ones(8, device='cuda')\nb = {BYTES}")
    launched = on_device(node, alice.pid)
    node.call("task_suspend", task="t1")
    bob = cells("bob")
    bob.run("import torch\ntorch.zeros(1, device='cuda')")
    alice.start("a.add_(1)\n(b.cpu() == torch.arange(1 << 16)).all().item()")
    line(alice, "its launch waits until its GPU memory is back on the GPU")
    assert through_gates(node) == launched
    bob.end()
    assert alice.answer() == {"value": True}
    assert on_device(node, alice.pid) == through_gates(node) == launched + 1


@pytest.mark.parametrize("source", ["a.add_(1)", "graph.replay()"])
def test_ctrl_c_in_the_gate_is_raised_in_the_place_of_the_launchs_error(
    node: Manager, cells: Open, source: str
) -> None:
    node.quota("bob", 1, memory_bytes=GIB, task_class="latency-sensitive", compute_percent=100)
    alice = cells("alice")
    alice.run(STREAMS + GRAPH)
    bob = cells("bob")
    bob.run("import torch\ntorch.zeros(1, device='cuda')")
    assert node.task("t1")["gate"] == "closed"
    launched = on_device(node, alice.pid)
    alice.start(source)
    line(alice, "launches wait")
    alice.program.process.send_signal(signal.SIGINT)
    assert alice.answer()["error"] == "KeyboardInterrupt"
    assert on_device(node, alice.pid) == launched
    bob.end()
    assert alice.run(f"{source}\ntorch.cuda.synchronize()\n40 + 2") == 42
