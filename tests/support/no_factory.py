"""A factory that runs nothing, and says so of each attempt.

Knows: the factory's words. Must not know: anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from nodemgr.core.model.entities import Cause
from nodemgr.edge.executor.interface import (
    ExecutorListener,
    NoLimits,
    RunOrder,
    Status,
    nothing,
)

WHY = "this manager cannot run jobs"


class NoFactory:
    def __init__(self, loop: asyncio.AbstractEventLoop, listener: ExecutorListener) -> None:
        self._loop = loop
        self._listener = listener
        loop.call_soon(listener.launch_host_changed, "", True, "")

    def state(self) -> tuple[bool, str]:
        return True, WHY

    def no_limits(self, place: str) -> NoLimits | None:
        return None

    def create(self, order: RunOrder) -> None:
        self._end(order.job_id, order.attempt)

    def withdraw(self, job_id: str, attempt: int, why: str, *, warns: bool = False) -> None: ...
    def limit(self, job_id: str, attempt: int, time_limit_ms: int | None) -> None: ...

    def scope(self) -> str:
        return ""

    def limit_cgroups(
        self, limits: Sequence[tuple[str, str]], then: Callable[[], None] = nothing
    ) -> None:
        then()

    def enter(
        self, env: str, process: str, limits: Sequence[str], then: Callable[[object], None]
    ) -> None:
        then(None)

    def delete(self, job_id: str) -> None: ...

    def logs(self, job_id: str, attempt: int | None = None) -> int:
        raise FileNotFoundError(f"{job_id} has no log: {WHY}")

    def room_bytes(self, job_id: str) -> int:
        return 0

    def names(self) -> list[str]:
        return []

    def job_of(self, pids: Sequence[int]) -> str | None:
        return None

    def adopt(self, expected: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        for job_id, attempt in expected:
            self._end(job_id, attempt)
        return []

    def strays(self) -> list[tuple[str, int]]:
        return []

    def close(self) -> None: ...

    def _end(self, job_id: str, attempt: int) -> None:
        self._loop.call_soon(
            self._listener.ended,
            job_id,
            attempt,
            Status("ended", why=WHY, cause=Cause.CANNOT_RUN),
            "",
            0,
        )
