"""A row of numbered entries that counts what stands before any number.

Knows: numbers, keys, sizes. Must not know: queues, groups, the meaning of an entry.

Each number owns a bit in a list of integers (blocks), set while its entry is in the row. A count is
the number of bits set before it, summed over spans of blocks, blocks and bits, each a few dozen
steps in C. An entry counts as many as its size; those above one are kept by block.
"""

from __future__ import annotations

from bisect import bisect_left

BLOCK_BITS = 1024
SPAN_BLOCKS = 32
"""Blocks counted together: a million arrivals are 977 blocks in 31 spans."""


class Tally:
    """A row of entries numbered from 0, with keys that never fall. Entries can be taken out."""

    __slots__ = ("_blocks", "_counts", "_low", "_more", "_spans", "entries", "keys", "total")

    def __init__(self) -> None:
        self.entries: list[str | None] = []
        """The entries by number; None: taken out."""
        self.keys: list[int] = []
        """The keys by number, including those of entries taken out."""
        self.total = 0
        """The sizes of the entries in the row, added up."""
        self._low = 0
        """No entry in the row has a lower number."""
        self._blocks: list[int] = []
        self._counts: list[int] = []
        self._spans: list[int] = []
        self._more: dict[int, dict[int, int]] = {}
        """By block: the size less one of each number that has a larger one than one."""

    def add(self, entry: str, key: int, size: int) -> int:
        number = len(self.keys)
        block, bit = divmod(number, BLOCK_BITS)
        if bit == 0:
            self._blocks.append(0)
            self._counts.append(0)
            if block % SPAN_BLOCKS == 0:
                self._spans.append(0)
        self.entries.append(entry)
        self.keys.append(key)
        self._blocks[block] |= 1 << bit
        self._count(block, 1)
        self.resize(number, size)
        return number

    def take(self, number: int) -> None:
        self.resize(number, 1)
        self.entries[number] = None
        block, bit = divmod(number, BLOCK_BITS)
        self._blocks[block] ^= 1 << bit
        self._count(block, -1)

    def _count(self, block: int, more: int) -> None:
        self._counts[block] += more
        self._spans[block // SPAN_BLOCKS] += more
        self.total += more

    def size(self, number: int) -> int:
        """Of an entry in the row."""
        return self._more.get(number // BLOCK_BITS, {}).get(number, 0) + 1

    def resize(self, number: int, size: int) -> None:
        """An entry in the row counts so many from now on."""
        before = self.size(number)
        if size == before:
            return
        block = number // BLOCK_BITS
        rows = self._more.setdefault(block, {})
        if size > 1:
            rows[number] = size - 1
        else:
            del rows[number]
            if not rows:
                del self._more[block]
        self._count(block, size - before)

    def trim(self) -> None:
        """Removes taken-out entries at the end."""
        while self.entries and self.entries[-1] is None:
            self.entries.pop()
            self.keys.pop()
            block, bit = divmod(len(self.keys), BLOCK_BITS)
            if bit == 0:
                self._blocks.pop()
                self._counts.pop()
                if block % SPAN_BLOCKS == 0:
                    self._spans.pop()
        self._low = min(self._low, len(self.keys))

    def first(self) -> str | None:
        low, end, entries = self._low, len(self.entries), self.entries
        while low < end and entries[low] is None:
            low += 1
        self._low = low
        return entries[low] if low < end else None

    def last(self) -> str | None:
        self.trim()
        return self.entries[-1] if self.entries else None

    def before(self, number: int) -> int:
        """The sizes of the entries with a lower number, added up."""
        block, bit = divmod(number, BLOCK_BITS)
        if block == len(self._blocks):
            return self.total
        span = block // SPAN_BLOCKS
        inside = self._blocks[block] & ((1 << bit) - 1)
        larger = self._more.get(block)
        return (
            sum(self._spans[:span])
            + sum(self._counts[span * SPAN_BLOCKS : block])
            + inside.bit_count()
            + (sum([more for at, more in larger.items() if at < number]) if larger else 0)
        )

    def below(self, key: int) -> int:
        """The sizes of the entries with a lower key, added up."""
        return self.before(bisect_left(self.keys, key))
