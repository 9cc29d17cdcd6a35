"""Every path of device memory is charged to the byte, and given back.

To the right device and kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodemgr.simulator import SimulatedNode
from tests.sim.client import Client, refused
from tests.sim.conftest import GIB, MIB, StartClient

Give = Callable[[], Any]


def linear(client: Client) -> Give:
    address = client.alloc(5 * MIB + 1)
    return lambda: client.free(address)


def linear_32bit(client: Client) -> Give:
    address = client.alloc_32bit(3 * MIB)
    assert address < 1 << 32
    return lambda: client.free_32bit(address)


def pitch(client: Client) -> Give:
    address, row = client.alloc_pitch(1000, 100)
    assert row == 1024
    return lambda: client.free(address)


def managed(client: Client) -> Give:
    address = client.alloc_managed(7 * MIB)
    return lambda: client.free(address)


def freed_synchronously(client: Client) -> Give:
    address = client.alloc_async(3 * MIB)
    return lambda: (client.free(address), client.synchronize())


def stream_ordered(client: Client) -> Give:
    address = client.alloc_async(3 * MIB)
    return lambda: (client.free_async(address), client.synchronize())


def stream_ordered_per_thread(client: Client) -> Give:
    address = client.alloc_async(3 * MIB, 0, "_ptsz")
    return lambda: (client.free_async(address, 0, "_ptsz"), client.synchronize())


def own_pool(client: Client) -> Give:
    pool = client.create_pool()
    address = client.alloc_from_pool(pool, 3 * MIB)
    return lambda: (client.free_async(address), client.destroy_pool(pool))


def physical(client: Client) -> Give:
    handle = client.create_physical(6 * MIB)
    return lambda: client.release_physical(handle)


def array(client: Client) -> Give:
    made = client.create_array(100, 50, 0, 4)
    return lambda: client.destroy_array(made)


def array_3d(client: Client) -> Give:
    made = client.create_array(64, 64, 64)
    return lambda: client.destroy_array(made)


def mipmap(client: Client) -> Give:
    made = client.create_mipmap(64, 64, 99)
    return lambda: client.destroy_mipmap(made)


def graph_memory(client: Client) -> Give:
    graph = client.create_graph()
    address = client.graph_alloc(graph, 3 * MIB)
    client.launch_graph(client.instantiate(graph))
    return lambda: (client.free(address), client.trim_graphs())


def captured(client: Client) -> Give:
    stream = client.create_stream()
    client.begin_capture(stream)
    address = client.alloc_async(3 * MIB, stream)
    client.launch_graph(client.instantiate(client.end_capture(stream)))
    return lambda: (client.free_async(address), client.trim_graphs())


PATHS: dict[Callable[[Client], Give], tuple[str, int]] = {
    linear: ("linear", 5 * MIB + 1),
    linear_32bit: ("linear", 3 * MIB),
    pitch: ("linear", 1024 * 100),
    managed: ("managed", 7 * MIB),
    freed_synchronously: ("pool", 4 * MIB),
    stream_ordered: ("pool", 4 * MIB),
    stream_ordered_per_thread: ("pool", 4 * MIB),
    own_pool: ("pool", 4 * MIB),
    physical: ("vmm", 6 * MIB),
    array: ("array", 100 * 50 * 4 * 4),
    array_3d: ("array", 64**3 * 4),
    mipmap: ("array", 4 * sum(4**level for level in range(7))),
    graph_memory: ("graph", 4 * MIB),
    captured: ("graph", 4 * MIB),
}


def test_each_path_is_charged_and_given_back(node: SimulatedNode, ready: StartClient) -> None:
    client = ready(node)
    for take, (kind, size) in sorted(PATHS.items(), key=lambda row: row[1][1]):  # so each peaks
        give = take(client)
        held = node.books()[0].of(client.pid)
        assert held is not None, take
        assert held.kind_bytes == {kind: size}, take
        assert held.used_bytes == node.books()[0].used_bytes == size, take
        assert client.info() == [GIB - size, GIB], take

        give()
        assert node.books()[0].used_bytes == 0, take
        assert client.info() == [GIB, GIB], take
        assert node.books()[0].peak_bytes == size, take
    assert node.books()[1].peak_bytes == 0


def test_each_path_is_refused_when_the_device_is_full(
    node: SimulatedNode, ready: StartClient
) -> None:
    client = ready(node)
    client.alloc(GIB)
    for take in PATHS:
        with refused("OUT_OF_MEMORY"):
            take(client)
        assert node.books()[0].used_bytes == node.books()[0].peak_bytes == GIB, take


def test_an_end_without_freeing_leaves_nothing(node: SimulatedNode, ready: StartClient) -> None:
    killed, exited = ready(node), ready(node)
    for client in (killed, exited):
        for take in PATHS:
            take(client)
        held = node.books()[0].of(client.pid)
        assert held is not None
        assert held.kind_bytes.keys() == {kind for kind, _ in PATHS.values()}

    killed.kill()
    exited.exit()
    one, other = ready(node), ready(node)
    one.alloc(GIB)

    one.kill()

    assert other.info() == [GIB, GIB]
    other.alloc(GIB)


def test_a_charge_goes_to_the_device_of_its_location(
    node: SimulatedNode, ready: StartClient
) -> None:
    client = ready(node)

    client.create_physical(2 * MIB, 1)
    client.alloc_from_pool(client.create_pool(1), 2 * MIB)

    assert [books.used_bytes for books in node.books()] == [0, 4 * MIB]


@pytest.mark.parametrize("size", [0, GIB + 1, 1 << 40, (1 << 63) + 1])
def test_absurd_sizes_are_refused_on_every_path(
    node: SimulatedNode, ready: StartClient, size: int
) -> None:
    client = ready(node)
    expected = "INVALID_VALUE" if size == 0 else "OUT_OF_MEMORY"

    for take in (client.alloc, client.alloc_managed, client.alloc_async):
        with refused(expected):
            take(size)
    with refused(expected if size % (2 * MIB) == 0 else "INVALID_VALUE"):
        client.create_physical(size)

    assert node.books()[0].used_bytes == 0


def test_contexts_and_modules_cost_what_the_node_says(
    costly_node: SimulatedNode, start: StartClient
) -> None:
    node, client = costly_node, start(costly_node)

    client.ready()
    module = client.load_module()
    held = node.books()[0].of(client.pid)
    assert held is not None
    assert (held.contexts, held.kind_bytes) == (1, {"context": 32 * MIB, "module": 4 * MIB})

    client.unload_module(module)
    second = client.create_context()
    held = node.books()[0].of(client.pid)
    assert held is not None
    assert (held.contexts, held.kind_bytes) == (2, {"context": 64 * MIB})

    client.destroy_context(second)
    client.release()
    assert node.books()[0].used_bytes == 0


def test_a_context_that_does_not_fit_is_refused(
    costly_node: SimulatedNode, start: StartClient
) -> None:
    holder, client = start(costly_node), start(costly_node)
    holder.ready()
    holder.alloc(GIB - 40 * MIB)
    client.init()

    with refused("OUT_OF_MEMORY"):
        client.retain()

    assert costly_node.books()[0].of(client.pid) is None


def test_a_library_is_loaded_where_it_is_used(
    costly_node: SimulatedNode, ready: StartClient
) -> None:
    client = ready(costly_node)
    library = client.load_library()
    kernel = client.kernel(library)
    held = costly_node.books()[0].of(client.pid)
    assert held is not None
    assert held.kind_bytes == {"context": 32 * MIB}

    client.launch(kernel)
    client.launch(kernel)
    held = costly_node.books()[0].of(client.pid)
    assert held is not None
    assert held.kind_bytes == {"context": 32 * MIB, "module": 4 * MIB}

    client.unload_library(library)
    assert costly_node.books()[0].used_bytes == 32 * MIB


def test_the_end_of_a_context_frees_what_was_made_in_it(
    costly_node: SimulatedNode, start: StartClient
) -> None:
    client = start(costly_node)
    client.init()
    context = client.create_context()
    for take in PATHS:
        if take is not physical and take is not own_pool:
            take(client)
    client.load_module()

    client.destroy_context(context)
    client.retain()
    client.trim_graphs()
    client.synchronize()

    held = costly_node.books()[0].of(client.pid)
    assert held is not None
    assert set(held.kind_bytes) <= {"context", "graph"}


def test_a_reset_of_the_primary_context_frees_everything_but_physical_memory(
    costly_node: SimulatedNode, ready: StartClient
) -> None:
    client = ready(costly_node)
    for take in PATHS:
        take(client)
    client.load_module()

    client.reset()

    held = costly_node.books()[0].of(client.pid)
    assert held is not None
    assert (held.contexts, held.kind_bytes) == (0, {"vmm": 6 * MIB})
    with refused("INVALID_CONTEXT"):
        client.alloc(1)
    client.retain()
    client.alloc(1)


def test_reserved_memory_is_nobodys(
    tmp_path_factory: pytest.TempPathFactory, ready: StartClient
) -> None:
    from nodemgr import simulator

    with simulator.create(
        tmp_path_factory.mktemp("r"), 1, GIB, reserved_bytes=100 * MIB, context_bytes=0
    ) as node:
        client = ready(node)
        assert client.total() == GIB - 100 * MIB
        assert client.info() == [GIB - 100 * MIB] * 2
        with refused("OUT_OF_MEMORY"):
            client.alloc(GIB - 100 * MIB + 1)
        client.alloc(GIB - 100 * MIB)


def test_a_group_has_its_own_sum_and_peak(costly_node: SimulatedNode, start: StartClient) -> None:
    one, two, other = start(costly_node, "a"), start(costly_node, "a"), start(costly_node, "b")
    for client in (one, two, other):
        client.ready()

    address = one.alloc(10 * MIB)
    two.alloc(20 * MIB)
    other.alloc(40 * MIB)
    one.free(address)
    two.kill()

    assert costly_node.group(0, "a") == (0, 30 * MIB)
    assert costly_node.group(0, "b") == (40 * MIB, 40 * MIB)
    assert costly_node.group(1, "a") == (0, 0)
    assert costly_node.group(0, "nobody") == (0, 0)

    costly_node.reset_peaks()
    assert costly_node.group(0, "a") == (0, 0)
    assert (
        costly_node.books()[0].peak_bytes
        == costly_node.books()[0].used_bytes
        == (2 * 32 + 40) * MIB
    )
