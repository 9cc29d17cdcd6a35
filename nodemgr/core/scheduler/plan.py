"""When what waits can start, as far as it is known when what runs will end: conservative backfill.

Knows: how many units of a pool are free from which time on (a pool: GPUs that can stand for one another; a unit: one of them),
and who wants how many for how long. Must not know: who that is, and which GPU is which. Times are integers of one clock.

Who is placed in the order of service gets the earliest time at which his units are free for as long as he needs them beside all who
were placed before: so whoever comes later, however short, delays nobody. What may end, or be taken, at any moment is not known to
be free, but it may be; so a start is sure only if it is the same whether all of that were free now or never. Where it is not sure,
the pool belongs to him who waits from the earliest moment on that he could start at: what ends before that moment is in nobody's
way, and everything else is. Where something that he needs may end at any moment, that moment is now, and he keeps the whole pool.

Given true ends, nobody starts later than if all were served strictly in order. Proof, by induction along the queue: at the time
t at which i starts in strict order, all before i have started there at or before t; here each of them started no later; so of
those, no more are running here at any time from t on, and i fits in at t at the latest. Whoever was started out of order had to
leave the places of all before him as they were, and the same plan made again later finds them where they were.

Where something ends before its time limit, the next plan is made from what is free then, again in the order of service: nobody goes
on by a place that another one before him could use. What holds then, and what does not:
- The start that is planned for the first who waits never moves back, whatever ends early: what runs leaves him his place, and what
  has ended only makes room. So whoever overtook holds him up until then at most, that is until all that ran when he became the first
  has used up its limit.
- Without any overtaking he might have started earlier: those who went before him may be on what has come free.
- Who is not first yet may come to be planned later than he was, when one before him moves forward into his place; and then even
  later than in strict order with all limits used up, if somebody started behind both of them (tests/core/scheduler/test_plan.py has the
  case).
A limit counts from the lease on, and who is told to end has some time for it; so who is overdue counts as one of whom nobody knows.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple


class Profile:
    """How many units are free: `free[i]` of them from `times[i]` on. May be below zero where more is taken than there is."""

    __slots__ = ("free", "times")

    def __init__(self, units: int, now: int) -> None:
        self.times = [now]
        self.free = [units]

    def take(self, units: int, start: int, end: int | None) -> None:
        """Until `end`, or for ever. What of it is past is not looked at."""
        first = self._step(max(start, self.times[0]))
        last = len(self.times) if end is None else self._step(max(end, self.times[0]))
        for place in range(first, last):
            self.free[place] -= units

    def _step(self, time: int) -> int:
        """The place of the step that begins at this time, which is made if there is none."""
        place = bisect_right(self.times, time)
        if self.times[place - 1] == time:
            return place - 1
        self.times.insert(place, time)
        self.free.insert(place, self.free[place - 1])
        return place

    def earliest(self, units: int, duration: int | None, horizon: int | None = None, begin: int | None = None) -> int | None:
        """From when on, and not before `begin`, so many are free for so long (None: for ever), all before the horizon. None: never."""
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
        """How many are free from now on until `end`, or for ever."""
        last = len(self.times) if end is None else bisect_right(self.times, end - 1)
        return min(self.free[: max(1, last)])

    def copy(self) -> Profile:
        copy = Profile(0, 0)
        copy.times, copy.free = self.times.copy(), self.free.copy()
        return copy

    def advance(self, now: int) -> None:
        """Forgets what is past."""
        place = bisect_right(self.times, now) - 1
        if place > 0:
            del self.times[:place], self.free[:place]
        self.times[0] = max(self.times[0], now)


def _earliest(pool: Profile, quota: Profile | None, units: int, duration: int | None, horizon: int | None, begin: int | None) -> int | None:
    """From when on so many are free in both."""
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
    """When somebody starts."""

    time: int
    sure: bool
    """False: at that time at the earliest."""


class Plan:
    """One pool, and what becomes of it."""

    def __init__(self, units: int, now: int) -> None:
        self._profile = Profile(units, now)
        """Without all units that somebody may have: surely free."""
        self._hopeful = self._profile
        """As if what may end at any moment had ended, and nobody took what he may take; the same as long as there is no such thing."""
        self.horizon: int | None = None
        """From then on the pool belongs to somebody who was placed."""
        self._lent: int | None = None
        """Of a quota: from then on all that it leaves is taken out of the pool (`leave`)."""

    def runs(self, units: int, end: int | None, start: int | None = None) -> None:
        """So many units are in use from now on, or from `start` on; `end` None: nobody knows how long, or whether at all."""
        begin = self._profile.times[0] if start is None else start
        if end is None and self._hopeful is self._profile:
            self._hopeful = self._profile.copy()
        self._profile.take(units, begin, end)
        if end is not None and self._hopeful is not self._profile:
            self._hopeful.take(units, begin, end)

    def place(self, units: int, duration: int | None, quota: Plan | None = None, begin: int | None = None) -> Start | None:
        """Plans the entry that comes next in the order of service, not before `begin`. `duration` None: it has no limit. `quota`: the
        plan of its env's quota, of which it needs as many units at the same time. None: it cannot start before the pool belongs to
        another entry."""
        hopeful = _earliest(self._hopeful, None if quota is None else quota._hopeful, units, duration, self.horizon, begin)
        if hopeful is None:
            return None
        if quota is not None and not quota._has_room(units, duration, hopeful):
            self.leave(quota, hopeful)
            return Start(hopeful, False)
        sure = _earliest(self._profile, None if quota is None else quota._profile, units, duration, self.horizon, begin)
        if sure == hopeful:
            for plan in (self,) if quota is None else (self, quota):
                plan.runs(units, None if duration is None else sure + duration, start=sure)
            return Start(sure, True)
        self.close(hopeful)
        if quota is not None:
            quota.runs(units, None, start=hopeful)
        return Start(hopeful, False)

    def _has_room(self, units: int, duration: int | None, start: int) -> bool:
        """Of a quota: are so many surely free at this time?"""
        return self._lent is None and self._profile.earliest(units, duration, None, start) == start

    def leave(self, quota: Plan, start: int) -> None:
        """From `start` on the env may take, at any moment, all that its quota leaves beside what is planned: it is not known to be free."""
        if quota._lent is not None and quota._lent <= start:
            return
        if self._hopeful is self._profile:
            self._hopeful = self._profile.copy()
        times, free = quota._profile.times, quota._profile.free
        for place, units in enumerate(free):
            begin = max(start, times[place])
            ends = [time for time in (*times[place + 1 : place + 2], quota._lent) if time is not None]
            if units > 0 and (not ends or begin < min(ends)):
                self._profile.take(units, begin, min(ends, default=None))
        quota._lent = start

    def close(self, time: int) -> None:
        """From then on at the latest the pool belongs to somebody who waits."""
        if self.horizon is None or time < self.horizon:
            self.horizon = time

    def next_change(self) -> int | None:
        """When the first of what is planned or runs begins or ends, or the pool belongs to somebody. None: nothing is known."""
        changes = [*self._profile.times[1:2], *([] if self.horizon is None else [self.horizon])]
        return min(changes, default=None)

    def spare(self, duration: int | None) -> int:
        """How many units somebody can have from now on for so long (None: for ever) without being in anybody's way."""
        now = self._profile.times[0]
        if self.horizon is not None and (duration is None or now + duration > self.horizon):
            return 0
        return max(0, self._profile.least(None if duration is None else now + duration))

    def advance(self, now: int) -> None:
        """Time has passed as it was planned."""
        self._profile.advance(now)
        if self._hopeful is not self._profile:
            self._hopeful.advance(now)
