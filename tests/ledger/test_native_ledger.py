"""The ledger: writers, reserving exactly at the limit, generations, garbage by a client."""

from __future__ import annotations

import fcntl
import mmap
import os
import random
from collections.abc import Iterator

import pytest

from nodemgr._native import ffi, lib
from nodemgr.edge.ledger.native_ledger import ROWS, SLOTS, Ledger, LedgerError, SlotState
from tests.support.processes import lasting_fds, open_fds

GIB = 1 << 30
OK, OVER, FENCED, STALLED = lib.NM_OK, lib.NM_OVER, lib.NM_FENCED, lib.NM_STALLED


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger.create()
    ledger.set_row(0, "GPU-a", 80 * GIB)
    ledger.set_limit(0, 10 * GIB)
    ledger.set_slot(0, 0, SlotState.LIVE)
    ledger.set_slot(1, 0, SlotState.LIVE)
    yield ledger
    ledger.close()


class Client:
    """A client's mapping of it."""

    def __init__(self, ledger: Ledger, *, slot: int = 0, generation: int = 0) -> None:
        self.native = ffi.new("struct nm_ledger *")
        self.slot, self.generation = slot, generation
        assert (
            lib.nm_ledger_map_client(self.native, *(os.dup(fd) for fd in ledger.fds))
            == lib.NM_LEDGER_OK
        )

    def reserve(self, size: int, row: int = 0) -> int:
        return lib.nm_ledger_reserve(self.native, row, self.slot, self.generation, size)

    def release(self, size: int, row: int = 0) -> None:
        lib.nm_ledger_release(self.native, row, self.slot, self.generation, size)


def test_an_empty_ledger(ledger: Ledger) -> None:
    assert (ledger.used(0), ledger.slot_used(0, 0), ledger.limit(0), ledger.slot_generation(0)) == (
        0,
        0,
        10 * GIB,
        0,
    )


def test_reserving_to_the_limit_and_not_beyond(ledger: Ledger) -> None:
    client = Client(ledger)
    assert client.reserve(6 * GIB) == OK
    assert client.reserve(4 * GIB + 1) == OVER
    assert ledger.used(0) == 6 * GIB, "a refused reservation leaves nothing behind"
    assert client.reserve(4 * GIB) == OK
    assert client.reserve(1) == OVER
    assert client.reserve(0) == OK
    client.release(10 * GIB)
    assert ledger.used(0) == 0


def test_all_processes_share_the_limit(ledger: Ledger) -> None:
    one, other = Client(ledger), Client(ledger, slot=1)
    assert one.reserve(7 * GIB) == OK
    assert other.reserve(4 * GIB) == OVER
    assert other.reserve(3 * GIB) == OK
    assert [ledger.slot_used(0, slot) for slot in (0, 1)] == [7 * GIB, 3 * GIB]


def test_releasing_too_much_stops_at_zero(ledger: Ledger) -> None:
    one, other = Client(ledger), Client(ledger, slot=1)
    one.reserve(1 * GIB)
    other.reserve(2 * GIB)
    one.release(100 * GIB)
    assert ledger.used(0) == 2 * GIB


@pytest.mark.parametrize("size", [(1 << 48) - 1, 1 << 48, (1 << 48) + 1, 1 << 63, (1 << 64) - 1])
def test_absurd_sizes_are_over(ledger: Ledger, size: int) -> None:
    ledger.set_limit(0, (1 << 64) - 1)
    client = Client(ledger)
    assert client.reserve(1) == OK
    assert client.reserve(size) == OVER
    assert ledger.used(0) == 1


def test_the_limit_is_live(ledger: Ledger) -> None:
    client = Client(ledger)
    assert client.reserve(8 * GIB) == OK
    ledger.set_limit(0, 4 * GIB)
    assert client.reserve(1) == OVER
    client.release(5 * GIB)
    assert client.reserve(1 * GIB) == OK
    ledger.set_limit(0, 12 * GIB)
    assert client.reserve(8 * GIB) == OK


def test_the_correction_counts_as_used(ledger: Ledger) -> None:
    client = Client(ledger)
    ledger.set_correction(0, 9 * GIB)
    assert client.reserve(2 * GIB) == OVER
    assert client.reserve(1 * GIB) == OK
    assert ledger.used(0) == 10 * GIB
    ledger.set_correction(0, (1 << 64) - 1)
    assert ledger.used(0) < 1 << 63


def test_rows_are_separate(ledger: Ledger) -> None:
    ledger.set_limit(1, 1 * GIB)
    client = Client(ledger)
    assert client.reserve(10 * GIB) == OK
    assert client.reserve(1 * GIB, row=1) == OK
    assert client.reserve(1, row=2) == OVER, "a row that is not granted has a limit of zero"


@pytest.mark.parametrize(("row", "slot"), [(ROWS, 0), (0, SLOTS), (1 << 31, 0), (0, (1 << 32) - 1)])
def test_a_row_or_slot_that_is_none(ledger: Ledger, row: int, slot: int) -> None:
    client = Client(ledger, slot=slot)
    assert client.reserve(1, row=row) == FENCED
    client.release(1, row=row)
    with pytest.raises(IndexError):
        ledger.set_limit(ROWS, 1)
    with pytest.raises(IndexError):
        ledger.set_slot(SLOTS, 0, SlotState.LIVE)
    with pytest.raises(IndexError):
        ledger.clear_slot(SLOTS, 0)
    with pytest.raises(IndexError):
        ledger.slot_generation(SLOTS)


# -- peaks --


def test_the_peak_of_a_process_stays_when_it_frees(ledger: Ledger) -> None:
    client = Client(ledger)
    client.reserve(3 * GIB)
    client.reserve(4 * GIB)
    client.release(6 * GIB)
    client.reserve(2 * GIB)
    assert ledger.slot_used(0, 0) == 3 * GIB
    assert ledger.peak([0], [0]) == 7 * GIB


def test_a_refused_reservation_raises_no_peak(ledger: Ledger) -> None:
    client = Client(ledger)
    client.reserve(6 * GIB)
    assert client.reserve(5 * GIB) == OVER
    ledger.set_slot(0, 0, SlotState.STALLED)
    assert client.reserve(1 * GIB) == STALLED
    assert ledger.peak([0], [0]) == 6 * GIB


def test_a_charge_beyond_the_limit_raises_the_peak(ledger: Ledger) -> None:
    client = Client(ledger)
    client.reserve(9 * GIB)
    assert lib.nm_ledger_charge(client.native, 0, 0, 0, 3 * GIB) == OK
    assert ledger.peak([0], [0]) == 12 * GIB


def test_the_peak_of_several_processes_is_the_largest_sum_on_one_gpu(ledger: Ledger) -> None:
    ledger.set_limit(1, 10 * GIB)
    one, other = Client(ledger), Client(ledger, slot=1)
    one.reserve(2 * GIB)
    one.reserve(4 * GIB, row=1)
    other.reserve(3 * GIB)
    assert ledger.peak([0], [0]) == 4 * GIB
    assert ledger.peak([0, 1], [0, 0]) == 5 * GIB
    assert ledger.peak([], []) == 0


def test_a_peak_is_at_most_the_gpus_memory(ledger: Ledger) -> None:
    ledger.set_limit(0, 80 * GIB)
    one, other = Client(ledger), Client(ledger, slot=1)
    for client in (one, other):
        client.reserve(60 * GIB)
        client.release(60 * GIB)
    assert ledger.peak([0, 1], [0, 0]) == 80 * GIB
    os.pwrite(ledger.fds[1], ((1 << 48) - 1).to_bytes(8, "little"), _peaks_at(ledger))
    assert ledger.peak([0], [0]) == 80 * GIB, "a client wrote nonsense"


def _peaks_at(ledger: Ledger) -> int:
    """Where the first peak lies in the usage file: its words of peaks end it."""
    return os.fstat(ledger.fds[1]).st_size - 8 * ROWS * SLOTS


def test_the_next_generation_begins_without_a_peak(ledger: Ledger) -> None:
    dead = Client(ledger)
    dead.reserve(9 * GIB)
    ledger.set_slot(0, 0, SlotState.LIVE)
    assert ledger.peak([0], [0]) == 9 * GIB
    ledger.clear_slot(0, 0)
    assert (ledger.peak([0], [0]), ledger.peak([0], [1])) == (0, 0)
    ledger.set_slot(0, 1, SlotState.LIVE)
    Client(ledger, generation=1).reserve(1 * GIB)
    assert (ledger.peak([0], [0]), ledger.peak([0], [1])) == (0, 1 * GIB)
    ledger.set_slot(0, 7, SlotState.LIVE)
    assert (ledger.peak([0], [1]), ledger.peak([0], [7])) == (0, 0)


def test_a_peak_of_another_generation_gives_way_to_the_first_of_this_one(ledger: Ledger) -> None:
    """A process that is ended while it writes its peak may write after the clearing."""
    os.pwrite(ledger.fds[1], (9 << 48 | 70 * GIB).to_bytes(8, "little"), _peaks_at(ledger))
    Client(ledger).reserve(2 * GIB)
    assert ledger.peak([0], [0]) == 2 * GIB


def test_the_peak_of_a_slot_that_is_none_is_zero(ledger: Ledger) -> None:
    assert ledger.peak([SLOTS, (1 << 32) - 1], [0, 0]) == 0


def test_an_adopted_ledger_keeps_the_peaks(ledger: Ledger) -> None:
    Client(ledger).reserve(5 * GIB)
    adopted = Ledger.adopt(*(os.dup(fd) for fd in ledger.fds))
    adopted.set_slot(0, 0, SlotState.LIVE)
    assert adopted.peak([0], [0]) == 5 * GIB
    adopted.close()


# -- slots and generations --


@pytest.mark.parametrize(("state", "result"), [
    (SlotState.FREE, FENCED), (SlotState.LIVE, OK), (SlotState.STALLED, STALLED),
    (SlotState.FENCED, FENCED),
])  # fmt: skip
def test_the_slots_state_decides(ledger: Ledger, state: SlotState, result: int) -> None:
    client = Client(ledger)
    ledger.set_slot(0, 0, state)
    assert client.reserve(1) == result
    assert ledger.used(0) == (1 if result == OK else 0)


def test_a_fenced_process_still_gives_back(ledger: Ledger) -> None:
    client = Client(ledger)
    client.reserve(3 * GIB)
    ledger.set_slot(0, 0, SlotState.FENCED)
    client.release(1 * GIB)
    assert ledger.slot_used(0, 0) == 2 * GIB


def test_the_next_generation_owes_nothing_to_the_last(ledger: Ledger) -> None:
    dead = Client(ledger)
    dead.reserve(9 * GIB)
    assert ledger.clear_slot(0, 0) == 1
    assert (ledger.used(0), ledger.slot_generation(0)) == (0, 1)
    ledger.set_slot(0, 1, SlotState.LIVE)
    heir = Client(ledger, generation=1)
    assert heir.reserve(5 * GIB) == OK
    assert dead.reserve(1) == FENCED
    dead.release(5 * GIB)
    assert ledger.used(0) == 5 * GIB


def test_a_slot_keeps_the_bytes_of_its_own_generation_alone(ledger: Ledger) -> None:
    client = Client(ledger)
    client.reserve(3 * GIB)
    ledger.set_slot(0, 0, SlotState.STALLED)
    ledger.set_slot(0, 0, SlotState.LIVE)
    assert ledger.slot_used(0, 0) == 3 * GIB
    ledger.set_slot(0, 7, SlotState.LIVE)
    assert ledger.slot_used(0, 0) == 0
    assert (client.reserve(1), Client(ledger, generation=7).reserve(1)) == (FENCED, OK)


def test_generations_wrap(ledger: Ledger) -> None:
    ledger.set_slot(3, 0xFFFF, SlotState.LIVE)
    lib.nm_ledger_take(ledger._native, 0, 3, 0)
    os.pwrite(ledger.fds[1], (0xFFFF << 48 | 5).to_bytes(8, "little"), 8 * 3)
    last = Client(ledger, slot=3, generation=0xFFFF)
    assert last.reserve(5) == OK
    assert ledger.slot_used(0, 3) == 10
    assert ledger.clear_slot(3, 0xFFFF) == 0
    assert ledger.slot_used(0, 3) == 0


def test_slots_beyond_those_given_out_are_not_summed(ledger: Ledger) -> None:
    os.pwrite(ledger.fds[1], (5 * GIB).to_bytes(8, "little"), 8 * 900)
    assert ledger.used(0) == 0
    ledger.set_slot(900, 0, SlotState.LIVE)
    assert ledger.used(0) == 5 * GIB


# -- what a hostile client may do --


def test_a_client_can_neither_shrink_nor_grow_nor_unseal(ledger: Ledger) -> None:
    for fd in ledger.fds:
        for size in (0, 4096, os.fstat(fd).st_size - 1, os.fstat(fd).st_size + 1):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)


def test_a_client_cannot_write_limits_in_any_way(ledger: Ledger) -> None:
    limits, _ = ledger.fds
    size = os.fstat(limits).st_size
    with pytest.raises(PermissionError):
        os.pwrite(limits, b"\xff" * 64, 0)
    with pytest.raises(PermissionError):
        mmap.mmap(limits, size, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    again = os.open(f"/proc/self/fd/{limits}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.pwrite(again, b"\xff" * 64, 0)
    os.close(again)
    ledger.set_limit(0, 77)
    assert ledger.limit(0) == 77, "while the manager's older mapping still writes"


def test_whatever_is_written_into_usage_is_read_within_bounds(ledger: Ledger) -> None:
    _, usage = ledger.fds
    size = os.fstat(usage).st_size
    ledger.set_slot(SLOTS - 1, 0, SlotState.LIVE)
    chance = random.Random(1)
    for content in (
        b"\xff" * size,
        bytes(size),
        chance.randbytes(size),
        b"\x00\x00\x00\x00\x00\x80\xff\xff" * (size // 8),
    ):
        os.pwrite(usage, content, 0)
        for row in range(ROWS):
            assert 0 <= ledger.used(row) < 1 << 63
        for slot in range(0, SLOTS, 41):
            assert 0 <= ledger.slot_used(0, slot) <= 80 * GIB
        generation = ledger.slot_generation(0)
        ledger.clear_slot(0, generation)
        assert ledger.slot_used(0, 0) == 0


def test_one_process_cannot_have_more_than_a_whole_gpu(ledger: Ledger) -> None:
    """Managed memory goes on where the GPU ends."""
    ledger.set_limit(0, 80 * GIB)
    client = Client(ledger)
    assert client.reserve(50 * GIB) == OK
    assert client.reserve(50 * GIB) == OVER
    assert ledger.used(0) == 50 * GIB


def test_garbage_of_one_process_does_not_let_another_beyond_the_limit(ledger: Ledger) -> None:
    os.pwrite(ledger.fds[1], b"\xff" * 8, 0)
    client = Client(ledger, slot=1)
    assert client.reserve(1) == OVER
    ledger.clear_slot(0, 0)
    assert client.reserve(10 * GIB) == OK


# -- after a restart --


def test_an_adopted_ledger_keeps_the_books_and_can_be_written(ledger: Ledger) -> None:
    client = Client(ledger)
    client.reserve(3 * GIB)
    heir = Ledger.adopt(*(os.dup(fd) for fd in ledger.fds))
    assert os.fstat(heir.fds[1]).st_ino == os.fstat(ledger.fds[1]).st_ino
    assert os.fstat(heir.fds[0]).st_ino != os.fstat(ledger.fds[0]).st_ino
    assert (heir.used(0), heir.limit(0), heir.slot_generation(0)) == (3 * GIB, 10 * GIB, 0)
    heir.set_limit(0, 4 * GIB)
    switched = Client(heir)
    assert switched.reserve(2 * GIB) == OVER
    assert switched.reserve(1 * GIB) == OK
    assert ledger.used(0) == 4 * GIB
    heir.close()


def test_what_is_no_ledger_is_not_adopted(ledger: Ledger, tmp_path) -> None:
    limits, usage = ledger.fds
    plain = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    unsealed = os.memfd_create("usage", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, os.fstat(usage).st_size)
    small = os.memfd_create("small", os.MFD_ALLOW_SEALING)
    every_seal = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | 0x10
    fcntl.fcntl(small, fcntl.F_ADD_SEALS, every_seal)
    other = os.memfd_create("zeros", os.MFD_ALLOW_SEALING)
    os.ftruncate(other, os.fstat(limits).st_size)
    fcntl.fcntl(other, fcntl.F_ADD_SEALS, every_seal)
    for pair, reason in {
        (limits, unsealed): "seals", (usage, usage): "seals", (plain, plain): "seals",
        (limits, small): "another size",
        (small, usage): "another size", (other, usage): "not a ledger",
        (limits, 999): "Bad file descriptor", (-1, usage): "Bad file",
    }.items():  # fmt: skip
        with pytest.raises(LedgerError, match=reason):
            Ledger.adopt(*pair)
    for fd in (plain, unsealed, small, other, limits, usage):
        os.fstat(fd)
    for fd in (plain, unsealed, small, other):
        os.close(fd)


def test_descriptors_are_high_and_close_on_exec_and_given_back() -> None:
    before = lasting_fds()
    ledger = Ledger.create()
    assert all(fd >= 40 and not os.get_inheritable(fd) for fd in ledger.fds)
    ledger.close()
    ledger.close()
    assert open_fds() <= before | {max(before)}
