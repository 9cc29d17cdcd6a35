"""Estimated start times of waiting requests, each with its spread.

Knows: time limits, and how long the same command of the same env took before. Must not know: where
that is kept, and which caller asks.

The count serves all requests strictly in the order of service, each on the GPUs that are free
first. Backfill (backfill.py) delays no request, so the count leaves it out. It is made three times,
with the lower quartile, the median and the upper quartile of a command's durations. A time limit
bounds each, and is the estimate for a command that has never run before. Where a task or request
may run for ever, no start is known for requests that need its GPUs, nor for those behind them.
A GPU above the least number of an elastic task is free at the deadline of a recall, at the latest.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from itertools import islice, repeat
from typing import NamedTuple, Protocol

from nodemgr.core.model.entities import MS, Request, Task, TaskState, Uuid
from nodemgr.core.model.schema import RECALL, recall_key
from nodemgr.core.model.values import value
from nodemgr.core.scheduler import admission
from nodemgr.core.state import accounting, elastic_leases
from nodemgr.core.state.node_state import State


class Ran(Protocol):
    """Durations of a command's successful runs."""

    @property
    def quarter_ms(self) -> int: ...
    @property
    def median_ms(self) -> int: ...
    @property
    def three_quarters_ms(self) -> int: ...


RanBefore = Callable[[str, str], Ran | None]
"""A query by env and command: the earlier run, if there is one."""


@value
class StartEstimate:
    """Times of the monotonic clock."""

    low_ns: int
    likely_ns: int
    high_ns: int
    by_history: bool
    """False: it uses time limits alone."""


class FreeFrom(NamedTuple):
    """When a GPU is free; sorts by time."""

    time_ns: int
    by_history: bool


FOR_EVER = 1 << 63
"""Nanoseconds."""

Quantile = Callable[[Ran], int]

QUANTILES: tuple[Quantile, ...] = (
    lambda ran: ran.quarter_ms,
    lambda ran: ran.median_ms,
    lambda ran: ran.three_quarters_ms,
)
"""The three ways to count: low, likely, high."""


def start_estimates(
    state: State, now_ns: int, ran_before: RanBefore, most: int
) -> dict[str, StartEstimate]:
    """By request id, the known estimates of the first `most` in the order of service.

    That of an array's row is of its first element; each of its elements takes its GPUs.
    """
    first = (state.requests[request_id] for request_id in islice(state.queue, most))
    each = (row for request in first for row in repeat(request, request.size))
    rows = [row for row in islice(each, most) if _may_start(state, row)]
    commands = {(row.env, row.run.command) for row in rows} | {
        (task.env, task.run.command) for task in state.tasks.values()
    }
    ran = {(env, command): ran_before(env, command) for env, command in commands}
    low, likely, high = (
        _Count(state, now_ns, ran, quantile).starts(rows) for quantile in QUANTILES
    )
    found = {}
    for request_id, middle in likely.items():
        if request_id in low and request_id in high:
            least_ns, likely_ns, most_ns = sorted(
                (low[request_id].time_ns, middle.time_ns, high[request_id].time_ns)
            )
            found[request_id] = StartEstimate(least_ns, likely_ns, most_ns, middle.by_history)
    return found


def _may_start(state: State, request: Request) -> bool:
    """False: its place is down or its quota too small, until an unknown time."""
    return (
        (request.job_id is None or state.is_up(request.run.place))
        and admission.fits_quota(state, request)
        and admission.fits_node(state, request)
    )


class _Count:
    """One of the three counts."""

    def __init__(
        self, state: State, now_ns: int, ran: dict[tuple[str, str], Ran | None], quantile: Quantile
    ) -> None:
        self._state = state
        self._now_ns = now_ns
        self._ran = ran
        self._quantile = quantile
        self._free: dict[Uuid, FreeFrom] = {
            gpu.uuid: FreeFrom(now_ns, False) for gpu in state.gpus.values() if gpu.usable
        }
        """Without GPUs of unknown free time."""
        self._held: dict[str, list[int]] = {}
        """By env, the time it gives back each GPU; never is FOR_EVER."""
        for uuid in [gpu.uuid for gpu in state.gpus.values() if gpu.healthy]:
            tasks = [state.tasks[task_id] for task_id in state.gpu_tasks.get(uuid, ())]
            ends = [self._end(task, uuid) for task in tasks]
            last_ns: dict[str, int] = {}
            for task, end in zip(tasks, ends, strict=True):
                end_ns = FOR_EVER if end is None else end.time_ns
                last_ns[task.env] = max(last_ns.get(task.env, end_ns), end_ns)
            for env, end_ns in last_ns.items():
                insort(self._held.setdefault(env, []), end_ns)
            if uuid not in self._free:
                continue  # drained: it counts against quotas until its tasks end
            known = [end for end in ends if end is not None]
            if len(known) < len(ends) or uuid in state.unbooked:
                del self._free[uuid]
            elif known:
                self._free[uuid] = max(known)

    def _lasts(
        self, env: str, command: str, limit_ms: int | None, at_least_ns: int = 0
    ) -> FreeFrom | None:
        """Duration of a run that has lasted `at_least_ns`."""
        ran = self._ran.get((env, command))
        limit_ns = None if limit_ms is None else limit_ms * MS
        if ran is not None:
            for lasts_ns in (self._quantile(ran) * MS, ran.three_quarters_ms * MS):
                if lasts_ns >= at_least_ns:
                    return FreeFrom(lasts_ns if limit_ns is None else min(lasts_ns, limit_ns), True)
        return None if limit_ns is None or limit_ns < at_least_ns else FreeFrom(limit_ns, False)

    def _end(self, task: Task, uuid: Uuid) -> FreeFrom | None:
        recalled_ns = self._recall(task, uuid)
        if recalled_ns is not None:
            return FreeFrom(recalled_ns, False)
        if task.state is not TaskState.RUNNING or task.suspended_since_ns is not None:
            return None
        ran_ns = task.ran_ns(self._now_ns)
        lasts = self._lasts(task.env, task.run.command, task.run.time_limit_ms, ran_ns)
        if lasts is None:
            return None
        return FreeFrom(self._now_ns + lasts.time_ns - ran_ns, lasts.by_history)

    def _recall(self, task: Task, uuid: Uuid) -> int | None:
        """When a recall, made now or before, brings back the GPU; None: none can."""
        lease = self._state.elastics.get(task.task_id)
        if (
            lease is None
            or uuid not in elastic_leases.above_least(lease)
            or not elastic_leases.is_active(task)
        ):
            return None
        due_ns = self._state.agenda.get((RECALL, recall_key(task.task_id, uuid)))
        return self._now_ns + self._state.config.recall_ms * MS if due_ns is None else due_ns

    def starts(self, requests: list[Request]) -> dict[str, FreeFrom]:
        found: dict[str, FreeFrom] = {}
        for request in requests:
            if request.run.gpus == 0:
                continue
            mine = sorted(
                (free, uuid) for uuid, free in self._free.items() if self._fits(request, uuid)
            )
            within_ns = self._within_quota(request)
            if len(mine) < self._needs(request) or within_ns is None:
                for _, uuid in mine if within_ns is not None else ():
                    del self._free[uuid]  # its start is unknown, but it comes first
                continue
            mine = mine[: self._needs(request)]
            time_ns = max(self._now_ns, within_ns, *(free.time_ns for free, _ in mine))
            start = FreeFrom(time_ns, any(free.by_history for free, _ in mine))
            found.setdefault(request.request_id, start)
            self._take(request, time_ns, [uuid for _, uuid in mine])
        return found

    def _fits(self, request: Request, uuid: Uuid) -> bool:
        if request.run.memory_bytes is None:
            return True
        return request.run.memory_bytes <= accounting.full_grant(
            self._state.envs[request.env].quota, self._state.gpus[uuid]
        )

    def _needs(self, request: Request) -> int:
        """GPUs needed beside those that it may share with its env's other tasks."""
        if request.job_id is not None and request.run.memory_bytes is None:
            return request.run.gpus
        used = accounting.used_gpus(self._state, request.env)
        return max(1, request.run.gpus - sum(not gpu.drained for gpu in used))

    def _within_quota(self, request: Request) -> int | None:
        """When its env's quota has room for it; None: unknown."""
        held = self._held.get(request.env, [])
        ends_first = len(held) + self._needs(request) - self._state.envs[request.env].quota.gpus
        if ends_first <= 0:
            return self._now_ns
        if ends_first > len(held) or held[ends_first - 1] == FOR_EVER:
            return None
        return held[ends_first - 1]

    def _take(self, request: Request, time_ns: int, gpus: list[Uuid]) -> None:
        lasts = self._lasts(request.env, request.run.command, request.run.time_limit_ms)
        held = self._held.setdefault(request.env, [])
        for uuid in gpus:
            if lasts is None:
                del self._free[uuid]
            else:
                self._free[uuid] = FreeFrom(
                    time_ns + lasts.time_ns, lasts.by_history or self._free[uuid].by_history
                )
            insort(held, FOR_EVER if lasts is None else time_ns + lasts.time_ns)
