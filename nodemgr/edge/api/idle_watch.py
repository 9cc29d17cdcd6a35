"""The idle times of tasks, for the core, while a request waits and an env has an idle policy.

Knows: when they are needed, and the figures that have them. Must not know: the policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from nodemgr.core.model import events
from nodemgr.core.sharing.idle_policy import is_set
from nodemgr.core.views import figures
from nodemgr.core.views.figures import Readings
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.engine.informer import News, NewsKinds

NEWS: NewsKinds = frozenset({("added", "quota"), ("changed", "quota")})
PERIOD_S = 2.0
"""As often as the figures are read for a view."""


class IdleWatch:
    """Reports to the core as long as it is needed."""

    def __init__(
        self,
        daemon: Daemon,
        when_read: Callable[[Callable[[], None]], None],
        readings: Callable[[], Readings],
    ) -> None:
        """`when_read` calls back after a reading; `readings` is the last one."""
        self._daemon, self._when_read, self._readings = daemon, when_read, readings
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def news(self, _cause: str, _found: Iterable[News]) -> None:
        """A subscriber of the informer, for NEWS: a quota is new or changed."""
        self.settle()

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def settle(self) -> None:
        """Looks again after a while, as long as an env has a policy."""
        if self._timer is None and not self._is_closed and is_set(self._daemon.state):
            self._timer = self._daemon.loop.call_later(PERIOD_S, self._tick)

    def _tick(self) -> None:
        """Also once more after the last request has gone: that ends all warnings."""
        self._timer = None
        state = self._daemon.state
        if state.requests:
            self._when_read(self._report)
        elif state.idle_since:
            self._daemon.submit(events.IdleSeen({}, self._daemon.clock.wall_ns()))
        self.settle()

    def _report(self) -> None:
        if self._is_closed:
            return
        state, readings = self._daemon.state, self._readings()
        idle_ms = {}
        for task in state.tasks.values():
            if state.envs[task.env].quota.idle_ms is not None:
                seconds = figures.of_task(state, task, readings).idle_seconds
                if seconds is not None:
                    idle_ms[task.task_id] = seconds * 1_000
        if idle_ms or state.idle_since:
            self._daemon.submit(events.IdleSeen(idle_ms, self._daemon.clock.wall_ns()))
