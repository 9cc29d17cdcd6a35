"""A way to the manager that outlasts its restarts and busy moments.

Verbs that watch jobs use it, because jobs continue meanwhile.

Knows: how long to wait for an absent manager. Must not know: the question. The caller ensures that
a repeated question does no harm.
"""

from __future__ import annotations

import time

from client_plugin.messages import ways as messages
from client_plugin.ways.choice import ASK_TIMEOUT_S, Way
from client_plugin.ways.faults import Away, Busy, Exit, Fault, Lost, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional, TypeVar

    T = TypeVar("T")

AWAY_S = 600.0
"""How long an absent manager is waited for."""
PAUSE_S = 1.0


class LastingWay(Way):
    """Asks on `way`, and asks again if the manager goes away.

    A manager that is absent from the start is an error at once.
    """

    def __init__(self, way: Way, answered: bool = False) -> None:
        """`answered`: the manager has answered once."""
        self._way = way
        self.env = way.env
        self._answered = answered

    def ask(self, verb: str, timeout_s: Optional[float] = ASK_TIMEOUT_S, **arguments: Any) -> Any:
        return self._outlast(lambda: self._way.ask(verb, timeout_s, **arguments))

    def stay(self) -> LastingWay:
        return LastingWay(self._way.stay(), self._answered)

    def leave(self) -> None:
        self._way.leave()

    def _outlast(self, attempt: Callable[[], T]) -> T:
        since: Optional[float] = None
        told = ""
        while True:
            try:
                result = attempt()
            except Fault as fault:
                now = time.monotonic()
                if not (
                    self._may_pass(fault) if since is None else _is_passing(fault, now - since)
                ):
                    raise
                what_next = (
                    "asking again" if isinstance(fault, Busy) else "waiting for it to come back"
                )
                if told != what_next:
                    told = what_next
                    say(messages.MEANWHILE(line=fault.message, then=what_next))
                if since is None or isinstance(fault, Lost):
                    since = now
                time.sleep(PAUSE_S)
            else:
                self._answered = True
                return result

    def _may_pass(self, fault: Fault) -> bool:
        """An absent manager comes back only where there was one."""
        return isinstance(fault, (Lost, Busy)) or (self._answered and isinstance(fault, Away))


def _is_passing(fault: Fault, away_s: float) -> bool:
    return isinstance(fault, Lost) or (fault.code == Exit.UNREACHABLE and away_s <= AWAY_S)
