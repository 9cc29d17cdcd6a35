"""Exported memory is charged while a copy of its handle, or an import, is open anywhere."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.shim.hooks.test_every_hook import (
    GRANULE,
    POSIX_FD,
    close,
    create,
    exported,
    memory_properties,
    new_pool,
    reserve,
    take,
)
from tests.shim.world import MIB, OUT_OF_MEMORY, Probe, World
from tests.support.limits import WAIT_LIMIT_S, until


def let_go(probe: Probe, size: int) -> int:
    """Exported, released: the result, and a descriptor in the probe."""
    handle = create(probe, size)
    fd = exported(probe, "cuMemExportToShareableHandle", handle)
    assert probe.cuMemRelease(handle) == 0
    return fd


def until_used(env: World, size: int) -> None:
    """The ledger comes to that, without a call of the program."""
    until(lambda: env.used() == size, env.used)


def leaving_by_handle(probe: Probe) -> int:
    handle = probe.alloc(8)
    result = int(probe.cuMemCreate(handle, 64 * MIB, probe.alloc(content=memory_properties()), 0))
    if result == 0:
        exported(probe, "cuMemExportToShareableHandle", probe.u64(handle))
        assert probe.cuMemRelease(probe.u64(handle)) == 0
    return result


def leaving_by_pool(probe: Probe) -> int:
    pool, address = new_pool(probe, POSIX_FD), probe.alloc(8)
    result = int(probe.cuMemAllocFromPoolAsync(address, 64 * MIB, pool, 0))
    exported(probe, "cuMemPoolExportToShareableHandle", pool)
    if result == 0:
        assert probe.cuMemFreeAsync(probe.u64(address), 0) == 0
    assert probe.cuMemPoolDestroy(pool) == 0
    return result


def leaving_by_dma_buf(probe: Probe) -> int:
    address = probe.alloc(8)
    result = int(probe.cuMemAlloc_v2(address, 64 * MIB))
    if result == 0:
        exported(probe, "cuMemGetHandleForAddressRange", probe.u64(address), 64 * MIB)
        assert probe.cuMemFree_v2(probe.u64(address)) == 0
    return result


@pytest.mark.parametrize("leave", [leaving_by_handle, leaving_by_pool, leaving_by_dma_buf])
def test_no_more_leaves_than_the_grant(leave: Callable[[Probe], int], env: World) -> None:
    """40 times 64 MiB under 1 GiB."""
    with env.probe() as probe:
        results = [leave(probe) for _ in range(40)]
        assert results == [0] * 16 + [OUT_OF_MEMORY] * 24
        env.agree(16 * 64 * MIB)


def test_what_ends_elsewhere_is_free_again_without_a_call(env: World) -> None:
    with env.probe() as probe, env.probe() as other:
        fd = let_go(probe, GRANULE)
        copy = take(other, probe, fd)
        close(probe, fd)
        assert env.used() == GRANULE
        close(other, copy)
        until_used(env, 0)


def test_another_process_of_the_env_is_refused_only_while_it_lasts(env: World) -> None:
    with env.probe() as probe, env.probe() as other:
        fd = let_go(probe, 512 * MIB)
        assert other.cuMemAlloc_v2(other.alloc(8), 600 * MIB) == OUT_OF_MEMORY
        close(probe, fd)
        until_used(env, 0)
        assert other.cuMemAlloc_v2(other.alloc(8), 600 * MIB) == 0


@contextmanager
def imported(env: World) -> Iterator[tuple[Probe, Probe, int]]:
    """Exporter, importer, and the importer's handle of memory that the exporter has given up."""
    with env.probe() as probe, env.probe() as other:
        fd = let_go(probe, GRANULE)
        copy, handle = take(other, probe, fd), other.alloc(8)
        assert other.cuMemImportFromShareableHandle(handle, copy, POSIX_FD) == 0
        close(other, copy)
        close(probe, fd)
        yield probe, other, other.u64(handle)


def test_an_import_keeps_the_exporters_charge(env: World) -> None:
    with imported(env) as (probe, other, handle):
        place = reserve(other, GRANULE)
        assert other.cuMemMap(place, GRANULE, 0, handle, 0) == 0
        assert other.cuMemRelease(handle) == 0
        assert probe.cuMemRelease(create(probe, GRANULE)) == 0
        env.agree(GRANULE)
        assert other.cuMemUnmap(place, GRANULE) == 0
        until_used(env, 0)


def test_a_dead_importer_keeps_nothing(env: World) -> None:
    with imported(env) as (probe, other, _):
        assert probe.cuMemRelease(create(probe, GRANULE)) == 0
        env.agree(GRANULE)
        other.process.kill()
        other.process.wait()
        until_used(env, 0)


def open_files(pid: int) -> list[str]:
    return [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def test_a_forked_child_holds_none_of_its_parents_imports(env: World) -> None:
    with env.probe() as probe, env.probe() as other:
        fd = let_go(probe, GRANULE)
        file = str(Path(f"/proc/{probe.process.pid}/fd/{fd}").readlink())
        copy, handle = take(other, probe, fd), other.alloc(8)
        assert other.cuMemImportFromShareableHandle(handle, copy, POSIX_FD) == 0
        close(other, copy)
        assert file in open_files(other.process.pid)
        assert other.tell("fork") == "forked"
        (child,) = (
            Path(f"/proc/{other.process.pid}/task/{other.process.pid}/children").read_text().split()
        )
        assert file not in open_files(int(child))
        assert other.tell("quit") == "joined 0"


def test_a_program_that_closes_all_descriptors_frees_nothing_by_it(env: World) -> None:
    """Then nothing reports that a handle is closed: the charge lasts as long as the process."""
    with env.probe() as probe, env.probe() as other:
        fd = let_go(probe, GRANULE)
        take(other, probe, fd)
        for number in range(3, 64):
            probe.tell("call", probe.resolve("close", "default"), number)
        assert probe.cuMemRelease(create(probe, GRANULE)) == 0
        assert env.used() == GRANULE
    env.manager.await_no_seats()
    assert env.used() == 0


def call(probe: Probe, name: str, *arguments: int) -> int:
    """A function of libc, in the probe."""
    return int(probe.tell("call", probe.resolve(name, "default"), *arguments))


def test_an_epoll_set_of_the_program_in_the_place_of_ours_is_left_alone(env: World) -> None:
    with env.probe() as probe:
        let_go(probe, GRANULE)
        listings = Path(f"/proc/{probe.process.pid}/fdinfo")
        (ours,) = (
            int(entry.name)
            for entry in listings.iterdir()
            if "data: ffffffffffffffff" in entry.read_text()
        )
        theirs = call(probe, "epoll_create1", 0)
        assert call(probe, "dup2", theirs, ours) == ours
        close(probe, theirs)
        let_go(probe, GRANULE)
        assert "tfd:" not in (listings / str(ours)).read_text()
        assert probe.tell("fork") == "forked"
        (child,) = (
            Path(f"/proc/{probe.process.pid}/task/{probe.process.pid}/children").read_text().split()
        )
        assert Path(f"/proc/{child}/fd/{ours}").is_symlink()
        assert probe.tell("quit") == "joined 0"


def test_imports_leave_the_program_a_quarter_of_its_descriptors(env: World) -> None:
    with env.probe() as probe, env.probe() as other:
        fd = let_go(probe, GRANULE)
        copy, handle = take(other, probe, fd), other.alloc(8)
        resource.prlimit(other.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        for _ in range(120):
            assert other.cuMemImportFromShareableHandle(handle, copy, POSIX_FD) == 0
        files = Path(f"/proc/{other.process.pid}/fd")
        file = (files / str(copy)).readlink()
        witnesses = [
            int(entry.name)
            for entry in files.iterdir()
            if entry.readlink() == file and int(entry.name) != copy
        ]
        assert len(witnesses) > 40
        assert max(witnesses) < 192


def test_memory_that_is_shared_again_and_again_is_charged_once(env: World) -> None:
    with env.probe() as probe:
        linear, handle = probe.memory(MIB), create(probe, GRANULE)
        for _ in range(3):
            close(probe, exported(probe, "cuMemGetHandleForAddressRange", linear, 4096))
            close(probe, exported(probe, "cuMemExportToShareableHandle", handle))
            env.agree(MIB + GRANULE)
        assert probe.cuMemFree_v2(linear) == 0
        assert probe.cuMemRelease(handle) == 0
        env.agree(0)


IMPORTER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
class Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_byte * 64),)
handle = Handle.from_buffer_copy(bytes.fromhex(sys.argv[2]))
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
print(getattr(cuda, sys.argv[1])(ctypes.byref(address), handle, 1), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"])
def test_an_importer_of_ipc_memory_cannot_be_suspended(env: World, name: str) -> None:
    with env.probe() as probe:
        handle = probe.alloc(64)
        assert probe.call("cuIpcGetMemHandle", handle, probe.memory(MIB)) == 0
        command = [sys.executable, "-S", "-c", IMPORTER, name, probe.peek(handle, 64).hex()]
        with subprocess.Popen(
            command, env=env.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as importer:
            assert importer.stdout is not None
            assert importer.stdout.readline() == "0\n"
            (seat,) = [seat for seat in env.manager.seats if seat.pid == importer.pid]
            assert env.manager.ledger.is_unsuspendable(seat.slot)
            importer.communicate("", timeout=WAIT_LIMIT_S)
