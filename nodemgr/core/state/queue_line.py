"""One queue: entries by stamp, chained by group.

Knows: stamps, sizes, groups, owners, the row of each end. Must not know: ranks, other queues.

Ids stand in a row by number (tally.py). A second row holds those that came to the front. So insert,
peek and withdraw take constant time. Ids are renumbered when the row is sparse, and when one enters
between others, which the core's own clock never causes.

An entry of size n counts as n in positions, and its n members have the stamps from its own on. As
they leave, the entry stays where it is, since others seldom have a stamp between theirs.

Ids of one group (an equivalence group of the caller's) are chained too, so a walk can leave out the
rest of a group without visiting its members. A group has an owner.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from nodemgr.core.state.tally import BLOCK_BITS, Tally

EARLIEST, LATEST = -(1 << 80), 1 << 80
"""Below and above every stamp."""
QueuedRow = tuple[str, int, str, str, int]
"""An entry, its stamp, group, owner and size."""
SPARSE = 8
"""Numbers for each entry before all are numbered anew, in one step: 200 of 10 000 are left then."""


class EntryPosition(NamedTuple):
    """The place of an entry."""

    line: Line
    number: int
    """Number in the row of the line's end; below zero: ~number in the row of its front."""
    group: str


class Head(NamedTuple):
    """The first of a group. The first two fields are unique and decide comparisons."""

    stamp: int
    number: int
    group: str


class QueuedGroup(NamedTuple):
    """The entries of one group in one queue, in order."""

    owner: str
    members: OrderedDict[str, None]


class Line:
    """One queue. Positions count from 1."""

    __slots__ = (
        "_back",
        "_entries",
        "_front",
        "_groups",
        "_inadmissible",
        "_owners",
        "_positions",
        "heads",
        "name",
    )

    def __init__(
        self, name: str, positions: dict[str, EntryPosition], inadmissible: set[str]
    ) -> None:
        """`positions`: of the entries of all queues; `inadmissible`: inadmissible owners."""
        self.name = name
        self._positions = positions
        self._inadmissible = inadmissible
        self._start()

    def _start(self) -> None:
        self._back = Tally()
        self._front = Tally()
        """Entries that came before all others. Keys are negated stamps, so they never fall."""
        self._entries = 0
        self._groups: dict[str, QueuedGroup] = {}
        self._owners: dict[str, dict[str, None]] = {}
        """The groups of each owner."""
        self.heads: list[Head] = []
        """The heads of all groups of admissible owners, in order."""

    def __len__(self) -> int:
        """The sizes of its entries, added up."""
        return self._front.total + self._back.total

    def __iter__(self) -> Iterator[str]:
        return (entry for _, _, entry in self.rows(EARLIEST))

    def rows(self, stamp: int) -> Iterator[tuple[int, int, str]]:
        """(stamp, number, entry) of entries with this stamp or later, in order."""
        front, back = self._front, self._back
        for number in range(bisect_right(front.keys, -stamp) - 1, -1, -1):
            entry = front.entries[number]
            if entry is not None:
                yield -front.keys[number], ~number, entry
        for number in range(bisect_left(back.keys, stamp), len(back.keys)):
            entry = back.entries[number]
            if entry is not None:
                yield back.keys[number], number, entry

    def rows_of(self, group: str, stamp: int) -> Iterator[tuple[int, int, str]]:
        """The same for one group."""
        for entry in self._groups[group].members:
            number = self._positions[entry].number
            if self.stamp(number) >= stamp:
                yield self.stamp(number), number, entry

    def insert(self, entry: str, stamp: int, group: str, owner: str, size: int) -> None:
        back, front = self._back, self._front
        if back.keys and stamp < back.keys[-1]:
            back.trim()
        if not back.total and not front.total:
            self._start()
            self._append(entry, stamp, group, owner, size)
        elif back.total and stamp >= back.keys[-1]:
            self._append(entry, stamp, group, owner, size)
        elif stamp < self.stamp(self._positions[self.peek() or ""].number):
            self._prepend(entry, stamp, group, owner, size)
        else:
            self._renumber((entry, stamp, group, owner, size))

    def merge(self, rows: Iterable[QueuedRow]) -> None:
        self._renumber(*rows)

    def _append(self, entry: str, stamp: int, group: str, owner: str, size: int) -> None:
        self._positions[entry] = EntryPosition(self, self._back.add(entry, stamp, size), group)
        there = self._groups.get(group) or self._begin(group, owner)
        self._entries += 1
        there.members[entry] = None
        if len(there.members) == 1:
            self._put_head(group)

    def _prepend(self, entry: str, stamp: int, group: str, owner: str, size: int) -> None:
        self._front.trim()
        self._positions[entry] = EntryPosition(self, ~self._front.add(entry, -stamp, size), group)
        there = self._groups.get(group) or self._begin(group, owner)
        if there.members:
            self._drop_head(group)
        self._entries += 1
        there.members[entry] = None
        there.members.move_to_end(entry, last=False)
        self._put_head(group)

    def _begin(self, group: str, owner: str) -> QueuedGroup:
        self._owners.setdefault(owner, {})[group] = None
        there = self._groups[group] = QueuedGroup(owner, OrderedDict())
        return there

    def peek(self) -> str | None:
        return self._front.last() or self._back.first()

    def end(self) -> int | None:
        """The last entry's stamp."""
        entry = self._back.last() or self._front.first()
        return None if entry is None else self.stamp(self._positions[entry].number)

    def withdraw(self, entry: str) -> None:
        _, number, group = self._positions[entry]
        owner, members = self._groups[group]
        first = next(iter(members)) == entry
        if first:
            self._drop_head(group)
        del self._positions[entry], members[entry]
        if not members:
            self._end(group, owner)
        elif first:
            self._put_head(group)
        if number >= 0:
            self._back.take(number)
        else:
            self._front.take(~number)
        self._entries -= 1
        if len(self._back.keys) + len(self._front.keys) > SPARSE * (BLOCK_BITS + self._entries):
            self._renumber()

    def shrink(self, entry: str, stamp: int, size: int) -> bool:
        """Members of the entry have left: it stays at its place, with the stamp of its first.

        False: another entry came between (at the front, and from its old place). Nothing is done.
        """
        _, number, group = self._positions[entry]
        row, at, key = (
            (self._back, number, stamp) if number >= 0 else (self._front, ~number, -stamp)
        )
        before, after = row.keys[at - 1 : at], row.keys[at + 1 : at + 2]
        if (before and before[0] > key) or (after and after[0] < key):
            return False
        is_first = next(iter(self._groups[group].members)) == entry
        if is_first:
            self._drop_head(group)
        row.keys[at] = key
        row.resize(at, size)
        if is_first:
            self._put_head(group)
        return True

    def size(self, number: int) -> int:
        """Of the entry with this number."""
        return self._back.size(number) if number >= 0 else self._front.size(~number)

    def _end(self, group: str, owner: str) -> None:
        del self._groups[group], self._owners[owner][group]
        if not self._owners[owner]:
            del self._owners[owner]

    def stamp(self, number: int) -> int:
        return self._back.keys[number] if number >= 0 else -self._front.keys[~number]

    def position(self, number: int) -> int:
        """Of the entry's first member."""
        if number >= 0:
            return self._front.total + self._back.before(number) + 1
        return self._front.total - self._front.before(~number) - self._front.size(~number) + 1

    def below(self, stamp: int) -> int:
        """The sizes of the entries with a lower stamp, added up."""
        return self._front.total - self._front.below(1 - stamp) + self._back.below(stamp)

    def members(self, group: str) -> Iterator[str]:
        """One group, in order."""
        return iter(self._groups[group].members)

    def owner(self, group: str) -> str:
        return self._groups[group].owner

    def groups(self, owners: Collection[str]) -> Iterator[str]:
        """These owners' groups here."""
        for owner in (
            owners
            if len(owners) < len(self._owners)
            else [owner for owner in self._owners if owner in owners]
        ):
            yield from self._owners.get(owner, ())

    def head(self, group: str) -> Head:
        entry = next(iter(self._groups[group].members))
        number = self._positions[entry].number
        return Head(self.stamp(number), number, group)

    def _put_head(self, group: str) -> None:
        if self._groups[group].owner not in self._inadmissible:
            insort(self.heads, self.head(group))

    def _drop_head(self, group: str) -> None:
        if self._groups[group].owner not in self._inadmissible:
            del self.heads[bisect_left(self.heads, self.head(group))]

    def hide(self, owner: str) -> None:
        """Removes the owner's heads."""
        for group in self._owners.get(owner, ()):
            self._drop_head(group)

    def show(self, owner: str) -> None:
        """Restores the owner's heads."""
        for group in self._owners.get(owner, ()):
            self._put_head(group)

    def _renumber(self, *more: QueuedRow) -> None:
        """Numbers all entries anew, with `more` merged in by stamp."""
        positions = [(entry, self._positions[entry]) for entry in self]
        rows = [
            (
                entry,
                self.stamp(place.number),
                place.group,
                self.owner(place.group),
                self.size(place.number),
            )
            for entry, place in positions
        ]
        rows += more
        rows.sort(key=lambda row: row[1])
        self._start()
        for row in rows:
            self._append(*row)
