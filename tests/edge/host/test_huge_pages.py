"""Python's memory in huge pages, asked for as it is taken, and given back.

Where there are none, nothing is worse.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from nodemgr._native import ffi, lib
from tests.support.limits import WAIT_LIMIT_S

ARENA_BYTES = 2**20
HAS_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled").exists()

MAPPING_OF = '''
def flags_of(address):
    """Of the mapping that an address lies in, as the kernel writes them."""
    with open("/proc/self/smaps") as file:
        for line in file:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                begin, end = (int(number, 16) for number in words[0].split("-"))
            elif words[0] == "VmFlags:" and begin <= address < end:
                return words[1:]
'''


def told(program: str) -> str:
    """The output of a separate Python: its changes to its memory are final."""
    done = subprocess.run(
        [sys.executable, "-c", MAPPING_OF + program],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.skipif(not HAS_HUGE_PAGES, reason="this kernel has no transparent huge pages")
def test_small_objects_lie_in_huge_pages_from_then_on() -> None:
    program = """
from nodemgr.edge.host import huge_pages
huge_pages.begin()
objects = [str(number) for number in range(200_000)]
print("hg" in flags_of(id(objects[-1])))
"""
    assert told(program) == "True"


@pytest.mark.skipif(not HAS_HUGE_PAGES, reason="this kernel has no transparent huge pages")
def test_large_ones_do_too() -> None:
    program = """
from nodemgr.edge.host import huge_pages
huge_pages.begin()
objects = [bytes(20_000) for number in range(400)]
print("hg" in flags_of(id(objects[-1])))
"""
    assert told(program) == "True"


def test_memory_comes_and_goes_old_arenas_with_it() -> None:
    """Memory that Python had before is freed by the same allocator."""
    program = """
import gc
before = [str(number) for number in range(200_000)]
from nodemgr.edge.host import huge_pages
huge_pages.begin()
for turn in range(3):
    after = [str(number) for number in range(500_000)]
    before = None
    gc.collect()
    assert after[123_456] == "123456"
print(len(after))
"""
    assert told(program) == "500000"


@pytest.mark.skipif(not HAS_HUGE_PAGES, reason="this kernel has no transparent huge pages")
def test_the_heap_is_gathered() -> None:
    program = """
import ctypes
from nodemgr.edge.host import huge_pages
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
blocks = [libc.malloc(100_000) for _ in range(100)]
huge_pages.gather_heap()
print("hg" in flags_of(blocks[50]))
"""
    assert told(program) == "True"


def test_arenas_do_not_overlap_and_are_what_was_asked_for() -> None:
    arenas = [
        int(ffi.cast("uintptr_t", lib.nm_huge_arena(ffi.NULL, ARENA_BYTES))) for _ in range(100)
    ]
    assert all(arenas)
    assert all(
        ffi.buffer(ffi.cast("char *", arena), ARENA_BYTES)[:] == bytes(ARENA_BYTES)
        for arena in arenas[:3]
    )
    arenas.sort()
    assert all(after - before >= ARENA_BYTES for before, after in pairwise(arenas))
    for arena in arenas:
        lib.nm_huge_return(ffi.NULL, ffi.cast("void *", arena), ARENA_BYTES)


def test_more_than_there_are_addresses_for_is_no_memory() -> None:
    assert lib.nm_huge_arena(ffi.NULL, 1 << 62) == ffi.NULL


def test_where_nothing_is_nothing_is_gathered() -> None:
    huge = lib.NM_HUGE_BYTES
    assert lib.nm_huge_gather(0, 0) == 0
    assert lib.nm_huge_gather(5 * huge, huge) == 0
    assert lib.nm_huge_gather(huge // 2, huge - 1) == 0, "no whole page fits in"
    arena = int(ffi.cast("uintptr_t", lib.nm_huge_arena(ffi.NULL, 4 * huge)))
    lib.nm_huge_return(ffi.NULL, ffi.cast("void *", arena), 4 * huge)
    assert lib.nm_huge_gather(arena, arena + 4 * huge) < 0
