"""The queues of what waits: priority queues by rank, first come first served within each.

Knows: names, ranks and the order of ids. Must not know: what an id stands for, and when it may be served.
Source: the queueing patent named in DESIGN.md (WorkQueue: insert, pop, position, withdraw, peek).

Ids stand in an ordered dictionary, so insert, pop, peek and withdraw take constant time. For `position` each arrival
owns a bit in a row of integers (blocks), set while it waits: a place is the number of bits set before one's own, summed
over spans of blocks, blocks and bits, each a few dozen steps in C. Arrivals are renumbered when the row has become sparse.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

BLOCK_BITS = 1024
SPAN_BLOCKS = 32
"""Blocks that are counted together: a million arrivals are 977 blocks in 31 spans."""
UNRANKED = 0
"""The rank of a queue that nobody configured: after all others."""


class Fifo:
    """One queue. Positions count from 1."""

    __slots__ = ("_arrivals", "_blocks", "_counts", "_next", "_spans")

    def __init__(self) -> None:
        self._arrivals: OrderedDict[str, int] = OrderedDict()
        self._start()

    def _start(self) -> None:
        self._blocks: list[int] = []
        self._counts: list[int] = []
        self._spans: list[int] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._arrivals)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrivals)

    def __contains__(self, entry: str) -> bool:
        return entry in self._arrivals

    def insert(self, entry: str) -> None:
        """Puts `entry` at the end. ValueError if it waits already."""
        if entry in self._arrivals:
            raise ValueError(f"{entry} waits already")
        self._arrivals[entry] = self._next
        block, bit = divmod(self._next, BLOCK_BITS)
        self._next += 1
        if block == len(self._blocks):
            self._blocks.append(0)
            self._counts.append(0)
            if block % SPAN_BLOCKS == 0:
                self._spans.append(0)
        self._blocks[block] |= 1 << bit
        self._counts[block] += 1
        self._spans[block // SPAN_BLOCKS] += 1

    def peek(self) -> str | None:
        return next(iter(self._arrivals), None)

    def pop(self) -> str | None:
        entry = self.peek()
        if entry is not None:
            self.withdraw(entry)
        return entry

    def withdraw(self, entry: str) -> None:
        """KeyError if it does not wait."""
        block, bit = divmod(self._arrivals.pop(entry), BLOCK_BITS)
        self._blocks[block] ^= 1 << bit
        self._counts[block] -= 1
        self._spans[block // SPAN_BLOCKS] -= 1
        if self._next > 2 * (BLOCK_BITS + len(self._arrivals)):
            self._renumber()

    def position(self, entry: str) -> int:
        """KeyError if it does not wait."""
        block, bit = divmod(self._arrivals[entry], BLOCK_BITS)
        span = block // SPAN_BLOCKS
        before = self._blocks[block] & ((1 << bit) - 1)
        return sum(self._spans[:span]) + sum(self._counts[span * SPAN_BLOCKS : block]) + before.bit_count() + 1

    def _renumber(self) -> None:
        waiting = list(self._arrivals)
        self._arrivals.clear()
        self._start()
        for entry in waiting:
            self.insert(entry)


class WorkQueue:
    """All queues of a node. A queue that is not configured is made when something enters it, with the lowest rank."""

    __slots__ = ("_name_of", "_queues", "_ranks")

    def __init__(self, ranks: Iterable[tuple[str, int]]) -> None:
        self._ranks = dict(ranks)
        self._queues: dict[str, Fifo] = {name: Fifo() for name in self._ranks}
        self._name_of: dict[str, str] = {}
        self._sort()

    def __len__(self) -> int:
        return len(self._name_of)

    def __contains__(self, entry: str) -> bool:
        return entry in self._name_of

    def __iter__(self) -> Iterator[str]:
        """Every entry in the order of service."""
        for queue in self._queues.values():
            yield from queue

    def names(self) -> Iterator[str]:
        """The queues from the highest rank down."""
        return iter(self._queues)

    def entries(self, name: str) -> Iterator[str]:
        return iter(self._queues[name]) if name in self._queues else iter(())

    def insert(self, name: str, entry: str) -> None:
        """Puts `entry` at the end of queue `name`. ValueError if it waits already, in whichever queue."""
        if entry in self._name_of:
            raise ValueError(f"{entry} waits already")
        if name not in self._queues:
            self._ranks[name] = UNRANKED
            self._queues[name] = Fifo()
            self._sort()
        self._queues[name].insert(entry)
        self._name_of[entry] = name

    def configure(self, name: str, rank: int) -> None:
        self._ranks[name] = rank
        self._queues.setdefault(name, Fifo())
        self._sort()

    def remove(self, name: str) -> None:
        del self._ranks[name], self._queues[name]

    def peek(self) -> str | None:
        """The entry that is served first."""
        return next(iter(self), None)

    def pop(self) -> str | None:
        entry = self.peek()
        if entry is not None:
            self.withdraw(entry)
        return entry

    def withdraw(self, entry: str) -> None:
        """KeyError if it does not wait."""
        self._queues[self._name_of.pop(entry)].withdraw(entry)

    def position(self, entry: str) -> int:
        """Its place within its queue, from 1. KeyError if it does not wait."""
        return self._queues[self._name_of[entry]].position(entry)

    def _sort(self) -> None:
        order = sorted(self._queues, key=lambda name: (-self._ranks[name], name))
        self._queues = {name: self._queues[name] for name in order}
