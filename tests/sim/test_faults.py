"""Hardware faults at a test's word."""

from __future__ import annotations

import time

import pytest

from nodemgr.simulator import SimulatedNode
from tests.sim.client import refused
from tests.sim.conftest import GIB, MIB, StartClient


def test_a_lost_device_is_lost_for_all_that_was_there(
    node: SimulatedNode, start: StartClient
) -> None:
    client, later = start(node), start(node)
    client.ready(0)
    address = client.alloc(MIB)
    stream = client.create_stream()

    node.lose(0)
    assert node.books()[0].lost
    for order in (
        lambda: client.alloc(1),
        lambda: client.alloc_async(1),
        lambda: client.alloc_managed(1),
        lambda: client.create_physical(2 * MIB),
        client.info,
        client.synchronize,
        lambda: client.put(address, "x"),
        lambda: client.do("cuStreamSynchronize", stream),
    ):
        with refused("DEVICE_UNAVAILABLE"):
            order()
    later.init()
    with refused("DEVICE_UNAVAILABLE"):
        later.retain(0)
    later.retain(1)
    later.alloc(GIB)


def test_a_device_that_is_back_takes_new_contexts_only(
    node: SimulatedNode, start: StartClient
) -> None:
    client, later = start(node), start(node)
    client.ready(0)
    address = client.alloc(MIB)

    node.lose(0)
    node.restore(0)

    assert not node.books()[0].lost
    with refused("DEVICE_UNAVAILABLE"):
        client.alloc(1)
    later.ready(0)
    later.alloc(GIB - MIB)

    client.free(address)
    client.release(0)
    client.retain(0)
    client.alloc(MIB)


def test_the_next_allocations_fail_whoever_makes_them(
    node: SimulatedNode, ready: StartClient
) -> None:
    one, other = ready(node), ready(node)

    node.fail_next(0, 3)
    with refused("OUT_OF_MEMORY"):
        one.alloc(1)
    with refused("OUT_OF_MEMORY"):
        other.alloc_async(1)
    other.retain(1)
    other.alloc(1)
    with refused("OUT_OF_MEMORY"):
        one.create_array(16)
    one.alloc(1)

    node.fail_next(0, 1)
    node.fail_next(0, 0)
    one.alloc(1)


def test_latency_is_at_least_what_was_asked(node: SimulatedNode, ready: StartClient) -> None:
    client = ready(node)
    node.set_latency(0, 50_000)
    begun = time.monotonic()
    client.alloc(1)
    assert time.monotonic() - begun >= 0.05
    node.set_latency(0, 0)
    client.alloc(1)


@pytest.mark.parametrize("index", [2, 99, -1])
def test_a_device_that_is_not_there_cannot_break(node: SimulatedNode, index: int) -> None:
    with pytest.raises(Exception, match="Invalid argument"):
        node.lose(index)
    with pytest.raises(Exception, match="Invalid argument"):
        node.fail_next(index, 1)


@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_figures_have_a_range(node: SimulatedNode, value: int) -> None:
    with pytest.raises(ValueError, match="not in 0"):
        node.set_latency(0, value)
