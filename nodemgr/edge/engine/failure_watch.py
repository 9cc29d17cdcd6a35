"""Failures of the GPUs, from the driver to the core; and the hours for which the manager runs.

Knows: the driver's events, and that the core's records grow older by the hour. Must not know: NVML,
what is a failure, what follows from one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from client_plugin.messages.form import relayed
from nodemgr.core.model import events
from nodemgr.core.model.effects import Publish
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.gpu.driver_events import DriverEvent, DriverEventWatcher, EventSet
from nodemgr.edge.host import stderr_log

LOGGED = {"gpu.drained", "gpu.flapping"}
"""Events whose warning is also a line of the log: an administrator is to do something."""
SERVICE_S = 3_600.0
"""The longest time of service that a killed manager loses."""


class FailureWatch:
    """The watch of one manager, from its start to `close`."""

    def __init__(self, daemon: Daemon, make_events: Callable[[], EventSet]) -> None:
        """`make_events`: DriverEventWatcher's."""
        self._daemon = daemon
        self._timer: asyncio.TimerHandle = self._in_an_hour()
        daemon.journal.observe_with(_log)
        self._watcher = DriverEventWatcher(make_events, daemon.loop, self._failed)

    def close(self) -> None:
        self._timer.cancel()
        self._watcher.stop()

    def _failed(self, event: DriverEvent) -> None:
        wall_ns = self._daemon.clock.wall_ns()
        self._daemon.submit(events.GpuFault(event.uuid, event.kind, event.detail, wall_ns))
        self._daemon.gpus.read_soon(lambda _reading: None)  # is it still there?

    def _in_an_hour(self) -> asyncio.TimerHandle:
        return self._daemon.loop.call_later(SERVICE_S, self._hour_passed)

    def _hour_passed(self) -> None:
        self._timer = self._in_an_hour()
        self._daemon.submit(events.ServiceTime(self._daemon.clock.wall_ns()))


def _log(event: Publish) -> None:
    if event.name in LOGGED:
        stderr_log.say(relayed(str(event.fields["warning"])))
