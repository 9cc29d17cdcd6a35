"""The manager's end of a launch gate (csrc/gate/gate.h): the two memory files of a GPU.

Knows: the two files, their writers, the words that no client can have written rightly. Must not
know: sockets, tasks, the reason for a share.

Figures that clients wrote are clamped when they are read.
"""

from __future__ import annotations

import os
from enum import IntEnum
from typing import Any, NamedTuple, Self

from nodemgr._native import ffi, lib

SLOTS: int = lib.NM_LAUNCH_SLOTS


class LaunchGateError(OSError):
    """No launch gate could be made. str() is one line."""


class GateState(IntEnum):
    FREE = lib.NM_LAUNCH_FREE
    OPEN = lib.NM_LAUNCH_OPEN
    CLOSED = lib.NM_LAUNCH_CLOSED
    PAUSED = lib.NM_LAUNCH_PAUSED
    SUSPENDED = lib.NM_LAUNCH_SUSPENDED
    FENCED = lib.NM_LAUNCH_FENCED


class GateClass(IntEnum):
    NORMAL = lib.NM_LAUNCH_NORMAL
    LATENCY_SENSITIVE = lib.NM_LAUNCH_LATENCY_SENSITIVE
    BEST_EFFORT = lib.NM_LAUNCH_BEST_EFFORT


class TurnsFault(IntEnum):
    """The word that no honest process writes (csrc/manager/turns.h)."""

    NONE = lib.NM_TURNS_OK
    TOKEN = lib.NM_TURNS_TOKEN
    URGENT = lib.NM_TURNS_URGENT
    GENERATION = lib.NM_TURNS_GENERATION
    FIGURE = lib.NM_TURNS_FIGURE
    VIRTUAL = lib.NM_TURNS_VIRTUAL
    STRAY = lib.NM_TURNS_STRAY


class SlotWords(NamedTuple):
    """The manager's words about one process."""

    share_percent: int
    """Of the GPU; processes of one group divide it."""
    gate_class: GateClass
    state: GateState
    group: int
    """The number of its task."""


class SlotUse(NamedTuple):
    """The figures that a process has written about itself. It may lie."""

    used_ns: int
    in_flight_ns: int
    last_activity_ns: int
    """0: none yet."""
    waiting_since_ns: int
    """0: it does not wait."""


def _raise_fault(fault: int) -> None:
    if fault == lib.NM_LAUNCH_GATE_ERRNO:
        raise LaunchGateError(f"launch gate: {os.strerror(ffi.errno)}")
    if fault != lib.NM_LAUNCH_GATE_OK:
        text = ffi.string(lib.nm_launch_gate_fault_text(fault)).decode()
        raise LaunchGateError(f"launch gate: {text}")


class LaunchGate:
    """One pair of files, mapped for writing its shares."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._watch = ffi.new("struct nm_turns_watch *")
        self._use = ffi.new("struct nm_launch_use *")
        self._slot = ffi.new("struct nm_launch_slot *")
        self._open = True
        self.fds: tuple[int, int] = (native.shares_fd, native.turns_fd)
        """(shares, turns): they go with a GRANT. Still this object's."""

    @classmethod
    def create(cls) -> Self:
        """A pair of new, sealed files without a process. Raises LaunchGateError."""
        native = ffi.new("struct nm_launch_gate *")
        _raise_fault(lib.nm_launch_gate_create(native))
        return cls(native)

    def give(self, words: SlotWords) -> int | None:
        """A free slot, with zero figures; None: all are in use. Raises LaunchGateError."""
        number: int = lib.nm_launch_gate_give(self._native, self._written(words))
        if number == lib.NM_LAUNCH_GATE_RANGE:
            _raise_fault(number)
        return number if number >= 0 else None

    def set(self, slot: int, words: SlotWords) -> None:
        """Raises LaunchGateError."""
        _raise_fault(lib.nm_launch_gate_set(self._native, slot, self._written(words)))

    def clear(self, slot: int) -> None:
        """After the end of its process. Raises LaunchGateError."""
        _raise_fault(lib.nm_launch_gate_clear(self._native, slot))

    def _written(self, words: SlotWords) -> Any:
        slot = self._slot
        slot.share, slot.klass, slot.state, slot.group = words
        return slot

    def words(self, slot: int) -> SlotWords:
        """Raises LaunchGateError."""
        _raise_fault(lib.nm_launch_gate_slot(self._native, slot, self._slot))
        found = self._slot
        return SlotWords(found.share, GateClass(found.klass), GateState(found.state), found.group)

    def use(self, slot: int) -> SlotUse:
        """Raises LaunchGateError."""
        _raise_fault(lib.nm_launch_gate_use(self._native, slot, self._use))
        use = self._use
        return SlotUse(use.used_ns, use.in_flight_ns, use.last_activity_ns, use.waiting_since_ns)

    def beat(self, now_ns: int) -> None:
        """Closed gates open by themselves 2 s after the last beat."""
        lib.nm_launch_gate_beat(self._native, now_ns)

    def tune(self, window_ns: int, *, spatial: bool) -> None:
        """The most estimated work in flight; whether MPS divides the GPU."""
        lib.nm_launch_gate_tune(self._native, window_ns, spatial)

    @property
    def holder(self) -> int:
        """The slot with the token; -1: none."""
        number: int = lib.nm_turns_holder(self._native)
        return number

    def check(self, now_ns: int) -> tuple[TurnsFault, int | None]:
        """The first fault among the words that clients write, and its slot."""
        fault = TurnsFault(lib.nm_turns_check(self._native, self._watch, now_ns))
        slot: int = self._watch.slot
        return fault, slot if slot >= 0 else None

    def retire(self) -> None:
        """Another pair takes its place: its processes pass until their next GRANT."""
        lib.nm_turns_retire(self._native)

    def close(self) -> None:
        if self._open:
            self._open = False
            lib.nm_launch_gate_unmap(self._native)
