"""When an elastic task keeps a spare: a worker without a GPU, ready for the next one.

A spare has run the script up to its first use of a GPU. Pure. Must not know: processes, memory.
"""

from __future__ import annotations

from typing import Optional

from .roster import READY, STARTING, Roster

CALM_S = 2.0
"""A spare starts this long after the last change: its start takes time from the training."""
FAILURES_MOST = 3
"""Spares that may end in a row without a GPU; then there is none any more."""
NO_ROOM_S = 60.0
"""How long a host without room for a spare is not asked again."""


class Spares:
    """Whether a spare is wanted now."""

    def __init__(self, most_gpus: int) -> None:
        """`most_gpus`: the largest number of GPUs of the task."""
        self._most_gpus = most_gpus
        self._failures = 0
        self._blocked_until_s = 0.0

    def due_s(self, roster: Roster, changed_s: float) -> Optional[float]:
        """When the next spare starts; None: none is wanted, as things are.

        `changed_s`: the time of the last change of the workers that train.
        """
        is_full = len(roster.seats) >= self._most_gpus
        has_one = any(not worker.gpu for worker in roster.workers.values())
        starts = bool(roster.stage(STARTING, READY))
        if is_full or has_one or starts or self._failures >= FAILURES_MOST:
            return None
        return max(changed_s + CALM_S, self._blocked_until_s)

    def given(self) -> None:
        """A spare has a GPU now."""
        self._failures = 0

    def died(self) -> None:
        """A spare has ended without a GPU: no fault of the task's."""
        self._failures += 1

    def no_room(self, now_s: float) -> None:
        self._blocked_until_s = now_s + NO_ROOM_S
