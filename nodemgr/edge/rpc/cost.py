"""The units of work that an order makes the manager do.

Knows: the units of each kind of work. Must not know: who is charged, how an order is carried out.

A step does at most STEP_UNITS, and then others have their turn: an order goes on in another step,
or its client sends the rest (api/bulk_actions.py). The work is charged to its environment when its
amount is known, and before it is done.
"""

from __future__ import annotations

from enum import IntEnum

STEP_UNITS = 2_500
"""The most in one step: 2.5 ms of the processor of the bench's machine (bench/jobs/denial.py).

Beside other work on all cores it is twice as much: 5 ms."""
UNIT_NS = 1_000
"""The charge for a unit."""


class Units(IntEnum):
    """A unit is a microsecond there."""

    NAMES = 4
    """NAMES_AT_ONCE ids of an order, as they are read, whether the order reaches them or not."""
    MATCH = 5
    """A job, or an array's row, that a filter is compared with."""
    FIND = 40
    """An id that is looked for, among the jobs that wait, run or have ended."""
    PAST = 40
    """A job that has ended, read from the store."""
    CHANGE = 200
    """A job, or an array's row, that is held, unheld, moved, withdrawn or queued again."""
    SUBMIT = 180
    """A job that is taken, whatever its size,"""
    KIB = 4
    """and each KiB of its words and variables: to be read, and to be stored."""
    READ = 60
    """A submission of many, as it is read."""
    FEATURES = 1_000
    """The forecast of one submission."""
    STORY = 200
    """A job, or a row of an array, that is shown."""
    ROW = 12
    """A row of the queue's list."""
    PART = 40
    """A packet of an answer."""

    def within(self, units: int = STEP_UNITS) -> int:
        """How many of them a step can do; one at least."""
        return max(1, units // self)


MAX_NAMED = 1_000
"""The most ids in one order."""
NAMES_AT_ONCE = 10
