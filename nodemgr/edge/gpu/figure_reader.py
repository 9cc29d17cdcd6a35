"""Figures for views: sensors, use per process, host use. Read only when a view asks.

Knows: how old figures may be, since when the samples have no gap. Must not know: NVML's calls
(sensors.py), the views, the rules for a task (core/views/figures.py).

Nothing runs by itself: without a view that asks, no reading is made. All views share one reading a
second, made in the thread that reads the GPUs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from pathlib import Path

from nodemgr.core.model.entities import Process, ProcessKey, Uuid
from nodemgr.core.state.node_state import State
from nodemgr.core.views.figures import UNKNOWN, CgroupUse, GateUse, GpuUse, HostUse, Readings
from nodemgr.edge.gpu.gpu_inventory import READING_TIMEOUT_S, GpuWatcher
from nodemgr.edge.gpu.sensors import ProcessUse, Sensed
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.kernel.cgroup_use import of_jobs
from nodemgr.edge.kernel.host_use import HostReader
from nodemgr.edge.ledger.registry import Ledgers

PERIOD_NS = 950_000_000
"""Younger figures are not read again. A little less than the second in which a view asks again."""
STALE_NS = 3_000_000_000
"""Older figures are not reported: the driver does not answer."""
WINDOW_NS = 2_000_000_000
"""How far back samples are asked for: the driver takes one in 1/6 to 1 second."""
GAP_NS = 10_000_000_000
"""After a longer pause a use may have been missed, and the time without a use begins anew."""
US = 1_000

Sensing = tuple[dict[Uuid, Sensed], dict[int, HostUse], dict[str, CgroupUse]]


class FigureReader:
    """The readings of one manager. All methods are called in the loop."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        gpus: Callable[[], GpuWatcher],
        ledgers: Ledgers,
        gates: Callable[[], Mapping[tuple[ProcessKey, Uuid], GateUse]],
        paused: Callable[[], frozenset[str]],
        leaves: Callable[[], Mapping[str, Path]],
    ) -> None:
        """`gpus` is called at each reading; `gates`: the processes; `paused`: the paused tasks.

        `leaves`: the cgroups of jobs.
        """
        self._state = state
        self._clock = clock
        self._loop = loop
        self._gpus = gpus
        self._ledgers = ledgers
        self._gates, self._paused, self._leaves = gates, paused, leaves
        self._hosts = HostReader()
        self._last = UNKNOWN
        self._waiting: list[Callable[[], None]] = []
        self._asked_ns: int | None = None
        """When the reading under way began."""

    def when_read(self, then: Callable[[], None]) -> None:
        """Call back when the figures are fresh, or at the timeout of a reading."""
        now_ns = self._clock.monotonic_ns()
        if self._last is not UNKNOWN and now_ns - self._last.at_ns < PERIOD_NS:
            then()
            return
        if self._asked_ns is not None and now_ns - self._asked_ns >= READING_TIMEOUT_S * 1e9:
            then()  # the driver hangs: one caller has waited for it
            return
        self._wait(then)
        if self._asked_ns is None:
            self._asked_ns = now_ns
            if now_ns - self._gpus().last.at_ns < PERIOD_NS:
                self._read(now_ns)
            else:
                self._gpus().read_soon(lambda _reading: self._read(now_ns))

    def now(self) -> Readings:
        """The last figures, with the last memory of the driver and the ledgers."""
        last, driver = self._last, self._gpus().last
        if self._clock.monotonic_ns() - last.at_ns > STALE_NS:
            last = UNKNOWN
        return replace(
            last,
            memory=driver.processes,
            unmeasured=driver.unmeasured,
            charged=self._charged,
            gates=self._gates(),
            paused=self._paused(),
        )

    def _charged(self, process: Process, uuid: Uuid) -> int:
        if process.slot is None:
            return 0
        row = self._state.gpus[uuid].index
        return self._ledgers.slot_used(process.env, row, process.slot)

    def _wait(self, then: Callable[[], None]) -> None:
        is_called = False

        def once() -> None:
            nonlocal is_called
            if not is_called:
                is_called = True
                timer.cancel()
                then()

        timer = self._loop.call_later(READING_TIMEOUT_S, once)
        self._waiting.append(once)

    def _read(self, now_ns: int) -> None:
        gpus, hosts = self._gpus(), self._hosts
        uuids = tuple(gpus.last.processes)
        pids = [row.pid for row in self._state.processes.values() if row.pid is not None]
        pause_ns = now_ns - self._last.at_ns
        window_ns = max(WINDOW_NS, pause_ns + PERIOD_NS) if pause_ns <= GAP_NS else WINDOW_NS
        since_us = (self._clock.wall_ns() - window_ns) // US

        leaves = self._leaves()

        def work() -> Sensing:
            try:
                return gpus.sense(uuids, since_us), hosts.read(pids, now_ns), of_jobs(leaves)
            except Exception as error:  # the thread must go on: it reads the GPUs for grants
                stderr_log.fault("in a reading of figures", error)
                return {}, {}, {}

        gpus.call(work, lambda found: self._take(now_ns, pause_ns <= GAP_NS, found))

    def _take(self, now_ns: int, is_continuous: bool, found: Sensing) -> None:
        sensed, hosts, jobs = found
        before = self._last.use if is_continuous else {}
        listed = self._gpus().last.processes
        use = {
            uuid: _continued(before.get(uuid), one.use, listed.get(uuid, {}), now_ns)
            for uuid, one in sensed.items()
            if one.use is not None
        }
        sensors = {uuid: one.sensors for uuid, one in sensed.items()}
        self._last = Readings(now_ns, sensors, use, hosts, jobs)
        self._asked_ns = None
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()


def _continued(
    before: GpuUse | None, read: ProcessUse, listed: Container[int], now_ns: int
) -> GpuUse:
    """The use of a GPU, with what earlier readings without a gap have shown of its processes."""
    earlier = {} if before is None else before.used_ns
    present = {pid: used_ns for pid, used_ns in earlier.items() if pid in listed}
    since_ns = now_ns if before is None else before.since_ns
    return GpuUse(since_ns, read.percent, present | dict.fromkeys(read.active, now_ns))
