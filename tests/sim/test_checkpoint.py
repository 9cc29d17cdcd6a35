"""cuCheckpointProcess*: a process is locked, its device memory goes away and comes back."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nodemgr import simulator
from nodemgr.simulator import SimulatedNode
from tests.sim.client import Client, refused
from tests.sim.conftest import GIB, MIB, StartClient
from tests.support.limits import WAIT_LIMIT_S

RUNNING, LOCKED, CHECKPOINTED = range(3)


@pytest.fixture
def target(node: SimulatedNode, ready: StartClient) -> Client:
    return ready(node, "group")


@pytest.fixture
def helper(node: SimulatedNode, start: StartClient) -> Client:
    """It needs no context."""
    started = start(node)
    started.init()
    return started


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def suspend(helper: Client, pid: int) -> None:
    helper.lock_process(pid)
    helper.checkpoint_process(pid)


def resume(helper: Client, pid: int) -> None:
    helper.restore_process(pid)
    helper.unlock_process(pid)


def test_memory_goes_away_and_comes_back(
    node: SimulatedNode, target: Client, helper: Client
) -> None:
    address = target.alloc(300 * MIB)
    target.put(address, "some bytes")
    suspend(helper, target.pid)
    assert helper.process_state(target.pid) == CHECKPOINTED
    assert node.books()[0].used_bytes == 0
    assert node.group(0, "group")[0] == 0

    resume(helper, target.pid)
    assert helper.process_state(target.pid) == RUNNING
    assert node.books()[0].used_bytes == 300 * MIB
    assert node.group(0, "group")[0] == 300 * MIB
    assert target.get(address, 10) == "some bytes"
    target.free(address)
    assert node.books()[0].used_bytes == 0


def test_each_state_has_its_operations(target: Client, helper: Client) -> None:
    operations = {
        "lock": helper.lock_process,
        "checkpoint": helper.checkpoint_process,
        "restore": helper.restore_process,
        "unlock": helper.unlock_process,
    }

    def only(*allowed: str) -> None:
        for name, operation in operations.items():
            if name not in allowed:
                with refused("ILLEGAL_STATE"):
                    operation(target.pid)

    only("lock")
    helper.lock_process(target.pid)
    only("checkpoint", "unlock")
    helper.checkpoint_process(target.pid)
    only("restore")
    helper.restore_process(target.pid)
    only("checkpoint", "unlock")
    helper.unlock_process(target.pid)
    only("lock")


def test_calls_of_a_locked_process_wait(
    node: SimulatedNode, target: Client, helper: Client, thread: ThreadPoolExecutor
) -> None:
    suspend(helper, target.pid)
    call = thread.submit(target.alloc, MIB)
    helper.restore_process(target.pid)
    assert not call.done()
    assert node.books()[0].used_bytes == 0
    helper.unlock_process(target.pid)
    assert call.result(WAIT_LIMIT_S)


def test_a_lock_waits_for_work_under_way(target: Client, helper: Client) -> None:
    start = target.mark()
    target.launch(target.timed_kernel("sleep_ms_50"))
    end = target.mark()
    helper.lock_process(target.pid)
    helper.unlock_process(target.pid)
    target.do("cuEventQuery", end)
    assert target.elapsed_ms(start, end) >= 50


def test_a_lock_gives_up_after_its_timeout(target: Client, helper: Client) -> None:
    stream = target.create_stream()
    gate = target.gate(stream)
    with refused("NOT_READY"):
        helper.lock_process(target.pid, 60)
    assert helper.process_state(target.pid) == RUNNING
    target.open_gate(gate)
    target.synchronize()
    helper.lock_process(target.pid, 10_000)


def test_a_wait_for_work_goes_on_under_a_lock(
    target: Client, helper: Client, thread: ThreadPoolExecutor
) -> None:
    target.launch(target.timed_kernel("sleep_ms_80"))
    call = thread.submit(target.synchronize)
    suspend(helper, target.pid)
    resume(helper, target.pid)
    call.result(WAIT_LIMIT_S)


def test_a_failed_restore_is_final(
    node: SimulatedNode, target: Client, helper: Client, ready: StartClient
) -> None:
    target.alloc(600 * MIB)
    suspend(helper, target.pid)
    other = ready(node)
    address = other.alloc(600 * MIB)
    with refused("OUT_OF_MEMORY"):
        helper.restore_process(target.pid)
    assert node.books()[0].used_bytes == 600 * MIB
    other.free(address)
    with refused("OPERATING_SYSTEM"):
        helper.restore_process(target.pid)
    with refused("ILLEGAL_STATE"):
        helper.unlock_process(target.pid)
    assert helper.process_state(target.pid) == CHECKPOINTED
    target.kill()
    assert node.books()[0].used_bytes == 0


def resident_bytes(pid: int) -> int:
    """Anonymous memory of a process, in the swap or not."""
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(rows[name].split()[0]) for name in ("RssAnon", "VmSwap")) * 1024


def test_the_memory_is_host_memory_of_the_process_meanwhile(target: Client, helper: Client) -> None:
    address = target.alloc(300 * MIB)
    target.put(address, "some bytes")
    before = resident_bytes(target.pid)
    for _ in range(2):
        suspend(helper, target.pid)
        assert resident_bytes(target.pid) - before >= 300 * MIB
        resume(helper, target.pid)
        assert target.get(address, 10) == "some bytes"
        assert resident_bytes(target.pid) - before < 20 * MIB


def test_a_checkpoint_without_host_memory_leaves_the_process_locked(
    node: SimulatedNode, target: Client, helper: Client
) -> None:
    address = target.alloc(10 * MIB)
    target.put(address, "some bytes")
    node.fail_checkpoints(1)
    helper.lock_process(target.pid)
    with refused("OUT_OF_MEMORY"):
        helper.checkpoint_process(target.pid)
    assert helper.process_state(target.pid) == LOCKED
    assert node.books()[0].used_bytes == 10 * MIB
    helper.checkpoint_process(target.pid)
    resume(helper, target.pid)
    assert target.get(address, 10) == "some bytes"


def test_shared_and_managed_memory_are_refused(
    node: SimulatedNode, start: StartClient, helper: Client
) -> None:
    managed, exporter = start(node), start(node)
    managed.ready()
    managed.alloc_managed(MIB)
    exporter.ready()
    exporter.ipc_handle(exporter.alloc(MIB))
    for client in (managed, exporter):
        helper.lock_process(client.pid)
        with refused("NOT_SUPPORTED"):
            helper.checkpoint_process(client.pid)
        helper.unlock_process(client.pid)


def test_odd_processes_and_arguments_are_refused(target: Client, helper: Client) -> None:
    with refused("NOT_INITIALIZED"):
        helper.lock_process(1)
    with refused("INVALID_VALUE"):
        helper.lock_process(0)
    with refused("INVALID_VALUE"):
        helper.lock_process(target.pid, 0, 1)
    target.kill()
    with refused("NOT_INITIALIZED"):
        helper.process_state(target.pid)


def test_a_killed_locker_leaves_nothing_closed(
    node: SimulatedNode, target: Client, start: StartClient, thread: ThreadPoolExecutor
) -> None:
    gate = target.gate(target.create_stream())
    locker = start(node)
    locker.init()
    locker.begin_suspensions(target.pid)
    call = thread.submit(target.alloc, MIB)
    locker.kill()
    assert call.result(WAIT_LIMIT_S)
    target.open_gate(gate)
    target.synchronize()
    assert node.books()[0].used_bytes == MIB


def test_helpers_die_at_any_step(node: SimulatedNode, target: Client, start: StartClient) -> None:
    chance = random.Random(20261122)
    address = target.alloc(64 * MIB)
    target.put(address, "some bytes")
    for _ in range(15):
        dying = start(node)
        dying.init()
        dying.begin_suspensions(target.pid)
        time.sleep(chance.uniform(0, 0.03))  # a moment to die at, not one to wait for
        dying.kill()
        next_one = start(node)
        next_one.init()
        if next_one.process_state(target.pid) == CHECKPOINTED:
            next_one.restore_process(target.pid)
        if next_one.process_state(target.pid) == LOCKED:
            next_one.unlock_process(target.pid)
        assert target.get(address, 10) == "some bytes"
        assert node.books()[0].used_bytes == node.group(0, "group")[0] == 64 * MIB
    target.free(address)
    assert node.books()[0].used_bytes == 0


def test_an_old_driver_has_no_checkpoints(tmp_path: Path, ready: StartClient) -> None:
    with simulator.create(tmp_path / "n", 1, GIB, driver_version=12040) as node:
        client = ready(node)
        with refused("NOT_SUPPORTED"):
            client.lock_process(client.pid)
        assert client.look_up("cuCheckpointProcessLock", 12080)[1:] == [1, None]
        assert client.look_up("cuMemAlloc", 13000)[0] == 0
        assert client.got_version() == 12040


def test_a_process_killed_while_it_is_restored_leaves_nothing_to_the_next_owner_of_its_slot(
    tmp_path: Path, start: StartClient, thread: ThreadPoolExecutor
) -> None:
    with simulator.create(tmp_path / "n", 1, 4 * GIB, context_bytes=0, module_bytes=0) as node:
        helper, target, watcher, heir = start(node), start(node), start(node), start(node)
        helper.init()
        target.ready()
        watcher.init()
        target.alloc(2 * GIB)
        while True:
            suspend(helper, target.pid)
            restoring = thread.submit(helper.restore_process, target.pid)
            while node.books()[0].used_bytes == 0 and not restoring.done():
                pass
            helper.stop()
            if watcher.process_state(target.pid) == CHECKPOINTED:
                break  # within the time that the bus takes
            helper.resume()
            restoring.result(WAIT_LIMIT_S)
            helper.unlock_process(target.pid)
        target.kill()
        heir.init()
        helper.resume()
        with refused("NOT_INITIALIZED"):
            restoring.result(WAIT_LIMIT_S)
        heir.ready()
        assert heir.alloc(MIB)
