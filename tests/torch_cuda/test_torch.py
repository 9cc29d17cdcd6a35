"""PyTorch's CUDA build, unmodified: it requests at its first real use of CUDA.

It keeps to the quota with its own messages, and gives all back.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from nodemgr.simulator import SimulatedNode
from tests.support.manager import Manager
from tests.support.notebook import Notebook
from tests.support.programs import Program

from .conftest import GIB, PROGRAMS, Cells

Open = Callable[..., Cells]

TAKE = "def take(gib): return torch.empty(int(gib * 2**30), dtype=torch.uint8, device='cuda')"
LOOK = "[torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.is_initialized()]"
ALLOCATORS = {
    "native": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "expandable, new name": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    "stream-ordered": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}


def the_task(node: Manager) -> dict[str, Any]:
    (task,) = node.status()["tasks"]
    return task


def used_bytes(node: Manager) -> list[int]:
    """By the simulator's own books."""
    with SimulatedNode.open(node.run_dir / "sim") as simulated:
        return [device.used_bytes for device in simulated.books()]


# -- when a lease is asked for --


def test_looking_is_free_and_the_first_use_takes_the_lease(node: Manager, cells: Open) -> None:
    node.quota("alice", 2)
    alice = cells("alice")
    assert alice.run(f"import torch\n{LOOK}") == [True, 2, False]
    assert node.status()["tasks"] == []
    assert alice.run("torch.zeros(3, device='cuda').device") == "device(type='cuda', index=0)"
    assert the_task(node)["pids"] == [alice.pid]
    assert alice.run(LOOK) == [True, 2, True]
    events = node.events()
    alice.end()
    events.expect("task.ended", env="alice")
    assert node.status()["tasks"] == []
    assert used_bytes(node) == [0, 0]


def test_import_mode_takes_the_lease_with_the_import(node: Manager, cells: Open) -> None:
    node.quota("alice", 1, acquire="import")
    alice = cells("alice")
    alice.run("import sys")
    assert node.status()["tasks"] == []
    assert alice.run(f"import torch\n{LOOK}") == [True, 1, False]
    assert the_task(node)["pids"] == [alice.pid]
    assert alice.run("torch.ones(2).cuda().cpu().tolist()") == [1.0, 1.0]


FIRST_USES = {
    "zeros": "torch.zeros(1, device='cuda')",
    "cuda": "torch.ones(1).cuda()",
    "to": "torch.nn.Linear(2, 2).to('cuda')",
    "init": "torch.cuda.init()",
    "stream": "torch.cuda.Stream()",
    "current stream": "torch.cuda.current_stream()",
    "event": "torch.cuda.Event().record()",
    "graph": "torch.cuda.CUDAGraph()",
    "pool": "torch.cuda.MemPool()",
    "pinned": "torch.empty(1, pin_memory=True)",
    "pin": "torch.ones(1).pin_memory()",
    "generator": "torch.Generator(device='cuda').manual_seed(1)",
    "set_device": "torch.cuda.set_device(0)",
    "current_device": "torch.cuda.current_device()",
    "synchronize": "torch.cuda.synchronize()",
    "mem_get_info": "torch.cuda.mem_get_info()",
    "properties": "torch.cuda.get_device_properties(0)",
    "capability": "torch.cuda.get_device_capability()",
    "fraction": "torch.cuda.set_per_process_memory_fraction(0.5)",
    "bfloat16": "torch.cuda.is_bf16_supported()",
    "accelerator": "torch.accelerator.synchronize()",
    "accelerator's device": "torch.accelerator.current_device_index()",
    "accelerator's stream": "torch.Stream(device='cuda')",
    "accelerator's event": "torch.Event(device='cuda').record()",
    "peers": "torch.cuda.can_device_access_peer(0, 0)",
    "raw allocation": "torch.cuda.caching_allocator_alloc(512)",
    "cudart": "torch.cuda.cudart().cudaMemGetInfo(0)",
    "mode": "with torch.device('cuda'): torch.zeros(1)",
    "nccl": (
        "torch.distributed.init_process_group('nccl', store=torch.distributed.HashStore(), rank=0,"
        " world_size=1)"
    ),
    "fork of the generator": "with torch.random.fork_rng(devices=[0]): pass",
    "batches": "list(torch.utils.data.DataLoader([1, 2], pin_memory=True))",
}


@pytest.fixture(scope="module")
def loaded(shared_node: Manager, shared_cells: Open) -> Cells:
    """An interpreter with PyTorch loaded and CUDA unused, for two GPUs; each test forks it."""
    shared_node.quota("alice", 2)
    alice = shared_cells("alice", NODEMGR_GPUS="2")
    alice.run("import os, torch, torch.distributed, torch.utils.data")
    return alice


# Their C++ code reaches the driver without any Python that could be wrapped: they wait as the
# others do, but CUDA's runtime is told of a refusal, and remembers it.
UNGATED = ("pinned", "generator", "accelerator's stream", "accelerator's event")
SIMULATED_NCCL = (  # NCCL has a runtime of its own, which the simulator is not enough for
    "Failed to initialize NCCL communicator"
)


@pytest.mark.parametrize("name", FIRST_USES)
def test_whatever_comes_first_takes_the_lease(
    shared_node: Manager, loaded: Cells, name: str
) -> None:
    shared_node.quota("alice", 2)
    with loaded.fork() as pid:
        loaded.start(FIRST_USES[name])
        answer = loaded.answer()
        assert "value" in answer or SIMULATED_NCCL in answer["text"], answer
        assert the_task(shared_node)["pids"] == [pid]


@pytest.mark.parametrize("name", [name for name in FIRST_USES if name not in UNGATED])
def test_whatever_is_refused_first_works_later(
    shared_node: Manager, loaded: Cells, name: str
) -> None:
    """Had it reached the driver, the runtime would remember that there is no device."""
    shared_node.quota("alice", 1)
    with loaded.fork():
        error, text = loaded.fail(FIRST_USES[name])
        assert (error, text[:9]) == ("RuntimeError", "nodemgr: ")
        shared_node.quota("alice", 2)
        assert loaded.run("torch.ones(2).cuda().cpu().tolist()") == [1.0, 1.0]


@pytest.mark.parametrize("name", UNGATED)
def test_where_the_runtime_was_told_of_a_refusal_the_user_is_told_too(
    node: Manager, cells: Open, name: str
) -> None:
    node.quota("alice", 1)
    alice = cells("alice", NODEMGR_GPUS="2")
    alice.run("import torch")
    alice.fail(FIRST_USES[name])
    assert node.status()["tasks"] == []
    (line,) = [line for line in alice.end().splitlines() if line.startswith("nodemgr: ")]
    assert "quota" in line
    assert "started anew" in line


# -- the quota --


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_at_the_quota_pytorch_frees_its_cache_tries_again_and_says_it_in_its_own_words(
    node: Manager, cells: Open, allocator: str
) -> None:
    node.quota("alice", 1, memory_bytes=8 * GIB)
    alice = cells("alice", **ALLOCATORS[allocator])
    alice.run(f"import torch\n{TAKE}")
    assert alice.run("block = take(1)\ntorch.cuda.mem_get_info()[1]") == 8 * GIB
    free_bytes, total_bytes = alice.run("torch.cuda.mem_get_info()")
    assert used_bytes(node)[0] == total_bytes - free_bytes
    assert GIB < total_bytes - free_bytes < GIB + 128 * 2**20  # the block and the context

    alice.run("blocks = [take(2), take(2), take(2)]")
    alice.run("del blocks\nlarge = take(6.5)")  # there is no room beside what was cached
    assert alice.run("large.nbytes") == int(6.5 * GIB)
    error, text = alice.fail("take(4)")
    assert error == "OutOfMemoryError"
    assert (
        text.startswith("CUDA out of memory. Tried to allocate 4.00 GiB")
        or allocator == "stream-ordered"
    ), text
    assert "8.00 GiB" in text or allocator == "stream-ordered", text
    assert alice.run("del large\nagain = take(5)\nagain.nbytes") == 5 * GIB  # a refusal is no end
    alice.run("del again, block\ntorch.cuda.synchronize()\ntorch.cuda.empty_cache()")
    assert used_bytes(node)[0] < 128 * 2**20

    events = node.events()
    stderr = alice.end()
    assert len([line for line in stderr.splitlines() if "quota" in line]) == 1, stderr
    events.expect("task.ended", env="alice")
    assert used_bytes(node) == [0, 0]


def test_the_native_allocator_counts_a_retry_and_a_refusal(node: Manager, cells: Open) -> None:
    node.quota("alice", 1, memory_bytes=8 * GIB)
    alice = cells("alice")
    alice.run(
        f"import torch\n{TAKE}\nblocks = [take(2), take(2), take(2)]\ndel blocks\nlarge = take(7)"
    )
    counts = "[torch.cuda.memory_stats()[name] for name in ('num_alloc_retries', 'num_ooms')]"
    assert alice.run(counts) == [1, 0]
    alice.fail("take(7)")
    assert alice.run(counts) == [2, 1]
    assert alice.run("torch.cuda.memory_reserved()") == 7 * GIB


def test_a_fraction_is_one_of_the_quota(node: Manager, cells: Open) -> None:
    node.quota("alice", 1, memory_bytes=8 * GIB)
    alice = cells("alice")
    alice.run(f"import torch\n{TAKE}\ntorch.cuda.set_per_process_memory_fraction(0.5)")
    error, text = alice.fail("take(5)")
    assert error == "OutOfMemoryError"
    assert "4.00 GiB allowed" in text
    assert alice.run("take(3).nbytes") == 3 * GIB
    assert "quota" not in alice.end()  # it was PyTorch that said no


def test_two_processes_share_one_grant(node: Manager, cells: Open) -> None:
    node.quota("alice", 1, memory_bytes=8 * GIB)
    first, second = cells("alice"), cells("alice")
    first.run(f"import torch\n{TAKE}\nblock = take(5)")
    second.run(f"import torch\n{TAKE}\nblock = take(1)")
    assert len(node.status()["tasks"]) == 2
    free_bytes, total_bytes = second.run("torch.cuda.mem_get_info()")
    assert total_bytes == 8 * GIB
    assert free_bytes < 2 * GIB
    assert second.fail("take(3)")[0] == "OutOfMemoryError"
    events = node.events(None)
    first.end()
    events.expect("task.ended", env="alice")
    assert second.run("take(3).nbytes") == 3 * GIB
    assert "alice" in second.end()


# -- waiting --


def test_a_cancelled_wait_then_a_successful_one_in_the_same_interpreter(
    node: Manager, cells: Open
) -> None:
    node.quota("alice", 2)
    node.quota("bob", 1, default_gpus=1)
    alice, bob = cells("alice"), cells("bob")
    alice.run("import torch\ntorch.zeros(1, device='cuda')")
    bob.run("import torch")
    bob.start("torch.zeros(1, device='cuda')")
    events = node.events()
    events.expect("task.waiting", env="bob")
    bob.program.process.send_signal(signal.SIGINT)
    assert bob.answer()["error"] == "KeyboardInterrupt"
    assert bob.run("torch.cuda.is_initialized()") is False
    events.expect("request.withdrawn", env="bob")
    alice.end()
    events.expect("task.ended", env="alice")
    assert bob.run("torch.ones(4, device='cuda').device.index") == 0
    assert the_task(node)["env"] == "bob"


def test_a_cancelled_wait_then_a_successful_one_in_the_same_kernel(
    node: Manager, cells: Open, notebook: Callable[[str], Notebook]
) -> None:
    node.quota("alice", 2)
    node.quota("bob", 1)
    alice, bob = cells("alice"), notebook("bob")
    alice.run("import torch\ntorch.zeros(1, device='cuda')")
    assert bob.run("import torch").error is None
    events = node.events()
    waiting = bob.until(bob.start("torch.zeros(1, device='cuda')"), lambda cell: cell.lines)
    bob.manager.interrupt_kernel()
    bob.until(waiting, lambda cell: cell.done)
    assert (waiting.error or "").startswith("KeyboardInterrupt")
    events.expect("request.withdrawn", env="bob")
    assert bob.run("torch.cuda.is_initialized()").outputs == ["False"]
    alice.end()
    events.expect("task.ended", env="alice")
    assert bob.run("torch.ones(4, device='cuda').device.index").outputs == ["0"]
    assert the_task(node)["env"] == "bob"


@pytest.mark.parametrize("name", UNGATED)
def test_ctrl_c_in_a_wait_inside_the_driver_is_raised_in_the_place_of_its_error(
    shared_node: Manager, shared_cells: Open, loaded: Cells, name: str
) -> None:
    shared_node.quota("alice", 2)
    shared_node.quota("bob", 1)
    bob = shared_cells("bob")
    bob.run("import ctypes\nassert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0")
    events = shared_node.events(since=None)
    with loaded.fork() as pid:
        loaded.start(FIRST_USES[name])
        events.expect("task.waiting", env="alice")
        os.kill(pid, signal.SIGINT)
        assert loaded.answer()["error"] == "KeyboardInterrupt"
        events.expect("request.withdrawn", env="alice")
        assert loaded.run("40 + 2") == 42
    bob.end()


def test_interrupt_ends_a_cells_wait_inside_the_driver(
    node: Manager, cells: Open, notebook: Callable[[str], Notebook]
) -> None:
    """The kernel lives on; but CUDA's runtime remembers that there was no GPU.

    A line reports that to the user.
    """
    node.quota("alice", 2)
    node.quota("bob", 1)
    alice, bob = cells("alice"), notebook("bob")
    alice.run("import torch\ntorch.zeros(1, device='cuda')")
    assert bob.run("import torch").error is None
    waiting = bob.until(bob.start(FIRST_USES["pinned"]), lambda cell: cell.lines)
    bob.manager.interrupt_kernel()
    bob.until(waiting, lambda cell: cell.done)
    assert (waiting.error or "").startswith("KeyboardInterrupt")
    assert "until the program is started anew" in waiting.stderr
    node.events().expect("request.withdrawn", env="bob")
    assert bob.run("40 + 2").outputs == ["42"]
    alice.end()


def test_a_waiting_program_goes_on_by_itself(node: Manager, cells: Open) -> None:
    node.quota("alice", 2)
    node.quota("bob", 1)
    alice, bob = cells("alice"), cells("bob")
    alice.run("import torch\ntorch.zeros(1, device='cuda')")
    bob.run("import torch")
    bob.start("torch.ones(2).cuda().cpu().tolist()")
    events = node.events()
    events.expect("task.waiting", env="bob")
    alice.program.kill()
    assert bob.answer() == {"value": [1.0, 1.0]}


# -- more than one process, more than one GPU --


def test_torchrun_with_two_ranks_is_one_task_with_one_lease(
    node: Manager, start: Callable[..., Program]
) -> None:
    node.quota("alice", 2)
    training = start(
        "alice",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(PROGRAMS / "ranks.py"),
    )
    expected = [
        {"rank": rank, "before": 2, "count": 2, "device": f"cuda:{rank}", "met": 3}
        for rank in (0, 1)
    ]
    assert training.line() == {"ranks": expected}
    task = the_task(node)
    assert len(task["gpus"]) == 2
    assert len(task["pids"]) == 2
    assert all(GIB < used < 2 * GIB for used in used_bytes(node))
    events = node.events()
    code, stderr = training.end()
    assert code == 0, stderr
    events.expect("task.ended", env="alice")
    granted = [event for event in events.seen if event["name"] == "task.granted"]
    assert len(granted) == 1


def test_workers_of_a_loader_belong_to_the_task_and_batches_are_pinned(
    node: Manager, cells: Open
) -> None:
    node.quota("alice", 1)
    alice = cells("alice")
    alice.run("import torch, torch.utils.data as data\ntorch.zeros(1, device='cuda')")
    alice.run(
        "loader = data.DataLoader(list(range(8)), batch_size=4, num_workers=2, pin_memory=True)"
    )
    assert alice.run(
        "[(batch.is_pinned(), batch.cuda(non_blocking=True).cpu().tolist()) for batch in loader]"
    ) == [
        [True, [0, 1, 2, 3]],
        [True, [4, 5, 6, 7]],
    ]
    assert the_task(node)["pids"] == [alice.pid]


def test_captured_graphs_streams_and_pools_run(node: Manager, cells: Open) -> None:
    node.quota("alice", 1, memory_bytes=4 * GIB)
    alice = cells("alice")
    alice.run(
        "import torch\ngraph, pool, side = torch.cuda.CUDAGraph(), torch.cuda.MemPool(),"
        " torch.cuda.Stream()"
    )
    alice.run(
        "with torch.cuda.graph(graph): kept = torch.empty(2**28, dtype=torch.uint8, device='cuda')"
        " + 1\ngraph.replay()"
    )
    alice.run(
        "with torch.cuda.use_mem_pool(pool): pooled = torch.empty(2**28, dtype=torch.uint8,"
        " device='cuda')"
    )
    alice.run(
        "with torch.cuda.stream(side): other = torch.empty(2**28, dtype=torch.uint8,"
        " device='cuda')\nside.synchronize()"
    )
    assert used_bytes(node)[0] >= 3 * 2**28
    assert (
        alice.run(
            "start, end = (torch.cuda.Event(enable_timing=True) for _ in '12')\nstart.record(),"
            " end.record()\nend.query()"
        )
        is True
    )
    assert alice.run("start.elapsed_time(end) >= 0") is True
    assert (
        alice.fail("torch.empty(5 * 2**30, dtype=torch.uint8, device='cuda')")[0]
        == "OutOfMemoryError"
    )
    alice.end()
