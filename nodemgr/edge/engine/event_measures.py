"""Counts of the published events since the manager's start: waits, holds, ends of leases.

Knows: fields of events. Must not know: who reads the counts. Called after the clients are answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from nodemgr.core.model.causes import LeaseEnd
from nodemgr.core.model.effects import Publish
from nodemgr.edge.host.measures import HOLD_S, WAIT_S, Histogram

INTERACTIVE, JOB = "interactive", "job"
"""Kinds of requests."""


class EventMeasures:
    """The counts of one manager."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        """By name."""
        self.waits = {INTERACTIVE: Histogram(WAIT_S), JOB: Histogram(WAIT_S)}
        """From the request to the grant, of granted requests by kind."""
        self.holds = Histogram(HOLD_S)
        """From the grant to the end of the lease."""
        self.ends: Counter[LeaseEnd] = Counter(dict.fromkeys(LeaseEnd, 0))
        """Leases that ended, by cause."""
        self._takers: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "task.granted": self._granted,
            "task.ended": self._ended,
        }

    def take(self, event: Publish) -> None:
        """An observer of the journal."""
        self.events[event.name] += 1
        taker = self._takers.get(event.name)
        if taker is not None:
            taker(event.fields)

    def _granted(self, fields: Mapping[str, Any]) -> None:
        self.waits[JOB if "job" in fields else INTERACTIVE].observe(fields["waited_ns"])

    def _ended(self, fields: Mapping[str, Any]) -> None:
        self.holds.observe(fields["held_ns"])
        self.ends[fields["cause"]] += 1
