"""A clock that a test moves by hand."""

from __future__ import annotations

from nodemgr.edge.host.clock import RealClock


class SimulatedClock(RealClock):
    """Stands still until moved.

    Both hands can be moved apart, like an administrator's `date -s`.
    """

    def __init__(
        self, monotonic_ns: int = 1_000_000_000, wall_ns: int = 1_700_000_000_000_000_000
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns

    def kernel_ns(self) -> int:
        return self._monotonic_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns + self._ahead_ns

    def of_boottime(self, boot_ns: int) -> int:
        return boot_ns + self._ahead_ns

    def go_on(self, boots_ns: tuple[int, ...]) -> None:
        self.boots_ns, self._ahead_ns = boots_ns, boots_ns[-1]

    def wall_ns(self) -> int:
        return self._wall_ns

    def advance(self, duration_ns: int) -> None:
        """Time passes, on both clocks."""
        if duration_ns < 0:
            raise ValueError("time does not run backwards")
        self._monotonic_ns += duration_ns
        self._wall_ns += duration_ns
