"""The manager's end of an env's memory ledger (csrc/ledger/ledger.h).

Knows: the two memory files and their writers. Must not know: sockets, leases, the reason for a
slot's owner.

Words that clients wrote are clamped when they are read: no figure here is negative, and no slot
counts for more than its GPU's memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Self

from nodemgr._native import ffi, lib

ROWS: int = lib.NM_LEDGER_ROWS
SLOTS: int = lib.NM_LEDGER_SLOTS
CAPS: int = lib.NM_LEDGER_CAPS
_NEVER = 2**64 - 1


class LedgerError(RuntimeError):
    """No ledger could be made, or two files are none. str() is one line."""


class OtherLayoutError(LedgerError):
    """Two files are no ledger of this version."""


class SlotState(IntEnum):
    FREE = lib.NM_SLOT_FREE
    LIVE = lib.NM_SLOT_LIVE
    STALLED = lib.NM_SLOT_STALLED
    FENCED = lib.NM_SLOT_FENCED


class SlotHold(IntEnum):
    """Whether the driver holds the calls of a slot's process."""

    NONE = lib.NM_NOT_HELD
    HELD = lib.NM_HELD
    AWAY = lib.NM_AWAY


class BeatReading(NamedTuple):
    """The result of one reading of the beat words (csrc/manager/beats.h)."""

    woken: list[int]
    """Stalled slots with a word that has moved since the last reading."""
    still: list[int]
    """Live slots with a word that has not moved since the given time."""
    oldest_ns: int | None
    """When the first of the other live slots was heard."""


def _raise_fault(fault: int) -> None:
    if fault == lib.NM_LEDGER_ERRNO:
        raise LedgerError(f"ledger: {os.strerror(ffi.errno)}")
    if fault != lib.NM_LEDGER_OK:
        is_other = fault in (lib.NM_LEDGER_SIZE, lib.NM_LEDGER_FORMAT)
        text = ffi.string(lib.nm_ledger_fault_text(fault)).decode()
        raise (OtherLayoutError if is_other else LedgerError)(f"ledger: {text}")


def _raise_range(result: int) -> None:
    if result < 0:
        raise IndexError("no such row or slot of the ledger")


class Ledger:
    """One env's ledger, mapped for writing its limits. Made by create() or adopt()."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._beats = ffi.new("struct nm_beats *")
        self._open = True
        self.fds: tuple[int, int] = (native.limits_fd, native.usage_fd)
        """(limits, usage): what goes with a GRANT. Still this object's."""

    @classmethod
    def create(cls) -> Self:
        """A new, empty, sealed ledger. Raises LedgerError."""
        native = ffi.new("struct nm_ledger *")
        _raise_fault(lib.nm_ledger_create(native))
        return cls(native)

    @classmethod
    def adopt(cls, limits_fd: int, usage_fd: int) -> Self:
        """The ledger of an earlier manager, from the FD store or from a client.

        Its usage file is kept. Its limits are copied into a new file (the old one cannot be written
        any more), which every client gets with its next GRANT. Takes over both descriptors, unless
        it raises LedgerError (missing seals, another size, not a ledger).
        """
        native = ffi.new("struct nm_ledger *")
        _raise_fault(lib.nm_ledger_adopt(native, limits_fd, usage_fd))
        return cls(native)

    def set_row(self, row: int, uuid: str, total_bytes: int) -> None:
        """Name the GPU of a row and its physical memory, which bounds each process's figure."""
        _raise_range(lib.nm_ledger_set_row(self._native, row, uuid.encode(), total_bytes))

    def set_limit(self, row: int, limit_bytes: int) -> None:
        """Sets the limit for the next allocations; present allocations stay."""
        _raise_range(lib.nm_ledger_set_limit(self._native, row, limit_bytes))

    def lower_limit(self, row: int, least_bytes: int) -> int:
        """Lowers the limit to `least_bytes`, or to what is promised; returns the limit."""
        limit = ffi.new("uint64_t *")
        _raise_range(lib.nm_ledger_lower_limit(self._native, row, least_bytes, limit))
        return int(limit[0])

    def set_correction(self, row: int, correction_bytes: int) -> None:
        """The driver's bytes beyond the ledger: they count as used."""
        _raise_range(lib.nm_ledger_set_correction(self._native, row, correction_bytes))

    def set_cap(self, cap: int, kept_bytes: int, most_bytes: int, rows: Iterable[int]) -> None:
        """Keeps memory for a task on these rows, and bounds what it has; most_bytes 0: ends it."""
        bits = sum(1 << row for row in rows)
        _raise_range(lib.nm_ledger_set_cap(self._native, cap, kept_bytes, most_bytes, bits))

    def set_cap_correction(self, cap: int, row: int, correction_bytes: int) -> None:
        """The part of the row's correction that is of the task's processes."""
        _raise_range(lib.nm_ledger_set_cap_correction(self._native, cap, row, correction_bytes))

    def set_slot(self, slot: int, generation: int, state: SlotState, cap: int = 0) -> None:
        """The slot is that generation's: its bytes stay, those of another one go.

        `cap`: that of its task; 0: none.
        """
        _raise_range(lib.nm_ledger_set_slot_cap(self._native, slot, cap))
        _raise_range(lib.nm_ledger_set_slot(self._native, slot, generation, state))

    def set_hold(self, slot: int, hold: SlotHold) -> None:
        _raise_range(lib.nm_ledger_set_hold(self._native, slot, hold))

    def clear_slot(self, slot: int, generation: int) -> int:
        """After the death of its process: zero bytes, free; returns the next generation."""
        following: int = lib.nm_ledger_clear_slot(self._native, slot, generation)
        _raise_range(following)
        return following

    @property
    def slots_used(self) -> int:
        """How many are summed: no process has one beyond."""
        slots: int = lib.nm_ledger_slots_used(self._native)
        return slots

    def slot_generation(self, slot: int) -> int:
        generation: int = lib.nm_ledger_slot_generation(self._native, slot)
        _raise_range(generation)
        return generation

    def is_unsuspendable(self, slot: int) -> bool:
        """Whether the process reports memory with which the driver cannot suspend it."""
        return bool(lib.nm_ledger_is_unsuspendable(self._native, slot))

    def limit(self, row: int) -> int:
        limit: int = lib.nm_ledger_limit(self._native, row)
        return limit

    def used(self, row: int) -> int:
        """Bytes of all processes on the GPU of `row`, and the correction."""
        used: int = lib.nm_ledger_used(self._native, row)
        return used

    def unkept(self, row: int) -> int:
        """The part of `used` that is beyond what is kept for its task."""
        unkept: int = lib.nm_ledger_unkept(self._native, row)
        return unkept

    def promised(self, row: int) -> int:
        """That, and all that is kept for tasks."""
        promised: int = lib.nm_ledger_promised(self._native, row)
        return promised

    def slot_used(self, row: int, slot: int) -> int:
        used: int = lib.nm_ledger_slot_used(self._native, row, slot)
        return used

    def peak(self, slots: Sequence[int], generations: Sequence[int]) -> int:
        """The largest sum of the peaks of these slots on one GPU, at most its memory."""
        peak: int = lib.nm_ledger_peak(self._native, slots, generations, len(slots))
        return peak

    def was_refused(self, slot: int, generation: int) -> bool:
        return bool(lib.nm_ledger_was_refused(self._native, slot, generation))

    def read_beats(self, now_ns: int, before_ns: int) -> BeatReading:
        """Notes at now_ns which words have moved; one call, however many processes there are."""
        beats = self._beats
        lib.nm_beats_read(self._native, beats, now_ns, max(0, before_ns))
        woken = ffi.unpack(beats.woken, beats.woken_count) if beats.woken_count else []
        still = ffi.unpack(beats.silent, beats.silent_count) if beats.silent_count else []
        return BeatReading(woken, still, None if beats.oldest_ns == _NEVER else beats.oldest_ns)

    def heard_ns(self, slot: int) -> int:
        """When a reading last saw a move of the slot's word, or first saw the slot; 0: never."""
        heard_ns: int = self._beats.heard_ns[slot]
        return heard_ns

    def close(self) -> None:
        if self._open:
            self._open = False
            lib.nm_ledger_unmap(self._native)
