"""The manager's reading of the beat words: which change counts as a sign of life.

No content of the words can do more.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator

import pytest

from nodemgr._native import ffi, lib
from nodemgr.edge.ledger.native_ledger import ROWS, SLOTS, Ledger, SlotState

S = 10**9
BEATS_AT = -8 * SLOTS * (1 + ROWS)
"""The offset of the beat words from the end of the usage file."""


class Books:
    """A ledger in the manager's hands; `beat` is what a client's thread does."""

    def __init__(self, slots: int = 1) -> None:
        self.ledger = Ledger.create()
        self._client = ffi.new("struct nm_ledger *")
        assert (
            lib.nm_ledger_map_client(self._client, *(os.dup(fd) for fd in self.ledger.fds))
            == lib.NM_LEDGER_OK
        )
        for slot in range(slots):
            self.ledger.set_slot(slot, 5, SlotState.LIVE)

    def close(self) -> None:
        lib.nm_ledger_unmap(self._client)
        self.ledger.close()

    def beat(self, slot: int, count: int, generation: int = 5) -> None:
        lib.nm_ledger_beat(self._client, slot, generation, count)

    def write(self, slot: int, word: int) -> None:
        usage = self.ledger.fds[1]
        os.pwrite(usage, struct.pack("=Q", word), os.fstat(usage).st_size + BEATS_AT + 8 * slot)

    def heard_s(self, slot: int) -> float:
        return self.ledger.heard_ns(slot) / S

    def look(self, now_s: float, timeout_s: float = 5) -> tuple[list[int], list[int], float | None]:
        """(woken, still, when the oldest of the others was heard)"""
        woken, still, oldest_ns = self.ledger.read_beats(
            int(now_s * S), int((now_s - timeout_s) * S) + 1
        )
        return woken, still, None if oldest_ns is None else oldest_ns / S


@pytest.fixture
def books() -> Iterator[Books]:
    books = Books(3)
    yield books
    books.close()


def test_a_word_that_moves_is_heard_and_one_that_stands_still_is_silent_after_the_timeout(
    books: Books,
) -> None:
    assert books.look(100) == ([], [], 100), "new slots count as heard"
    for second in range(101, 105):
        books.beat(1, second)
        assert books.look(second) == ([], [], 100)
    books.beat(1, 105)
    assert books.look(105) == ([], [0, 2], 105)
    assert [books.heard_s(slot) for slot in range(3)] == [100, 105, 100]


def test_what_a_process_finds_in_its_slot_is_no_sign_of_life(books: Books) -> None:
    books.look(100)
    books.beat(0, 7)
    books.look(101)
    books.ledger.clear_slot(0, 5)
    assert books.look(110)[1] == [1, 2], "a free slot is nobody's"
    books.ledger.set_slot(0, 6, SlotState.LIVE)
    assert (books.look(111)[1], books.heard_s(0)) == ([1, 2], 111)
    books.beat(0, 8, generation=5)
    books.look(112)
    assert books.heard_s(0) == 111, "the slot's former process, in a mapping that outlived it"
    books.beat(0, 1, generation=6)
    books.look(113)
    assert books.heard_s(0) == 113


def test_a_stalled_slot_wakes_by_its_word_and_is_neither_silent_nor_oldest(books: Books) -> None:
    books.look(100)
    books.ledger.set_slot(0, 5, SlotState.STALLED)
    books.beat(1, 1)
    books.beat(2, 1)
    assert books.look(106) == ([], [], 106)
    books.beat(0, 1)
    assert books.look(107)[0] == [0]
    assert books.look(108)[0] == [], "once for each move"
    books.ledger.set_slot(0, 5, SlotState.LIVE)
    books.look(109)
    assert books.heard_s(0) == 109


def test_a_beat_between_the_look_that_stalls_and_the_next_wakes(books: Books) -> None:
    books.look(100)
    assert 0 in books.look(105)[1]
    books.ledger.set_slot(0, 5, SlotState.STALLED)
    books.beat(0, 1)
    assert books.look(106)[0] == [0]


def test_a_fenced_slots_word_is_nobodys_life(books: Books) -> None:
    books.look(100)
    books.ledger.set_slot(0, 5, SlotState.FENCED)
    books.beat(0, 1)
    assert books.look(106) == ([], [1, 2], None)
    books.ledger.set_slot(0, 5, SlotState.LIVE)
    assert books.look(107)[1] == [1, 2], "it asked anew: heard now"


def test_an_adopted_ledger_gives_everybody_the_whole_timeout(books: Books) -> None:
    books.beat(0, 9)
    books.ledger.set_slot(1, 5, SlotState.STALLED)
    after = Ledger.adopt(*(os.dup(fd) for fd in books.ledger.fds))
    try:
        assert after.read_beats(900 * S, 895 * S + 1) == ([], [], 900 * S)
        books.beat(0, 10)
        books.beat(1, 1)
        assert after.read_beats(904 * S, 899 * S + 1) == ([1], [], 900 * S)
        assert after.read_beats(905 * S, 900 * S + 1) == ([], [2], 904 * S)
    finally:
        after.close()


@pytest.mark.parametrize("word", [5 << 48 | 1, 5 << 48 | 2**48 - 1, (5 << 48) + 2**47, 5 << 48 | 3])
def test_whatever_the_count_says_another_word_of_the_generation_is_a_move(
    books: Books, word: int
) -> None:
    """It may fall, jump, or be the largest: it is not read as a number."""
    books.beat(0, 2)
    books.look(100)
    books.write(0, word)
    books.look(101)
    assert books.heard_s(0) == 101


@pytest.mark.parametrize("word", [0, 2**64 - 1, 4 << 48 | 7, 6 << 48, 2**48 - 1])
def test_a_word_of_no_generation_of_the_slot_is_no_move(books: Books, word: int) -> None:
    books.look(100)
    books.write(0, word)
    assert 0 in books.look(105)[1]


def test_garbage_in_all_words_names_no_slot_that_is_not_there() -> None:
    """Any words anywhere: only slots of the manager are named, once, silent or stalled ones."""
    books, chance = Books(40), random.Random(1)
    stalled = set(range(10))
    for slot in stalled:
        books.ledger.set_slot(slot, 5, SlotState.STALLED)
    for slot in range(20, 30):
        books.ledger.set_slot(slot, 5, SlotState.FENCED)
    usage = books.ledger.fds[1]
    for second in range(100, 400):
        all_equal = struct.pack("=Q", 5 << 48 | second) * SLOTS
        words = chance.choice(
            [bytes(8 * SLOTS), b"\xff" * 8 * SLOTS, chance.randbytes(8 * SLOTS), all_equal]
        )
        os.pwrite(usage, words, os.fstat(usage).st_size + BEATS_AT)
        if chance.random() < 0.5:  # and all the rest of the file, the number of used slots among it
            os.pwrite(usage, chance.randbytes(os.fstat(usage).st_size), 0)
        woken, still, oldest_s = books.look(second)
        assert set(woken) <= stalled
        assert set(still) <= set(range(10, 20)) | set(range(30, 40))
        assert len(set(woken)) == len(woken)
        assert len(set(still)) == len(still)
        assert oldest_s is None or second - 5 < oldest_s <= second
    books.close()
