"""A state as a value: taken before a step, it shows whether an undone step left anything.

Knows: the tables, what of a state is no table, and the writes of a step. Must not know: what a step
does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import DECLARED, Groups, Table

NO_TABLES = ("deadlines", "living", "held_or_dependent", "under_way")
CLOCKS = ("service_ahead_ns", "queue_ahead_ns", "stamped_ns", "version")


def picture(state: Draft) -> dict[str, object]:
    """A deep copy of all that the state is between steps. The rows themselves never change."""
    found: dict[str, object] = {}
    for name in DECLARED:
        table = getattr(state, name)
        found[name] = {
            key: list(row.items()) if isinstance(row, dict) else row for key, row in table.items()
        }
    for name in (*NO_TABLES, *CLOCKS):
        found[name] = copy.deepcopy(getattr(state, name))
    found["queue"] = [(entry, state.queue.order(entry)) for entry in state.queue]
    found["inadmissible"] = set(state.queue.inadmissible())
    found["ranks"] = [(line, state.queue.rank(line)) for line in state.queue.names()]
    found["left open"] = (state.is_open, [*state.changed])
    return found


WRITES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (Table, ("put", "drop")),
    (Groups, ("add", "remove")),
)


class Interrupted(BaseException):
    """No fault of a decision: nothing in a step catches it."""


@contextmanager
def failing(number: int) -> Iterator[None]:
    """The write with this number, from 0, raises."""
    left = number

    def counted(write: Callable[..., None]) -> Callable[..., None]:
        def once_more(*arguments: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Interrupted
            write(*arguments)

        return once_more

    former = {(kind, name): getattr(kind, name) for kind, names in WRITES for name in names}
    try:
        for (kind, name), write in former.items():
            setattr(kind, name, counted(write))
        yield
    finally:
        for (kind, name), write in former.items():
            setattr(kind, name, write)
