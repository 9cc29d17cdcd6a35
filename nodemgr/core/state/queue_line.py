"""One queue: entries by stamp, and by group.

Knows: stamps, sizes, groups, owners. Must not know: ranks, other queues.

All entries stand in one sorted list, so one enters or leaves in the middle as at an end: 5 µs with
20 000 there, 45 µs with a million (docs/figures.md). Positions are indices of this list.

An entry of size n counts as n in positions, and its n members have the stamps from its own on. The
entries larger than one stand in a list of their own, beside their sizes.

Entries of one group (an equivalence group of the caller's) have a list, too, so a walk can leave
out the rest of a group without visiting its members. A group has an owner.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from typing import NamedTuple

EARLIEST, LATEST = -(1 << 80), 1 << 80
"""Below and above every stamp."""
LineRow = tuple[int, int, str]
"""Stamp, number, id of an entry. Of equal stamps the lowest number is first; each is unique."""


class EntryPosition(NamedTuple):
    """The place of an entry."""

    line: Line
    row: LineRow
    group: str
    size: int


class QueuedGroup(NamedTuple):
    """The entries of one group in one queue, in order."""

    owner: str
    rows: list[LineRow]


class Line:
    """One queue. Positions count from 1."""

    __slots__ = (
        "_groups",
        "_inadmissible",
        "_large",
        "_more",
        "_owners",
        "_positions",
        "_rows",
        "_total",
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
        self._rows: list[LineRow] = []
        self._total = 0
        self._large: list[LineRow] = []
        """The entries with a size above one, in order, and by index:"""
        self._more: list[int] = []
        """The size of each, less one."""
        self._groups: dict[str, QueuedGroup] = {}
        self._owners: dict[str, dict[str, None]] = {}
        """The groups of each owner."""
        self.heads: list[LineRow] = []
        """The first of each group of an admissible owner, in order."""

    def __len__(self) -> int:
        """The sizes of its entries, added up."""
        return self._total

    def __iter__(self) -> Iterator[str]:
        return (entry for _, _, entry in self._rows)

    def rows(self, stamp: int) -> Iterator[LineRow]:
        """The entries with this stamp or later, in order."""
        return _since(self._rows, stamp)

    def rows_of(self, group: str, stamp: int) -> Iterator[LineRow]:
        """The same for one group."""
        return _since(self._groups[group].rows, stamp)

    def insert(self, row: LineRow, group: str, owner: str, size: int) -> None:
        """Inserts an absent entry; the row's number must be new."""
        self._positions[row[2]] = EntryPosition(self, row, group, size)
        insort(self._rows, row)
        self._total += size
        if size > 1:
            at = bisect_left(self._large, row)
            self._large.insert(at, row)
            self._more.insert(at, size - 1)
        there = self._groups.get(group)
        if there is None:
            self._owners.setdefault(owner, {})[group] = None
            there = self._groups[group] = QueuedGroup(owner, [])
        insort(there.rows, row)
        if there.rows[0] is row:
            if len(there.rows) > 1:
                self._drop_head(owner, there.rows[1])
            self._put_head(owner, row)

    def withdraw(self, entry: str) -> None:
        """Raises KeyError if it is absent."""
        _, row, group, size = self._positions.pop(entry)
        del self._rows[bisect_left(self._rows, row)]
        self._total -= size
        if size > 1:
            at = bisect_left(self._large, row)
            del self._large[at], self._more[at]
        owner, rows = self._groups[group]
        at = bisect_left(rows, row)
        del rows[at]
        if at == 0:
            self._drop_head(owner, row)
            if rows:
                self._put_head(owner, rows[0])
            else:
                self._end(group, owner)

    def _end(self, group: str, owner: str) -> None:
        del self._groups[group], self._owners[owner][group]
        if not self._owners[owner]:
            del self._owners[owner]

    def front(self) -> LineRow | None:
        """The first entry; None: it is empty."""
        return self._rows[0] if self._rows else None

    def position(self, row: LineRow) -> int:
        """Of the entry's first member."""
        return self._before(row) + 1

    def below(self, stamp: int) -> int:
        """The sizes of the entries with a lower stamp, added up."""
        return self._before((stamp, 0, ""))

    def _before(self, row: LineRow) -> int:
        more = sum(self._more[: bisect_left(self._large, row)]) if self._large else 0
        return bisect_left(self._rows, row) + more

    def members(self, group: str) -> Iterator[str]:
        """One group, in order."""
        return (entry for _, _, entry in self._groups[group].rows)

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

    def head(self, group: str) -> LineRow:
        """The first of the group."""
        return self._groups[group].rows[0]

    def _put_head(self, owner: str, row: LineRow) -> None:
        if owner not in self._inadmissible:
            insort(self.heads, row)

    def _drop_head(self, owner: str, row: LineRow) -> None:
        if owner not in self._inadmissible:
            del self.heads[bisect_left(self.heads, row)]

    def hide(self, owner: str) -> None:
        """Removes the owner's heads."""
        for group in self._owners.get(owner, ()):
            self._drop_head(owner, self.head(group))

    def show(self, owner: str) -> None:
        """Restores the owner's heads."""
        for group in self._owners.get(owner, ()):
            self._put_head(owner, self.head(group))


def _since(rows: list[LineRow], stamp: int) -> Iterator[LineRow]:
    return (rows[at] for at in range(bisect_left(rows, (stamp, 0, "")), len(rows)))
