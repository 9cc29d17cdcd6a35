"""The scheduler's task: it sleeps until a signal comes, then runs one scheduling pass.

Knows: that passes can be run, and which news of resources are a reason for one.
Must not know: requests, GPUs, the store, processes, executors.
Source: CN109828833A (EventLoop).

It sleeps while nothing is queued, and while nothing queued fits. Signals alone wake it, never time.
It clears the signal before a pass begins, so a signal during a pass causes another pass. Any number
of signals before a pass cause one pass.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from nodemgr.edge.engine.informer import News, NewsKinds
from nodemgr.edge.host import stderr_log

REASONS: NewsKinds = frozenset(
    {
        ("added", "gpu"),
        ("added", "quota"),
        ("changed", "quota"),
        ("removed", "lease"),
        ("changed", "queue"),
    }
)
"""News after which a request may be granted that was not granted before."""


class Matcher(Protocol):
    """Runs scheduling passes."""

    def is_queued(self) -> bool:
        """Whether a pass could change anything."""

    def run_pass(self) -> None:
        """Grants what fits now. The step that stores a grant also carries it out."""


class EventLoop:
    """`run` is the task. The other methods are called in the loop's thread."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._signal = asyncio.Event()
        self.wakes: Counter[str] = Counter()
        """Signals by cause."""
        self.passes = 0

    def news(self, cause: str, _found: Iterable[News]) -> None:
        """A subscriber of the informer, for REASONS: one signal for the news of one step."""
        self.wake(cause)

    def wake(self, cause: str) -> None:
        self.wakes[cause] += 1
        self._signal.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._signal.wait()
            self._signal.clear()
            try:
                if self._matcher.is_queued():
                    self.passes += 1
                    self._matcher.run_pass()
            except Exception as error:  # one failed pass must not end all later ones
                stderr_log.fault("in a scheduling pass", error)
            await asyncio.sleep(0)  # a pass that signals the next one lets clients come between
