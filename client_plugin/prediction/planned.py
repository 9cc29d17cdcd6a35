"""The number of steps that a watched program names by `nodemgr_client.progress(total=N)`."""

from __future__ import annotations

from typing import Any

MOST = 2**53

iterations = 0


def report(done: Any = None, total: Any = None) -> None:
    """Nothing is reported to a manager; a whole number of steps is remembered."""
    global iterations
    if isinstance(total, int) and not isinstance(total, bool) and 0 < total <= MOST:
        iterations = total
