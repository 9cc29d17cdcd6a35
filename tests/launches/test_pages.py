"""The memory files of a launch gate: the manager's part, and what a client can and cannot do."""

from __future__ import annotations

import fcntl
import mmap
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from nodemgr._native import ffi, lib

OPEN, CLOSED = lib.NM_LAUNCH_OPEN, lib.NM_LAUNCH_CLOSED
NORMAL, URGENT = lib.NM_LAUNCH_NORMAL, lib.NM_LAUNCH_LATENCY_SENSITIVE
TOKEN_OFFSET, URGENT_OFFSET, ROWS_OFFSET, ROW_BYTES = 16, 64, 128, 128
GENERATION_OFFSET = 7 * 8 + 2 * 4
TIMES_OFFSET = 24


class Pages:
    """A gate as the manager has it, with a client's mapping of its turns."""

    def __init__(self) -> None:
        self.native: Any = ffi.new("struct nm_launch_gate *")
        assert lib.nm_launch_gate_create(self.native) == lib.NM_LAUNCH_GATE_OK

    def give(self, share: int = 30, klass: int = NORMAL, state: int = OPEN, group: int = 7) -> int:
        number: int = lib.nm_launch_gate_give(self.native, slot(share, klass, state, group))
        return number

    def set(self, number: int, share: int, state: int = OPEN) -> int:
        fault: int = lib.nm_launch_gate_set(self.native, number, slot(share, NORMAL, state, 7))
        return fault

    def slot(self, number: int) -> Any:
        found = ffi.new("struct nm_launch_slot *")
        assert lib.nm_launch_gate_slot(self.native, number, found) == lib.NM_LAUNCH_GATE_OK
        return found

    def use(self, number: int) -> Any:
        found = ffi.new("struct nm_launch_use *")
        assert lib.nm_launch_gate_use(self.native, number, found) == lib.NM_LAUNCH_GATE_OK
        return found

    def turns(self) -> mmap.mmap:
        return mmap.mmap(self.native.turns_fd, 0)

    def times(self) -> tuple[int, int]:
        """The window and the turn."""
        with mmap.mmap(self.native.shares_fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as shares:
            return word(shares, TIMES_OFFSET), word(shares, TIMES_OFFSET + 8)

    def fds(self) -> tuple[int, int]:
        return os.dup(self.native.shares_fd), os.dup(self.native.turns_fd)


def slot(share: int, klass: int = NORMAL, state: int = OPEN, group: int = 7) -> Any:
    return ffi.new(
        "struct nm_launch_slot *",
        {"share": share, "klass": klass, "state": state, "group": group},
    )


@pytest.fixture
def pages() -> Iterator[Pages]:
    pages = Pages()
    yield pages
    lib.nm_launch_gate_unmap(pages.native)


def word(turns: mmap.mmap, offset: int) -> int:
    return int.from_bytes(turns[offset : offset + 8], "little")


def put(turns: mmap.mmap, offset: int, value: int, size: int = 8) -> None:
    turns[offset : offset + size] = value.to_bytes(size, "little")


def test_a_slot_has_what_the_manager_gave_it(pages: Pages) -> None:
    first, second = pages.give(share=30, klass=URGENT, group=1 << 63), pages.give(share=70)
    assert (first, second) == (0, 1)
    found = pages.slot(first)
    assert (found.share, found.klass, found.state, found.group) == (30, URGENT, OPEN, 1 << 63)
    assert pages.set(second, 40, CLOSED) == lib.NM_LAUNCH_GATE_OK
    found = pages.slot(second)
    assert (found.share, found.klass, found.state, found.generation) == (40, NORMAL, CLOSED, 1)


def test_a_slot_is_given_again_with_a_new_generation_and_zero_figures(pages: Pages) -> None:
    number = pages.give()
    turns = pages.turns()
    put(turns, ROWS_OFFSET + 3 * 8, 12345)
    assert pages.use(number).used_ns == 12345
    assert lib.nm_launch_gate_clear(pages.native, number) == lib.NM_LAUNCH_GATE_OK
    assert pages.slot(number).state == lib.NM_LAUNCH_FREE
    assert pages.give() == number
    assert pages.slot(number).generation == 2
    assert pages.use(number).used_ns == 0


def test_figures_of_another_generation_are_zero(pages: Pages) -> None:
    number = pages.give()
    turns = pages.turns()
    put(turns, ROWS_OFFSET + 3 * 8, 12345)
    put(turns, ROWS_OFFSET + GENERATION_OFFSET, 9, size=4)
    assert pages.use(number).used_ns == 0


def test_all_slots_are_given_out_and_then_none(pages: Pages) -> None:
    assert [pages.give() for _ in range(lib.NM_LAUNCH_SLOTS)] == list(range(lib.NM_LAUNCH_SLOTS))
    assert pages.give() == -1


@pytest.mark.parametrize(
    ("share", "klass", "state"), [(101, 0, 1), (30, 3, 1), (30, 0, 0), (3, 0, 6)]
)
def test_a_bad_slot_is_refused(pages: Pages, share: int, klass: int, state: int) -> None:
    assert pages.give(share, klass, state) == lib.NM_LAUNCH_GATE_RANGE
    number = pages.give()
    bad = slot(share, klass, state)
    assert lib.nm_launch_gate_set(pages.native, number, bad) == lib.NM_LAUNCH_GATE_RANGE


def test_a_number_beyond_the_slots_or_of_a_free_one_is_refused(pages: Pages) -> None:
    beyond = lib.NM_LAUNCH_SLOTS
    assert pages.set(3, 30) == lib.NM_LAUNCH_GATE_RANGE
    assert pages.set(beyond, 30) == lib.NM_LAUNCH_GATE_RANGE
    assert lib.nm_launch_gate_clear(pages.native, beyond) == lib.NM_LAUNCH_GATE_RANGE
    use = ffi.new("struct nm_launch_use *")
    assert lib.nm_launch_gate_use(pages.native, beyond, use) == lib.NM_LAUNCH_GATE_RANGE


def test_the_token_of_a_process_that_ended_is_taken(pages: Pages) -> None:
    number, other = pages.give(), pages.give()
    turns = pages.turns()
    put(turns, TOKEN_OFFSET, 5 << 16 | number + 1)
    put(turns, URGENT_OFFSET, 1 << number)
    lib.nm_launch_gate_clear(pages.native, other)
    assert word(turns, TOKEN_OFFSET) == 5 << 16 | number + 1
    lib.nm_launch_gate_clear(pages.native, number)
    assert word(turns, TOKEN_OFFSET) == 6 << 16
    assert word(turns, URGENT_OFFSET) == 0


def test_the_window_changes_and_the_turn_stays(pages: Pages) -> None:
    assert pages.times() == (1_000_000, 10_000_000)
    lib.nm_launch_gate_tune(pages.native, 250_000, 0)
    assert pages.times() == (250_000, 10_000_000)


def test_a_client_cannot_write_shares_or_shrink_either_file(pages: Pages) -> None:
    shares, turns = pages.fds()
    with pytest.raises(PermissionError):
        mmap.mmap(shares, 0)
    for fd in (shares, turns):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        os.close(fd)


def unsealed(size: int) -> int:
    fd = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    return fd


def test_files_that_are_no_gate_are_refused(pages: Pages) -> None:
    size = os.fstat(pages.native.shares_fd).st_size
    gate = ffi.new("struct nm_launch_gate *")
    _, turns = pages.fds()
    wrong = unsealed(size)
    assert lib.nm_launch_gate_map_client(gate, wrong, turns) == lib.NM_LAUNCH_GATE_SEALS
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | 0x10 | fcntl.F_SEAL_SEAL
    fcntl.fcntl(wrong, fcntl.F_ADD_SEALS, seals)
    assert lib.nm_launch_gate_map_client(gate, wrong, turns) == lib.NM_LAUNCH_GATE_FORMAT
    small = unsealed(size - 8)
    fcntl.fcntl(small, fcntl.F_ADD_SEALS, seals)
    assert lib.nm_launch_gate_map_client(gate, small, turns) == lib.NM_LAUNCH_GATE_SIZE
    assert lib.nm_launch_gate_map_client(gate, -1, turns) == lib.NM_LAUNCH_GATE_ERRNO
    for fd in (wrong, small, turns):
        os.close(fd)
    for fault in range(lib.NM_LAUNCH_GATE_RANGE, 1):
        text = ffi.string(lib.nm_launch_gate_fault_text(fault)).decode()
        assert text not in {"", "unknown fault"}


def test_garbage_of_a_client_breaks_no_reading(pages: Pages) -> None:
    chance = random.Random(3)
    number = pages.give()
    turns = pages.turns()
    for _ in range(200):
        turns[:] = chance.randbytes(len(turns))
        put(turns, ROWS_OFFSET + GENERATION_OFFSET, 1, size=4)
        use = pages.use(number)
        assert max(use.used_ns, use.in_flight_ns, use.launches) <= 1 << 62
        lib.nm_launch_gate_clear(pages.native, 5)
        lib.nm_launch_gate_wake(pages.native)
