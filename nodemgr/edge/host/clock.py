"""Time, behind one small interface: the real clocks, and one that tests move by hand.

Knows: CLOCK_MONOTONIC (every deadline) and the wall clock (what people read). Must not know: what
happens when. Nothing ever computes with the wall clock, so that a jump of it changes no timeout.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic_ns(self) -> int:
        """For deadlines; never jumps."""
        ...

    def wall_ns(self) -> int:
        """Since the Unix epoch, for people; may jump at any moment."""
        ...


class RealClock:
    """The system's clocks."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)


class SimulatedClock:
    """Stands still until moved.

    Both hands can be moved apart, like an administrator's `date -s`.
    """

    def __init__(
        self, monotonic_ns: int = 1_000_000_000, wall_ns: int = 1_700_000_000_000_000_000
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def advance(self, duration_ns: int) -> None:
        """Time passes, on both clocks."""
        if duration_ns < 0:
            raise ValueError("time does not run backwards")
        self._monotonic_ns += duration_ns
        self._wall_ns += duration_ns
