"""All pages of the manager's list of waiting requests and running jobs.

A page ends after some milliseconds of work, so on a slow machine a short list can take several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def queue_rows(call: Callable[..., dict[str, Any]], **arguments: object) -> list[dict[str, Any]]:
    """`call`: sends one order of an administrator, with its arguments, and returns the answer."""
    rows: list[dict[str, Any]] = []
    after = None
    while True:
        page = call("queue", after=after, **arguments)
        rows += page["queue"]
        if (after := page["after"]) is None:
            return rows
