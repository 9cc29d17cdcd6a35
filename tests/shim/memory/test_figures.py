"""The figures of memory that a program gets, in any state of its lease; the line of a refusal."""

from __future__ import annotations

import os
import re
import threading

import pytest

from nodemgr._native import ffi, lib
from nodemgr.edge.ledger.native_ledger import SlotState
from tests.shim.world import GIB, MIB, NOT_INITIALIZED, OUT_OF_MEMORY, Probe, World

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": GIB}


def info(probe: Probe) -> tuple[int, int]:
    """(free, total) of cuMemGetInfo."""
    free, total = probe.alloc(8), probe.alloc(8)
    assert probe.call("cuMemGetInfo_v2", free, total) == 0
    return probe.u64(free), probe.u64(total)


def shown(line: str, what: str) -> int:
    """Bytes of a figure that the line names."""
    found = re.search(rf"{what} ([0-9.]+) (B|KiB|MiB|GiB)", line)
    assert found, (what, line)
    return round(float(found[1]) * UNITS[found[2]])


def test_a_total_is_never_zero(env: World) -> None:
    """A stopped task's share is offered to others: its limit is 0. Programs divide by the total."""
    with env.probe() as probe:
        env.manager.set_limit(0)
        free, total = info(probe)
        assert free == 0 < total
        env.manager.set_limit(GIB)
        probe.memory(100 * MIB)
        env.manager.set_state(SlotState.STALLED)
        env.manager.set_limit(0)
        free, total = info(probe)
        assert free == 0
        assert total >= 100 * MIB


@pytest.mark.parametrize("name", ["cuMemGetInfo_v2", "cuMemGetInfo"])
def test_an_error_leaves_what_the_driver_writes(env: World, name: str) -> None:
    with env.probe(started=False) as probe:
        free, total = probe.alloc(content=b"\7"), probe.alloc(content=b"\7")
        assert probe.call(name, free, total) == NOT_INITIALIZED
        assert (probe.u64(free), probe.u64(total)) == (0, 0)
        assert probe.call(name, 0, 0) == NOT_INITIALIZED


def test_nothing_is_free_once_the_lease_is_lost(env: World) -> None:
    env.manager.beat_answer = "fence"
    with env.probe() as probe:
        address = probe.memory(100 * MIB)
        env.manager.await_verb("BEAT")
        while probe.call("cuMemAlloc_v2", probe.alloc(8), 1) == 0:
            pass
        for limit_bytes in (GIB, 0):
            env.manager.set_limit(limit_bytes)
            free, total = info(probe)
            assert free == 0
            assert 100 * MIB <= total <= GIB
        assert probe.call("cuMemFree_v2", address) == 0
        assert info(probe)[0] == 0
        lines = probe.end().stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(
        "nodemgr: the lease was taken back while this process was stopped; what this process holds"
        " stays"
    )


def test_a_stalled_process_without_an_answer_is_told_so(env: World) -> None:
    with env.probe() as probe:
        env.manager.set_state(SlotState.STALLED)
        for _ in range(2):
            assert probe.call("cuMemAlloc_v2", probe.alloc(8), MIB) == OUT_OF_MEMORY
        lines = probe.end().stderr.splitlines()
    assert len(lines) == 1
    assert "GPU memory is refused for now" in lines[0]


def test_a_refusal_names_the_drivers_surplus_separately(env: World) -> None:
    with env.probe() as probe:
        probe.memory(500 * MIB)
        env.manager.ledger.set_correction(0, 64 * MIB)
        assert probe.call("cuMemAlloc_v2", probe.alloc(8), 700 * MIB) == OUT_OF_MEMORY
        own = env.manager.ledger.slot_used(0, 0)
        (line,) = probe.end().stderr.splitlines()
    assert shown(line, "this process holds") == own
    assert shown(line, "its other processes") == 0
    assert shown(line, "and the driver shows") == 64 * MIB
    assert shown(line, "may use") == GIB


def test_a_reservation_about_to_be_withdrawn_is_in_no_refusal(env: World) -> None:
    """Another process's word stands too high for an instant, again and again.

    The figures add up to the quota.
    """
    native = ffi.new("struct nm_ledger *")
    assert (
        lib.nm_ledger_map_client(native, *(os.dup(fd) for fd in env.manager.ledger.fds))
        == lib.NM_LEDGER_OK
    )
    env.manager.ledger.set_slot(900, 0, SlotState.LIVE)
    done = threading.Event()

    def race() -> None:
        while not done.is_set():
            lib.nm_ledger_charge(native, 0, 900, 0, 700 * MIB)
            lib.nm_ledger_release(native, 0, 900, 0, 700 * MIB)

    racer = threading.Thread(target=race)
    racer.start()
    lines = []
    for _ in range(5):
        with env.probe() as probe:
            while probe.call("cuMemAlloc_v2", probe.alloc(8), 500 * MIB) != 0:
                pass
            assert probe.call("cuMemAlloc_v2", probe.alloc(8), 800 * MIB) == OUT_OF_MEMORY
            lines += probe.end().stderr.splitlines()
    done.set()
    racer.join()
    assert len(lines) == 5
    for line in lines:
        assert shown(line, "this process holds") + shown(line, "its other processes") <= GIB, line


def test_what_a_pool_holds_is_charged_once_over_two_leases(env: World) -> None:
    with env.probe() as probe:
        pool = probe.alloc(8)
        assert probe.call("cuDeviceGetDefaultMemPool", pool, 0) == 0
        first, second = probe.alloc(8), probe.alloc(8)
        assert probe.call("cuMemAllocAsync", first, 300 * MIB, 0) == 0
        release = int(probe.tell("resolve", "default", "nodemgr_release", "-", 0, 0))
        probe.tell("call", release)
        assert probe.call("cuInit", 0) == 0
        assert probe.call("cuMemAllocAsync", second, 100 * MIB, 0) == 0
        env.agree(400 * MIB)
        for block in (first, second):
            assert probe.call("cuMemFreeAsync", probe.u64(block), 0) == 0
        assert probe.call("cuStreamSynchronize", 0) == 0
        env.agree(0)
