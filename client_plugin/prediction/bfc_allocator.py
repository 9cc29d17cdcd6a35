"""The memory that TensorFlow's allocator of a GPU takes for a sequence of storages.

A model of its documented rules with `allow_growth`: sizes are multiples of 256 bytes, the best fit
is taken, a chunk is split where the rest is large, and each new region is twice the last one, as
far as the limit allows.

Pure: no clock, no framework. Numbers are bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Dict, List, Optional, Sequence, Tuple

from .caching_allocator import MIB, MemoryUse, StorageEvent

ROUND_BYTES = 256
FIRST_REGION_BYTES = 2 * MIB
MOST_UNSPLIT_BYTES = 128 * MIB
"""A rest of this size is split off from any chunk."""
SEARCH_STEP_BYTES = MIB


class Chunk:
    """A part of a region, between its neighbours."""

    __slots__ = ("address", "before", "behind", "is_free", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size, self.is_free = address, size, True
        self.before: Optional[Chunk] = None
        self.behind: Optional[Chunk] = None


class BestFitAllocator:
    """The allocator of one GPU. `limit_bytes` None: its memory is without limit."""

    def __init__(self, limit_bytes: Optional[int] = None) -> None:
        self.limit_bytes = limit_bytes
        self.live_bytes = self.allocated_bytes = self.reserved_bytes = 0
        self._next_region_bytes = FIRST_REGION_BYTES
        self._free: List[Tuple[int, int]] = []
        self._chunks: Dict[int, Chunk] = {}
        self._used: Dict[int, Tuple[Chunk, int]] = {}
        self._end = 0

    def allocate(self, storage: int, size: int) -> bool:
        """Returns whether it fits. A storage without bytes takes no chunk."""
        if size <= 0:
            return True
        wanted = -(-size // ROUND_BYTES) * ROUND_BYTES
        place = bisect_left(self._free, (wanted, 0))
        if place == len(self._free):
            if not self._extend(wanted):
                return False
            place = bisect_left(self._free, (wanted, 0))
        chunk = self._chunks[self._free.pop(place)[1]]
        rest = chunk.size - wanted
        if rest >= wanted or rest >= MOST_UNSPLIT_BYTES:
            self._split(chunk, wanted)
        chunk.is_free = False
        self._used[storage] = (chunk, size)
        self.live_bytes += size
        self.allocated_bytes += chunk.size
        return True

    def free(self, storage: int) -> None:
        """A storage that has no chunk is ignored."""
        if storage not in self._used:
            return
        chunk, size = self._used.pop(storage)
        self.live_bytes -= size
        self.allocated_bytes -= chunk.size
        for other in (chunk.before, chunk.behind):
            if other is not None and other.is_free:
                del self._free[bisect_left(self._free, (other.size, other.address))]
                chunk = self._joined(chunk, other)
        self._put(chunk)

    def _extend(self, wanted: int) -> bool:
        room = None if self.limit_bytes is None else self.limit_bytes - self.reserved_bytes
        if room is not None and wanted > room:
            return False
        is_larger = False
        while self._next_region_bytes < wanted:
            self._next_region_bytes *= 2
            is_larger = True
        size = self._next_region_bytes if room is None else min(self._next_region_bytes, room)
        if not is_larger:
            self._next_region_bytes *= 2
        self.reserved_bytes += size
        self._put(Chunk(self._end, size))
        self._end += size
        return True

    def _put(self, chunk: Chunk) -> None:
        chunk.is_free = True
        self._chunks[chunk.address] = chunk
        insort(self._free, (chunk.size, chunk.address))

    def _split(self, chunk: Chunk, size: int) -> None:
        rest = Chunk(chunk.address + size, chunk.size - size)
        rest.before, rest.behind = chunk, chunk.behind
        if chunk.behind is not None:
            chunk.behind.before = rest
        chunk.behind, chunk.size = rest, size
        self._put(rest)

    def _joined(self, chunk: Chunk, other: Chunk) -> Chunk:
        first, second = (chunk, other) if chunk.address < other.address else (other, chunk)
        del self._chunks[second.address]
        first.size += second.size
        first.behind = second.behind
        if second.behind is not None:
            second.behind.before = first
        return first


def replay(events: Sequence[StorageEvent], limit_bytes: Optional[int] = None) -> MemoryUse:
    """The peaks while the events happen in their order."""
    allocator = BestFitAllocator(limit_bytes)
    live = allocated = 0
    for event in events:
        if event.is_freed:
            allocator.free(event.storage)
        elif not allocator.allocate(event.storage, event.bytes):
            return MemoryUse(live, allocated, allocator.reserved_bytes, True)
        live = max(live, allocator.live_bytes)
        allocated = max(allocated, allocator.allocated_bytes)
    return MemoryUse(live, allocated, allocator.reserved_bytes, False)


def needed(events: Sequence[StorageEvent]) -> MemoryUse:
    """The peaks at the least limit that suffices, to a step of SEARCH_STEP_BYTES.

    Without a limit the last region alone may be half of all memory, of which little is used.
    """
    best = replay(events)
    low, high = best.live_peak_bytes // SEARCH_STEP_BYTES, best.reserved_peak_bytes
    high = -(-high // SEARCH_STEP_BYTES)
    while high - low > 1:
        middle = (low + high) // 2
        found = replay(events, middle * SEARCH_STEP_BYTES)
        if found.is_out_of_memory:
            low = middle
        else:
            best, high = found, middle
    return best
