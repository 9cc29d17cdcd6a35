"""Memory of graphs counts once, and no graph has it for nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from tests.shim.hooks.test_every_hook import PINNED, ROUTES, location_of
from tests.shim.world import MIB, OUT_OF_MEMORY, Probe, World

MakeWorld = Callable[..., World]
AUTO_FREE = 1


def graph_that_keeps(probe: Probe, size: int) -> tuple[int, int]:
    """It allocates only. The graph, and the address of its memory."""
    graph, node = probe.alloc(8), probe.alloc(8)
    params = probe.alloc(
        content=struct.pack("<ii", PINNED, 0)
        + location_of(0)
        + bytes(72 + 16)
        + struct.pack("<QQ", size, 0)
    )
    assert probe.call("cuGraphCreate", graph, 0) == 0
    assert probe.call("cuGraphAddMemAllocNode", node, probe.u64(graph), 0, 0, params) == 0
    return probe.u64(graph), probe.u64(params + 112)


def executable(probe: Probe, graph: int, flags: int = 0) -> int:
    out = probe.alloc(8)
    assert probe.cuGraphInstantiateWithFlags(out, graph, flags) == 0
    return probe.u64(out)


def test_graphs_that_keep_their_memory_share_one_grant(make_world: MakeWorld) -> None:
    env = make_world(limit=100 * MIB)
    with env.probe() as probe:
        first, second = (executable(probe, graph_that_keeps(probe, 60 * MIB)[0]) for _ in range(2))
        assert probe.cuGraphLaunch(first, 0) == 0
        for _ in range(3):
            assert probe.cuGraphLaunch(second, 0) == OUT_OF_MEMORY
        env.agree(60 * MIB)


def test_a_forked_child_is_charged_for_its_own_graphs_alone(make_world: MakeWorld) -> None:
    env = make_world(limit=100 * MIB)
    with env.probe() as probe:
        first = executable(probe, graph_that_keeps(probe, 60 * MIB)[0])
        assert probe.cuGraphLaunch(first, 0) == 0
        assert probe.tell("fork") == "forked"
        probe.start()
        own = executable(probe, graph_that_keeps(probe, 30 * MIB)[0])
        assert probe.cuGraphLaunch(own, 0) == 0
        env.agree(90 * MIB)


def test_a_graph_that_frees_at_its_launch_needs_its_memory_once(make_world: MakeWorld) -> None:
    env = make_world(limit=100 * MIB)
    with env.probe() as probe:
        first, second = (
            executable(probe, graph_that_keeps(probe, size)[0], AUTO_FREE)
            for size in (60 * MIB, 30 * MIB)
        )
        for _ in range(3):
            assert probe.cuGraphLaunch(first, 0) == 0
            assert probe.cuGraphLaunch(second, 0) == 0
            env.agree(90 * MIB)


def test_memory_that_was_freed_is_the_next_graphs(make_world: MakeWorld) -> None:
    """And the first then has no claim to what it had."""
    env = make_world(limit=100 * MIB)
    with env.probe() as probe:
        graph, address = graph_that_keeps(probe, 60 * MIB)
        first, second = (
            executable(probe, graph),
            executable(probe, graph_that_keeps(probe, 60 * MIB)[0]),
        )
        assert probe.cuGraphLaunch(first, 0) == 0
        assert probe.cuMemFree_v2(address) == 0
        assert probe.cuGraphLaunch(second, 0) == 0
        env.agree(60 * MIB)
        assert probe.cuGraphLaunch(first, 0) == OUT_OF_MEMORY
        env.agree(60 * MIB)


@pytest.mark.parametrize("route", ROUTES)
def test_a_destroyed_graphs_need_is_not_that_of_the_next_with_its_address(
    make_world: MakeWorld, route: str
) -> None:
    """Also if the next one is made without a lease.

    The need of graphs is no longer asked for then.
    """
    env = make_world(limit=100 * MIB)
    env.manager.beat_answer = "fence"
    with env.probe(route) as probe:
        first = executable(probe, graph_that_keeps(probe, 60 * MIB)[0])
        env.manager.await_verb("BEAT")
        while probe.cuMemAlloc_v2(probe.alloc(8), 4096) == 0:
            pass
        assert probe.cuGraphLaunch(first, 0) == OUT_OF_MEMORY
        graph = probe.alloc(8)
        assert probe.cuGraphCreate(graph, 0) == 0
        assert probe.cuGraphExecDestroy(first) == 0
        assert executable(probe, probe.u64(graph)) == first, "the driver gives the address again"
        assert probe.cuGraphLaunch(first, 0) == 0
