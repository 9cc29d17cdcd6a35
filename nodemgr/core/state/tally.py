"""A row of numbered entries that counts the entries before any number.

Knows: numbers, keys. Must not know: queues, groups, the meaning of an entry.

Each number owns a bit in a list of integers (blocks), set while its entry is in the row. A count is
the number of bits set before it, summed over spans of blocks, blocks and bits, each a few dozen
steps in C.
"""

from __future__ import annotations

from bisect import bisect_left

BLOCK_BITS = 1024
SPAN_BLOCKS = 32
"""Blocks counted together: a million arrivals are 977 blocks in 31 spans."""


class Tally:
    """A row of entries numbered from 0, with keys that never fall. Entries can be taken out."""

    __slots__ = ("_blocks", "_counts", "_low", "_spans", "entries", "keys", "total")

    def __init__(self) -> None:
        self.entries: list[str | None] = []
        """The entries by number; None: taken out."""
        self.keys: list[int] = []
        """The keys by number, including those of entries taken out."""
        self.total = 0
        """Number of entries in the row."""
        self._low = 0
        """No entry in the row has a lower number."""
        self._blocks: list[int] = []
        self._counts: list[int] = []
        self._spans: list[int] = []

    def add(self, entry: str, key: int) -> int:
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
        self._counts[block] += 1
        self._spans[block // SPAN_BLOCKS] += 1
        self.total += 1
        return number

    def take(self, number: int) -> None:
        self.entries[number] = None
        block, bit = divmod(number, BLOCK_BITS)
        self._blocks[block] ^= 1 << bit
        self._counts[block] -= 1
        self._spans[block // SPAN_BLOCKS] -= 1
        self.total -= 1

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
        """Number of entries with a lower number."""
        block, bit = divmod(number, BLOCK_BITS)
        if block == len(self._blocks):
            return self.total
        span = block // SPAN_BLOCKS
        inside = self._blocks[block] & ((1 << bit) - 1)
        return (
            sum(self._spans[:span])
            + sum(self._counts[span * SPAN_BLOCKS : block])
            + inside.bit_count()
        )

    def below(self, key: int) -> int:
        """Number of entries with a lower key."""
        return self.before(bisect_left(self.keys, key))
