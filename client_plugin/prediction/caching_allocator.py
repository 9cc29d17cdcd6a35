"""The memory that PyTorch's caching allocator takes for a sequence of storages.

A model of its documented rules, without expandable segments and without options of
PYTORCH_CUDA_ALLOC_CONF. Storages of up to 1 MiB come from segments of 2 MiB. Larger ones below
10 MiB come from segments of 20 MiB, and the rest from segments of their own size.

Pure: no clock, no framework. Numbers are bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

KIB, MIB = 1 << 10, 1 << 20
ROUND_BYTES = 512
"""Each block has a multiple of this size."""
SMALL_MAX_BYTES = 1 * MIB
"""The largest block of the small pool; a larger rest of a large block is split off."""
SMALL_SEGMENT_BYTES = 2 * MIB
OWN_SEGMENT_MIN_BYTES = 10 * MIB
"""From here on a request that fits nowhere gets a segment of its own size."""
LARGE_SEGMENT_BYTES = 20 * MIB
ROUND_SEGMENT_BYTES = 2 * MIB


class StorageEvent(NamedTuple):
    """A storage is allocated, or freed (`is_freed`; the bytes are ignored then)."""

    storage: int
    bytes: int
    stream: int = 0
    is_freed: bool = False


class MemoryUse(NamedTuple):
    """The peaks of one replay."""

    live_peak_bytes: int
    """The sum of the sizes that the program asked for."""
    allocated_peak_bytes: int
    """The sum of the blocks in use: torch.cuda.max_memory_allocated()."""
    reserved_peak_bytes: int
    """The sum of the segments: torch.cuda.max_memory_reserved()."""
    is_out_of_memory: bool
    """Whether an allocation failed within the given capacity; the replay ended there."""


class AllocatorFault(ValueError):
    """The events contradict each other: our own mistake."""


class OutOfCapacity(Exception):
    """A segment does not fit, also after the free segments are released."""


class Block:
    """A part of a segment, between its neighbours."""

    __slots__ = ("address", "before", "behind", "is_free", "pool", "size", "stream")

    def __init__(self, pool: Pool, stream: int, address: int, size: int) -> None:
        self.pool, self.stream, self.address, self.size = pool, stream, address, size
        self.is_free = True
        self.before: Optional[Block] = None
        self.behind: Optional[Block] = None


class Pool:
    """The free blocks of one kind, by stream: the smallest that fits, then the lowest address."""

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self.streams: Dict[int, List[Tuple[int, int]]] = {}
        self.blocks: Dict[int, Block] = {}

    def put(self, block: Block) -> None:
        insort(self.streams.setdefault(block.stream, []), (block.size, block.address))
        self.blocks[block.address] = block

    def drop(self, block: Block) -> None:
        line = self.streams[block.stream]
        del line[bisect_left(line, (block.size, block.address))]
        del self.blocks[block.address]

    def best(self, stream: int, size: int) -> Optional[Block]:
        line = self.streams.get(stream, [])
        place = bisect_left(line, (size, 0))
        return self.blocks[line[place][1]] if place < len(line) else None

    def splits(self, rest: int) -> bool:
        """Whether the rest of a block becomes a block of its own."""
        return rest >= ROUND_BYTES if self.is_small else rest > SMALL_MAX_BYTES


def rounded(size: int) -> int:
    """The size of the block for a storage."""
    return max(ROUND_BYTES, -(-size // ROUND_BYTES) * ROUND_BYTES)


def segment_size(size: int) -> int:
    """The size of a new segment for a block of `size`."""
    if size <= SMALL_MAX_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < OWN_SEGMENT_MIN_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size // ROUND_SEGMENT_BYTES) * ROUND_SEGMENT_BYTES


class CachingAllocator:
    """The allocator of one GPU. `capacity_bytes` None: its memory is without limit."""

    def __init__(self, capacity_bytes: Optional[int] = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.live_bytes = self.allocated_bytes = self.reserved_bytes = 0
        self._small, self._large = Pool(True), Pool(False)
        self._used: Dict[int, Tuple[Block, int]] = {}
        self._end = 0

    def allocate(self, storage: int, size: int, stream: int = 0) -> None:
        """Raises OutOfCapacity. A storage without bytes takes no block."""
        if storage in self._used or size < 0:
            raise AllocatorFault(f"storage {storage} is allocated again, or has {size} bytes")
        if size == 0:
            return
        wanted = rounded(size)
        pool = self._small if wanted <= SMALL_MAX_BYTES else self._large
        block = pool.best(stream, wanted)
        if block is None:
            block = self._segment(pool, stream, segment_size(wanted))
        else:
            pool.drop(block)
        if pool.splits(block.size - wanted):
            self._split(block, wanted)
        block.is_free = False
        self._used[storage] = (block, size)
        self.live_bytes += size
        self.allocated_bytes += block.size

    def free(self, storage: int) -> None:
        """A storage that has no block is ignored."""
        if storage not in self._used:
            return
        block, size = self._used.pop(storage)
        self.live_bytes -= size
        self.allocated_bytes -= block.size
        block.is_free = True
        for other in (block.before, block.behind):
            if other is not None and other.is_free:
                block.pool.drop(other)
                block = _joined(block, other)
        block.pool.put(block)

    def empty_cache(self) -> None:
        """Segments without a block in use go back to the driver."""
        for pool in (self._small, self._large):
            for block in list(pool.blocks.values()):
                if block.before is None and block.behind is None:
                    pool.drop(block)
                    self.reserved_bytes -= block.size

    def _segment(self, pool: Pool, stream: int, size: int) -> Block:
        if not self._has_room(size):
            self.empty_cache()
            if not self._has_room(size):
                raise OutOfCapacity
        block = Block(pool, stream, self._end, size)
        self._end += size
        self.reserved_bytes += size
        return block

    def _has_room(self, size: int) -> bool:
        return self.capacity_bytes is None or self.reserved_bytes + size <= self.capacity_bytes

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.pool, block.stream, block.address + size, block.size - size)
        rest.before, rest.behind = block, block.behind
        if block.behind is not None:
            block.behind.before = rest
        block.behind, block.size = rest, size
        block.pool.put(rest)


def _joined(block: Block, other: Block) -> Block:
    """Two free neighbours as one block."""
    first, second = (block, other) if block.address < other.address else (other, block)
    first.size += second.size
    first.behind = second.behind
    if second.behind is not None:
        second.behind.before = first
    return first


def replay(events: Iterable[StorageEvent], capacity_bytes: Optional[int] = None) -> MemoryUse:
    """The peaks while the events happen in their order."""
    allocator = CachingAllocator(capacity_bytes)
    live = allocated = reserved = 0
    for event in events:
        if event.is_freed:
            allocator.free(event.storage)
            continue
        try:
            allocator.allocate(event.storage, event.bytes, event.stream)
        except OutOfCapacity:
            return MemoryUse(live, allocated, reserved, True)
        live = max(live, allocator.live_bytes)
        allocated = max(allocated, allocator.allocated_bytes)
        reserved = max(reserved, allocator.reserved_bytes)
    return MemoryUse(live, allocated, reserved, False)


def memory_bytes(use: MemoryUse, constant_bytes: int) -> int:
    """The memory that the process takes on the GPU.

    `constant_bytes`: the context, the libraries and their workspaces, by GPU model, driver and
    version of the framework.
    """
    return use.reserved_peak_bytes + constant_bytes
