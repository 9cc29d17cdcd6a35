"""Every row of csrc/hooks/hooks.def, by every route: its allocation is charged while it lives.

The reported figures are the quota's.

A scenario names the rows that it exercises; together they name all rows. Ledger and the simulator's
books must agree at each step, so this test shows a row that is missing, or a hook that a route does
not reach.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.shim.world import GIB, MIB, OUT_OF_MEMORY, ROUTES, Probe, World, hooks

DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
PINNED, MANAGED = 1, 2  # CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_ALLOCATION_TYPE_MANAGED
POSIX_FD = DMA_BUF_FD = 1
GRANULE = 2 * MIB


@dataclass(frozen=True)
class Scenario:
    rows: frozenset[str]
    run: Callable[[Probe, World], None]
    started: bool = True


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    *rows: str, started: bool = True
) -> Callable[[Callable[[Probe, World], None]], Callable[[Probe, World], None]]:
    def enter(run: Callable[[Probe, World], None]) -> Callable[[Probe, World], None]:
        SCENARIOS[run.__name__] = Scenario(frozenset(rows), run, started)
        return run

    return enter


# -- the start --


@scenario("cuInit", started=False)
def acquires_at_init(probe: Probe, env: World) -> None:
    assert probe.cuInit(0) == 0
    assert env.manager.verbs()[0] == "ACQUIRE"
    assert probe.tell("env", "CUDA_VISIBLE_DEVICES") == env.uuids[0]


def hands_out_a_hook(probe: Probe, env: World, get: str) -> None:
    allocate = probe.look_up(get, "cuMemAlloc", 3020, 0)
    assert probe.tell("call", allocate, probe.alloc(8), 3 * MIB) == "0"
    env.agree(3 * MIB)
    again = probe.look_up(get, "cuGetProcAddress", 12000, 0)  # looked up through itself
    assert again == probe.resolve("cuGetProcAddress_v2", "getproc")


@scenario("cuGetProcAddress")
def first_lookup(probe: Probe, env: World) -> None:
    hands_out_a_hook(probe, env, "cuGetProcAddress")


@scenario("cuGetProcAddress_v2")
def second_lookup(probe: Probe, env: World) -> None:
    hands_out_a_hook(probe, env, "cuGetProcAddress_v2")


# -- linear memory --


@scenario("cuMemAlloc_v2", "cuMemFree_v2")
def linear(probe: Probe, env: World) -> None:
    first, second = probe.alloc(8), probe.alloc(8)
    assert probe.cuMemAlloc_v2(first, 5 * MIB) == 0
    assert probe.cuMemAlloc_v2(second, 1000) == 0
    env.agree(5 * MIB + 1000)
    assert probe.cuMemFree_v2(probe.u64(first)) == 0
    env.agree(1000)
    assert probe.cuMemFree_v2(probe.u64(second)) == 0
    env.agree(0)


@scenario("cuMemAlloc", "cuMemFree")
def linear_of_old(probe: Probe, env: World) -> None:
    address = probe.alloc(4)
    assert probe.cuMemAlloc(address, MIB) == 0
    env.agree(MIB)
    assert probe.cuMemFree(probe.u32(address)) == 0
    env.agree(0)


@scenario("cuMemAllocPitch_v2")
def pitched(probe: Probe, env: World) -> None:
    address, pitch = probe.alloc(8), probe.alloc(8)
    assert probe.cuMemAllocPitch_v2(address, pitch, 1000, 100, 4) == 0
    env.agree(probe.u64(pitch) * 100)
    assert probe.cuMemFree_v2(probe.u64(address)) == 0
    env.agree(0)


@scenario("cuMemAllocPitch")
def pitched_of_old(probe: Probe, env: World) -> None:
    address, pitch = probe.alloc(4), probe.alloc(4)
    assert probe.cuMemAllocPitch(address, pitch, 1000, 100, 4) == 0
    env.agree(probe.u32(pitch) * 100)
    assert probe.cuMemFree(probe.u32(address)) == 0
    env.agree(0)


@scenario("cuMemAllocManaged")
def managed(probe: Probe, env: World) -> None:
    address = probe.alloc(8)
    assert probe.cuMemAllocManaged(address, 7 * MIB, 1) == 0
    env.agree(7 * MIB)
    assert probe.cuMemFree_v2(probe.u64(address)) == 0
    env.agree(0)


def is_unsuspendable(env: World) -> bool:
    """By the word of the one process in the ledger."""
    (seat,) = env.manager.seats
    return env.manager.ledger.is_unsuspendable(seat.slot)


@scenario("cuMemAllocManaged", "cuMemFree_v2")
def managed_memory_cannot_be_suspended(probe: Probe, env: World) -> None:
    first, second = probe.alloc(8), probe.alloc(8)
    assert probe.cuMemAllocManaged(first, MIB, 1) == 0
    assert probe.cuMemAllocManaged(second, MIB, 1) == 0
    assert probe.cuMemFree_v2(probe.u64(first)) == 0
    assert is_unsuspendable(env)
    assert probe.cuMemFree_v2(probe.u64(second)) == 0
    assert not is_unsuspendable(env)


@scenario("cuIpcGetMemHandle")
def memory_of_ipc_cannot_be_suspended(probe: Probe, env: World) -> None:
    address = probe.memory(MIB)
    assert not is_unsuspendable(env)
    assert probe.cuIpcGetMemHandle(probe.alloc(64), address) == 0
    assert is_unsuspendable(env)


@scenario("cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", "cuImportExternalMemory")
def an_import_that_fails_changes_nothing(probe: Probe, env: World) -> None:
    """The probe cannot pass a handle by value: memory/test_exports.py has a program that does."""
    assert probe.cuIpcOpenMemHandle(probe.alloc(8), 0, 0) != 0
    assert probe.cuIpcOpenMemHandle_v2(probe.alloc(8), 0, 0) != 0
    assert probe.cuImportExternalMemory(probe.alloc(8), 0) != 0
    assert not is_unsuspendable(env)


@scenario("cuMemExportToShareableHandle")
def exported_memory_cannot_be_suspended(probe: Probe, env: World) -> None:
    exported(probe, "cuMemExportToShareableHandle", create(probe, GRANULE))
    assert is_unsuspendable(env)


# -- virtual memory --


def location_of(device: int) -> bytes:
    return struct.pack("<ii", DEVICE, device)


def memory_properties(device: int = 0) -> bytes:
    return struct.pack("<iiiiQ8x", PINNED, POSIX_FD, DEVICE, device, 0)


def create(probe: Probe, size: int) -> int:
    handle = probe.alloc(8)
    assert probe.cuMemCreate(handle, size, probe.alloc(content=memory_properties()), 0) == 0
    return probe.u64(handle)


def reserve(probe: Probe, size: int) -> int:
    address = probe.alloc(8)
    assert probe.call("cuMemAddressReserve", address, size, 0, 0, 0) == 0
    return probe.u64(address)


@scenario("cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap")
def lives_until_the_last_mapping(probe: Probe, env: World) -> None:
    handle, address = create(probe, 4 * GRANULE), reserve(probe, 16 * GRANULE)
    env.agree(4 * GRANULE)
    assert probe.cuMemMap(address, 4 * GRANULE, 0, handle, 0) == 0
    assert probe.cuMemMap(address + 4 * GRANULE, 4 * GRANULE, 0, handle, 0) == 0
    assert probe.cuMemRelease(handle) == 0
    env.agree(4 * GRANULE)
    assert probe.cuMemUnmap(address, 4 * GRANULE) == 0
    env.agree(4 * GRANULE)
    assert probe.cuMemUnmap(address + 4 * GRANULE, 4 * GRANULE) == 0
    env.agree(0)


@scenario("cuMemCreate", "cuMemUnmap", "cuMemMap")
def many_mappings_go_in_one_call(probe: Probe, env: World) -> None:
    address = reserve(probe, 8 * GRANULE)
    for at, size in ((0, GRANULE), (GRANULE, 3 * GRANULE), (4 * GRANULE, 2 * GRANULE)):
        handle = create(probe, size)
        assert probe.cuMemMap(address + at, size, 0, handle, 0) == 0
        assert probe.cuMemRelease(handle) == 0
    env.agree(6 * GRANULE)
    assert probe.cuMemUnmap(address, 6 * GRANULE) == 0
    env.agree(0)


@scenario("cuMemRetainAllocationHandle")
def retained_from_the_middle(probe: Probe, env: World) -> None:
    handle, address, again = create(probe, 4 * GRANULE), reserve(probe, 4 * GRANULE), probe.alloc(8)
    assert probe.cuMemMap(address, 4 * GRANULE, 0, handle, 0) == 0
    assert probe.cuMemRetainAllocationHandle(again, address + 3 * GRANULE + 17) == 0
    assert probe.cuMemRelease(handle) == 0
    assert probe.cuMemUnmap(address, 4 * GRANULE) == 0
    env.agree(4 * GRANULE)
    assert probe.cuMemRelease(probe.u64(again)) == 0
    env.agree(0)


@scenario("cuMemImportFromShareableHandle")
def imported_once_charged(probe: Probe, env: World) -> None:
    handle, again = create(probe, GRANULE), probe.alloc(8)
    fd = exported(probe, "cuMemExportToShareableHandle", handle)
    assert probe.cuMemImportFromShareableHandle(again, fd, POSIX_FD) == 0
    close(probe, fd)
    env.agree(GRANULE)
    assert probe.cuMemRelease(handle) == 0
    env.agree(GRANULE)  # it lives on under what came back
    assert probe.cuMemRelease(probe.u64(again)) == 0
    env.agree(0)


def exported(probe: Probe, name: str, *what: int) -> int:
    """A descriptor in the probe."""
    fd = probe.alloc(8)
    assert probe.call(name, fd, *what, POSIX_FD, 0) == 0
    return probe.u32(fd)


def close(probe: Probe, fd: int) -> None:
    assert probe.tell("call", probe.resolve("close", "default"), fd) == "0"


def looked_at(probe: Probe, env: World, left: int) -> None:
    """An allocation that needs all other room looks for closed descriptors before its refusal.

    Also right after another reading.
    """
    assert probe.cuMemFree_v2(probe.memory(GIB - left)) == 0
    assert probe.cuMemRelease(create(probe, GRANULE)) == 0  # the simulator's driver looks then
    env.agree(left)


@scenario("cuMemExportToShareableHandle")
def closed_before_the_release(probe: Probe, env: World) -> None:
    """The release looks: no earlier look bounds its time."""
    handle = create(probe, GRANULE)
    close(probe, exported(probe, "cuMemExportToShareableHandle", handle))
    assert probe.cuMemRelease(handle) == 0
    env.agree(0)


@scenario("cuMemExportToShareableHandle")
def exported_until_closed(probe: Probe, env: World) -> None:
    handle = create(probe, GRANULE)
    fd = exported(probe, "cuMemExportToShareableHandle", handle)
    assert probe.cuMemRelease(handle) == 0
    env.agree(GRANULE)
    close(probe, fd)
    looked_at(probe, env, 0)


@scenario("cuMemGetHandleForAddressRange")
def kept_by_a_dma_buf(probe: Probe, env: World) -> None:
    linear, area = probe.memory(5 * MIB), mapped(probe, 2 * GRANULE)
    buffers = [
        exported(probe, "cuMemGetHandleForAddressRange", at, 4096)
        for at in (linear, linear + MIB, area + GRANULE)
    ]
    assert probe.cuMemFree_v2(linear) == 0
    assert probe.cuMemUnmap(area, 2 * GRANULE) == 0
    for buffer, left in zip(buffers, (5 * MIB + 2 * GRANULE, 2 * GRANULE, 0), strict=True):
        close(probe, buffer)
        looked_at(probe, env, left)


@scenario("cuMemPoolExportToShareableHandle")
def a_destroyed_pool_that_is_exported(probe: Probe, env: World) -> None:
    pool, address = new_pool(probe, POSIX_FD), probe.alloc(8)
    assert probe.cuMemAllocFromPoolAsync(address, 3 * MIB, pool, 0) == 0
    fd = exported(probe, "cuMemPoolExportToShareableHandle", pool)
    assert probe.cuMemFreeAsync(probe.u64(address), 0) == 0
    assert probe.cuMemPoolDestroy(pool) == 0
    env.agree(2 * GRANULE)
    close(probe, fd)
    looked_at(probe, env, 0)


@scenario("cuMemPoolImportFromShareableHandle")
def a_pool_that_another_process_imported(probe: Probe, env: World) -> None:
    pool, address = new_pool(probe, POSIX_FD), probe.alloc(8)
    assert probe.cuMemAllocFromPoolAsync(address, 3 * MIB, pool, 0) == 0
    fd = exported(probe, "cuMemPoolExportToShareableHandle", pool)
    assert probe.cuMemFreeAsync(probe.u64(address), 0) == 0
    with env.probe(probe.route) as other:
        other_fd, imported = take(other, probe, fd), other.alloc(8)
        assert other.cuMemPoolImportFromShareableHandle(imported, other_fd, POSIX_FD, 0) == 0
        close(other, other_fd)
        close(probe, fd)
        assert probe.cuMemPoolDestroy(pool) == 0
        env.agree(2 * GRANULE)
        assert other.cuMemPoolDestroy(other.u64(imported)) == 0
        looked_at(probe, env, 0)
        assert other.end().stderr == ""


def take(probe: Probe, other: Probe, fd: int) -> int:
    """A copy in the probe of another one's descriptor, as if it had been sent over a socket."""
    system_call = probe.resolve("syscall", "default")
    pidfd_open, pidfd_getfd = 434, 438
    pidfd = int(probe.tell("call", system_call, pidfd_open, other.process.pid, 0))
    copy = int(probe.tell("call", system_call, pidfd_getfd, pidfd, fd, 0))
    assert copy >= 0
    close(probe, pidfd)
    return copy


ARRAY3D_SPARSE = 0x40


def sparse_array(probe: Probe) -> int:
    out = probe.alloc(8)
    shape = struct.pack("<QQQiII4x", 4096, 4096, 0, 0x20, 1, ARRAY3D_SPARSE)
    assert probe.cuArray3DCreate_v2(out, probe.alloc(content=shape)) == 0
    return probe.u64(out)


def tile(array: int, operation: int, handle: int) -> bytes:
    resource = struct.pack("<i4xQ", 0, array)
    place = struct.pack("<i4xIIIIIIII", 0, 0, 0, 0, 0, 0, 128, 128, 1)
    return resource + place + struct.pack("<iiQQII8x", operation, 0, handle, 0, 1, 0)


def tiles_hold_memory(probe: Probe, env: World, name: str) -> None:
    array, handle = sparse_array(probe), create(probe, GRANULE)
    env.agree(GRANULE)
    assert probe.call(name, probe.alloc(content=tile(array, 1, handle)), 1, 0) == 0
    assert probe.cuMemRelease(handle) == 0
    env.agree(GRANULE)
    assert probe.call(name, probe.alloc(content=tile(array, 2, 0)), 1, 0) == 0
    env.agree(0)


@scenario("cuMemMapArrayAsync")
def tiles(probe: Probe, env: World) -> None:
    tiles_hold_memory(probe, env, "cuMemMapArrayAsync")


@scenario("cuMemMapArrayAsync_ptsz")
def tiles_of_the_thread(probe: Probe, env: World) -> None:
    tiles_hold_memory(probe, env, "cuMemMapArrayAsync_ptsz")


def multicast(probe: Probe, *, devices: int = 1) -> int:
    handle = probe.alloc(8)
    assert (
        probe.cuMulticastCreate(
            handle, probe.alloc(content=struct.pack("<I4xQQQ", devices, 8 * GRANULE, 1, 0))
        )
        == 0
    )
    for device in range(devices):
        assert probe.call("cuMulticastAddDevice", probe.u64(handle), device) == 0
    return probe.u64(handle)


def mapped(probe: Probe, size: int) -> int:
    """Memory without a handle."""
    address, handle = reserve(probe, size), create(probe, size)
    assert probe.cuMemMap(address, size, 0, handle, 0) == 0
    assert probe.cuMemRelease(handle) == 0
    return address


def bound_until_unbound(probe: Probe, env: World, name: str, *device: int) -> None:
    group, handle = multicast(probe), create(probe, 2 * GRANULE)
    assert probe.call(name, group, *device, GRANULE, handle, 0, 2 * GRANULE, 0) == 0
    assert probe.cuMemRelease(handle) == 0
    env.agree(2 * GRANULE)
    assert probe.cuMulticastUnbind(group, 0, GRANULE, 2 * GRANULE) == 0
    env.agree(0)


@scenario("cuMulticastCreate", "cuMulticastBindMem", "cuMulticastUnbind")
def bound(probe: Probe, env: World) -> None:
    bound_until_unbound(probe, env, "cuMulticastBindMem")


@scenario("cuMulticastBindMem_v2")
def bound_on_a_device(probe: Probe, env: World) -> None:
    bound_until_unbound(probe, env, "cuMulticastBindMem_v2", 0)


def bound_by_address(probe: Probe, env: World, name: str, *device: int) -> None:
    group, address = multicast(probe), mapped(probe, 2 * GRANULE)
    assert probe.call(name, group, *device, 0, address, 2 * GRANULE, 0) == 0
    assert probe.cuMemUnmap(address, 2 * GRANULE) == 0
    env.agree(2 * GRANULE)
    assert probe.cuMemRelease(group) == 0  # with the object goes what is bound to it
    env.agree(0)


@scenario("cuMulticastBindAddr", "cuMulticastCreate")
def bound_where_it_is_mapped(probe: Probe, env: World) -> None:
    bound_by_address(probe, env, "cuMulticastBindAddr")


@scenario("cuMulticastBindAddr_v2")
def bound_where_it_is_mapped_on_a_device(probe: Probe, env: World) -> None:
    bound_by_address(probe, env, "cuMulticastBindAddr_v2", 0)


@scenario("cuMulticastCreate")
def a_mapped_multicast_object_outlives_its_handle(probe: Probe, env: World) -> None:
    group, handle, address = multicast(probe), create(probe, GRANULE), reserve(probe, 8 * GRANULE)
    assert probe.cuMemMap(address, 8 * GRANULE, 0, group, 0) == 0
    assert probe.cuMulticastBindMem(group, 0, handle, 0, GRANULE, 0) == 0
    assert probe.cuMemRelease(handle) == 0
    assert probe.cuMemRelease(group) == 0
    env.agree(GRANULE)
    assert probe.cuMemUnmap(address, 8 * GRANULE) == 0
    env.agree(0)


# -- stream-ordered memory --


def stream(probe: Probe) -> int:
    out = probe.alloc(8)
    assert probe.call("cuStreamCreate", out, 0) == 0
    return probe.u64(out)


def event(probe: Probe) -> int:
    out = probe.alloc(8)
    assert probe.call("cuEventCreate", out, 0) == 0
    return probe.u64(out)


def asynchronous(probe: Probe, env: World, suffix: str, synchronise: Callable[[int], int]) -> None:
    address, own = probe.alloc(8), stream(probe)
    assert probe.call("cuMemAllocAsync" + suffix, address, 3 * MIB, own) == 0
    env.agree(2 * GRANULE)  # what the pool holds, not what it handed out
    assert probe.call("cuMemFreeAsync" + suffix, probe.u64(address), own) == 0
    env.agree(2 * GRANULE)
    assert synchronise(own) == 0
    env.agree(0)


@scenario("cuMemAllocAsync", "cuMemFreeAsync", "cuStreamSynchronize")
def async_of_a_stream(probe: Probe, env: World) -> None:
    asynchronous(probe, env, "", lambda own: probe.call("cuStreamSynchronize", own))


@scenario("cuMemAllocAsync_ptsz", "cuMemFreeAsync_ptsz", "cuStreamSynchronize_ptsz")
def async_of_the_thread(probe: Probe, env: World) -> None:
    asynchronous(probe, env, "_ptsz", lambda own: probe.call("cuStreamSynchronize_ptsz", own))


@scenario("cuEventSynchronize")
def async_until_an_event(probe: Probe, env: World) -> None:
    asynchronous(probe, env, "", lambda own: probe.call("cuEventSynchronize", event(probe)))


@scenario("cuCtxSynchronize")
def async_until_the_context(probe: Probe, env: World) -> None:
    asynchronous(probe, env, "", lambda own: probe.call("cuCtxSynchronize"))


@scenario("cuCtxSynchronize_v2")
def async_until_a_named_context(probe: Probe, env: World) -> None:
    current = probe.alloc(8)
    assert probe.call("cuCtxGetCurrent", current) == 0
    asynchronous(probe, env, "", lambda own: probe.call("cuCtxSynchronize_v2", probe.u64(current)))


@scenario("cuMemFreeAsync", "cuMemFreeAsync_ptsz")
def linear_memory_freed_on_a_stream(probe: Probe, env: World) -> None:
    """Charged until the stream has been waited for, or until an allocation needs the room."""
    for suffix in ("", "_ptsz"):
        assert probe.call("cuMemFreeAsync" + suffix, probe.memory(GIB), 0) == 0
        assert env.used() == GIB
        assert probe.call("cuStreamSynchronize" + suffix, 0) == 0
        env.agree(0)
        assert probe.call("cuMemFreeAsync" + suffix, probe.memory(GIB), 0) == 0
        assert probe.cuMemFree_v2(probe.memory(GIB)) == 0
        env.agree(0)
    assert probe.call("cuMemFreeAsync", probe.memory(MIB), 0) == 0
    assert probe.cuDevicePrimaryCtxReset_v2(0) == 0
    env.agree(0)


def new_pool(probe: Probe, handle_types: int = 0) -> int:
    out = probe.alloc(8)
    properties = struct.pack("<ii", PINNED, handle_types) + location_of(0) + bytes(8 + 8 + 2 + 54)
    assert probe.cuMemPoolCreate(out, probe.alloc(content=properties)) == 0
    return probe.u64(out)


def set_threshold(probe: Probe, pool: int, size: int) -> None:
    """CU_MEMPOOL_ATTR_RELEASE_THRESHOLD"""
    assert probe.cuMemPoolSetAttribute(pool, 4, probe.alloc(content=struct.pack("<Q", size))) == 0


def keep_all(probe: Probe, pool: int) -> None:
    set_threshold(probe, pool, 2**64 - 1)


def from_pool(probe: Probe, env: World, suffix: str) -> None:
    pool, address = new_pool(probe), probe.alloc(8)
    keep_all(probe, pool)
    assert probe.call("cuMemAllocFromPoolAsync" + suffix, address, 3 * MIB, pool, 0) == 0
    env.agree(2 * GRANULE)
    assert probe.call("cuMemFreeAsync" + suffix, probe.u64(address), 0) == 0
    assert probe.call("cuStreamSynchronize", 0) == 0
    env.agree(2 * GRANULE)
    assert probe.cuMemPoolTrimTo(pool, GRANULE) == 0
    env.agree(GRANULE)
    assert probe.cuMemPoolDestroy(pool) == 0
    env.agree(0)


@scenario("cuMemPoolCreate", "cuMemAllocFromPoolAsync", "cuMemPoolTrimTo", "cuMemPoolDestroy")
def pool_of_its_own(probe: Probe, env: World) -> None:
    from_pool(probe, env, "")


@scenario("cuMemAllocFromPoolAsync_ptsz")
def pool_by_the_thread(probe: Probe, env: World) -> None:
    from_pool(probe, env, "_ptsz")


@scenario("cuMemPoolSetAttribute")
def a_lowered_threshold(probe: Probe, env: World) -> None:
    pool, address = new_pool(probe), probe.alloc(8)
    keep_all(probe, pool)
    assert probe.cuMemAllocFromPoolAsync(address, 3 * MIB, pool, 0) == 0
    assert probe.cuMemFreeAsync(probe.u64(address), 0) == 0
    assert probe.cuStreamSynchronize(0) == 0
    env.agree(2 * GRANULE)
    set_threshold(probe, pool, 0)
    assert probe.cuStreamSynchronize(0) == 0
    env.agree(0)


@scenario("cuMemPoolDestroy", "cuMemFree_v2")
def a_pool_outlived_by_its_blocks(probe: Probe, env: World) -> None:
    pool, first, second = new_pool(probe), probe.alloc(8), probe.alloc(8)
    for out in (first, second):
        assert probe.cuMemAllocFromPoolAsync(out, GRANULE, pool, 0) == 0
    assert probe.cuMemPoolDestroy(pool) == 0
    env.agree(2 * GRANULE)
    assert probe.cuMemFree_v2(probe.u64(first)) == 0
    assert probe.cuMemFreeAsync(probe.u64(second), 0) == 0
    env.agree(0)


def from_a_pool_that_was_asked_for(probe: Probe, env: World, name: str) -> None:
    """That of managed memory is known by no other call."""
    pool, address = probe.alloc(8), probe.alloc(8)
    for total, kind in enumerate((PINNED, MANAGED), 1):
        assert probe.call(name, pool, probe.alloc(content=location_of(0)), kind) == 0
        assert probe.cuMemAllocFromPoolAsync(address, GRANULE, probe.u64(pool), 0) == 0
        env.agree(total * GRANULE)


@scenario("cuMemGetDefaultMemPool")
def default_pool_of_a_place(probe: Probe, env: World) -> None:
    from_a_pool_that_was_asked_for(probe, env, "cuMemGetDefaultMemPool")


@scenario("cuMemGetMemPool")
def present_pool_of_a_place(probe: Probe, env: World) -> None:
    from_a_pool_that_was_asked_for(probe, env, "cuMemGetMemPool")


# -- graphs --


def graph_with_memory(probe: Probe, size: int) -> int:
    """It allocates and frees."""
    graph, node, free = probe.alloc(8), probe.alloc(8), probe.alloc(8)
    params = probe.alloc(
        content=struct.pack("<ii", PINNED, 0)
        + location_of(0)
        + bytes(72 + 16)
        + struct.pack("<QQ", size, 0)
    )
    assert probe.call("cuGraphCreate", graph, 0) == 0
    assert probe.call("cuGraphAddMemAllocNode", node, probe.u64(graph), 0, 0, params) == 0
    assert (
        probe.call(
            "cuGraphAddMemFreeNode", free, probe.u64(graph), node, 1, probe.u64(params + 112)
        )
        == 0
    )
    return probe.u64(graph)


def launched(probe: Probe, env: World, instantiate: Callable[[int, int], int], launch: str) -> None:
    exec_out = probe.alloc(8)
    assert instantiate(exec_out, graph_with_memory(probe, 3 * MIB)) == 0
    env.agree(0)
    for _ in range(2):
        assert probe.call(launch, probe.u64(exec_out), 0) == 0
        env.agree(2 * GRANULE)
    assert probe.cuGraphExecDestroy(probe.u64(exec_out)) == 0
    env.agree(2 * GRANULE)
    assert probe.cuDeviceGraphMemTrim(0) == 0
    env.agree(0)


@scenario(
    "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphExecDestroy", "cuDeviceGraphMemTrim"
)
def graph(probe: Probe, env: World) -> None:
    launched(
        probe,
        env,
        lambda out, graph: probe.call("cuGraphInstantiateWithFlags", out, graph, 0),
        "cuGraphLaunch",
    )


@scenario("cuGraphInstantiate", "cuGraphLaunch_ptsz")
def graph_of_old(probe: Probe, env: World) -> None:
    launched(
        probe,
        env,
        lambda out, graph: probe.call("cuGraphInstantiate", out, graph, 0, 0, 0),
        "cuGraphLaunch_ptsz",
    )


@scenario("cuGraphInstantiate_v2", "cuGraphUpload")
def graph_uploaded(probe: Probe, env: World) -> None:
    launched(
        probe,
        env,
        lambda out, graph: probe.call("cuGraphInstantiate_v2", out, graph, 0, 0, 0),
        "cuGraphUpload",
    )


@scenario("cuGraphInstantiateWithParams", "cuGraphUpload_ptsz")
def graph_with_parameters(probe: Probe, env: World) -> None:
    params = probe.alloc(40)
    launched(
        probe,
        env,
        lambda out, graph: probe.call("cuGraphInstantiateWithParams", out, graph, params),
        "cuGraphUpload_ptsz",
    )


@scenario("cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz")
def graph_uploaded_at_once(probe: Probe, env: World) -> None:
    for name in ("cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"):
        params = probe.alloc(content=struct.pack("<Q32x", 2))
        assert probe.call(name, probe.alloc(8), graph_with_memory(probe, 3 * MIB), params) == 0
        env.agree(2 * GRANULE)
        assert probe.cuDeviceGraphMemTrim(0) == 0
        env.agree(0)


@scenario("cuMemAllocAsync", "cuMemFreeAsync", "cuGraphLaunch")
def captured(probe: Probe, env: World) -> None:
    own, address, captured_graph, exec_out = (
        stream(probe),
        probe.alloc(8),
        probe.alloc(8),
        probe.alloc(8),
    )
    assert probe.call("cuStreamBeginCapture_v2", own, 2) == 0
    assert probe.cuMemAllocAsync(address, 3 * MIB, own) == 0
    assert probe.cuMemFreeAsync(probe.u64(address), own) == 0
    assert probe.call("cuStreamEndCapture", own, captured_graph) == 0
    env.agree(0)
    assert probe.cuGraphInstantiateWithFlags(exec_out, probe.u64(captured_graph), 0) == 0
    assert probe.cuGraphLaunch(probe.u64(exec_out), own) == 0
    env.agree(2 * GRANULE)


# -- arrays --

FLOAT = 0x20


@scenario("cuArrayCreate_v2", "cuArrayDestroy")
def flat_array(probe: Probe, env: World) -> None:
    array = probe.alloc(8)
    assert (
        probe.cuArrayCreate_v2(array, probe.alloc(content=struct.pack("<QQiI", 640, 480, FLOAT, 4)))
        == 0
    )
    env.agree(640 * 480 * 16)
    assert probe.cuArrayDestroy(probe.u64(array)) == 0
    env.agree(0)


@scenario("cuArray3DCreate_v2", "cuArrayDestroy")
def deep_array(probe: Probe, env: World) -> None:
    array = probe.alloc(8)
    assert (
        probe.cuArray3DCreate_v2(
            array, probe.alloc(content=struct.pack("<QQQiII4x", 64, 32, 16, FLOAT, 2, 0))
        )
        == 0
    )
    env.agree(64 * 32 * 16 * 8)
    assert probe.cuArrayDestroy(probe.u64(array)) == 0
    env.agree(0)


@scenario("cuArrayCreate")
def flat_array_of_old(probe: Probe, env: World) -> None:
    array = probe.alloc(8)
    assert (
        probe.cuArrayCreate(array, probe.alloc(content=struct.pack("<IIiI", 640, 480, FLOAT, 4)))
        == 0
    )
    env.agree(640 * 480 * 16)
    assert probe.cuArrayDestroy(probe.u64(array)) == 0
    env.agree(0)


@scenario("cuArray3DCreate")
def deep_array_of_old(probe: Probe, env: World) -> None:
    array = probe.alloc(8)
    assert (
        probe.cuArray3DCreate(
            array, probe.alloc(content=struct.pack("<IIIiII", 64, 32, 16, FLOAT, 2, 0))
        )
        == 0
    )
    env.agree(64 * 32 * 16 * 8)
    assert probe.cuArrayDestroy(probe.u64(array)) == 0
    env.agree(0)


@scenario("cuMipmappedArrayCreate", "cuMipmappedArrayDestroy")
def mipmap(probe: Probe, env: World) -> None:
    array = probe.alloc(8)
    shape = probe.alloc(content=struct.pack("<QQQiII4x", 64, 64, 0, FLOAT, 1, 0))
    assert probe.cuMipmappedArrayCreate(array, shape, 3) == 0
    env.agree((64 * 64 + 32 * 32 + 16 * 16) * 4)
    assert probe.cuMipmappedArrayDestroy(probe.u64(array)) == 0
    env.agree(0)


# -- contexts --


def context_with_memory(probe: Probe) -> int:
    context = probe.alloc(8)
    assert probe.call("cuCtxCreate_v2", context, 0, 0) == 0
    assert probe.cuMemAlloc_v2(probe.alloc(8), 3 * MIB) == 0
    assert (
        probe.cuArrayCreate_v2(
            probe.alloc(8), probe.alloc(content=struct.pack("<QQiI", 256, 1024, FLOAT, 1))
        )
        == 0
    )
    return probe.u64(context)


def destroyed(probe: Probe, env: World, name: str) -> None:
    assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) == 0  # of the primary context: it stays
    context = context_with_memory(probe)
    env.agree(5 * MIB)
    assert probe.call(name, context) == 0
    env.agree(MIB)


CONTEXTS: dict[str, tuple[int, ...]] = {
    "cuCtxCreate": (0, 0),
    "cuCtxCreate_v2": (0, 0),
    "cuCtxCreate_v3": (0, 0, 0, 0),
    "cuCtxCreate_v4": (0, 0, 0),
    "cuGLCtxCreate": (0, 0),
    "cuGLCtxCreate_v2": (0, 0),
    "cuVDPAUCtxCreate": (0, 0, 0, 0),
    "cuVDPAUCtxCreate_v2": (0, 0, 0, 0),
}


@scenario(*CONTEXTS)
def contexts_made(probe: Probe, env: World) -> None:
    env.manager.settings["context_bytes"] = str(32 * MIB)
    env.manager.write_conf()
    for name, arguments in CONTEXTS.items():
        context = probe.alloc(8)
        assert probe.call(name, context, *arguments) == 0
        assert (env.used(), env.held()) == (32 * MIB, 0)
        assert probe.cuCtxDestroy_v2(probe.u64(context)) == 0
        env.agree(0)


@scenario("cuCtxDestroy_v2")
def context(probe: Probe, env: World) -> None:
    destroyed(probe, env, "cuCtxDestroy_v2")


@scenario("cuCtxDestroy")
def context_of_old(probe: Probe, env: World) -> None:
    destroyed(probe, env, "cuCtxDestroy")


@scenario("cuCtxAttach", "cuCtxDetach")
def context_counted(probe: Probe, env: World) -> None:
    context = context_with_memory(probe)
    env.agree(4 * MIB)
    assert probe.cuCtxAttach(probe.alloc(8), 0) == 0
    assert probe.cuCtxDetach(context) == 0
    env.agree(4 * MIB)
    assert probe.cuCtxDetach(context) == 0
    env.agree(0)


def green(probe: Probe) -> tuple[int, int]:
    """A green context, and what it is used through."""
    resource, description, context, view = (
        probe.alloc(4096),
        probe.alloc(8),
        probe.alloc(8),
        probe.alloc(8),
    )
    assert probe.call("cuDeviceGetDevResource", 0, resource, 1) == 0
    assert probe.call("cuDevResourceGenerateDesc", description, resource, 1) == 0
    assert probe.cuGreenCtxCreate(context, probe.u64(description), 0, 1) == 0
    assert probe.call("cuCtxFromGreenCtx", view, probe.u64(context)) == 0
    return probe.u64(context), probe.u64(view)


@scenario("cuGreenCtxCreate", "cuGreenCtxDestroy")
def a_green_context_keeps_the_primary_one(probe: Probe, env: World) -> None:
    env.manager.settings["context_bytes"] = str(32 * MIB)
    env.manager.write_conf()
    assert probe.cuDevicePrimaryCtxRelease_v2(0) == 0
    context, view = green(probe)
    # its own quarter, and the primary one's estimate
    assert (env.used(), env.held()) == (
        40 * MIB,
        0,
    )
    assert probe.call("cuCtxSetCurrent", view) == 0
    assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) == 0
    assert probe.cuGreenCtxDestroy(context) == 0
    env.agree(0)


@scenario("cuGreenCtxDestroy")
def what_was_allocated_through_a_green_context_stays(probe: Probe, env: World) -> None:
    address, (context, view) = probe.alloc(8), green(probe)
    assert probe.call("cuCtxSetCurrent", view) == 0
    assert probe.cuMemAlloc_v2(address, MIB) == 0
    assert probe.cuGreenCtxDestroy(context) == 0
    env.agree(MIB)
    assert probe.cuMemFree_v2(probe.u64(address)) == 0
    env.agree(0)
    assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) != 0  # no context is current


STACK, HEAP = 0, 2  # CU_LIMIT_STACK_SIZE, CU_LIMIT_MALLOC_HEAP_SIZE
THREADS = 132 * 2048  # of the simulated GPU


@scenario("cuCtxSetLimit")
def raised_limits(probe: Probe, env: World) -> None:
    before = env.implicit("context")
    for limit, value, taken in ((HEAP, 72 * MIB, 64 * MIB), (STACK, 2048, 1024 * THREADS)):
        assert probe.cuCtxSetLimit(limit, value) == 0
        assert (env.used(), env.implicit("context") - before) == (taken, taken)
        assert probe.cuCtxSetLimit(limit, value - 1024) == 0
        assert env.used() == env.implicit("context") - before
        assert probe.cuCtxSetLimit(limit, 8 * MIB if limit == HEAP else 1024) == 0
        env.agree(0)
    assert probe.cuCtxSetLimit(HEAP, 72 * MIB) == 0
    assert probe.cuDevicePrimaryCtxReset_v2(0) == 0
    env.agree(0)


# -- modules --

PTX = b"""\
.version 8.0
.target sm_90
.address_size 64
// .global .align 4 .b32 commented_out[1000000];
.extern .global .align 4 .b32 elsewhere[1000000];
.visible .global .align 4 .f32 weights[1024][1024];
.global .align 1 .b8 name[8] = {116, 119, 101, 108, 118, 101, 0, 0};
.visible .entry kernel() { ld.global.u32 %r1, [weights]; ret; }
"""
PTX_BYTES = 4 * MIB + 8


def elf(*sections: tuple[str, int, int, int]) -> bytes:
    """An ELF of sections (name, type, flags, size): PROGBITS 1, NOBITS 8; ALLOC 2.

    The last one holds the names.
    """
    names = b"\0" + b"".join(
        name.encode() + b"\0" for name, *_ in (*sections, (".shstrtab", 3, 0, 0))
    )
    table = 64 + len(names)
    header = b"\x7fELF\2\1\1" + bytes(9)
    header += struct.pack(
        "<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, table, 0, 64, 0, 0, 64, len(sections) + 1, len(sections)
    )
    rows = [struct.pack("<IIQQQQIIQQ", names.index(name.encode() + b"\0"), kind, flags, 0, 64, size,
        0, 0, 1, 0)
            for name, kind, flags, size in (*sections, (".shstrtab", 3, 0,
                len(names)))]  # fmt: skip
    return header + names + b"".join(rows)


CUBIN = elf(
    (".text.kernel", 1, 2, 4096),
    (".nv.global", 8, 3, 3 * MIB),
    (".nv.shared.kernel", 8, 3, 48 << 10),
    (".debug", 1, 0, 999),
)
CUBIN_BYTES = 3 * MIB + 4096
MODULE_BYTES = 2 * MIB  # what any module takes in the simulator, and no image says


def image_file(probe: Probe, env: World, content: bytes) -> int:
    path = env.directory / "image"
    path.write_bytes(content)
    return probe.alloc(content=str(path).encode() + b"\0")


def loaded_and_unloaded(
    probe: Probe, env: World, load: Callable[[int], int], size: int, unload: str
) -> None:
    handle = probe.alloc(8)
    assert load(handle) == 0
    if unload == "cuLibraryUnload":
        # loads it into the context
        assert probe.call("cuLibraryGetModule", probe.alloc(8), probe.u64(handle)) == 0
    assert (env.used(), env.implicit("module")) == (size, size + MODULE_BYTES)
    assert probe.call(unload, probe.u64(handle)) == 0
    assert (env.used(), env.implicit("module")) == (0, 0)


@scenario("cuModuleLoad", "cuModuleUnload")
def module_of_a_file(probe: Probe, env: World) -> None:
    path = image_file(probe, env, CUBIN)
    loaded_and_unloaded(
        probe, env, lambda out: probe.cuModuleLoad(out, path), CUBIN_BYTES, "cuModuleUnload"
    )


@scenario("cuModuleLoadData", "cuModuleUnload")
def module_of_ptx(probe: Probe, env: World) -> None:
    image = probe.alloc(content=PTX + b"\0")
    loaded_and_unloaded(
        probe, env, lambda out: probe.cuModuleLoadData(out, image), PTX_BYTES, "cuModuleUnload"
    )


@scenario("cuModuleLoadDataEx")
def module_with_options(probe: Probe, env: World) -> None:
    image = probe.alloc(content=CUBIN)
    loaded_and_unloaded(
        probe,
        env,
        lambda out: probe.cuModuleLoadDataEx(out, image, 0, 0, 0),
        CUBIN_BYTES,
        "cuModuleUnload",
    )


@scenario("cuModuleLoadFatBinary")
def module_of_a_fat_binary(probe: Probe, env: World) -> None:
    image = probe.alloc(content=CUBIN)
    loaded_and_unloaded(
        probe,
        env,
        lambda out: probe.cuModuleLoadFatBinary(out, image),
        CUBIN_BYTES,
        "cuModuleUnload",
    )


@scenario("cuLibraryLoadData", "cuLibraryUnload")
def library(probe: Probe, env: World) -> None:
    image = probe.alloc(content=CUBIN)
    load = lambda out: probe.cuLibraryLoadData(out, image, 0, 0, 0, 0, 0, 0)  # noqa: E731
    loaded_and_unloaded(probe, env, load, CUBIN_BYTES, "cuLibraryUnload")


@scenario("cuLibraryLoadFromFile", "cuLibraryUnload")
def library_of_a_file(probe: Probe, env: World) -> None:
    path = image_file(probe, env, PTX)
    load = lambda out: probe.cuLibraryLoadFromFile(out, path, 0, 0, 0, 0, 0, 0)  # noqa: E731
    loaded_and_unloaded(probe, env, load, PTX_BYTES, "cuLibraryUnload")


@scenario("cuModuleLoadData")
def modules_end_with_their_context(probe: Probe, env: World) -> None:
    context = probe.alloc(8)
    assert probe.cuCtxCreate_v2(context, 0, 0) == 0
    assert probe.cuModuleLoadData(probe.alloc(8), probe.alloc(content=CUBIN)) == 0
    assert env.used() == CUBIN_BYTES
    assert probe.cuCtxDestroy_v2(probe.u64(context)) == 0
    env.agree(0)


def primary_ended(probe: Probe, env: World, name: str) -> None:
    assert probe.cuMemAlloc_v2(probe.alloc(8), MIB) == 0
    env.agree(MIB)
    assert probe.call(name, 0) == 0
    env.agree(0)


@scenario("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2")
def primary_released(probe: Probe, env: World) -> None:
    primary_ended(probe, env, "cuDevicePrimaryCtxRelease_v2")


@scenario("cuDevicePrimaryCtxRelease")
def primary_released_of_old(probe: Probe, env: World) -> None:
    primary_ended(probe, env, "cuDevicePrimaryCtxRelease")


@scenario("cuDevicePrimaryCtxReset_v2")
def primary_reset(probe: Probe, env: World) -> None:
    primary_ended(probe, env, "cuDevicePrimaryCtxReset_v2")


@scenario("cuDevicePrimaryCtxReset")
def primary_reset_of_old(probe: Probe, env: World) -> None:
    primary_ended(probe, env, "cuDevicePrimaryCtxReset")


# -- figures: the env may use 1 GiB of the GPU's 8 --


@scenario("cuMemGetInfo_v2")
def memory_info(probe: Probe, env: World) -> None:
    free, total = probe.alloc(8), probe.alloc(8)
    env.manager.set_limit(6 * GIB)  # more than 32 bits say
    assert probe.cuMemAlloc_v2(probe.alloc(8), 100 * MIB) == 0
    assert probe.cuMemGetInfo_v2(free, total) == 0
    assert (probe.u64(free), probe.u64(total)) == (6 * GIB - 100 * MIB, 6 * GIB)
    assert probe.cuMemGetInfo_v2(0, total) == 0
    assert probe.cuMemGetInfo_v2(free, 0) == 0


@scenario("cuMemGetInfo")
def memory_info_of_old(probe: Probe, env: World) -> None:
    free, total = probe.alloc(4), probe.alloc(4)
    assert probe.cuMemGetInfo(free, total) == 0
    assert (probe.u32(free), probe.u32(total)) == (GIB, GIB)


@scenario("cuDeviceTotalMem_v2")
def total(probe: Probe, env: World) -> None:
    out = probe.alloc(8)
    assert probe.cuDeviceTotalMem_v2(out, 0) == 0
    assert probe.u64(out) == GIB


@scenario("cuDeviceTotalMem")
def total_of_old(probe: Probe, env: World) -> None:
    out = probe.alloc(4)
    assert probe.cuDeviceTotalMem(out, 0) == 0
    assert probe.u32(out) == GIB


# -- all of them --


def each_abi_has_its_own_hook(probe: Probe, row: str) -> None:
    """No stream kind and no version is served by another's."""
    of_base = [hook.name for hook in hooks().values() if hook.base == hooks()[row].base]
    assert len({probe.resolve(name) for name in of_base}) == len(of_base)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_by_route(name: str, route: str, env: World) -> None:
    with env.probe(route, started=SCENARIOS[name].started) as probe:
        SCENARIOS[name].run(probe, env)
        for row in SCENARIOS[name].rows:
            each_abi_has_its_own_hook(probe, row)
        ended = probe.end()
    assert (ended.returncode, ended.stderr) == (0, "")


def test_every_row_has_a_scenario() -> None:
    named = frozenset().union(*(entry.rows for entry in SCENARIOS.values()))
    # NVML's: test_sight.py
    assert named == {hook.name for hook in hooks().values() if hook.library == "CUDA"}


# -- the refusal is the same on every path --


def launch_of(probe: Probe, size: int) -> int:
    exec_out = probe.alloc(8)
    assert probe.cuGraphInstantiateWithFlags(exec_out, graph_with_memory(probe, size), 0) == 0
    return probe.cuGraphLaunch(probe.u64(exec_out), 0)


REFUSED: dict[str, Callable[[Probe], int]] = {
    "cuMemAlloc_v2": lambda p: p.cuMemAlloc_v2(p.alloc(8), GIB + 1),
    "cuMemAlloc": lambda p: p.cuMemAlloc(p.alloc(8), GIB + 1),
    "cuMemAllocPitch_v2": lambda p: p.cuMemAllocPitch_v2(p.alloc(8), p.alloc(8), MIB, 1025, 4),
    "cuMemAllocPitch": lambda p: p.cuMemAllocPitch(p.alloc(8), p.alloc(8), MIB, 1025, 4),
    "cuMemAllocManaged": lambda p: p.cuMemAllocManaged(p.alloc(8), GIB + 1, 1),
    "cuMemCreate": lambda p: p.cuMemCreate(p.alloc(8), GIB + GRANULE,
        p.alloc(content=memory_properties()), 0),
    "cuMemAllocAsync": lambda p: p.cuMemAllocAsync(p.alloc(8), GIB + 1, 0),
    "cuMemAllocAsync_ptsz": lambda p: p.cuMemAllocAsync_ptsz(p.alloc(8), GIB + 1, 0),
    "cuMemAllocFromPoolAsync": lambda p: p.cuMemAllocFromPoolAsync(p.alloc(8), GIB + 1, new_pool(p),
        0),
    "cuMemAllocFromPoolAsync_ptsz": lambda p: p.cuMemAllocFromPoolAsync_ptsz(p.alloc(8), GIB + 1,
        new_pool(p), 0),
    "cuGraphLaunch": lambda p: launch_of(p, GIB + 1),
    "cuGraphInstantiateWithParams": lambda p: p.cuGraphInstantiateWithParams(
        p.alloc(8), graph_with_memory(p, GIB + 1), p.alloc(content=struct.pack("<Q32x", 2))
    ),
    "cuModuleLoadData": lambda p: p.cuModuleLoadData(p.alloc(8),
        p.alloc(content=PTX.replace(b"1024", b"32768") + b"\0")),
    "cuLibraryLoadData": lambda p: p.cuLibraryLoadData(
        p.alloc(8), p.alloc(content=elf((".nv.global", 8, 3, GIB))), 0, 0, 0, 0, 0, 0
    ),
    "cuCtxSetLimit": lambda p: p.cuCtxSetLimit(HEAP, 2 * GIB),
    "cuArrayCreate_v2": lambda p: p.cuArrayCreate_v2(p.alloc(8),
        p.alloc(content=struct.pack("<QQiI", 32768, 16384, FLOAT, 4))),
    "cuArray3DCreate_v2": lambda p: p.cuArray3DCreate_v2(
        p.alloc(8), p.alloc(content=struct.pack("<QQQiII4x", 1024, 1024, 1024, FLOAT, 1, 0))
    ),
    "cuMipmappedArrayCreate": lambda p: p.cuMipmappedArrayCreate(
        p.alloc(8), p.alloc(content=struct.pack("<QQQiII4x", 32768, 16384, 0, FLOAT, 1, 0)), 4
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_at_the_limit_the_answer_is_out_of_memory(name: str, env: World) -> None:
    with env.probe() as probe:
        held = probe.memory(4096)
        assert REFUSED[name](probe) == OUT_OF_MEMORY
        env.agree(4096)
        assert probe.cuMemFree_v2(held) == 0
        env.agree(0)
        ended = probe.end()
    assert ended.stderr.count("\n") == 1
    assert "out of GPU memory by quota" in ended.stderr
