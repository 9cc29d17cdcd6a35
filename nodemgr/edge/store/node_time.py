"""The node's clock across boots: where it stood when each boot began, and where it was last seen.

Knows: the store's facts, boot ids. Must not know: what is measured by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from nodemgr.edge.host.clock import Clock
from nodemgr.edge.kernel.processes import boot_id
from nodemgr.edge.store.database import CLOCK_SEEN

BOOTS = "boots"
MAX_BOOTS = 200


class ClockFacts(Protocol):
    """A node's journal, or a head's store."""

    def meta(self) -> Mapping[str, str]: ...
    def events(self, since: int | None, limit: int) -> list[dict[str, Any]]: ...
    def remember(self, name: str, text: str) -> object: ...


def go_on(clock: Clock, journal: ClockFacts) -> bool:
    """Lets the clock go on from where the store last saw it. True: in the same boot."""
    facts, boot = journal.meta(), boot_id()
    boots = json.loads(facts.get(BOOTS, "[]"))
    same_boot = bool(boots) and boots[-1][0] == boot
    if not same_boot:
        last = [event["monotonic_ns"] for event in journal.events(None, 1)]
        seen_ns = max([int(facts.get(CLOCK_SEEN, -1)), *last]) if boots else -1
        boots = [*boots[-MAX_BOOTS + 1 :], [boot, seen_ns + 1]]
        journal.remember(BOOTS, json.dumps(boots))
    clock.go_on(tuple(began_ns for _, began_ns in boots))
    return same_boot
