"""Plans the earliest starts of waiting entries from known ends: conservative backfill.

Knows: how many units of a pool are free from which time on (a pool: GPUs that can stand for one
another; a unit: one of them), and how many each entry wants for how long. Must not know: an entry's
request, and a unit's GPU. Times are integers of one clock.

Entries are placed in the order of service. Each gets the earliest time at which its units are free
for its whole duration beside all placed before. So a later entry, however short, delays no earlier
one. A unit that may be released or taken at any moment is not known to be free, but it may be. So a
start is sure only if it is the same whether all such units are free now or never. If it is not
sure, the pool belongs to the waiting entry from its earliest possible start on: a use that ends
before then is in no entry's way, and any other use is. If a unit that the entry needs may be
released at any moment, that start is now, and the entry keeps the whole pool.

Given true ends, no entry starts later than if all were served strictly in order. Proof, by
induction along the queue: let i start at time t in strict order. All entries before i have started
there at or before t; here each of them started no later. So no more of those run here at any time
from t on, and i fits in at t at the latest. An entry that started out of order had to leave the
places of all before it as they were, and the same plan made again later finds them where they were.

If a use ends before its time limit, the next plan is made from the units free then, again in the
order of service: no entry takes a place that an earlier entry could use. The guarantees then, and
their limits:
- The planned start of the first waiting entry never moves back, whichever use ends early: running
  entries leave it its place, and ended ones only make room. So an entry that overtook it delays it
  until then at most, that is until all that ran when it became the first has used up its limit.
- Without any overtaking it might have started earlier: entries that overtook it may be on units
  that have come free.
- An entry that is not first yet may be planned later than before, when an earlier one moves forward
  into its place; and then even later than in strict order with all limits used up, if an entry
  started behind both of them (tests/core/scheduler/test_plan.py has the case).
A limit counts from the lease on, and a task has some time to end after its limit; so the end of an
overdue task counts as unknown.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple


class Profile:
    """The free units over time: `free[i]` of them from `times[i]` on.

    Below zero where more units are taken than exist.
    """

    __slots__ = ("free", "times")

    def __init__(self, units: int, now: int) -> None:
        self.times = [now]
        self.free = [units]

    def take(self, units: int, start: int, end: int | None) -> None:
        """Take units from `start` until `end` (None: for ever). The past is ignored."""
        first = self._step(max(start, self.times[0]))
        last = len(self.times) if end is None else self._step(max(end, self.times[0]))
        for place in range(first, last):
            self.free[place] -= units

    def _step(self, time: int) -> int:
        """The index of the step at this time, inserted if it is missing."""
        place = bisect_right(self.times, time)
        if self.times[place - 1] == time:
            return place - 1
        self.times.insert(place, time)
        self.free.insert(place, self.free[place - 1])
        return place

    def earliest(
        self, units: int, duration: int | None, horizon: int | None = None, begin: int | None = None
    ) -> int | None:
        """The earliest time, not before `begin`, with so many units free for `duration`.

        All must be before the horizon. `duration` None: for ever. Returns None if there is no such
        time.
        """
        start: int | None = None
        first = 0 if begin is None else max(0, bisect_right(self.times, begin) - 1)
        for place in range(first, len(self.free)):
            if self.free[place] < units:
                start = None
                continue
            if start is None:
                start = self.times[place] if begin is None else max(begin, self.times[place])
            if duration is not None:
                end = start + duration
                if horizon is not None and end > horizon:
                    return None
                if place + 1 == len(self.times) or self.times[place + 1] >= end:
                    return start
        return start if horizon is None else None

    def least(self, end: int | None) -> int:
        """How many units stay free from now until `end` (None: for ever)."""
        last = len(self.times) if end is None else bisect_right(self.times, end - 1)
        return min(self.free[: max(1, last)])

    def copy(self) -> Profile:
        copy = Profile(0, 0)
        copy.times, copy.free = self.times.copy(), self.free.copy()
        return copy

    def advance(self, now: int) -> None:
        """Drop the past steps."""
        place = bisect_right(self.times, now) - 1
        if place > 0:
            del self.times[:place], self.free[:place]
        self.times[0] = max(self.times[0], now)


def _earliest(
    pool: Profile,
    quota: Profile | None,
    units: int,
    duration: int | None,
    horizon: int | None,
    begin: int | None,
) -> int | None:
    """The earliest time with so many free in both."""
    time = pool.earliest(units, duration, horizon, begin)
    while time is not None and quota is not None:
        within = quota.earliest(units, duration, None, time)
        if within is None or within == time:
            return within
        time = pool.earliest(units, duration, horizon, within)
        if time == within:
            break
    return time


class Start(NamedTuple):
    """The planned start of an entry."""

    time: int
    sure: bool
    """False: `time` is the earliest possible start."""


class Plan:
    """The planned use of one pool, or of one env's quota."""

    def __init__(self, units: int, now: int) -> None:
        self._profile = Profile(units, now)
        """The surely free units: without all units that may be in use."""
        self._hopeful = self._profile
        """The free units if all uses of unknown end were over or never began.

        It is the same object while no such use exists.
        """
        self.horizon: int | None = None
        """From this time on the pool belongs to a waiting entry."""
        self._lent: int | None = None
        """Of a quota: from this time on all that it leaves is taken out of the pool (`leave`)."""

    def runs(self, units: int, end: int | None, start: int | None = None) -> None:
        """Record units in use from now on, or from `start` on.

        `end` None: the end is unknown, and the use may never happen.
        """
        begin = self._profile.times[0] if start is None else start
        if end is None and self._hopeful is self._profile:
            self._hopeful = self._profile.copy()
        self._profile.take(units, begin, end)
        if end is not None and self._hopeful is not self._profile:
            self._hopeful.take(units, begin, end)

    def place(
        self, units: int, duration: int | None, quota: Plan | None = None, begin: int | None = None
    ) -> Start | None:
        """Plan the entry that comes next in the order of service, not before `begin`.

        `duration` None: it has no limit. `quota`: the plan of its env's quota, of which it needs as
        many units at the same time. Return None if it cannot start before the pool belongs to
        another entry.
        """
        hopeful = _earliest(
            self._hopeful,
            None if quota is None else quota._hopeful,
            units,
            duration,
            self.horizon,
            begin,
        )
        if hopeful is None:
            return None
        if quota is not None and not quota._has_room(units, duration, hopeful):
            self.leave(quota, hopeful)
            return Start(hopeful, False)
        sure = _earliest(
            self._profile,
            None if quota is None else quota._profile,
            units,
            duration,
            self.horizon,
            begin,
        )
        if sure == hopeful:
            for plan in (self,) if quota is None else (self, quota):
                plan.runs(units, None if duration is None else sure + duration, start=sure)
            return Start(sure, True)
        self.close(hopeful)
        if quota is not None:
            quota.runs(units, None, start=hopeful)
        return Start(hopeful, False)

    def _has_room(self, units: int, duration: int | None, start: int) -> bool:
        """Of a quota: return whether so many are surely free at this time."""
        return self._lent is None and self._profile.earliest(units, duration, None, start) == start

    def leave(self, quota: Plan, start: int) -> None:
        """From `start` on the env may take all that its quota leaves beside planned uses.

        It may do so at any moment: these units are not known to be free.
        """
        if quota._lent is not None and quota._lent <= start:
            return
        if self._hopeful is self._profile:
            self._hopeful = self._profile.copy()
        times, free = quota._profile.times, quota._profile.free
        for place, units in enumerate(free):
            begin = max(start, times[place])
            ends = [
                time for time in (*times[place + 1 : place + 2], quota._lent) if time is not None
            ]
            if units > 0 and (not ends or begin < min(ends)):
                self._profile.take(units, begin, min(ends, default=None))
        quota._lent = start

    def close(self, time: int) -> None:
        """From this time on at the latest the pool belongs to a waiting entry."""
        if self.horizon is None or time < self.horizon:
            self.horizon = time

    def next_change(self) -> int | None:
        """The first begin or end of a use, or the horizon if that is earlier.

        None: neither is known.
        """
        changes = [*self._profile.times[1:2], *([] if self.horizon is None else [self.horizon])]
        return min(changes, default=None)

    def spare(self, duration: int | None) -> int:
        """The units that an entry can have from now on for `duration` without delay of another.

        `duration` None: for ever.
        """
        now = self._profile.times[0]
        if self.horizon is not None and (duration is None or now + duration > self.horizon):
            return 0
        return max(0, self._profile.least(None if duration is None else now + duration))

    def advance(self, now: int) -> None:
        """Move to `now`: all went as planned."""
        self._profile.advance(now)
        if self._hopeful is not self._profile:
            self._hopeful.advance(now)
