"""Time, behind one small interface: the real clocks.

Knows: the node's clock (every deadline and every duration) and the wall clock (what people read).
Must not know: what happens when, where a time is stored. Nothing ever computes with the wall clock,
so a jump of it changes no timeout and no duration.

The node's clock never goes back. Between the managers of one boot it goes on by CLOCK_BOOTTIME. It
begins a boot where it was last seen (edge/store/node_time.py), so a duration across a boot has the
measured parts only: `is_least` says so.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    @property
    def boots_ns(self) -> tuple[int, ...]:
        """Where the node's clock stood when each boot began, as far as known."""
        ...

    def monotonic_ns(self) -> int:
        """The node's clock: for deadlines and durations; never jumps."""
        ...

    def wall_ns(self) -> int:
        """Since the Unix epoch, for people; may jump at any moment."""
        ...

    def kernel_ns(self) -> int:
        """CLOCK_MONOTONIC, for times that other processes read and write."""
        ...

    def of_boottime(self, boot_ns: int) -> int:
        """The node's clock at that time of CLOCK_BOOTTIME, in this boot."""
        ...

    def go_on(self, boots_ns: tuple[int, ...]) -> None:
        """The node's clock stood at the last of `boots_ns` when this boot began."""
        ...

    def is_least(self, from_ns: int, to_ns: int) -> bool:
        """Whether a boot lies between: more time has passed than was measured."""
        ...


class RealClock:
    """The system's clocks."""

    boots_ns: tuple[int, ...] = ()
    _ahead_ns = 0

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + self._ahead_ns

    wall_ns = staticmethod(time.time_ns)
    kernel_ns = staticmethod(time.monotonic_ns)

    def of_boottime(self, boot_ns: int) -> int:
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - boot_ns
        return self.monotonic_ns() - age_ns

    def go_on(self, boots_ns: tuple[int, ...]) -> None:
        self.boots_ns = boots_ns
        slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
        self._ahead_ns = boots_ns[-1] + slept_ns

    def is_least(self, from_ns: int, to_ns: int) -> bool:
        return any(from_ns < boot_ns <= to_ns for boot_ns in self.boots_ns[1:])
