"""The units of work that an order makes the manager do.

Knows: the units of each kind of work. Must not know: who is charged, how an order is carried out.

A step does at most STEP_UNITS, and then others have their turn: an order goes on in another step,
or its client sends the rest (api/bulk_actions.py). The work is charged to its environment when its
amount is known, and before it is done.
"""

from __future__ import annotations

from enum import IntEnum

STEP_UNITS = 5_000
"""The most in one step: 5 ms of the processor of the bench's machine (bench/jobs/denial.py)."""
UNIT_NS = 1_000
"""The charge for a unit."""


class Units(IntEnum):
    """A unit is a microsecond there."""

    MATCH = 2
    """A job that a filter is compared with."""
    FIND = 20
    """An id that is looked for, among the jobs that wait, run or have ended."""
    PAST = 40
    """A job that has ended, read from the store."""
    CHANGE = 100
    """A job that is held, unheld, moved, withdrawn or queued again."""
    SUBMIT = 160
    """A job that is taken, whatever its size,"""
    KIB = 8
    """and each KiB of its words and variables."""
    ELEMENT = 36
    """Each element of an array."""
    FEATURES = 700
    """The forecast of one submission."""

    def within(self, units: int = STEP_UNITS) -> int:
        """How many of them a step can do; one at least."""
        return max(1, units // self)
