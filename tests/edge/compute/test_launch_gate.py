"""The two files of a launch gate: slots, figures, and words that no honest process writes."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

import pytest

from nodemgr.edge.compute.launch_gate import (
    SLOTS,
    GateClass,
    GateState,
    LaunchGate,
    LaunchGateError,
    SlotWords,
    TurnsFault,
)
from tests.edge.compute.turns import (
    FLOOR,
    IN_FLIGHT,
    LAST_ACTIVITY,
    LAUNCHES,
    USED,
    VIRTUAL,
    WAITING,
    Turns,
)

SECOND_NS = 1_000_000_000
NOW_NS = 1_000 * SECOND_NS
WORDS = SlotWords(40, GateClass.BEST_EFFORT, GateState.OPEN, 17)


@pytest.fixture
def gate() -> Iterator[LaunchGate]:
    gate = LaunchGate.create()
    yield gate
    gate.close()


@pytest.fixture
def turns(gate: LaunchGate) -> Iterator[Turns]:
    with Turns(gate.fds[1]) as turns:
        yield turns


def test_a_slot_has_the_words_that_it_was_given(gate: LaunchGate) -> None:
    slot = gate.give(WORDS)
    assert slot == 0
    assert gate.words(slot) == WORDS
    gate.set(slot, WORDS._replace(state=GateState.CLOSED, share_percent=0))
    assert gate.words(slot).state is GateState.CLOSED
    gate.clear(slot)
    assert gate.words(slot).state is GateState.FREE


@pytest.mark.parametrize("share", [101, 2**31])
def test_a_share_beyond_the_gpu_is_refused(gate: LaunchGate, share: int) -> None:
    with pytest.raises(LaunchGateError, match="no such slot, share, class or state"):
        gate.give(WORDS._replace(share_percent=share))


@pytest.mark.parametrize("slot", [SLOTS, 2**32 - 1])
def test_a_slot_beyond_the_last_is_refused(gate: LaunchGate, slot: int) -> None:
    with pytest.raises(LaunchGateError):
        gate.words(slot)
    with pytest.raises(LaunchGateError):
        gate.set(slot, WORDS)


def test_a_free_slot_is_set_by_no_one(gate: LaunchGate) -> None:
    with pytest.raises(LaunchGateError):
        gate.set(5, WORDS)


def test_the_65th_process_gets_no_slot(gate: LaunchGate) -> None:
    assert [gate.give(WORDS) for _ in range(SLOTS + 1)] == [*range(SLOTS), None]


def test_a_client_cannot_write_its_share_or_shrink_a_file(gate: LaunchGate) -> None:
    shares, turns = gate.fds
    with pytest.raises(PermissionError):
        mmap.mmap(shares, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    for fd in (shares, turns):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)


def test_figures_are_those_of_the_process(gate: LaunchGate, turns: Turns) -> None:
    slot = gate.give(WORDS)
    assert slot is not None
    turns.row(slot, {USED: 5, IN_FLIGHT: 6, LAST_ACTIVITY: 7, WAITING: 8})
    assert gate.use(slot) == (5, 6, 7, 8)
    gate.clear(slot)
    assert gate.give(WORDS) == slot
    assert gate.use(slot) == (0, 0, 0, 0), "of the next process in this slot"


def test_figures_are_clamped(gate: LaunchGate, turns: Turns) -> None:
    slot = gate.give(WORDS)
    assert slot is not None
    turns.row(slot, dict.fromkeys((USED, IN_FLIGHT, LAST_ACTIVITY, WAITING), 2**64 - 1))
    assert all(0 <= figure <= 2**62 for figure in gate.use(slot))


# -- words that cannot be right --


def second(gate: LaunchGate, number: int) -> tuple[TurnsFault, int | None]:
    return gate.check(NOW_NS + number * SECOND_NS)


FINE = (TurnsFault.NONE, None)


def test_honest_work_is_no_fault(gate: LaunchGate, turns: Turns) -> None:
    slot = gate.give(SlotWords(60, GateClass.LATENCY_SENSITIVE, GateState.OPEN, 1))
    assert slot is not None
    for number in range(5):
        at_ns = NOW_NS + number * SECOND_NS
        turns.row(slot, {USED: number * SECOND_NS, VIRTUAL: number * 100 * SECOND_NS,
                         LAST_ACTIVITY: at_ns, WAITING: at_ns,
                         IN_FLIGHT: 600 * SECOND_NS})  # fmt: skip
        turns.beats(slot, number * 20_000)
        turns.word(FLOOR, number * 100 * SECOND_NS)
        turns.token(epoch=number * 100_000, slot=slot)
        turns.urgent(1 << slot)
        assert second(gate, number) == FINE


def test_the_epoch_wraps(gate: LaunchGate, turns: Turns) -> None:
    turns.token(epoch=2**48 - 1, slot=0)
    assert second(gate, 0) == FINE
    turns.token(epoch=3, slot=0)
    assert second(gate, 1) == FINE


@pytest.mark.parametrize(("before", "after"), [(1_000, 999), (0, 2**40), (5, 0)])
def test_an_epoch_that_goes_back_or_leaps_is_a_fault(
    gate: LaunchGate, turns: Turns, before: int, after: int
) -> None:
    turns.token(epoch=before, slot=0)
    assert second(gate, 0) == FINE
    turns.token(epoch=after, slot=0)
    assert second(gate, 1) == (TurnsFault.TOKEN, None)


def test_a_token_of_no_slot_is_a_fault(gate: LaunchGate, turns: Turns) -> None:
    turns.token(epoch=0, slot=SLOTS)
    assert second(gate, 0) == (TurnsFault.TOKEN, None)


def test_a_bit_of_another_class_is_a_fault_when_it_stays(gate: LaunchGate, turns: Turns) -> None:
    slot = gate.give(WORDS)
    turns.urgent(0b1001)
    assert second(gate, 0) == FINE
    assert second(gate, 1) == (TurnsFault.URGENT, slot)


def test_a_bit_of_a_slot_without_a_process_is_none(gate: LaunchGate, turns: Turns) -> None:
    turns.urgent(0b1000)
    assert second(gate, 0) == FINE
    assert second(gate, 1) == FINE


def test_used_time_may_be_estimated(gate: LaunchGate, turns: Turns) -> None:
    slot = gate.give(WORDS)
    assert slot is not None
    for number in range(5):
        turns.row(slot, dict.fromkeys((USED, VIRTUAL), 3 * number * SECOND_NS))
        assert second(gate, number) == FINE


def test_a_bit_that_stays_after_a_change_of_class_is_none(gate: LaunchGate, turns: Turns) -> None:
    slot = gate.give(WORDS)
    assert slot is not None
    for number in range(4):
        turns.urgent(1)
        gate.set(slot, WORDS._replace(share_percent=number))
        assert second(gate, number) == FINE


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (USED, 3_600 * SECOND_NS),
        (USED, 2**64 - 1),
        (LAST_ACTIVITY, NOW_NS + 60 * SECOND_NS),
        (WAITING, NOW_NS + 60 * SECOND_NS),
        (IN_FLIGHT, 2**63),
    ],
)
def test_a_figure_that_no_process_can_have_is_a_fault(
    gate: LaunchGate, turns: Turns, word: int, value: int
) -> None:
    slot = gate.give(WORDS)
    assert slot is not None
    assert second(gate, 0) == FINE
    turns.row(slot, {word: value})
    assert second(gate, 1) == (TurnsFault.FIGURE, slot)


def test_used_time_that_goes_back_is_a_fault(gate: LaunchGate, turns: Turns) -> None:
    slot = gate.give(WORDS)
    assert slot is not None
    assert second(gate, 0) == FINE
    turns.row(slot, dict.fromkeys((USED, VIRTUAL), SECOND_NS // 2))
    assert second(gate, 1) == FINE
    turns.row(slot, {USED: 0})
    assert second(gate, 2) == (TurnsFault.FIGURE, slot)


def test_a_pause_of_the_manager_is_no_fault(gate: LaunchGate, turns: Turns) -> None:
    """Nor is a stopped process, whose words stand still."""
    slot = gate.give(WORDS)
    assert slot is not None
    assert second(gate, 0) == FINE
    turns.row(slot, {USED: 600 * SECOND_NS, VIRTUAL: 60_000 * SECOND_NS})
    turns.beats(slot, 600 * 20_000)
    turns.word(FLOOR, 60_000 * SECOND_NS)
    assert second(gate, 600) == FINE
    assert second(gate, 1_200) == FINE


def test_a_process_that_joins_at_the_floor_is_none(gate: LaunchGate, turns: Turns) -> None:
    slot = gate.give(WORDS)
    assert slot is not None
    assert second(gate, 0) == FINE
    turns.row(slot, {USED: 1_000_000, VIRTUAL: 10_000 * SECOND_NS})
    assert second(gate, 1) == FINE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({VIRTUAL: 10 * SECOND_NS}, {VIRTUAL: 9 * SECOND_NS}),
        ({VIRTUAL: 0}, {VIRTUAL: 2**61}),
        ({VIRTUAL: SECOND_NS}, {USED: SECOND_NS // 2, VIRTUAL: SECOND_NS}),
    ],
    ids=["went back", "leapt", "stood still beside its use"],
)
def test_a_virtual_time_that_no_process_can_have_is_a_fault(
    gate: LaunchGate, turns: Turns, before: dict[int, int], after: dict[int, int]
) -> None:
    slot = gate.give(WORDS)
    assert slot is not None
    turns.row(slot, before)
    assert second(gate, 0) == FINE
    turns.row(slot, after)
    assert second(gate, 1) == (TurnsFault.VIRTUAL, slot)


@pytest.mark.parametrize("after", [0, 2**61])
def test_a_floor_that_goes_back_or_leaps_is_a_fault(
    gate: LaunchGate, turns: Turns, after: int
) -> None:
    gate.give(WORDS)
    turns.word(FLOOR, SECOND_NS)
    assert second(gate, 0) == FINE
    turns.word(FLOOR, after)
    assert second(gate, 1) == (TurnsFault.VIRTUAL, None)


def test_beats_in_a_loop_are_a_fault(gate: LaunchGate, turns: Turns) -> None:
    """An honest process beats some times in a millisecond at most."""
    slot = gate.give(WORDS)
    assert slot is not None
    assert second(gate, 0) == FINE
    turns.beats(slot, 5_000_000)
    assert second(gate, 1) == (TurnsFault.FIGURE, slot)


@pytest.mark.parametrize("word", [VIRTUAL, IN_FLIGHT, USED, LAST_ACTIVITY, LAUNCHES, WAITING])
def test_words_of_a_slot_that_no_process_ever_had_are_a_fault(
    gate: LaunchGate, turns: Turns, word: int
) -> None:
    gate.give(WORDS)
    assert second(gate, 0) == FINE
    turns.row(7, {word: 1})
    assert second(gate, 1) == (TurnsFault.STRAY, 7)


def test_words_that_a_dead_process_leaves_are_none(gate: LaunchGate, turns: Turns) -> None:
    slot = gate.give(WORDS)
    assert slot is not None
    assert second(gate, 0) == FINE
    gate.clear(slot)
    turns.row(slot, {WAITING: 5, IN_FLIGHT: 5})
    assert second(gate, 1) == FINE


def test_flags_that_are_cleared_everywhere_are_a_fault(gate: LaunchGate, turns: Turns) -> None:
    """The last slots carry a flag that no honest process clears."""
    gate.give(WORDS)
    assert second(gate, 0) == FINE
    for slot in range(SLOTS):
        turns.row(slot, {WAITING: 0})
    fault, slot_of = second(gate, 1)
    assert fault is TurnsFault.STRAY
    assert slot_of is not None
    assert slot_of >= SLOTS - 8


def test_a_full_page_has_no_slot_for_such_words(gate: LaunchGate) -> None:
    for _ in range(SLOTS):
        assert gate.give(WORDS) is not None
    assert second(gate, 0) == FINE


def test_words_of_another_generation_are_a_fault(gate: LaunchGate, turns: Turns) -> None:
    slot = gate.give(WORDS)
    assert slot is not None
    turns.generation(slot, 77)
    assert second(gate, 0) == (TurnsFault.GENERATION, slot)


@pytest.mark.parametrize("salt", range(4))
def test_a_page_of_garbage_harms_nothing(gate: LaunchGate, turns: Turns, salt: int) -> None:
    slot = gate.give(WORDS)
    assert slot is not None
    turns.garbage(salt)
    assert second(gate, 0)[0] is not TurnsFault.NONE
    assert all(0 <= figure <= 2**62 for figure in gate.use(slot))
    gate.set(slot, WORDS._replace(state=GateState.CLOSED))
    gate.clear(slot)
    assert gate.give(WORDS) is not None


def test_a_retired_page_says_so_to_its_clients(gate: LaunchGate) -> None:
    (before,) = struct.unpack_from("=I", os.pread(gate.fds[0], 64, 0), 40)
    gate.retire()
    (after,) = struct.unpack_from("=I", os.pread(gate.fds[0], 64, 0), 40)
    assert (before, after) == (0, 1)
