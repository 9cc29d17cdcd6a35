"""The sampler of the GPUs' use: readings for the record of each minute.

Knows: when a reading is due, how far back it asks. Must not know: NVML's calls (sensors.py), the
means (core/views/gpu_minutes.py), the store.

A reading is made at the end of each minute. While the GPUs are read anyway, because some are held
or awaited, a reading is also made every 10 seconds: a driver keeps samples for no longer than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nodemgr.core.model.entities import Uuid
from nodemgr.core.views.gpu_minutes import MINUTE_NS, GpuMinute, GpuReading, OpenMinute
from nodemgr.edge.gpu.gpu_inventory import DriverReading, GpuWatcher
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.clock import Clock

PERIOD_NS = 10_000_000_000
SLACK_NS = 500_000_000
"""The GPUs are read about once a second; a period may be that much shorter."""
US = 1_000
MIN_DELAY_S = 1.0
"""A timer that was early by the wall clock comes again, and not at once."""


class UseSampler:
    """The sampler of one manager. All methods are called in the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        gpus: Callable[[], GpuWatcher],
        save: Callable[[list[GpuMinute]], None],
    ) -> None:
        """`gpus` is called at each reading; `save` takes the rows of a minute that is over."""
        self._loop = loop
        self._clock = clock
        self._gpus = gpus
        self._save = save
        self._minute = OpenMinute(clock.wall_ns())
        self._last_ns, self._last_wall_ns = clock.monotonic_ns(), clock.wall_ns()
        """When the last reading began."""
        self._is_reading = False
        self._timer = self._next_minute()

    def gpus_read(self, _reading: DriverReading) -> None:
        """Called after each reading of the GPUs."""
        if self._clock.monotonic_ns() - self._last_ns >= PERIOD_NS - SLACK_NS:
            self._read()

    def close(self) -> None:
        self._timer.cancel()

    def _next_minute(self) -> asyncio.TimerHandle:
        left_s = (MINUTE_NS - self._clock.wall_ns() % MINUTE_NS) / 1e9
        return self._loop.call_later(max(MIN_DELAY_S, left_s), self._minute_ended)

    def _minute_ended(self) -> None:
        self._timer = self._next_minute()
        self._read()

    def _read(self) -> None:
        """Asks for a reading, which counts for the time since the last one."""
        if self._is_reading:
            self._take({})  # the driver hangs: the minutes go on without it
            return
        self._is_reading = True
        gpus, wall_ns = self._gpus(), self._clock.wall_ns()
        uuids = tuple(gpus.last.processes)
        since_wall_ns = self._last_wall_ns
        if not 0 <= wall_ns - since_wall_ns <= MINUTE_NS:  # the clock was set
            since_wall_ns = wall_ns - PERIOD_NS
        self._last_ns, self._last_wall_ns = self._clock.monotonic_ns(), wall_ns

        def work() -> dict[Uuid, GpuReading]:
            try:
                return gpus.recent_use(uuids, since_wall_ns // US)
            except Exception as error:  # the thread must go on: it reads the GPUs for grants
                stderr_log.fault("in a reading of the GPUs' use", error)
                return {}

        def taken(found: dict[Uuid, GpuReading]) -> None:
            self._is_reading = False
            self._take(found)

        gpus.call(work, taken)

    def _take(self, found: dict[Uuid, GpuReading]) -> None:
        self._minute.add(found)
        rows = self._minute.turn(self._clock.wall_ns())
        if rows:
            self._save(rows)
