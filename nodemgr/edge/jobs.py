"""Jobs between the core and the door to what executes: what is to be started, and what became of it.

Knows: the core's words for jobs, and the factory's. Must not know: how a job is decided upon (core) or run (the factory).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nodemgr.core.manager import State
from nodemgr.edge.resource_factory import Order, Status


class Jobs:
    """The event loop's matcher, on the core."""

    def __init__(self, state: State, match: Callable[[], None]) -> None:
        self._state = state
        self._match = match

    def is_queued(self) -> bool:
        """Also a grant that is smaller than its quota says waits for what becomes free."""
        return bool(self._state.requests or self._state.unsettled)

    def scan(self) -> Iterable[Order]:
        self._match()
        return ()

    def not_started(self, order: Order, why: str) -> None:
        raise AssertionError(f"{order.job_id} was never ordered: {why}")

    # -- what the factory tells (resource_factory.Listener) --

    def started(self, job_id: str, attempt: int, pid: int | None, wall_ns: int) -> None:
        raise AssertionError(f"{job_id} was never ordered")

    def ended(self, job_id: str, attempt: int, status: Status, log_tail: str, wall_ns: int) -> None:
        raise AssertionError(f"{job_id} was never ordered")
