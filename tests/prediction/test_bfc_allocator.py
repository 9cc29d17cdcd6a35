"""The model of TensorFlow's allocator: hand examples by its rules, and its invariants."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from client_plugin.prediction.bfc_allocator import BestFitAllocator, needed, replay
from client_plugin.prediction.caching_allocator import MIB, StorageEvent
from tests.support.examples import examples

from .test_caching_allocator import lives

EXAMPLES = {
    "nothing": ((), (0, 0, 0)),
    "one byte takes 256": ((1,), (1, 256, 2 * MIB)),
    "regions double": ((2 * MIB, 2 * MIB, 1), (4 * MIB + 1, 4 * MIB + 256, 6 * MIB)),
    "a region holds the request": ((9 * MIB,), (9 * MIB, 16 * MIB, 16 * MIB)),
    "a rest under the half stays": ((3 * MIB,), (3 * MIB, 4 * MIB, 4 * MIB)),
    "a large rest is split off": ((129 * MIB,), (129 * MIB, 256 * MIB, 256 * MIB)),
    "a rest of 128 MiB, too": ((384 * MIB,), (384 * MIB, 384 * MIB, 512 * MIB)),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_hand_examples(name: str) -> None:
    sizes, peaks = EXAMPLES[name]
    use = replay([StorageEvent(at, size) for at, size in enumerate(sizes)])
    assert (*use,) == (*peaks, False)


def test_the_last_region_is_as_large_as_the_limit_allows() -> None:
    events = [StorageEvent(at, 2 * MIB) for at in range(3)]
    assert replay(events, 6 * MIB).reserved_peak_bytes == 6 * MIB
    assert replay(events, 5 * MIB).is_out_of_memory


@settings(max_examples=examples(60))
@given(lives())
def test_chunks_fill_their_regions(events: list[StorageEvent]) -> None:
    allocator = BestFitAllocator()
    for event in events:
        if event.is_freed:
            allocator.free(event.storage)
        else:
            assert allocator.allocate(event.storage, event.bytes)
        assert allocator.live_bytes <= allocator.allocated_bytes <= allocator.reserved_bytes
        free = sum(size for size, _ in allocator._free)
        assert free + allocator.allocated_bytes == allocator.reserved_bytes


@settings(max_examples=examples(40))
@given(lives())
def test_the_least_limit_suffices(events: list[StorageEvent]) -> None:
    use = needed(events)
    assert not use.is_out_of_memory
    assert use.live_peak_bytes == replay(events).live_peak_bytes
    assert use.live_peak_bytes <= use.reserved_peak_bytes <= replay(events).reserved_peak_bytes
