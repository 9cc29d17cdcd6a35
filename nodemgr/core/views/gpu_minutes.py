"""Use of the GPUs by the minute: readings are folded to one row for each GPU and minute.

Knows: which minute a reading belongs to, the means, the steps in which a span is shown. Must not
know: NVML, timers, the store. None is a figure that is not known; it never stands for zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nodemgr.core.model.entities import Uuid

MINUTE_S = 60
MINUTE_NS = MINUTE_S * 1_000_000_000
MAX_STEPS = 1_500
"""In one view: a day has 1 440 minutes."""


class GpuReading(NamedTuple):
    """The use of one GPU since the last reading."""

    percents: tuple[int, ...]
    """Samples of the utilisation; empty: it could not be read."""
    memory_used_bytes: int | None


class GpuMinute(NamedTuple):
    """The use of one GPU in one minute."""

    minute: int
    """Since the epoch."""
    uuid: Uuid
    utilization_percent: float | None
    """The mean."""
    memory_used_bytes: int | None
    """The mean."""


class _Sums:
    """Of the readings of one GPU."""

    __slots__ = ("memory_bytes", "percent", "readings", "samples")

    def __init__(self) -> None:
        self.percent = self.samples = self.memory_bytes = self.readings = 0

    def add(self, reading: GpuReading) -> None:
        self.percent += sum(reading.percents)
        self.samples += len(reading.percents)
        if reading.memory_used_bytes is not None:
            self.memory_bytes += reading.memory_used_bytes
            self.readings += 1

    def row(self, minute: int, uuid: Uuid) -> GpuMinute:
        return GpuMinute(
            minute,
            uuid,
            round(self.percent / self.samples, 1) if self.samples else None,
            self.memory_bytes // self.readings if self.readings else None,
        )


class OpenMinute:
    """The minute that is not over yet. It alone is lost when the manager is killed."""

    def __init__(self, wall_ns: int) -> None:
        self._minute = wall_ns // MINUTE_NS
        self._sums: dict[Uuid, _Sums] = {}

    def add(self, readings: Mapping[Uuid, GpuReading]) -> None:
        """Readings of GPUs that answered."""
        for uuid, reading in readings.items():
            self._sums.setdefault(uuid, _Sums()).add(reading)

    def turn(self, wall_ns: int) -> list[GpuMinute]:
        """The rows of the open minute if the time has left it, forward or backward; else none.

        The minute of `wall_ns` is the open one then. A minute in which the clock was put back has
        rows twice; a view shows their mean.
        """
        minute = wall_ns // MINUTE_NS
        if minute == self._minute:
            return []
        rows = [sums.row(self._minute, uuid) for uuid, sums in self._sums.items()]
        self._minute, self._sums = minute, {}
        return [row for row in rows if row[2:] != (None, None)]


class Steps(NamedTuple):
    """A span of time in steps of whole minutes."""

    since_s: int
    step_s: int
    length: int
    """The number of steps."""

    @property
    def minutes(self) -> tuple[int, int]:
        """The first, and the one after the last."""
        first = self.since_s // MINUTE_S
        return first, first + self.length * (self.step_s // MINUTE_S)


def steps(since_s: int, until_s: int) -> Steps:
    """The shortest steps of which MAX_STEPS cover the span. `since_s` <= `until_s`.

    The first begins at or before `since_s`, at a multiple of the step; the last one holds the
    moment before `until_s`.
    """
    minutes = -(-(until_s - since_s) // MINUTE_S)
    step_s = MINUTE_S * max(1, -(-minutes // (MAX_STEPS - 1)))
    first_s = since_s - since_s % step_s
    return Steps(first_s, step_s, -(-(until_s - first_s) // step_s) if until_s > since_s else 0)
