"""The time that work takes, and its order: streams, events, copies, functions, graphs.

Work that is queued behind a gate begins when the gate opens, at one moment of the simulator's own
timeline. So the times between events are exact, however slowly the test itself runs.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from nodemgr.simulator import SimulatedNode
from tests.sim.client import Client, refused
from tests.sim.conftest import GIB, MIB, StartClient

EXACT_MS = 1e-4
"""A float of milliseconds keeps no nanoseconds at these sizes."""


@pytest.fixture
def client(node: SimulatedNode, ready: StartClient) -> Client:
    return ready(node)


def exactly(milliseconds: float) -> object:
    return pytest.approx(milliseconds, abs=EXACT_MS)


def test_a_kernel_takes_the_time_in_its_name(client: Client) -> None:
    stream = client.create_stream()
    gate = client.gate(stream)
    marks = [client.mark(stream)]
    for name in ("sleep_us_500", "sleep_ns_70000", "sleep_ms_2", "_Z12sleep_us_300Pf"):
        client.launch(client.timed_kernel(name), stream)
        marks.append(client.mark(stream))
    client.launch(client.kernel(client.load_library(), "sleep_us_40"), stream)
    marks.append(client.mark(stream))

    client.open_gate(gate)
    client.do("cuStreamSynchronize", stream)

    times = [client.elapsed_ms(*pair) for pair in pairwise(marks)]
    assert times == [exactly(each) for each in (0.5, 0.07, 2.0, 0.3, 0.04)]


def test_other_kernels_take_the_time_of_their_grid(client: Client, node: SimulatedNode) -> None:
    node.set_kernel_time(0, 1_000_000)
    stream = client.create_stream()
    function = client.timed_kernel("step")
    gate = client.gate(stream)
    marks = [client.mark(stream)]
    for blocks in (1, 132, 133, 1320):
        client.launch_blocks(function, blocks, stream)
        marks.append(client.mark(stream))
    client.launch_ex(function, 264, stream)
    marks.append(client.mark(stream))
    client.do("cuLaunchCooperativeKernel", function, 300, 1, 1, 32, 1, 1, 0, stream, 0)
    marks.append(client.mark(stream))

    client.open_gate(gate)
    client.synchronize()

    times = [client.elapsed_ms(*pair) for pair in pairwise(marks)]
    assert times == [exactly(each) for each in (1, 1, 2, 10, 2, 3)]


def test_work_ends_after_its_call(client: Client) -> None:
    stream = client.create_stream()
    before, gate = client.mark(stream), client.gate(stream)
    after = client.mark(stream)
    for order, handle in (("cuStreamQuery", stream), ("cuEventQuery", after)):
        with refused("NOT_READY"):
            client.do(order, handle)
    with refused("NOT_READY"):
        client.elapsed_ms(before, after)

    client.open_gate(gate)
    client.do("cuEventSynchronize", after)
    client.do("cuStreamQuery", stream)
    assert client.elapsed_ms(before, after) >= 20


def test_the_default_stream_waits_for_blocking_ones_alone(client: Client) -> None:
    blocking, free = client.create_stream(0), client.create_stream(1)
    gate = client.gate(blocking)
    client.launch(client.timed_kernel("step"), free)
    client.do("cuStreamSynchronize", free)
    client.launch(client.timed_kernel("step"), 0)
    with refused("NOT_READY"):
        client.do("cuStreamQuery", 0)
    with refused("NOT_READY"):
        client.do("cuStreamQuery", 1)
    later = client.create_stream(0)
    client.launch(client.timed_kernel("step"), later)
    with refused("NOT_READY"):
        client.do("cuStreamQuery", later)
    client.open_gate(gate)
    client.do("cuStreamSynchronize", later)
    client.do("cuStreamQuery", 0)


def test_a_threads_own_default_stream_is_another(client: Client) -> None:
    gate = client.gate(client.create_stream(0))
    client.do("cuLaunchKernel_ptsz", client.timed_kernel("step"), 1, 1, 1, 32, 1, 1, 0, 0, 0, 0)
    client.launch_ex(client.timed_kernel("step"), 1, 0, "_ptsz")
    client.do("cuEventRecord_ptsz", client.create_event(), 0)
    client.do("cuStreamSynchronize_ptsz", 0)
    client.do("cuStreamQuery", 2)
    with refused("NOT_READY"):
        client.do("cuStreamQuery", 0)
    client.open_gate(gate)
    client.synchronize()


def test_streams_wait_for_events_of_each_other(client: Client) -> None:
    one, other = client.create_stream(), client.create_stream()
    gate = client.gate(one)
    start = client.mark(one)
    client.launch(client.timed_kernel("sleep_ms_3"), one)
    middle = client.mark(one)
    client.do("cuStreamWaitEvent", other, middle, 0)
    client.launch(client.timed_kernel("sleep_ms_2"), other)
    end = client.mark(other)
    with refused("NOT_READY"):
        client.do("cuStreamQuery", other)
    client.open_gate(gate)
    client.do("cuStreamSynchronize", other)
    assert client.elapsed_ms(start, end) == exactly(5)


def test_a_device_runs_one_kernel_at_a_time(client: Client) -> None:
    one, other = client.create_stream(), client.create_stream()
    gate = client.gate(one)
    start = client.mark(one)
    client.do("cuStreamWaitEvent", other, start, 0)
    client.launch(client.timed_kernel("sleep_ms_3"), one)
    client.launch(client.timed_kernel("sleep_ms_2"), other)
    ends = [client.mark(one), client.mark(other)]
    client.open_gate(gate)
    client.synchronize()
    assert [client.elapsed_ms(start, end) for end in ends] == [exactly(3), exactly(5)]


def test_copies_take_the_time_of_the_bus_beside_kernels(client: Client) -> None:
    memory = client.alloc(64 * MIB)
    one, other = client.create_stream(), client.create_stream()
    gate = client.gate(one)
    start = client.mark(one)
    client.do("cuStreamWaitEvent", other, start, 0)
    client.launch(client.timed_kernel("sleep_ms_3"), other)
    kernel_end = client.mark(other)
    client.do("cuMemsetD8Async", memory, 0, 64 * MIB, one)
    filled = client.mark(one)
    client.launch(client.timed_kernel("sleep_ms_1"), one)
    end = client.mark(one)
    client.open_gate(gate)
    client.synchronize()
    fill_ms = 64 * MIB * 2 / 3350 / 1e6
    assert client.elapsed_ms(start, filled) == exactly(fill_ms)
    assert client.elapsed_ms(start, kernel_end) == exactly(3)
    assert client.elapsed_ms(start, end) == exactly(4), "behind its copy and the other's kernel"

    start = client.mark(one)
    client.copy_async(memory, 64 * MIB, one)
    end = client.mark(one)
    client.do("cuEventSynchronize", end)
    assert client.elapsed_ms(start, end) >= 64 * MIB / 64 / 1e6 - EXACT_MS


def test_a_synchronous_copy_waits_for_the_work_before_it(client: Client) -> None:
    memory = client.alloc(MIB)
    before = client.mark()
    client.launch(client.timed_kernel("sleep_ms_30"))
    client.put(memory, "some")
    after = client.mark()
    client.do("cuEventQuery", after)
    assert client.elapsed_ms(before, after) >= 30
    assert client.get(memory, 4) == "some"


def test_functions_of_the_program_are_called_in_order(client: Client) -> None:
    stream, other = client.create_stream(), client.create_stream()
    gate = client.gate(stream)
    client.note(stream, "one")
    client.launch(client.timed_kernel("sleep_ms_1"), stream)
    client.note(stream, "two")
    client.do("cuStreamWaitEvent", other, client.mark(stream), 0)
    client.note(other, "three")
    assert client.noted() == []
    client.open_gate(gate)
    client.do("cuStreamSynchronize", other)
    assert client.noted() == ["one", "two", "three"]


def test_only_work_that_must_be_begun_needs_a_thread(client: Client) -> None:
    threads = client.threads()
    stream, other = client.create_stream(), client.create_stream()
    for _ in range(3):
        client.launch(client.timed_kernel("sleep_us_100"), stream)
        client.do("cuStreamWaitEvent", other, client.mark(stream), 0)
        client.launch(client.timed_kernel("sleep_us_100"), other)
    client.note(client.create_stream(), "in the caller's thread")
    client.put(client.alloc(MIB), "some")
    client.synchronize()
    assert client.threads() == threads
    client.open_gate(client.gate(stream))
    assert client.threads() == threads + 1


def test_a_graph_takes_the_sum_of_its_kernels(client: Client) -> None:
    graph = client.create_graph()
    client.graph_kernel(graph, client.timed_kernel("sleep_ms_2"))
    node = client.graph_kernel(graph, client.timed_kernel("sleep_us_500"))
    child = client.create_graph()
    client.graph_kernel(child, client.timed_kernel("sleep_us_250"))
    client.do("cuGraphAddChildGraphNode", client.create_event(), graph, 0, 0, child)
    exec_graph = client.instantiate(graph)

    def launched_ms() -> float:
        stream = client.create_stream()
        gate = client.gate(stream)
        start = client.mark(stream)
        client.launch_graph(exec_graph, stream)
        end = client.mark(stream)
        client.open_gate(gate)
        client.do("cuStreamSynchronize", stream)
        elapsed: float = client.elapsed_ms(start, end)
        return elapsed

    assert launched_ms() == exactly(2.75)
    client.set_graph_kernel(exec_graph, node, client.timed_kernel("sleep_us_900"))
    assert launched_ms() == exactly(3.15)


def test_a_captured_kernel_runs_with_its_graph(client: Client, node: SimulatedNode) -> None:
    stream = client.create_stream()
    client.begin_capture(stream)
    client.launch(client.timed_kernel("sleep_ms_4"), stream)
    client.launch(client.timed_kernel("sleep_ms_5"), stream)
    exec_graph = client.instantiate(client.end_capture(stream))
    client.synchronize()
    assert node.times(0).busy_ns == 0
    client.launch_graph(exec_graph, stream)
    client.launch_graph(exec_graph, stream)
    client.synchronize()
    assert node.times(0).busy_ns == 2 * 9_000_000


def test_the_kernels_of_a_graph_can_be_read(client: Client) -> None:
    stream = client.create_stream()
    added, captured = client.timed_kernel("added"), client.timed_kernel("captured")
    client.begin_capture(stream)
    client.launch_blocks(captured, 12, stream)
    graph = client.end_capture(stream)
    client.graph_kernel(graph, added, 34)
    assert client.kernels_of(graph) == [[captured, 12], [added, 34]]


def test_launches_are_counted_and_a_graph_is_one(client: Client, node: SimulatedNode) -> None:
    stream = client.create_stream()
    client.begin_capture(stream)
    client.launch_many(client.timed_kernel("sleep_us_5"), 7, stream)
    exec_graph = client.instantiate(client.end_capture(stream))
    client.launch_many(client.timed_kernel("sleep_us_5"), 3)
    client.launch_graph(exec_graph, stream)
    client.put(client.alloc(MIB), "a copy is no launch")
    client.synchronize()
    assert node.times(0).launched == {client.pid: 4}


def test_a_launch_waits_while_the_queue_is_full(client: Client) -> None:
    function = client.timed_kernel("sleep_us_100")
    start = client.mark()
    for _ in range(3):
        client.launch_many(function, 700)
    end = client.mark()
    client.do("cuEventSynchronize", end)
    assert client.elapsed_ms(start, end) >= 210


def test_an_event_without_timing_has_no_time(client: Client) -> None:
    event = client.create_event(2)
    client.do("cuEventRecord", event, 0)
    client.do("cuEventSynchronize", event)
    with refused("INVALID_HANDLE"):
        client.elapsed_ms(event, event)


def test_events_and_streams_end_before_their_work(client: Client) -> None:
    for _ in range(50):
        stream, event = client.create_stream(), client.create_event()
        client.launch(client.timed_kernel("sleep_us_50"), stream)
        client.do("cuEventRecord", event, stream)
        client.do("cuStreamWaitEvent", client.create_stream(), event, 0)
        client.do("cuEventDestroy_v2", event)
        client.destroy_stream(stream)
    client.synchronize()
    client.release()
    client.ready()
    client.launch(client.timed_kernel("step"))
    client.synchronize()


def test_a_lost_device_ends_the_wait_for_it(client: Client, node: SimulatedNode) -> None:
    stream = client.create_stream()
    client.launch(client.timed_kernel("sleep_ms_100000000"), stream)
    node.lose(0)
    with refused("DEVICE_UNAVAILABLE"):
        client.do("cuStreamSynchronize", stream)


def test_a_child_begins_without_the_work_of_its_parent(client: Client) -> None:
    client.launch(client.timed_kernel("sleep_ms_100000000"))
    client.gate(client.create_stream())
    orders = [{"do": "ready", "with": [1]}, {"do": "synchronize", "with": []}]
    answers = client.in_child(orders)
    assert [set(answer) for answer in answers] == [{"value"}, {"value"}]


# -- processes share a device --


def longs(start: StartClient, node: SimulatedNode, count: int) -> list[Client]:
    """Clients, each with a kernel that does not end within the test."""
    clients = [start(node) for _ in range(count)]
    for each in clients:
        each.ready()
        each.launch(each.timed_kernel("sleep_ms_100000000"))
    return clients


def test_processes_take_turns(node: SimulatedNode, start: StartClient) -> None:
    clients = longs(start, node, 3)
    before = node.times(0)
    while (after := node.times(0)).busy_ns < before.busy_ns + 200_000_000:
        pass
    had = [after.by_pid[each.pid] - before.by_pid[each.pid] for each in clients]
    assert sum(had) == after.busy_ns - before.busy_ns
    assert max(had) - min(had) <= 2_000_000, "a turn's length"


def test_a_turn_has_the_length_that_was_set(node: SimulatedNode, start: StartClient) -> None:
    node.set_scheduling(0, "time-slicing", 50_000)
    clients = longs(start, node, 2)
    before, most = node.times(0), 0
    # seen within a turn, whenever this process itself gets its turns
    while (after := node.times(0)).busy_ns < before.busy_ns + 150_000_000 or most <= 2_000_000:
        one, other = (after.by_pid[each.pid] - before.by_pid[each.pid] for each in clients)
        most = max(most, abs(one - other))
    assert most <= 50_000_000


def test_fifo_runs_a_kernel_to_its_end(node: SimulatedNode, ready: StartClient) -> None:
    node.set_scheduling(0, "fifo")
    long, short = ready(node), ready(node)
    long.launch(long.timed_kernel("sleep_ms_200"))
    short.launch(short.timed_kernel("sleep_us_10"))
    long.launch(long.timed_kernel("sleep_ms_100000000"))
    short.synchronize()
    times = node.times(0)
    assert times.by_pid[short.pid] == 10_000
    assert times.by_pid[long.pid] >= 200_000_000


def test_the_kernels_of_a_killed_process_vanish(node: SimulatedNode, ready: StartClient) -> None:
    node.set_scheduling(0, "fifo")
    long, short = ready(node), ready(node)
    long.launch(long.timed_kernel("sleep_ms_100000000"))
    end = short.mark()
    short.launch(short.timed_kernel("sleep_us_10"))
    with refused("NOT_READY"):
        short.do("cuStreamQuery", 0)
    long.kill()
    short.synchronize()
    short.do("cuEventQuery", end)
    assert node.times(0).by_pid == {short.pid: 10_000}


def test_a_stopped_process_holds_up_no_other(node: SimulatedNode, ready: StartClient) -> None:
    stopped, other = ready(node), ready(node)
    for client in (stopped, other):
        client.launch(client.timed_kernel("sleep_ms_30"))
    stopped.stop()
    other.synchronize()
    assert node.times(0).by_pid[other.pid] == 30_000_000
    stopped.resume()
    stopped.synchronize()
    assert node.times(0).busy_ns == 60_000_000


def test_devices_run_beside_each_other(node: SimulatedNode, start: StartClient) -> None:
    first, second = start(node), start(node)
    first.ready(0)
    second.ready(1)
    first.launch(first.timed_kernel("sleep_ms_100000000"))
    second.launch(second.timed_kernel("sleep_ms_2"))
    second.synchronize()
    assert node.times(1).busy_ns == 2_000_000


@pytest.mark.parametrize(
    ("policy", "slice_us", "words"), [("mps", 2000, "one of"), ("fifo", 0, "at least 1")]
)
def test_odd_settings_are_refused(
    node: SimulatedNode, policy: str, slice_us: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        node.set_scheduling(0, policy, slice_us)
    assert node.gpus[0].memory_bytes == GIB
