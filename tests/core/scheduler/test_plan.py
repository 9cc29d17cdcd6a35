"""The plan of a pool: by hand, and against lists of seconds.

Then whole queues: no entry starts later than without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.core.scheduler.plan import Plan, Profile, Start
from tests.support.examples import examples


def test_whoever_is_planned_waits_until_enough_ends() -> None:
    plan = Plan(4, now=0)
    plan.runs(2, 100)
    plan.runs(1, 50)
    assert plan.place(3, 10) == Start(100, True)
    assert plan.place(2, 10) == Start(50, True)
    assert plan.spare(50) == 1
    assert plan.spare(51) == 0, "from 50 on both are promised"


def test_a_short_one_fits_before_a_gang_and_a_long_one_beside_it() -> None:
    plan = Plan(8, now=0)
    plan.runs(5, 100)
    assert plan.place(6, None) == Start(100, True)
    assert (plan.spare(100), plan.spare(101), plan.spare(None)) == (3, 2, 2)


def test_where_something_may_end_at_any_moment_the_pool_is_kept_from_now_on() -> None:
    plan = Plan(2, now=7)
    plan.runs(1, None)
    assert plan.place(2, 10) == Start(7, False)
    assert plan.spare(1) == 0


def test_a_start_is_sure_where_what_nobody_knows_does_not_matter() -> None:
    plan = Plan(4, now=0)
    plan.runs(1, None)
    plan.runs(2, 60)
    assert plan.place(4, 10) == Start(60, False), (
        "at 60 if the unknown one ends before, else nobody knows when"
    )
    assert plan.spare(60) == 1
    assert plan.spare(61) == 0
    sure = Plan(5, now=0)
    sure.runs(1, None)
    sure.runs(3, 60)
    assert sure.place(3, 10) == Start(60, True)
    assert sure.spare(None) == 1


def test_who_cannot_start_before_the_pool_belongs_to_another_is_in_nobodys_way() -> None:
    plan = Plan(2, now=0)
    plan.runs(1, 50)
    plan.close(40)
    assert plan.place(2, 10) is None
    assert (plan.spare(40), plan.spare(41)) == (1, 0)


def test_a_free_unit_is_taken_at_once() -> None:
    plan = Plan(2, now=3)
    assert plan.place(2, 4) == Start(3, True)
    assert plan.place(1, 4) == Start(7, True)
    plan.advance(7)
    assert plan.spare(None) == 1


TAKEN = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 20), st.one_of(st.none(), st.integers(1, 12))),
    max_size=8,
)


@given(
    TAKEN,
    st.integers(1, 6),
    st.one_of(st.none(), st.integers(1, 12)),
    st.one_of(st.none(), st.integers(0, 40)),
    st.integers(0, 25),
)
@settings(deadline=None, max_examples=examples(150))
def test_a_profile_is_a_list_of_seconds(
    taken: list[tuple[int, int, int | None]],
    units: int,
    duration: int | None,
    horizon: int | None,
    now: int,
) -> None:
    end = 80
    profile, plain = Profile(6, 0), [6] * end
    for more, start, length in taken:
        profile.take(more, start, None if length is None else start + length)
        for second in range(start, end if length is None else start + length):
            plain[second] -= more
    profile.advance(now)
    expected = None
    for second in range(now, 50):
        last = end if duration is None else second + duration
        within = horizon is None or (duration is not None and last <= horizon)
        if within and all(free >= units for free in plain[second:last]):
            expected = second
            break
    assert profile.earliest(units, duration, horizon) == expected
    assert profile.least(None if duration is None else now + duration) == min(
        plain[now : end if duration is None else now + duration]
    )


@dataclass
class Entry:
    """One of a queue.

    `known`: its time limit is told, and true, unless `early`: it ends so much before it.
    """

    name: int
    comes: int
    units: int
    lasts: int
    known: bool = True
    early: int = 0
    starts: int | None = field(default=None)


def in_order(entries: list[Entry], units: int) -> dict[int, int]:
    """Strictly one after the other: when each starts."""
    starts: dict[int, int] = {}
    running: list[tuple[int, int]] = []
    clock = 0
    for entry in entries:
        clock = max(clock, entry.comes)
        while sum(taken for end, taken in running if end > clock) + entry.units > units:
            clock = min(end for end, _ in running if end > clock)
        running.append((clock + entry.lasts, entry.units))
        starts[entry.name] = clock
    return starts


def backfilled(
    entries: list[Entry], units: int, depth: int, promised: dict[int, int] | None = None
) -> dict[int, int]:
    """The same queue with a new plan whenever an entry comes or ends, as the core makes it.

    `promised` takes the planned start of each entry when it has become the first waiting one.
    """
    waiting: list[Entry] = []
    running: list[tuple[int, Entry]] = []
    starts: dict[int, int] = {}
    moments = {entry.comes for entry in entries}
    while moments:
        now = min(moments)
        moments.discard(now)
        waiting += [entry for entry in entries if entry.comes == now]
        running = [(end, entry) for end, entry in running if end > now]
        plan = Plan(units, now)
        for end, entry in running:
            plan.runs(entry.units, end + entry.early if entry.known else None)
        blocked = 0
        for entry in list(waiting):
            limit = entry.lasts + entry.early if entry.known else None
            if plan.spare(limit) >= entry.units:
                plan.runs(entry.units, None if limit is None else now + limit)
                waiting.remove(entry)
                running.append((now + entry.lasts, entry))
                starts[entry.name] = now
                moments.add(now + entry.lasts)
            elif blocked < depth:
                blocked += 1
                start = plan.place(entry.units, limit)
                if promised is not None and start is not None and entry is waiting[0]:
                    promised.setdefault(entry.name, start.time)
                if blocked == depth:
                    plan.close(now)
        assert sum(entry.units for _, entry in running) <= units
    assert not waiting
    return starts


QUEUES = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 6), st.integers(1, 15)), min_size=1, max_size=14
)


@given(QUEUES, st.integers(1, 6), st.sampled_from([1, 2, 100]))
@settings(deadline=None, max_examples=examples(100))
def test_given_true_limits_nobody_starts_later_than_in_strict_order(
    rows: list[tuple[int, int, int]], units: int, depth: int
) -> None:
    comes = 0
    entries = []
    for name, (gap, wants, lasts) in enumerate(rows):
        comes += gap
        entries.append(Entry(name, comes, min(wants, units), lasts))
    before, after = in_order(entries, units), backfilled(entries, units, depth)
    assert all(after[name] <= before[name] for name in before), (before, after)


@given(QUEUES, st.integers(1, 6), st.data())
@settings(deadline=None, max_examples=examples(100))
def test_nor_where_some_tell_no_limit(
    rows: list[tuple[int, int, int]], units: int, data: st.DataObject
) -> None:
    comes = 0
    entries = []
    for name, (gap, wants, lasts) in enumerate(rows):
        comes += gap
        entries.append(Entry(name, comes, min(wants, units), lasts, known=data.draw(st.booleans())))
    before, after = in_order(entries, units), backfilled(entries, units, 100)
    assert all(after[name] <= before[name] for name in before), (before, after)


def test_a_request_behind_one_of_unknown_length_is_delayed_by_no_later_one() -> None:
    """Four units.

    The fifth entry alone has a limit. At 1 the sixth is planned for 2 and may end at any moment
    after that, so the seventh may start from 2 on: the eighth, which runs until 4, must not take
    the spare unit.
    """
    first = [Entry(name, 0, 1, 1, known=False) for name in range(4)]
    queue = [
        Entry(4, 0, 2, 1),
        Entry(5, 0, 3, 1, known=False),
        Entry(6, 0, 4, 1, known=False),
        Entry(7, 0, 1, 3, known=False),
    ]
    strict = in_order(first + queue, 4)
    assert backfilled(first + queue, 4, 100) == strict
    assert (strict[6], strict[7]) == (3, 4)


def test_a_planned_entry_of_unknown_length_may_end_as_soon_as_it_has_started() -> None:
    plan = Plan(4, now=1)
    plan.runs(2, 2)
    assert plan.place(3, None) == Start(2, True)
    assert plan.place(4, 5) == Start(2, False)
    assert (plan.spare(1), plan.spare(2)) == (2, 0)


EARLY = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(1, 8), st.integers(0, 12)),
    min_size=1,
    max_size=14,
)


@given(EARLY, st.integers(1, 6), st.sampled_from([1, 2, 100]))
@settings(deadline=None, max_examples=examples(150))
def test_whatever_ends_early_who_is_first_starts_no_later_than_was_planned_when_he_became_it(
    rows: list[tuple[int, int, int, int]], units: int, depth: int
) -> None:
    comes = 0
    entries = []
    for name, (gap, wants, lasts, early) in enumerate(rows):
        comes += gap
        entries.append(Entry(name, comes, min(wants, units), lasts, early=early))
    promised: dict[int, int] = {}
    starts = backfilled(entries, units, depth, promised)
    assert all(starts[name] <= promised[name] for name in promised), (starts, promised)


def test_one_who_was_not_first_may_start_later_than_in_strict_order_after_an_early_end() -> None:
    """A case that is not promised, on seven units.

    The first of the queue wants five, and moves from 20 to 8 when two units come back long before
    their limit. The second was planned before it and now comes after it. The third waits for the
    second, and for the fourth, which runs since 0 and delayed no entry then. In strict order, all
    limits used up, the third starts at 23.
    """
    running = [
        Entry(0, 0, 2, 5),
        Entry(1, 0, 1, 8),
        Entry(2, 0, 2, 2, early=18),
        Entry(3, 0, 1, 20),
    ]
    queue = [Entry(4, 0, 5, 3), Entry(5, 0, 2, 14), Entry(6, 0, 5, 5), Entry(7, 0, 1, 60)]
    promised: dict[int, int] = {}
    starts = backfilled(running + queue, 7, 100, promised)
    assert (starts[4], starts[5], starts[6], starts[7]) == (8, 11, 25, 0)
    assert promised == {4: 20, 5: 11, 6: 25}
    limits = [
        Entry(entry.name, entry.comes, entry.units, entry.lasts + entry.early)
        for entry in running + queue
    ]
    assert in_order(limits, 7)[6] == 23


def test_a_queue_that_gains_by_it() -> None:
    entries = [Entry(0, 0, 3, 10), Entry(1, 1, 4, 10), Entry(2, 2, 1, 8), Entry(3, 2, 1, 9)]
    assert in_order(entries, 4) == {0: 0, 1: 10, 2: 20, 3: 20}
    assert backfilled(entries, 4, 100) == {0: 0, 1: 10, 2: 2, 3: 20}
