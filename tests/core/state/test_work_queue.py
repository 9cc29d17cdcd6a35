"""The queues, against lists that are counted."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nodemgr.core.state.work_queue import Walk, WorkQueue, line_name
from tests.support.examples import examples

RANKS = (("high", 300), ("normal", 200), ("low", 100))


def filled(*entries: tuple[str, str], ageing: int = 0) -> WorkQueue:
    queue = WorkQueue(RANKS, ageing)
    for stamp, (name, entry) in enumerate(entries):
        queue.insert(name, entry, stamp)
    return queue


def test_ranks_go_before_times() -> None:
    queue = filled(("low", "a"), ("normal", "b"), ("high", "c"), ("normal", "d"))
    assert list(queue) == ["c", "b", "d", "a"]
    assert [queue.position(entry) for entry in queue] == [1, 1, 2, 1]
    assert list(queue.names()) == ["high", "normal", "low"]


def test_who_has_waited_for_long_goes_before_a_higher_rank() -> None:
    queue = WorkQueue(RANKS, ageing=10)
    queue.insert("low", "old", 0)
    queue.insert("normal", "in time", 1_000)
    queue.insert("normal", "too late", 1_001)
    assert list(queue) == ["in time", "old", "too late"]
    assert [queue.ahead("low", 0), queue.ahead("normal", 1_000), queue.ahead("normal", 1_001)] == [
        1,
        0,
        1,
    ]


def test_peek_shows_what_pop_takes() -> None:
    queue = WorkQueue(RANKS)
    assert (queue.peek(), queue.pop()) == (None, None)
    queue.insert("low", "a", 1)
    queue.insert("high", "b", 2)
    assert (queue.peek(), queue.pop(), queue.pop(), queue.pop()) == ("b", "b", "a", None)


def test_a_queue_is_made_on_demand_after_all_others() -> None:
    queue = filled(("nightly", "a"), ("low", "b"))
    assert list(queue) == ["b", "a"]
    assert list(queue.entries("nightly")) == ["a"]
    assert list(queue.entries("unheard of")) == []
    assert (
        queue.front("nightly"),
        queue.front("low"),
        queue.front("high"),
        queue.front("unheard of"),
    ) == (0, 1, None, None)


def test_a_queue_changes_its_rank_with_all_that_waits_in_it_and_goes_when_it_is_empty() -> None:
    queue = filled(("nightly", "a"), ("high", "b"))
    queue.configure("nightly", 400)
    assert list(queue) == ["a", "b"]
    with pytest.raises(ValueError, match="1 wait in queue nightly"):
        queue.remove("nightly")
    queue.withdraw("a")
    queue.remove("nightly")
    assert list(queue.names()) == ["high", "normal", "low"]
    with pytest.raises(KeyError):
        queue.remove("nightly")


def test_queues_of_one_rank_are_served_as_one() -> None:
    queue = WorkQueue((("b", 1), ("a", 1)))
    for stamp, (name, entry) in enumerate((("b", "1"), ("a", "2"), ("b", "3"))):
        queue.insert(name, entry, stamp)
    assert list(queue) == ["1", "2", "3"]
    assert (queue.ahead("b", 2), queue.position("3")) == (1, 2)


def test_an_entry_waits_once() -> None:
    queue = filled(("low", "a"))
    with pytest.raises(ValueError, match="a waits already"):
        queue.insert("high", "a", 1)


def test_who_does_not_wait_has_no_place() -> None:
    queue = WorkQueue(RANKS)
    for ask in (queue.withdraw, queue.position, queue.order):
        with pytest.raises(KeyError):
            ask("a")


def test_a_walk_leaves_out_the_rest_of_a_group() -> None:
    queue = WorkQueue(RANKS)
    for stamp in range(9):
        queue.insert(
            "low" if stamp % 2 else "normal",
            f"r{stamp}",
            stamp,
            group="alice" if stamp < 7 else f"bob{stamp}",
        )
    walk = queue.walk()
    assert (next(walk), walk.group) == ("r0", "alice")
    walk.drop("alice")
    assert list(walk) == ["r8", "r7"]


class Waits(NamedTuple):
    entry: str
    name: str
    stamp: int
    group: str


OWNERS = {"x": "p", "y": "p", "z": "q"}


class Queues(RuleBasedStateMachine):
    """The model is one list in the order of arrival at each stamp."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: list[Waits] = []
        self.ranks = {"a": 1, "b": 3, "c": 3}
        self.clock = 100
        self.numbers = 0
        self.inadmissible: set[str] = set()

    @initialize(ageing=st.sampled_from([0, 1, 4]))
    def ages(self, ageing: int) -> None:
        self.ageing = ageing
        self.queue = WorkQueue(self.ranks.items(), ageing)

    def service(self, waits: Waits) -> tuple[int, int, str, int, int]:
        rank, arrival = self.ranks.get(waits.name, 0), self.plain.index(waits)
        if self.ageing:
            return waits.stamp - rank * self.ageing, -rank, waits.name, waits.stamp, arrival
        return -rank, waits.stamp, waits.name, waits.stamp, arrival

    def in_order(self) -> list[Waits]:
        return sorted(self.plain, key=self.service)

    def line(self, name: str) -> list[str]:
        return [waits.entry for waits in self.in_order() if waits.name == name]

    @rule(name=st.sampled_from("abcd"), later=st.integers(0, 3), group=st.sampled_from("xyz"))
    def to_the_end(self, name: str, later: int, group: str) -> None:
        self.clock += later
        self.enter(name, self.clock, group)

    @rule(name=st.sampled_from("abcd"), group=st.sampled_from("xyz"))
    def to_the_front(self, name: str, group: str) -> None:
        front = self.queue.front(name)
        assert front == min(
            (waits.stamp for waits in self.plain if waits.name == name), default=None
        )
        if front is not None:
            self.enter(name, front - 1, group)

    @rule(name=st.sampled_from("abcd"), stamp=st.integers(90, 110), group=st.sampled_from("xyz"))
    def between(self, name: str, stamp: int, group: str) -> None:
        """A stamp between others, as no clock of the core makes it."""
        self.enter(name, stamp, group)

    def enter(self, name: str, stamp: int, group: str, entry: str = "") -> None:
        self.numbers += 1
        entry = entry or f"r{self.numbers}"
        self.queue.insert(name, entry, stamp, group, OWNERS[group])
        self.plain.append(Waits(entry, name, stamp, group))
        self.ranks.setdefault(name, 0)

    @precondition(lambda self: self.plain)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        waits = data.draw(st.sampled_from(self.plain))
        self.queue.withdraw(waits.entry)
        self.plain.remove(waits)

    @precondition(lambda self: self.plain)
    @rule(data=st.data(), name=st.sampled_from("abcd"))
    def move(self, data: st.DataObject, name: str) -> None:
        waits = data.draw(st.sampled_from(self.plain))
        self.clock += 1
        self.queue.withdraw(waits.entry)
        self.plain.remove(waits)
        self.enter(name, self.clock, waits.group, waits.entry)

    @rule()
    def pop(self) -> None:
        first = self.in_order()[:1]
        assert [self.queue.pop()] == ([waits.entry for waits in first] or [None])
        self.plain = [waits for waits in self.plain if waits not in first]

    @rule(name=st.sampled_from("abcd"), rank=st.integers(0, 5))
    def configure(self, name: str, rank: int) -> None:
        self.ranks[name] = rank
        self.queue.configure(name, rank)

    @rule(name=st.sampled_from("abcd"))
    def remove(self, name: str) -> None:
        if name in self.ranks and not self.line(name):
            del self.ranks[name]
            self.queue.remove(name)

    @rule(owner=st.sampled_from("pq"))
    def set_inadmissible(self, owner: str) -> None:
        self.queue.set_inadmissible(owner)
        self.inadmissible.add(owner)

    @rule(owner=st.sampled_from("pq"))
    def readmit(self, owner: str) -> None:
        self.queue.readmit(owner)
        self.inadmissible.discard(owner)

    @rule(
        groups=st.lists(st.tuples(st.integers(0, 6), st.sampled_from("xyz")), max_size=3),
        readmitted=st.sets(st.sampled_from("pq")),
        narrowed=st.none() | st.tuples(st.integers(0, 6), st.sets(st.sampled_from("pqr"))),
    )
    def walk(
        self,
        groups: list[tuple[int, str]],
        readmitted: set[str],
        narrowed: tuple[int, set[str]] | None,
    ) -> None:
        """Each group is dropped after so many entries; after so many it is narrowed to some owners.

        No inadmissible owner is visited, except those that this walk readmits.
        """
        walk, seen = self.queue.walk(readmitted), []
        expected: list[Waits] = []
        dropped: set[str] = set()
        owners = set("pq") - (self.inadmissible - readmitted)
        for waits in self.in_order():
            dropped |= {group for after, group in groups if after <= len(expected)}
            if narrowed is not None and narrowed[0] <= len(expected):
                owners &= narrowed[1]
            if waits.group not in dropped and OWNERS[waits.group] in owners:
                expected.append(waits)
        self.steer(walk, 0, groups, narrowed)
        for entry in walk:
            seen.append((entry, walk.group))
            self.steer(walk, len(seen), groups, narrowed)
        assert seen == [(waits.entry, waits.group) for waits in expected]

    @staticmethod
    def steer(
        walk: Walk, seen: int, groups: list[tuple[int, str]], narrowed: tuple[int, set[str]] | None
    ) -> None:
        for group in [group for after, group in groups if after <= seen]:
            walk.drop(group)
        if narrowed is not None and narrowed[0] <= seen:
            walk.narrow(narrowed[1])

    @rule(
        name=st.sampled_from("abcd"),
        stamp=st.integers(90, 110),
        owners=st.none() | st.sets(st.sampled_from("pq")),
    )
    def listed(self, name: str, stamp: int, owners: set[str] | None) -> None:
        """From behind any place on, and of some owners.

        Inadmissible entries are listed here, too.
        """
        rank, service = self.ranks.get(name, 0), self.in_order()
        start = (
            (stamp - rank * self.ageing, -rank, name, stamp)
            if self.ageing
            else (-rank, stamp, name, stamp)
        )
        expected = []
        for place, waits in enumerate(service):
            position = sum(other.name == waits.name for other in service[: place + 1])
            shown = owners is None or OWNERS[waits.group] in owners
            if shown and self.service(waits)[:4] > start:
                expected.append((waits.entry, position, place + 1 - position))
        assert list(self.queue.listed((name, stamp), owners)) == expected

    def groups(self, owner: str) -> set[tuple[str, str]]:
        """The entries that it has, in each queue."""
        return {(waits.name, waits.group) for waits in self.plain if OWNERS[waits.group] == owner}

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "queue"):
            return
        order = self.in_order()
        assert list(self.queue) == [waits.entry for waits in order]
        assert len(self.queue) == len(order)
        assert self.queue.peek() == (order[0].entry if order else None)
        assert list(self.queue.names()) == sorted(
            self.ranks, key=lambda name: (-self.ranks[name], name)
        )
        orders = [self.queue.order(waits.entry) for waits in order]
        assert orders == sorted(set(orders))
        assert self.queue.inadmissible() == self.inadmissible
        for owner in "pq":
            firsts = {
                group: [waits.entry for waits in order if (waits.name, waits.group) == group]
                for group in self.groups(owner)
            }
            assert sorted(self.queue.firsts_of(owner)) == sorted(
                entries[0] for entries in firsts.values()
            )
        for name in self.ranks:
            line = self.line(name)
            assert list(self.queue.entries(name)) == line
            assert [self.queue.position(entry) for entry in line] == list(range(1, len(line) + 1))
        for waits in order:
            before = sum(
                self.service(other) < self.service(waits)
                for other in order
                if other.name != waits.name
            )
            assert self.queue.ahead(waits.name, waits.stamp) == before


TestQueues = Queues.TestCase
TestQueues.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


@settings(deadline=None, max_examples=examples(60))
@given(
    ageing=st.integers(1, 50),
    low=st.integers(0, 300),
    more=st.integers(1, 300),
    came=st.integers(0, 1000),
    later=st.integers(-5, 5),
)
def test_the_bound_is_exact(ageing: int, low: int, more: int, came: int, later: int) -> None:
    """An entry of the higher rank that came later than the bound does not go first.

    One that came at the bound does.
    """
    queue = WorkQueue((("low", low), ("high", low + more)), ageing)
    bound = more * ageing
    queue.insert("low", "old", came)
    queue.insert("high", "new", came + bound + later)
    assert queue.peek() == ("new" if later <= 0 else "old")


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.sampled_from(["high", "normal", "low"]), st.integers(0, 4000)), max_size=60
    )
)
def test_no_stream_of_a_higher_rank_starves_a_lower_one(arrivals: list[tuple[str, int]]) -> None:
    """In any order of arrival: overtaking stays within the bound.

    An entry that goes before one of a lower rank came within it.
    """
    queue = WorkQueue(RANKS, ageing=10)
    came = {}
    for stamp, (name, _) in sorted((stamp, (name, stamp)) for name, stamp in arrivals):
        entry = f"{name}:{len(came)}"
        queue.insert(name, entry, stamp)
        came[entry] = stamp
    order = [(queue.rank(entry.split(":")[0]), came[entry]) for entry in queue]
    for place, (rank, stamp) in enumerate(order):
        for other, other_stamp in order[:place]:
            assert other <= rank or other_stamp - stamp <= (other - rank) * 10


@settings(deadline=None, max_examples=examples(100))
@given(
    st.lists(st.integers(0, 30), max_size=30), st.lists(st.integers(0, 30), max_size=10), st.data()
)
def test_many_that_come_among_others_stand_where_they_would_have_come(
    there: list[int], more: list[int], data: st.DataObject
) -> None:
    """Behind an entry with the same stamp; some of the others have left meanwhile."""
    queue = WorkQueue([("normal", 200)])
    rows = [(f"r{number}", stamp) for number, stamp in enumerate(sorted(there))]
    for entry, stamp in rows:
        queue.insert("normal", entry, stamp, f"g{stamp % 3}", "alice")
    gone = data.draw(st.sets(st.sampled_from([entry for entry, _ in rows]))) if rows else set()
    for entry in gone:
        queue.withdraw(entry)
    came = [(f"m{number}", stamp) for number, stamp in enumerate(more)]
    for entry, stamp in came:
        queue.insert("normal", entry, stamp, f"g{stamp % 3}", "alice")
    left = [row for row in rows if row[0] not in gone]
    expected = [entry for entry, _ in sorted([*left, *came], key=lambda row: row[1])]
    assert list(queue.entries("normal")) == expected
    assert [queue.position(entry) for entry in expected] == list(range(1, len(expected) + 1))
    assert list(queue) == expected


def test_a_class_goes_before_all_of_the_next_class() -> None:
    """Queues and stamps order the entries of one class, also in positions and listings."""
    queue = WorkQueue((("high", 300), ("low", 100)), ageing=10)
    for name, number, entry, stamp in (
        ("high", 1, "high-normal", 1),
        ("low", 2, "low-last", 2),
        ("high", 2, "high-last", 3),
        ("low", 1, "low-normal", 4),
        ("low", 0, "low-first", 5),
        ("high", 0, "high-first", 6),
    ):
        queue.insert(line_name(name, number), entry, stamp, entry, entry)
    ordered = ["high-first", "low-first", "high-normal", "low-normal", "high-last", "low-last"]
    assert list(queue) == list(queue.walk()) == ordered == sorted(ordered, key=queue.order)
    assert queue.peek() == "high-first"
    assert list(queue.entries("low")) == ["low-first", "low-normal", "low-last"]
    places = {entry: (position, ahead) for entry, position, ahead in queue.listed()}
    assert [places[entry] for entry in ordered] == [
        (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3),
    ]  # fmt: skip
    owned = queue.listed(owners=("low-normal", "high-last"))
    assert list(owned) == [("low-normal", 2, 2), ("high-last", 3, 2)]
    after = queue.listed(("low", 4))
    assert [entry for entry, _, _ in after] == ["high-last", "low-last"]
    assert (queue.position("low-last"), queue.count("low")) == (3, 3)
    assert queue.count_up_to(line_name("low", 2), 2) == 3
    queue.configure("low", 400)
    assert list(queue)[:2] == ["low-first", "high-first"]
    with pytest.raises(ValueError, match="3 wait in queue low"):
        queue.remove("low")
    for entry in ("low-first", "low-normal", "low-last"):
        queue.withdraw(entry)
    queue.remove("low")
    assert set(queue.names()) == {"high+0", "high", "high+2"}
    with pytest.raises(KeyError):
        queue.remove("low")


def test_a_class_goes_first_without_ageing_too() -> None:
    queue = WorkQueue((("high", 300), ("low", 100)))
    queue.insert("high", "normal", 1)
    queue.insert(line_name("low", 0), "first", 2)
    assert list(queue) == ["first", "normal"]


def test_an_inadmissible_owner_is_hidden_in_all_classes() -> None:
    queue = WorkQueue((("high", 300),))
    queue.set_inadmissible("bob")
    queue.insert(line_name("high", 0), "a", 1, "a", "bob")
    queue.insert(line_name("high", 2), "b", 2, "b", "ann")
    assert list(queue.walk()) == ["b"]
    queue.readmit("bob")
    assert list(queue.walk()) == ["a", "b"]


@settings(deadline=None, max_examples=examples(40))
@given(
    ageing=st.sampled_from([0, 5]),
    sizes=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 4), st.sampled_from("xyz")), max_size=12
    ),
    left=st.lists(st.tuples(st.integers(0, 11), st.integers(1, 4)), max_size=8),
)
def test_an_entry_of_several_counts_as_its_members_would(
    ageing: int, sizes: list[tuple[str, int, str]], left: list[tuple[int, int]]
) -> None:
    """One queue has an entry for those that came together, the other one for each of them.

    The stamps of no two entries' members mix.
    """
    together, apart = (WorkQueue((("a", 1), ("b", 2)), ageing) for _ in range(2))
    members: dict[str, list[str]] = {}
    stamp = 100
    for number, (name, size, group) in enumerate(sizes):
        entry, first = f"r{number}", stamp
        if number % 3 == 2 and (front := apart.front(name)) is not None:
            first = front - 10
        else:
            stamp += 10
        together.insert(name, entry, first, group, OWNERS[group], size)
        members[entry] = [f"{entry}.{index}" for index in range(size)]
        for index in reversed(range(size)) if first < 100 else range(size):
            apart.insert(name, f"{entry}.{index}", first + index, group, OWNERS[group])
    for number, count in left:
        entry = f"r{number}"
        for _ in range(min(count, len(members.get(entry, ())))):
            apart.withdraw(members[entry].pop(0))
        if members.get(entry):
            first = apart.order(members[entry][0])[1 if ageing else 2]
            rank = together.rank(sizes[number][0]) * ageing
            together.resize(entry, first + rank, len(members[entry]))
        elif entry in together:
            together.withdraw(entry)
    each = {entry: names[0] for entry, names in members.items() if names}
    assert {entry: together.position(entry) for entry in together} == {
        entry: apart.position(name) for entry, name in each.items()
    }
    assert [row for row in apart.listed() if row[0] in each.values()] == [
        (each[entry], position, ahead) for entry, position, ahead in together.listed()
    ]
    assert [name.partition(".")[0] for name in apart.walk()] == list(together.walk())
    assert [together.count(name) for name in "ab"] == [apart.count(name) for name in "ab"]
    dropped, kept = together.walk(), apart.walk()
    for entry, name in zip(dropped, kept, strict=True):
        assert entry == name.partition(".")[0]
        dropped.drop("x")
        kept.drop("x")


def test_an_entry_that_shrinks_goes_where_its_first_member_stands() -> None:
    queue = WorkQueue((("a", 1),))
    queue.insert("a", "many", 1, "x", "p", size=3)
    queue.insert("a", "next", 3, "x", "p")
    queue.resize("many", 2, 2)
    assert list(queue.listed()) == [("many", 1, 0), ("next", 3, 0)]
    queue.resize("many", 3, 1)  # it came before the other
    assert list(queue.listed()) == list(queue.listed(owners="p")) == [
        ("many", 1, 0), ("next", 2, 0),
    ]  # fmt: skip
    queue.resize("many", 4, 1)
    assert list(queue) == list(queue.walk()) == ["next", "many"]
    with pytest.raises(KeyError):
        queue.resize("absent", 1, 1)
