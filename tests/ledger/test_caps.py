"""Caps of the ledger: memory that a task named is its own for sure, and its limit.

Two caps, a cap beside a range, a cap and a range beside processes without one; then random steps
against the rule in plain words, races, and a process that writes nonsense.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemgr._native import ffi, lib
from nodemgr.edge.ledger.native_ledger import CAPS, Ledger, SlotState
from tests.ledger.test_native_ledger import FENCED, GIB, OK, OVER, Client
from tests.ledger.test_races import LIMIT_BYTES, figures, go, racer, start
from tests.support.examples import seeds

__all__ = ["racer"]

A, B, UNNAMED = 0, 1, 2
"""Slots."""


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """A limit of 8 GiB for three processes."""
    ledger = Ledger.create()
    ledger.set_row(0, "GPU-a", 80 * GIB)
    ledger.set_limit(0, 8 * GIB)
    ledger.set_row(1, "GPU-b", 80 * GIB)
    ledger.set_limit(1, 8 * GIB)
    for slot in (A, B, UNNAMED):
        ledger.set_slot(slot, 0, SlotState.LIVE)
    yield ledger
    ledger.close()


def capped(ledger: Ledger, slot: int, kept_gib: int, most_gib: int | None = None) -> Client:
    """The process of the slot, whose task has kept_gib for sure, and most_gib at most."""
    ledger.set_cap(slot + 1, kept_gib * GIB, (most_gib or kept_gib) * GIB, [0])
    ledger.set_slot(slot, 0, SlotState.LIVE, slot + 1)
    return Client(ledger, slot=slot)


def looks(client: Client, row: int = 0) -> tuple[float, float]:
    """(limit, use) in GiB as CUDA reports them."""
    limit, used = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    lib.nm_ledger_look(client.native, row, client.slot, client.generation, limit, used)
    return limit[0] / GIB, used[0] / GIB


def test_a_named_task_takes_nothing_of_another(ledger: Ledger) -> None:
    a, b = capped(ledger, A, 2), capped(ledger, B, 5)
    assert a.reserve(6 * GIB) == OVER
    assert a.reserve(2 * GIB) == OK
    assert a.reserve(1) == OVER
    assert b.reserve(9 * GIB // 2) == OK
    assert (looks(a), looks(b)) == ((2, 2), (5, 4.5))
    assert (ledger.unkept(0), ledger.promised(0)) == (0, 7 * GIB)


def test_a_range_takes_what_nothing_was_promised(ledger: Ledger) -> None:
    a, b = capped(ledger, A, 2), capped(ledger, B, 1, 8)
    assert looks(b) == (6, 0)
    assert b.reserve(7 * GIB) == OVER
    assert b.reserve(5 * GIB) == OK
    assert ledger.unkept(0) == 4 * GIB, "what it has beyond its least"
    assert a.reserve(2 * GIB) == OK
    assert b.reserve(2 * GIB) == OVER
    assert b.reserve(GIB) == OK
    assert (looks(a), looks(b)) == ((2, 2), (6, 6))
    b.release(5 * GIB)
    assert looks(b) == (6, 1)


def test_processes_without_a_cap_share_the_rest(ledger: Ledger) -> None:
    other, a = Client(ledger, slot=UNNAMED), capped(ledger, A, 5)
    assert looks(other) == (8, 5)
    assert other.reserve(4 * GIB) == OVER
    assert other.reserve(3 * GIB) == OK
    assert other.reserve(1) == OVER
    assert a.reserve(5 * GIB) == OK
    assert (looks(other), ledger.unkept(0)) == ((8, 8), 3 * GIB)


def test_a_range_beside_processes_without_a_cap(ledger: Ledger) -> None:
    other, a = Client(ledger, slot=UNNAMED), capped(ledger, A, 2, 6)
    assert other.reserve(3 * GIB) == OK
    assert looks(a) == (5, 0)
    assert a.reserve(6 * GIB) == OVER
    assert a.reserve(5 * GIB) == OK
    assert other.reserve(1) == OVER
    a.release(5 * GIB)
    assert other.reserve(3 * GIB) == OK
    assert other.reserve(1) == OVER, "the least is kept"
    assert a.reserve(2 * GIB) == OK


def test_the_processes_of_a_task_share_one_cap(ledger: Ledger) -> None:
    parent = capped(ledger, A, 3)
    ledger.set_slot(B, 0, SlotState.LIVE, A + 1)
    child = Client(ledger, slot=B)
    assert parent.reserve(2 * GIB) == OK
    assert child.reserve(2 * GIB) == OVER
    assert child.reserve(GIB) == OK
    assert looks(parent) == looks(child) == (3, 3)


def test_a_cap_is_kept_on_its_rows_alone(ledger: Ledger) -> None:
    a, other = capped(ledger, A, 5), Client(ledger, slot=UNNAMED)
    assert other.reserve(8 * GIB, row=1) == OK
    assert a.reserve(1, row=1) == OVER
    other.release(8 * GIB, row=1)
    assert a.reserve(6 * GIB, row=1) == OVER, "its task may have no more anywhere"
    assert a.reserve(4 * GIB, row=1) == OK
    assert ledger.unkept(1) == 4 * GIB


def test_memory_beyond_the_charges_counts_in_its_tasks_cap(ledger: Ledger) -> None:
    a, b = capped(ledger, A, 3), capped(ledger, B, 5)
    ledger.set_correction(0, GIB)
    ledger.set_cap_correction(A + 1, 0, GIB)
    assert a.reserve(3 * GIB) == OVER
    assert a.reserve(2 * GIB) == OK
    assert b.reserve(5 * GIB) == OK
    assert (looks(a), ledger.promised(0)) == ((3, 3), 8 * GIB)


def test_memory_beyond_the_charges_of_others_counts_beside_the_caps(ledger: Ledger) -> None:
    capped(ledger, A, 3)
    ledger.set_correction(0, GIB)
    assert ledger.unkept(0) == GIB
    assert Client(ledger, slot=UNNAMED).reserve(5 * GIB) == OVER


def test_memory_charged_beyond_a_cap_is_never_more_than_the_limit(ledger: Ledger) -> None:
    a, b = capped(ledger, A, 3), capped(ledger, B, 5)
    assert lib.nm_ledger_charge(a.native, 0, A, 0, 5 * GIB) == OK
    assert b.reserve(5 * GIB) == OVER
    assert b.reserve(3 * GIB) == OK


def test_a_lowered_limit_keeps_what_is_promised(ledger: Ledger) -> None:
    a, other = capped(ledger, A, 3), Client(ledger, slot=UNNAMED)
    other.reserve(2 * GIB)
    assert ledger.lower_limit(0, GIB) == 5 * GIB
    assert a.reserve(3 * GIB) == OK
    assert other.reserve(1) == OVER


def test_what_a_fenced_process_holds_is_kept_for_none(ledger: Ledger) -> None:
    a = capped(ledger, A, 3)
    a.reserve(2 * GIB)
    ledger.set_slot(A, 0, SlotState.FENCED)
    ledger.set_cap(A + 1, 0, 0, [])
    assert a.reserve(1) == FENCED
    assert (ledger.unkept(0), ledger.promised(0)) == (2 * GIB, 2 * GIB)
    assert Client(ledger, slot=UNNAMED).reserve(6 * GIB) == OK


def test_the_next_process_of_a_slot_has_no_cap(ledger: Ledger) -> None:
    capped(ledger, A, 3).reserve(3 * GIB)
    ledger.clear_slot(A, 0)
    ledger.set_cap(A + 1, 0, 0, [])
    ledger.set_slot(A, 1, SlotState.LIVE)
    assert Client(ledger, slot=A, generation=1).reserve(8 * GIB) == OK


def test_a_cap_that_begins_again_has_nothing_of_the_one_before(ledger: Ledger) -> None:
    capped(ledger, B, 1)
    capped(ledger, A, 3)
    ledger.set_cap_correction(A + 1, 0, 3 * GIB)
    ledger.set_cap(A + 1, 0, 0, [])
    assert capped(ledger, A, 3).reserve(3 * GIB) == OK


def test_bad_numbers_are_refused(ledger: Ledger) -> None:
    for number in (0, CAPS):
        with pytest.raises(IndexError):
            ledger.set_cap(number, GIB, GIB, [0])
        with pytest.raises(IndexError):
            ledger.set_cap_correction(number, 0, GIB)
    with pytest.raises(IndexError):
        ledger.set_slot(A, 0, SlotState.LIVE, CAPS)


def test_as_many_caps_as_there_are(ledger: Ledger) -> None:
    """More than are summed at a time."""
    for number in range(1, CAPS):
        ledger.set_cap(number, 1 << 20, 1 << 20, [0])
    ledger.set_slot(A, 0, SlotState.LIVE, CAPS - 1)
    assert ledger.promised(0) == (CAPS - 1) << 20
    assert Client(ledger, slot=A).reserve(1 << 20) == OK
    assert Client(ledger, slot=UNNAMED).reserve(8 * GIB - ((CAPS - 1) << 20)) == OK
    assert Client(ledger, slot=UNNAMED).reserve(1) == OVER


def test_a_restarted_manager_writes_its_caps_anew(ledger: Ledger) -> None:
    a = capped(ledger, A, 3)
    a.reserve(2 * GIB)
    adopted = Ledger.adopt(*(os.dup(fd) for fd in ledger.fds))
    assert (adopted.promised(0), adopted.unkept(0)) == (2 * GIB, 2 * GIB)
    adopted.set_cap(7, 3 * GIB, 3 * GIB, [0])
    adopted.set_slot(A, 0, SlotState.LIVE, 7)
    assert (adopted.promised(0), adopted.unkept(0)) == (3 * GIB, 0)
    assert Client(adopted, slot=A).reserve(GIB) == OK
    adopted.close()


@pytest.mark.parametrize("seed", seeds(pytest.mark.slow))
def test_random_steps_follow_the_rule_in_plain_words(ledger: Ledger, seed: int) -> None:
    """Each reservation by the rule, counted anew: figures, refusals, and what is promised."""
    chance, limit = random.Random(seed), 32
    ledger.set_limit(0, limit * GIB)
    caps = [(kept, kept + chance.choice([0, 0, 4, 9])) for kept in (3, 5, 1)]
    for number, (kept, most) in enumerate(caps, 1):
        ledger.set_cap(number, kept * GIB, most * GIB, [0])
    of_slot = [chance.randrange(len(caps) + 1) for _ in range(8)]
    for slot, cap in enumerate(of_slot):
        ledger.set_slot(slot, 0, SlotState.LIVE, cap)
    clients, held = [Client(ledger, slot=slot) for slot in range(8)], [0] * 8

    def used(cap: int) -> int:
        return sum(size for size, of in zip(held, of_slot, strict=True) if of == cap)

    def promised() -> int:
        kept = [max(used(number), kept) for number, (kept, _) in enumerate(caps, 1)]
        return used(0) + sum(kept)

    for _ in range(300):
        slot, size = chance.randrange(8), chance.randint(1, 6)
        cap = of_slot[slot]
        if chance.random() < 0.4:
            size = min(size, held[slot])
            clients[slot].release(size * GIB)
            held[slot] -= size
        else:
            held[slot] += size
            kept, most = (0, limit) if cap == 0 else caps[cap - 1]
            is_within = used(cap) <= kept or promised() <= limit
            answer = OK if used(cap) <= most and is_within and sum(held) <= limit else OVER
            assert clients[slot].reserve(size * GIB) == answer
            held[slot] -= 0 if answer == OK else size
        assert ledger.promised(0) == promised() * GIB
        assert sum(held) <= promised() <= limit
        shown, own = looks(clients[slot])
        assert own == (promised() if cap == 0 else used(cap))
        assert clients[slot].reserve(round((shown - own) * GIB)) == OK, "what is free can be had"
        assert clients[slot].reserve(1) == OVER
        clients[slot].release(round((shown - own) * GIB))


@pytest.mark.slow
def test_named_memory_is_sure_at_any_instant(racer: Path, ledger: Ledger) -> None:
    """Four processes that race for all of the rest, and two tasks that are never refused.

    No instant has more than a cap in a task, or more than the rest in the others.
    """
    ledger.set_limit(0, LIMIT_BYTES)
    kept = LIMIT_BYTES // 4
    for number in (1, 2):
        ledger.set_cap(number, kept, kept, [0])
    truths = [_truth() for _ in range(3)]
    racers = []
    for slot in range(8):
        cap = {6: 1, 7: 2}.get(slot, 0)
        ledger.set_slot(slot, 0, SlotState.LIVE, cap)
        most = kept // 8 if cap else LIMIT_BYTES // 6
        ceiling = kept if cap else LIMIT_BYTES - 2 * kept
        racers.append(
            start(racer, ledger, truths[cap], slot, most_bytes=most, ceiling_bytes=ceiling)
        )
    go(*racers)
    refused = [figures(process)[1] for process in racers]
    assert refused[6:] == [0, 0]
    assert sum(refused[:6]) > 0
    assert (ledger.used(0), ledger.promised(0)) == (0, 2 * kept)
    for fd in truths:
        os.close(fd)


def _truth() -> int:
    fd = os.memfd_create("truth")
    os.ftruncate(fd, 8)
    return fd


def test_nonsense_in_the_words_of_one_changes_no_cap(ledger: Ledger) -> None:
    """A client writes its own page alone: caps and limits are sealed against it."""
    a, other = capped(ledger, A, 3), Client(ledger, slot=UNNAMED)
    a.reserve(GIB)
    other.reserve(GIB)
    size = os.fstat(ledger.fds[1]).st_size
    os.pwrite(ledger.fds[1], random.Random(1).randbytes(size), 0)
    assert ledger.promised(0) >= 3 * GIB
    for slot in (A, B, UNNAMED):
        ledger.clear_slot(slot, 0)
        ledger.set_slot(slot, 1, SlotState.LIVE, A + 1 if slot == A else 0)
    for slot in range(3, 1024):
        ledger.clear_slot(slot, 0)
    assert (ledger.promised(0), ledger.unkept(0)) == (3 * GIB, 0)
    assert Client(ledger, slot=A, generation=1).reserve(3 * GIB) == OK
    assert Client(ledger, slot=UNNAMED, generation=1).reserve(6 * GIB) == OVER
    with pytest.raises(PermissionError):
        os.pwrite(ledger.fds[0], b"\xff" * 8, os.fstat(ledger.fds[0]).st_size - 8)
