"""The model of the caching allocator: hand examples by the documented rules, and its invariants."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_plugin.prediction.caching_allocator import (
    KIB,
    MIB,
    AllocatorFault,
    Block,
    CachingAllocator,
    MemoryUse,
    OutOfCapacity,
    StorageEvent,
    memory_bytes,
    replay,
    rounded,
    segment_size,
)
from tests.support.examples import examples

SIZES = {0: 512, 1: 512, 512: 512, 513: 1_024, MIB - 1: MIB, MIB + 1: MIB + 512}
SEGMENTS = {
    512: 2 * MIB,
    MIB: 2 * MIB,
    MIB + 512: 20 * MIB,
    10 * MIB - 512: 20 * MIB,
    10 * MIB: 10 * MIB,
    11 * MIB: 12 * MIB,
    20 * MIB + 512: 22 * MIB,
}


@pytest.mark.parametrize("size", SIZES)
def test_a_block_has_a_multiple_of_512_bytes(size: int) -> None:
    assert rounded(size) == SIZES[size]


@pytest.mark.parametrize("size", SEGMENTS)
def test_a_segment_has_the_documented_size(size: int) -> None:
    assert segment_size(size) == SEGMENTS[size]


def grown(*sizes: int, capacity: int | None = None) -> MemoryUse:
    return replay((StorageEvent(at, size) for at, size in enumerate(sizes)), capacity)


EXAMPLES = {
    "nothing": ((), (0, 0, 0)),
    "no bytes": ((0,), (0, 0, 0)),
    "one byte": ((1,), (1, 512, 2 * MIB)),
    "two small ones share a segment": ((MIB, MIB), (2 * MIB, 2 * MIB, 2 * MIB)),
    "three small ones need two": ((MIB, MIB, 1), (2 * MIB + 1, 2 * MIB + 512, 4 * MIB)),
    "small and large never share": ((1, 2 * MIB), (2 * MIB + 1, 2 * MIB + 512, 22 * MIB)),
    "large ones share 20 MiB": ((9 * MIB, 9 * MIB), (18 * MIB, 18 * MIB, 20 * MIB)),
    "a rest of 1 MiB is not split off": ((19 * MIB,), (19 * MIB, 20 * MIB, 20 * MIB)),
    "11 MiB keep the rest of 1 MiB": ((11 * MIB,), (11 * MIB, 12 * MIB, 12 * MIB)),
    "half a segment of its own": ((10 * MIB, 10 * MIB), (20 * MIB, 20 * MIB, 20 * MIB)),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_hand_examples(name: str) -> None:
    sizes, peaks = EXAMPLES[name]
    assert grown(*sizes) == (*peaks, False)


def test_the_smallest_free_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    for storage, size in enumerate((30 * MIB, 12 * MIB, 14 * MIB)):
        allocator.allocate(storage, size)
    for storage in range(3):
        allocator.free(storage)
    allocator.allocate(3, 11 * MIB + 512 * KIB)
    assert allocator.allocated_bytes == 12 * MIB, "a rest of half a MiB stays in the block"
    allocator.allocate(4, 13 * MIB)
    assert allocator.allocated_bytes == 26 * MIB
    assert allocator.reserved_bytes == 56 * MIB


def test_a_block_of_one_stream_serves_no_other() -> None:
    events = [StorageEvent(1, 4 * MIB), StorageEvent(1, 0, is_freed=True)]
    assert replay([*events, StorageEvent(2, 4 * MIB)]).reserved_peak_bytes == 20 * MIB
    assert replay([*events, StorageEvent(2, 4 * MIB, 7)]).reserved_peak_bytes == 40 * MIB


def test_neighbours_join_on_both_sides() -> None:
    allocator = CachingAllocator()
    for storage in range(4):
        allocator.allocate(storage, 5 * MIB)
    for storage in (0, 2, 1):
        allocator.free(storage)
    allocator.allocate(4, 15 * MIB)
    assert allocator.reserved_bytes == 20 * MIB, "15 MiB fit into three joined blocks"


def test_at_its_capacity_it_releases_free_segments_first() -> None:
    allocator = CachingAllocator(40 * MIB)
    allocator.allocate(1, 30 * MIB)
    allocator.free(1)
    allocator.allocate(2, 36 * MIB)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (36 * MIB, 36 * MIB)
    with pytest.raises(OutOfCapacity):
        allocator.allocate(3, 8 * MIB)
    assert grown(30 * MIB, 30 * MIB, capacity=40 * MIB).is_out_of_memory


def test_events_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(AllocatorFault):
        grown(*[1], -1)
    with pytest.raises(AllocatorFault):
        replay([StorageEvent(1, 1), StorageEvent(1, 1)])
    assert replay([StorageEvent(9, 0, is_freed=True)]).reserved_peak_bytes == 0


def test_the_constant_is_added() -> None:
    assert memory_bytes(grown(1), 400 * MIB) == 402 * MIB


sizes = st.one_of(st.integers(0, 4 * KIB), st.integers(0, 2 * MIB), st.integers(MIB, 64 * MIB))


@st.composite
def lives(draw: st.DrawFn) -> list[StorageEvent]:
    """Storages are allocated and freed in any order; some are never freed."""
    events: list[StorageEvent] = []
    live: list[StorageEvent] = []
    for storage in range(draw(st.integers(0, 40))):
        event = StorageEvent(storage, draw(sizes), draw(st.sampled_from((0, 0, 0, 1))))
        events.append(event)
        live.append(event)
        for _ in range(draw(st.integers(0, 2))):
            if live:
                gone = live.pop(draw(st.integers(0, len(live) - 1)))
                events.append(gone._replace(is_freed=True))
    return events


def segments(allocator: CachingAllocator) -> Iterator[list[Block]]:
    """The blocks of each segment, in the order of addresses."""
    known = [block for block, _ in allocator._used.values()]
    known += [*allocator._small.blocks.values(), *allocator._large.blocks.values()]
    for first in known:
        if first.before is None:
            chain = [first]
            while (behind := chain[-1].behind) is not None:
                assert behind.before is chain[-1]
                chain.append(behind)
            yield chain


@settings(max_examples=examples(60))
@given(lives())
def test_after_each_event_the_blocks_fill_their_segments(events: list[StorageEvent]) -> None:
    allocator = CachingAllocator()
    for event in events:
        if event.is_freed:
            allocator.free(event.storage)
        else:
            allocator.allocate(event.storage, event.bytes, event.stream)
        assert allocator.live_bytes <= allocator.allocated_bytes <= allocator.reserved_bytes
        chains = list(segments(allocator))
        assert sum(block.size for chain in chains for block in chain) == allocator.reserved_bytes
        for chain in chains:
            for one, next_one in pairwise(chain):
                assert one.address + one.size == next_one.address
                assert not (one.is_free and next_one.is_free), "free neighbours are joined"
                assert one.pool is next_one.pool
                assert one.stream == next_one.stream
            assert all(block.size % 512 == 0 for block in chain)
        used = sum(block.size for chain in chains for block in chain if not block.is_free)
        assert used == allocator.allocated_bytes


@settings(max_examples=examples(60))
@given(lives(), st.randoms(use_true_random=False))
def test_after_all_is_freed_the_cache_is_whole_and_can_be_emptied(
    events: list[StorageEvent], order: object
) -> None:
    allocator = CachingAllocator()
    for event in events:
        if event.is_freed:
            allocator.free(event.storage)
        else:
            allocator.allocate(event.storage, event.bytes, event.stream)
    rest = sorted(allocator._used)
    order.shuffle(rest)  # type: ignore[attr-defined]
    for storage in rest:
        allocator.free(storage)
    assert (allocator.live_bytes, allocator.allocated_bytes) == (0, 0)
    assert all(len(chain) == 1 for chain in segments(allocator))
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


@settings(max_examples=examples(60))
@given(st.lists(sizes, max_size=30), st.randoms(use_true_random=False))
def test_live_bytes_do_not_depend_on_the_order(wanted: list[int], order: object) -> None:
    shuffled = list(wanted)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert grown(*wanted).live_peak_bytes == grown(*shuffled).live_peak_bytes == sum(wanted)
