"""The queue's resident task: it sleeps until something stirs, runs one scheduling pass, and starts
what was served.

Knows: that there is somebody who matches, and the door to what executes (executor/interface.py).
Must not know: requests, GPUs, the store, a process, how anything is run. Source: the queueing
patent named in DESIGN.md (EventLoop).

Two states of sleep: nothing is queued, and nothing queued fits. Out of both it is woken by a signal
alone, never by time. A signal that comes during a pass is the next pass's, for it is taken down
before the pass begins; any number of signals before a pass are one pass.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from nodemgr.edge.executor.interface import ResourceFactory, RunOrder
from nodemgr.edge.host import stderr_log


class Matcher(Protocol):
    """Who decides, and writes down what was decided before it is done."""

    def is_queued(self) -> bool:
        """Whether a pass could change anything."""

    def run_pass(self) -> Iterable[RunOrder]:
        """Looks along the queues from the highest rank down.

        Interactive waiters are answered by it; the orders are of the jobs that the store calls
        started from now on.
        """

    def not_started(self, order: RunOrder, why: str) -> None:
        """The door itself failed: the attempt ended before it began."""


class EventLoop:
    """`run` is the task; `wake` may be called from anywhere in the loop's thread."""

    def __init__(self, matcher: Matcher, factory: ResourceFactory) -> None:
        self._matcher = matcher
        self._factory = factory
        self._stirred = asyncio.Event()
        self.wakes: Counter[str] = Counter()
        """Signals, by what gave them."""
        self.passes = 0
        self.started = 0
        """Orders given."""

    def wake(self, why: str) -> None:
        self.wakes[why] += 1
        self._stirred.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            try:
                if self._matcher.is_queued():
                    self._run_pass()
            except Exception as error:  # whoever waits must not wait for ever because of one pass
                stderr_log.fault("along the queues", error)

    def _run_pass(self) -> None:
        self.passes += 1
        for order in self._matcher.run_pass():
            self.started += 1
            try:
                self._factory.create(order)
            except Exception as error:
                stderr_log.fault(f"starting job {order.job_id}", error)
                self._matcher.not_started(order, f"could not be started: {error}")
