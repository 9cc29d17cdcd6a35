"""The lifetime of memory: references, mappings, pools and thresholds, graphs, imports."""

from __future__ import annotations

from nodemgr.simulator import SimulatedNode
from tests.sim.client import refused
from tests.sim.conftest import GIB, MIB, StartClient

GRANULE = 2 * MIB
DEFERRED = 0x80
RELEASE_THRESHOLD, RESERVED_CURRENT, RESERVED_HIGH, USED_CURRENT, USED_HIGH = 4, 5, 6, 7, 8
GRAPH_USED, GRAPH_RESERVED, GRAPH_RESERVED_HIGH = 0, 2, 3
AUTO_FREE = 1
MAP = 1


def used(node: SimulatedNode, device: int = 0) -> int:
    return node.books()[device].used_bytes


# -- virtual memory management --


def test_only_whole_mappings_are_undone_and_only_free_room_is_mapped(
    node: SimulatedNode, ready: StartClient
) -> None:
    client = ready(node)
    address = client.reserve(4 * GRANULE)
    handle = client.create_physical(2 * GRANULE)
    client.map_physical(address, 2 * GRANULE, handle)

    with refused("ALREADY_MAPPED"):
        client.map_physical(address + GRANULE, GRANULE, handle)
    with refused("INVALID_VALUE"):
        client.unmap(address, GRANULE)
    with refused("INVALID_VALUE"):
        client.unmap(address, 4 * GRANULE)
    with refused("INVALID_VALUE"):
        client.map_physical(address + 3 * GRANULE, 2 * GRANULE, handle)
    with refused("INVALID_VALUE"):
        client.free_reservation(address, 4 * GRANULE)
    with refused("INVALID_VALUE"):
        client.create_physical(GRANULE + 1)

    client.map_physical(address + 2 * GRANULE, 2 * GRANULE, handle)
    client.unmap(address, 4 * GRANULE)
    assert used(node) == 2 * GRANULE


def test_many_mappings_in_one_reservation(node: SimulatedNode, ready: StartClient) -> None:
    """As an allocator with expandable segments makes them: in any order, one granule each."""
    client = ready(node)
    address = client.reserve(512 * GRANULE)
    order = [index * 7 % 101 for index in range(101)]
    for index in order:
        handle = client.create_physical(GRANULE)
        client.map_physical(address + index * GRANULE, GRANULE, handle)
        client.release_physical(handle)
    assert used(node) == 101 * GRANULE

    client.put(address + 5 * GRANULE - 2, "over the border")
    assert client.get(address + 5 * GRANULE - 2, 15) == "over the border"

    client.unmap(address, 101 * GRANULE)
    assert used(node) == 0


def test_a_tile_keeps_memory_as_long_as_its_deferred_array(
    node: SimulatedNode, ready: StartClient
) -> None:
    client = ready(node)
    deferred = client.create_array(64, 0, 0, 1, DEFERRED)
    tile = client.create_physical(GRANULE)
    client.map_tile(deferred, tile, MAP)
    client.release_physical(tile)
    assert used(node) == GRANULE
    client.destroy_array(deferred)
    assert used(node) == 0


# -- pools --


def test_a_pool_keeps_what_its_threshold_says(node: SimulatedNode, ready: StartClient) -> None:
    client = ready(node)
    pool = client.default_pool()
    client.set_pool(pool, RELEASE_THRESHOLD, 4 * MIB)

    addresses = [client.alloc_async(3 * MIB) for _ in range(3)]
    assert client.pool_figure(pool, USED_CURRENT) == 9 * MIB
    assert client.pool_figure(pool, RESERVED_CURRENT) == used(node) == 10 * MIB

    for address in addresses:
        client.free_async(address)
    assert client.pool_figure(pool, USED_CURRENT) == 0
    assert used(node) == 10 * MIB, "nothing is released before a synchronisation"
    client.synchronize()
    assert used(node) == 4 * MIB

    client.alloc_async(4 * MIB)
    assert used(node) == 4 * MIB, "what the pool holds is used again"
    assert client.pool_figure(pool, RESERVED_HIGH) == 10 * MIB
    assert client.pool_figure(pool, USED_HIGH) == 9 * MIB
    client.set_pool(pool, USED_HIGH, 0)
    assert client.pool_figure(pool, USED_HIGH) == 4 * MIB
    with refused("INVALID_VALUE"):
        client.set_pool(pool, RESERVED_CURRENT, 0)


def test_a_pool_is_trimmed_but_not_below_its_use(node: SimulatedNode, ready: StartClient) -> None:
    client = ready(node)
    pool = client.create_pool()
    client.set_pool(pool, RELEASE_THRESHOLD, GIB)
    kept, freed = client.alloc_from_pool(pool, 3 * MIB), client.alloc_from_pool(pool, 8 * MIB)
    client.free_async(freed)
    client.synchronize()
    assert used(node) == 12 * MIB

    client.trim_pool(pool, 7 * MIB)
    assert used(node) == 8 * MIB
    client.trim_pool(pool, 0)
    assert used(node) == 4 * MIB

    client.destroy_pool(pool)
    with refused("INVALID_VALUE"):
        client.alloc_from_pool(pool, 1)
    assert used(node) == 4 * MIB, "a destroyed pool lasts as long as what it gave"
    client.free_async(kept)
    assert used(node) == 0


def test_a_pool_has_a_greatest_size(node: SimulatedNode, ready: StartClient) -> None:
    client = ready(node)
    pool = client.create_pool(0, 4 * MIB)
    client.alloc_from_pool(pool, 4 * MIB)
    with refused("OUT_OF_MEMORY"):
        client.alloc_from_pool(pool, 1)


# -- graphs --


def test_graph_memory_is_taken_at_launch_and_given_back_by_trimming(
    node: SimulatedNode, ready: StartClient
) -> None:
    client = ready(node)
    graph = client.create_graph()
    first = client.graph_alloc(graph, 3 * MIB)
    client.graph_free(graph, first)
    second = client.graph_alloc(graph, 5 * MIB)
    client.graph_free(graph, second)
    launchable = client.instantiate(graph)
    assert used(node) == 0

    client.launch_graph(launchable)
    assert client.graph_figure(GRAPH_USED) == 0
    assert client.graph_figure(GRAPH_RESERVED) == used(node) == 6 * MIB, (
        "the two never live together"
    )
    client.launch_graph(launchable)
    assert used(node) == 6 * MIB

    client.trim_graphs()
    assert used(node) == 0
    assert client.graph_figure(GRAPH_RESERVED_HIGH) == 6 * MIB


def test_what_a_graph_leaves_must_be_freed_before_it_is_launched_again(
    node: SimulatedNode, ready: StartClient
) -> None:
    client = ready(node)
    graph = client.create_graph()
    address = client.graph_alloc(graph, 2 * MIB)
    strict, lenient = client.instantiate(graph), client.instantiate(graph, AUTO_FREE)

    client.launch_graph(strict)
    with refused("INVALID_VALUE"):
        client.launch_graph(strict)
    client.launch_graph(lenient)
    assert client.graph_figure(GRAPH_USED) == used(node) == 2 * MIB

    client.destroy_graph(graph)
    client.destroy_exec(strict)
    client.destroy_exec(lenient)
    assert client.graph_figure(GRAPH_USED) == 2 * MIB
    client.free(address)
    client.trim_graphs()
    assert used(node) == 0
    with refused("INVALID_VALUE"):
        client.free(address)


def test_a_launch_that_does_not_fit_is_refused_and_takes_nothing(
    node: SimulatedNode, ready: StartClient
) -> None:
    client = ready(node)
    graph = client.create_graph()
    client.graph_alloc(graph, GIB // 2)
    client.graph_alloc(graph, GIB // 2 + MIB)
    launchable = client.instantiate(graph)

    with refused("OUT_OF_MEMORY"):
        client.launch_graph(launchable)
    assert used(node) == client.graph_figure(GRAPH_USED) == 0


def test_default_streams_cannot_be_captured(node: SimulatedNode, ready: StartClient) -> None:
    client = ready(node)
    with refused("STREAM_CAPTURE_UNSUPPORTED"):
        client.begin_capture(0)


# -- between processes --


def test_imports_are_charged_to_the_exporter_alone(node: SimulatedNode, ready: StartClient) -> None:
    exporter, importer = ready(node), ready(node)
    address = exporter.alloc(6 * MIB)
    physical = exporter.create_physical(GRANULE, 0, 1)

    opened = importer.ipc_open(exporter.ipc_handle(address))
    imported = importer.import_physical(exporter.pid, exporter.export_physical(physical))
    place = importer.reserve(GRANULE)
    importer.map_physical(place, GRANULE, imported)
    importer.map_external(importer.import_external(64 * MIB), 64 * MIB)

    assert used(node) == 6 * MIB + GRANULE
    held = node.books()[0].of(importer.pid)
    assert held is not None
    assert held.used_bytes == 0

    assert importer.address_range(opened)[1] == 6 * MIB
    importer.ipc_close(opened)
    with refused("INVALID_VALUE"):
        importer.ipc_close(opened)
    assert used(node) == 6 * MIB + GRANULE


def test_memory_that_only_exports_keep_is_found_when_room_is_needed(
    node: SimulatedNode, ready: StartClient
) -> None:
    exporter = ready(node)
    for _ in range(3):
        physical = exporter.create_physical(GIB // 2, 0, 1)
        descriptor = exporter.export_physical(physical)
        exporter.release_physical(physical)
        exporter.close_descriptor(descriptor)
    kept = []
    for _ in range(2):
        physical = exporter.create_physical(GIB // 2, 0, 1)
        kept.append(exporter.export_physical(physical))
        exporter.release_physical(physical)
    with refused("OUT_OF_MEMORY"):
        exporter.alloc(MIB)
    exporter.close_descriptor(kept.pop())
    exporter.alloc(MIB)


def test_exported_memory_outlives_its_exporter_until_the_last_copy_is_closed(
    node: SimulatedNode, start: StartClient
) -> None:
    """Nothing else of the process does. No process is shown for it; one object counts once."""
    exporter, holder = start(node), start(node)
    exporter.ready()
    exporter.alloc(6 * MIB)
    physical = exporter.create_physical(GRANULE, 0, 1)
    copies = [
        holder.take_descriptor(exporter.pid, exporter.export_physical(physical)) for _ in range(2)
    ]
    exporter.kill()
    assert used(node) == GRANULE
    assert node.books()[0].processes == ()
    assert node.books()[0].peak_bytes == 6 * MIB + GRANULE
    node.reset_peaks()
    assert node.books()[0].peak_bytes == GRANULE
    for copy in copies:
        assert used(node) == GRANULE
        holder.close_descriptor(copy)
    assert used(node) == 0


def test_an_import_keeps_memory_whose_exporter_has_ended(
    node: SimulatedNode, start: StartClient
) -> None:
    """A descriptor may be imported after its exporter's end, too."""
    exporter, holder, importer = start(node), start(node), start(node)
    exporter.ready()
    importer.ready()
    physical = exporter.create_physical(GRANULE, 0, 1)
    copy = holder.take_descriptor(exporter.pid, exporter.export_physical(physical))
    exporter.kill()
    imported = importer.import_physical(holder.pid, copy)
    holder.close_descriptor(copy)
    assert used(node) == GRANULE
    importer.release_physical(imported)
    assert used(node) == 0


def test_what_the_dead_have_exported_takes_its_room_and_no_more(
    node: SimulatedNode, start: StartClient
) -> None:
    exporter, holder, other = start(node), start(node), start(node)
    exporter.ready()
    other.ready()
    exporter.alloc(GIB // 4)
    physical = exporter.create_physical(GIB // 2, 0, 1)
    copy = holder.take_descriptor(exporter.pid, exporter.export_physical(physical))
    exporter.kill()
    other.alloc(GIB // 2)
    with refused("OUT_OF_MEMORY"):
        other.alloc(MIB)
    assert node.books()[0].peak_bytes == GIB
    holder.close_descriptor(copy)
    other.alloc(GIB // 2)


def test_a_dma_buf_outlives_its_exporter(node: SimulatedNode, start: StartClient) -> None:
    exporter, holder = start(node), start(node)
    exporter.ready()
    linear, place = exporter.alloc(2 * MIB), exporter.reserve(4 * GRANULE)
    for at in (0, 2 * GRANULE):
        physical = exporter.create_physical(2 * GRANULE)
        exporter.map_physical(place + at, 2 * GRANULE, physical)
    copies = [
        holder.take_descriptor(exporter.pid, exporter.export_range(*where))
        for where in ((linear, 4096), (place + GRANULE, 2 * GRANULE))
    ]
    exporter.kill()
    assert used(node) == 2 * MIB + 4 * GRANULE
    holder.close_descriptor(copies[1])
    assert used(node) == 2 * MIB
    holder.kill()
    assert used(node) == 0


def test_an_export_that_was_closed_or_a_pool_ends_with_its_exporter(
    node: SimulatedNode, start: StartClient
) -> None:
    exporter, holder = start(node), start(node)
    exporter.ready()
    exporter.close_descriptor(exporter.export_physical(exporter.create_physical(GRANULE, 0, 1)))
    pool = exporter.create_pool(0, 0, 1)
    exporter.alloc_from_pool(pool, GRANULE)
    holder.take_descriptor(exporter.pid, exporter.export_pool(pool))
    exporter.kill()
    assert used(node) == 0


def test_a_node_whose_second_file_is_not_shown_frees_with_the_exporter(
    node: SimulatedNode, start: StartClient
) -> None:
    """As in a container."""
    (node.directory / "node.state.exports").unlink()
    exporter, holder = start(node), start(node)
    exporter.ready()
    physical = exporter.create_physical(GRANULE, 0, 1)
    holder.take_descriptor(exporter.pid, exporter.export_physical(physical))
    assert used(node) == GRANULE
    exporter.kill()
    assert used(node) == 0


def test_a_handle_of_the_dead_or_of_nobody_opens_nothing(
    node: SimulatedNode, ready: StartClient
) -> None:
    exporter, importer = ready(node), ready(node)
    handle = exporter.ipc_handle(exporter.alloc(MIB))

    with refused("INVALID_CONTEXT"):
        exporter.ipc_open(handle)
    exporter.kill()
    with refused("INVALID_HANDLE"):
        importer.ipc_open(handle)
    with refused("INVALID_HANDLE"):
        importer.ipc_open("00" * 64)


# -- bad handles --


def test_what_was_never_had_cannot_be_freed(node: SimulatedNode, ready: StartClient) -> None:
    client = ready(node)
    address = client.alloc(MIB)

    for wrong in (address + 512, address - 1, 12345, 1 << 63):
        with refused("INVALID_VALUE"):
            client.free(wrong)
    client.free(address)
    with refused("INVALID_VALUE"):
        client.free(address)
    client.free(0)

    for order in (client.destroy_array, client.unload_module, client.destroy_stream):
        with refused("INVALID_HANDLE"):
            order(address)
    for order in (
        client.release_physical,
        client.destroy_pool,
        client.destroy_graph,
        client.destroy_exec,
    ):
        with refused("INVALID_VALUE"):
            order(address)
    with refused("INVALID_CONTEXT"):
        client.destroy_context(address)
    assert used(node) == 0


def test_handles_are_of_one_type(node: SimulatedNode, ready: StartClient) -> None:
    client = ready(node)
    stream, array = client.create_stream(), client.create_array(16)

    with refused("INVALID_HANDLE"):
        client.destroy_array(stream)
    with refused("INVALID_HANDLE"):
        client.destroy_stream(array)
    with refused("INVALID_HANDLE"):
        client.launch(stream)


# -- bytes --


def test_what_was_copied_there_can_be_copied_back(node: SimulatedNode, ready: StartClient) -> None:
    client = ready(node)
    one, other = client.alloc(MIB), client.alloc_managed(MIB)

    client.put(one + 100, "some bytes")
    client.copy(other, one + 100, 10)
    assert client.get(other, 12) == "some bytes\0\0"
    client.fill(other, ord("x"), 4)
    assert client.get(other, 10) == "xxxx bytes"
    assert client.address_range(one + 100) == [one, MIB]

    client.free(one)
    assert client.get(client.alloc(MIB), 110) == "\0" * 110


def test_the_beginning_of_a_large_block_is_kept_and_the_rest_reads_as_zeros(
    node: SimulatedNode, ready: StartClient
) -> None:
    client = ready(node)
    large = 64 * MIB
    address = client.alloc(GIB // 2)

    client.put(address + large - 2, "kept and lost")
    assert client.get(address + large - 2, 4) == "ke\0\0"
    client.fill(address, ord("x"), GIB // 2)
    assert client.get(address + large - 2, 4) == "xx\0\0"
    client.copy(address + GIB // 4, address, 10)
    assert client.get(address + GIB // 4, 4) == "\0" * 4


def test_what_a_process_keeps_has_a_limit(node: SimulatedNode, ready: StartClient) -> None:
    client = ready(node)
    blocks = [client.alloc(64 * MIB) for _ in range(10)]
    for block in blocks:
        client.put(block, "x")
    kept = [client.get(block, 1) == "x" for block in blocks]
    assert kept == [True] * 8 + [False] * 2

    client.free(blocks[0])
    client.put(blocks[9], "y")
    assert client.get(blocks[9], 1) == "y"


def test_a_copy_must_stay_inside(node: SimulatedNode, ready: StartClient) -> None:
    client = ready(node)
    address = client.alloc(100)

    for start_at, size in ((address + 90, 11), (address, 101), (address + 100, 1), (12345, 1)):
        with refused("INVALID_VALUE"):
            client.fill(start_at, 1, size)
        with refused("INVALID_VALUE"):
            client.get(start_at, size)
