"""The queues of waiting entries: each queue has a rank, and is first come, first served within.

Knows: names, ranks, stamps, sizes and groups of ids. Must not know: the meaning of an id, and when
it may be served. Source: CN109828833A (WorkQueue: insert, pop, position, withdraw, peek).

A stamp is the time at which an id entered, on any clock. Within a queue the lowest stamp is first;
of equal stamps, the first to come. Across queues an entry of rank r and stamp s is ordered by s - r
* ageing. All entries age alike, so the order of two entries never changes while they wait, and no
entry is revisited as time passes. Hence

    an entry of rank r is overtaken by one of rank q > r only if that one came at most (q - r) *
    ageing later

Without ageing a higher rank always goes first.

Each queue has a line for each class of entries (`line_name`). All entries of an earlier class go
before those of a later one, in all queues; ranks and stamps order the entries of one class.

A line of entries is in queue_line.py.

A walk along all queues can leave out the rest of a group, and can be narrowed to some owners'
entries. An inadmissible owner's entries are in no walk until it is readmitted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from heapq import heapify, heappop, heappush, merge
from itertools import chain
from typing import NamedTuple

from nodemgr.core.state.queue_line import EARLIEST, LATEST, EntryPosition, Line, LineRow

UNRANKED = 0
"""The rank of a queue that is not configured."""

ServiceOrder = tuple[int, int, int, str, int]
"""The lower of two is served first: see WorkQueue.order."""

MIDDLE = 1
"""The class of a line without a mark: the line has the queue's name."""
CLASS_MARKS = {0: "+0", 2: "+2"}
"""The ends of the names of the other lines of a queue. No queue's name has a `+`."""


def line_name(queue: str, number: int) -> str:
    """The line of the queue's entries of this class; class 0 is served first."""
    return queue if number == MIDDLE else queue + CLASS_MARKS[number]


def queue_name(line: str) -> str:
    """The queue of a line."""
    return line.partition("+")[0]


def _class_of(line: str) -> int:
    return int(line.partition("+")[2] or MIDDLE)


class WorkQueue:
    """All queues of a node. An insert makes a missing queue, with rank UNRANKED."""

    def __init__(self, ranks: Iterable[tuple[str, int]], ageing: int = 0) -> None:
        """`ageing`: the lead of an entry for each point of its queue's rank, in the unit of stamps.

        Value 0: by rank alone, by stamp between queues of one rank.
        """
        self._ageing = ageing
        self._ranks: dict[str, int] = {}
        self._lines: dict[str, Line] = {}
        self._classes: dict[str, int] = {}
        """The class of each line."""
        self._positions: dict[str, EntryPosition] = {}
        self._inadmissible: set[str] = set()
        self._last_number = 0
        """Entries are numbered in the order of their arrival."""
        for name, rank in ranks:
            self.configure(name, rank)

    def configure(self, name: str, rank: int) -> None:
        """Makes a queue, or changes its rank with all its entries."""
        self._ranks[name] = rank
        if name not in self._lines:
            self._begin_line(name)
        for line in self.lines_of(name):
            self._ranks[line.name] = rank
        by_rank = sorted(self._lines, key=lambda name: (-self._ranks[name], name))
        self._lines = {name: self._lines[name] for name in by_rank}

    def _begin_line(self, name: str) -> None:
        self._lines[name] = Line(name, self._positions, self._inadmissible)
        self._classes[name] = _class_of(name)

    def _need_line(self, name: str) -> None:
        """Makes a missing line, and its queue."""
        if name in self._lines:
            return
        queue = queue_name(name)
        self.configure(queue, self.rank(queue))
        if name != queue:
            self._begin_line(name)
            self.configure(queue, self._ranks[queue])

    def lines_of(self, queue: str) -> list[Line]:
        """The lines of a queue in the order of service."""
        names = (line_name(queue, number) for number in (0, MIDDLE, 2))
        return [self._lines[name] for name in names if name in self._lines]

    def remove(self, name: str) -> None:
        """Raises ValueError if it is not empty, KeyError if it is missing."""
        if self.count(name):
            raise ValueError(f"{self.count(name)} wait in queue {name}")
        self._lines[name]  # KeyError
        for line in self.lines_of(name):
            del self._lines[line.name], self._ranks[line.name], self._classes[line.name]

    def names(self) -> Iterator[str]:
        """The lines of all queues, those of the highest rank first."""
        return iter(self._lines)

    def line(self, name: str) -> Line:
        """Only to be read. Raises KeyError if it is missing."""
        return self._lines[name]

    def rank(self, name: str) -> int:
        """The rank of a queue, or of the queue of a line."""
        return self._ranks.get(queue_name(name), UNRANKED)

    def __len__(self) -> int:
        """The number of entries, each counted once."""
        return len(self._positions)

    def __contains__(self, entry: str) -> bool:
        return entry in self._positions

    def __iter__(self) -> Iterator[str]:
        """Every entry in the order of service."""
        return (entry for entry, _, _ in self.listed())

    def listed(
        self, after: tuple[str, int] | None = None, owners: Collection[str] | None = None
    ) -> Iterator[tuple[str, int, int]]:
        """Yields every entry (of these owners) in the order of service.

        Each comes with the position of its first member in its queue, and the number in other
        queues served before it.
        `after`: a queue and a stamp; yields only entries served after that place. No entry need
        stand there any more.
        """
        since = {
            line.name: EARLIEST if after is None else self._up_to(line.name, *after)
            for line in self._lines.values()
            if line
        }
        if owners is not None:
            yield from self._listed_of(since, owners)
            return
        passed: dict[str, int] = {}
        for name, stamp in since.items():
            queue = queue_name(name)
            passed[queue] = passed.get(queue, 0) + self._lines[name].below(stamp)
        count = sum(passed.values())
        lines = [
            self._in_order(self._lines[name], self._lines[name].rows(stamp))
            for name, stamp in since.items()
        ]
        for _, name, entry in lines[0] if len(lines) == 1 else merge(*lines):
            queue = queue_name(name)
            yield entry, passed[queue] + 1, count - passed[queue]
            size = self.size(entry)
            passed[queue] += size
            count += size

    def _listed_of(
        self, since: Mapping[str, int], owners: Collection[str]
    ) -> Iterator[tuple[str, int, int]]:
        lines = [(self._lines[name], stamp) for name, stamp in since.items()]
        groups = [
            self._in_order(line, line.rows_of(group, stamp))
            for line, stamp in lines
            for group in line.groups(owners)
        ]
        for _, name, entry in merge(*groups):
            line, row, _, _ = self._positions[entry]
            yield entry, self._before_line(name) + line.position(row), self.ahead(name, row[0])

    def _in_order(
        self, line: Line, rows: Iterator[LineRow]
    ) -> Iterator[tuple[ServiceOrder, str, str]]:
        return (
            (self.order_of(line.name, stamp, number), line.name, entry)
            for stamp, number, entry in rows
        )

    def _up_to(self, other: str, name: str, stamp: int) -> int:
        return stamp + 1 if other == name else self._before(other, name, stamp)

    def entries(self, name: str) -> Iterator[str]:
        """The entries of a queue in the order of service."""
        return chain.from_iterable(self.lines_of(name))

    def count(self, name: str) -> int:
        """The sizes of a queue's entries, added up."""
        return sum([len(line) for line in self.lines_of(name)])

    def insert(
        self, name: str, entry: str, stamp: int, group: str = "", owner: str = "", size: int = 1
    ) -> None:
        """Inserts into line `name`, behind those with the same stamp.

        A group has one owner. Raises ValueError if the entry waits in any queue.
        """
        if entry in self._positions:
            raise ValueError(f"{entry} waits already")
        self._need_line(name)
        self._last_number += 1
        self._lines[name].insert((stamp, self._last_number, entry), group, owner, size)

    def group(self, entry: str) -> str:
        """Raises KeyError if it is absent."""
        return self._positions[entry].group

    def size(self, entry: str) -> int:
        """Raises KeyError if it is absent."""
        return self._positions[entry].size

    def resize(self, entry: str, stamp: int, size: int) -> None:
        """Gives the entry, and its first member, another place in its line. KeyError: absent."""
        line, (_, number, _), group, _ = self._positions[entry]
        owner = line.owner(group)
        line.withdraw(entry)
        line.insert((stamp, number, entry), group, owner, size)

    def front(self, name: str) -> int | None:
        """The stamp of the first in the line; None: it is empty."""
        first = self._lines[name].front() if name in self._lines else None
        return None if first is None else first[0]

    def peek(self) -> str | None:
        """The entry that is served first."""
        firsts = [first[2] for line in self._lines.values() if (first := line.front()) is not None]
        return min(firsts, key=self.order, default=None)

    def pop(self) -> str | None:
        entry = self.peek()
        if entry is not None:
            self.withdraw(entry)
        return entry

    def withdraw(self, entry: str) -> None:
        """Raises KeyError if it is absent."""
        self._positions[entry].line.withdraw(entry)

    def position(self, entry: str) -> int:
        """The place of its first member in its queue, from 1. Raises KeyError if it is absent."""
        line, row, _, _ = self._positions[entry]
        return self._before_line(line.name) + line.position(row)

    def _before_line(self, name: str) -> int:
        """The sizes of the entries in earlier lines of the same queue, added up."""
        number, queue = _class_of(name), queue_name(name)
        return sum([
            len(self._lines[other])
            for earlier in range(number)
            if (other := line_name(queue, earlier)) in self._lines
        ])  # fmt: skip

    def order(self, entry: str) -> ServiceOrder:
        """Its place among all entries of all queues. Raises KeyError if it is absent."""
        line, (stamp, number, _), _, _ = self._positions[entry]
        return self.order_of(line.name, stamp, number)

    def order_of(self, name: str, stamp: int, number: int) -> ServiceOrder:
        """The order of an absent entry. `number` orders equal stamps in its line."""
        rank, served = self._ranks.get(name), self._classes.get(name)
        if rank is None or served is None:
            rank, served = self.rank(name), _class_of(name)
        if self._ageing:
            return served, stamp - rank * self._ageing, -rank, name, number
        return served, -rank, stamp, name, number

    def count_up_to(self, name: str, stamp: int) -> int:
        """The sizes of the queue's entries up to this place of one of its lines, added up."""
        own = self._lines[name].below(stamp + 1) if name in self._lines else 0
        return self._before_line(name) + own

    def ahead(self, name: str, stamp: int) -> int:
        """The sizes of the entries in other queues served before this place of line `name`."""
        return sum(
            line.below(self._before(other, name, stamp))
            for other, line in self._lines.items()
            if line and queue_name(other) != queue_name(name)
        )

    def _before(self, other: str, name: str, stamp: int) -> int:
        """Entries of line `other` below the returned stamp precede `stamp` of line `name`."""
        served_later = _class_of(other) - _class_of(name)
        if served_later:
            return EARLIEST if served_later > 0 else LATEST
        more = self.rank(other) - self.rank(name)
        if more and not self._ageing:
            return LATEST if more > 0 else EARLIEST
        even_goes_first = (-more, other) < (0, name)
        return stamp + more * self._ageing + even_goes_first

    def after(self, order: ServiceOrder) -> ServiceOrder:
        """The place of the next member of an entry."""
        served, first, second, name, number = order
        if self._ageing:
            return served, first + 1, second, name, number
        return served, first, second + 1, name, number

    def walk(self, readmitted: Iterable[str] = (), sizes: Mapping[str, int] | None = None) -> Walk:
        """Walks the entries of admissible owners and of `readmitted` in the order of service.

        It passes an entry once for each of its members. No entry may enter or leave meanwhile.
        `sizes`: of entries with fewer members than the queue knows.
        """
        return Walk(self, self._inadmissible.intersection(readmitted), sizes or {})

    def set_inadmissible(self, owner: str) -> None:
        """Leaves the owner's entries, also later ones, out of walks."""
        if owner not in self._inadmissible:
            for line in self._lines.values():
                line.hide(owner)
            self._inadmissible.add(owner)

    def readmit(self, owner: str) -> None:
        """Makes the owner admissible again."""
        if owner in self._inadmissible:
            self._inadmissible.remove(owner)
            for line in self._lines.values():
                line.show(owner)

    def inadmissible(self) -> Set[str]:
        return self._inadmissible

    def firsts_of(self, owner: str) -> Iterator[str]:
        """The first of each group of the owner."""
        return (
            next(line.members(group))
            for line in self._lines.values()
            for group in line.groups((owner,))
        )


class WalkBranch(NamedTuple):
    """One possible next step of a walk. Compared by `order`, which is unique."""

    order: ServiceOrder
    entry: str
    group: str
    members: Iterator[str]
    """The rest of the group in this queue."""
    name: str
    place: int
    """Index in the queue's heads; -1: the branch was not reached through them."""
    left: int
    """The entry's members, this one and those behind it."""


class Walk(Iterator[str]):
    """A walk along all queues at once. It costs only what it passes."""

    def __init__(
        self, queue: WorkQueue, readmitted: Set[str] = frozenset(), sizes: Mapping[str, int] = {}
    ) -> None:
        """`readmitted`: inadmissible owners that the walk includes; `sizes`: as for `walk`."""
        self._queue = queue
        self._sizes = sizes
        self._dropped: set[str] = set()
        self._ways: list[WalkBranch] = []
        self._passed: WalkBranch | None = None
        """The last returned entry: its group goes on, unless it is dropped meanwhile."""
        self.group = ""
        """The group of the last returned entry."""
        for name in queue.names():
            self._to_head(name, 0)
            line = queue.line(name)
            for group in line.groups(readmitted):
                self._to_group(line, line.head(group), -1)

    def __next__(self) -> str:
        self._go_on()
        while self._ways:
            way = heappop(self._ways)
            if way.place >= 0:
                self._to_head(way.name, way.place + 1)
            if way.group not in self._dropped:
                self._passed, self.group = way, way.group
                return way.entry
        raise StopIteration

    def _go_on(self) -> None:
        """To the next member of the group of the last returned entry."""
        way, self._passed = self._passed, None
        if way is None or way.group in self._dropped:
            return
        order, entry, group, members, name, _, left = way
        if left > 1:
            order = self._queue.after(order)
            heappush(self._ways, WalkBranch(order, entry, group, members, name, -1, left - 1))
        elif (following := next(members, None)) is not None:
            self._to(following, self._queue.order(following), group, members, name, -1)

    def join(self, entry: str, order: ServiceOrder, group: str, size: int = 1) -> None:
        """Adds an entry that is in no queue, of any owner."""
        heappush(self._ways, WalkBranch(order, entry, group, iter(()), "", -1, size))

    def _to(
        self,
        entry: str,
        order: ServiceOrder,
        group: str,
        members: Iterator[str],
        name: str,
        place: int,
    ) -> None:
        left = self._sizes.get(entry) or self._queue.size(entry)
        heappush(self._ways, WalkBranch(order, entry, group, members, name, place, left))

    def drop(self, group: str) -> None:
        """Leaves out the rest of the group, in all queues."""
        self._dropped.add(group)

    def narrow(self, owners: Collection[str]) -> None:
        """Leaves out other owners' queued entries."""
        self._go_on()
        ways, self._ways = self._ways, []
        to_come = {way.name: way.place for way in ways if way.place >= 0}
        for way in ways:
            if way.place < 0 and (
                not way.name or self._queue.line(way.name).owner(way.group) in owners
            ):
                self._ways.append(way)
        heapify(self._ways)
        admissible = set(owners) - self._queue.inadmissible()
        for name, place in to_come.items():
            line = self._queue.line(name)
            for group in line.groups(admissible):
                head = line.head(group)
                if head >= line.heads[place]:
                    self._to_group(line, head, -1)

    def _to_head(self, name: str, place: int) -> None:
        line = self._queue.line(name)
        if place < len(line.heads):
            self._to_group(line, line.heads[place], place)

    def _to_group(self, line: Line, head: LineRow, place: int) -> None:
        stamp, number, entry = head
        group = self._queue.group(entry)
        members = line.members(group)
        next(members)
        order = self._queue.order_of(line.name, stamp, number)
        self._to(entry, order, group, members, line.name, place)
