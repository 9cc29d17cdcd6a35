"""A way to the manager that outlasts its restarts, for verbs that watch jobs: jobs go on while no manager runs.

Knows: how long an absent manager is waited for. Must not know: what is asked. The caller makes sure that asking twice does no harm.
"""

from __future__ import annotations

import time

from client_plugin.ways.choice import PATIENCE_S, Way
from client_plugin.ways.faults import Away, Exit, Fault, Lost, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Tuple, TypeVar

    T = TypeVar("T")

AWAY_S = 600.0
"""How long an absent manager is waited for."""
PAUSE_S = 1.0


class LastingWay(Way):
    """Asks on `way`, and asks again if the manager goes away. A manager that is absent from the start is an error at once."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self.env = way.env
        self._answered = False
        """The manager has answered once."""

    def ask(self, verb: str, timeout_s: Optional[float] = PATIENCE_S, **arguments: Any) -> Any:
        return self._outlast(lambda: self._way.ask(verb, timeout_s, **arguments))

    def status(self) -> Any:
        return self._outlast(self._way.status)

    def log(self, job_id: str, attempt: Optional[int]) -> Tuple[Dict[str, Any], Optional[int]]:
        return self._outlast(lambda: self._way.log(job_id, attempt))

    def _outlast(self, attempt: Callable[[], T]) -> T:
        gone_at: Optional[float] = None
        while True:
            try:
                result = attempt()
            except Fault as fault:
                went = isinstance(fault, Lost) or (gone_at is None and self._answered and isinstance(fault, Away))
                if went:
                    if gone_at is None:
                        say(f"{fault.message}; waiting for it to come back")
                    gone_at = time.monotonic()
                elif gone_at is None or fault.code != Exit.UNREACHABLE or time.monotonic() - gone_at > AWAY_S:
                    raise
                time.sleep(PAUSE_S)
            else:
                self._answered = True
                return result
