"""Calls of programs beside memory: streams, events, functions, callbacks, views.

Little of it does anything here.
"""

from __future__ import annotations

import pytest

from nodemgr.simulator import SimulatedNode
from tests.sim.client import Client, refused
from tests.sim.conftest import StartClient


@pytest.fixture
def client(node: SimulatedNode, ready: StartClient) -> Client:
    return ready(node)


def test_wrong_arguments_come_before_the_start(node: SimulatedNode, start: StartClient) -> None:
    """Codes of drivers 470 to 555 before cuInit."""
    client = start(node)
    for name, arguments, code in (
        ("cuMemAllocManaged", (0, 8, 1), "INVALID_VALUE"),
        ("cuCtxDestroy_v2", (0,), "INVALID_VALUE"),
        ("cuEventQuery", (0,), "INVALID_HANDLE"),
    ):
        with refused(code):
            client.do(name, *arguments)
    with refused("INVALID_VALUE"):
        client.alloc_managed(0)
    with refused("NOT_INITIALIZED"):
        client.alloc_managed(8)


def test_events_tell_time(client: Client) -> None:
    start, end = client.create_event(), client.create_event()
    with refused("INVALID_HANDLE"):
        client.elapsed_ms(start, end)
    client.do("cuEventRecord", start, 0)
    client.do("cuEventRecord", end, client.create_stream())
    client.do("cuEventSynchronize", end)
    assert client.elapsed_ms(start, end) >= 0
    assert client.elapsed_ms(end, start) <= 0
    client.do("cuEventDestroy_v2", start)
    with refused("INVALID_HANDLE"):
        client.do("cuEventRecord", start, 0)


def test_streams_have_identities_and_end(client: Client) -> None:
    one, other = client.create_stream(), client.create_stream()
    assert client.out_of("cuStreamGetId", one) != client.out_of("cuStreamGetId", other)
    assert client.out_of("cuStreamGetCtx", one) == client.out_of("cuStreamGetCtx", 0)
    assert client.out_of("cuStreamGetDevice", one) == 0
    assert client.out_of("cuStreamIsCapturing", one) == 0
    for order in ("cuStreamQuery", "cuStreamSynchronize"):
        for stream in (0, 1, 2, one):
            client.do(order, stream)
    client.do("cuStreamWaitEvent", one, client.create_event(), 0)
    client.do("cuStreamCopyAttributes", one, other)
    client.destroy_stream(one)
    with refused("INVALID_HANDLE"):
        client.do("cuStreamQuery", one)


def test_functions_of_the_program_are_called(client: Client) -> None:
    stream = client.create_stream()
    assert client.called_back("cuLaunchHostFunc", stream, "function", 5) == 1

    client.begin_capture(stream)
    assert client.called_back("cuLaunchHostFunc", stream, "function", 5) == 0
    client.instantiate(client.end_capture(stream))


def test_a_user_object_is_destroyed_with_its_last_reference(client: Client) -> None:
    handle, calls = client.user_object(2)
    graph = client.create_graph()
    client.do("cuGraphRetainUserObject", graph, handle, 1, 0)
    client.do("cuUserObjectRelease", handle, 2)
    assert client.destroyed(calls) == []
    client.do("cuGraphReleaseUserObject", graph, handle, 1)
    assert client.destroyed(calls) == [77]
    with refused("INVALID_VALUE"):
        client.do("cuUserObjectRelease", handle, 1)


def test_functions_have_names_and_limits(client: Client) -> None:
    module = client.load_module()
    function = client.function(module, "step")
    assert client.function(module, "step") == function != client.function(module, "other")
    client.launch(function)
    client.launch(function, client.create_stream())
    with refused("INVALID_VALUE"):
        client.do("cuLaunchKernel", function, 1, 1, 1, 1025, 1, 1, 0, 0, 0, 0)
    with refused("INVALID_VALUE"):
        client.do("cuLaunchKernel", function, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    with refused("INVALID_VALUE"):
        client.function(module, "")
    client.unload_module(module)
    with refused("INVALID_HANDLE"):
        client.launch(function)


def test_an_empty_image_is_none(client: Client) -> None:
    with refused("INVALID_VALUE"):
        client.do("cuModuleLoadData", 0, 0)


@pytest.mark.parametrize("kind", ["cuTexObject", "cuSurfObject"])
def test_views_come_and_go(client: Client, kind: str) -> None:
    view = client.view(f"{kind}Create")
    client.do(f"{kind}Destroy", view)
    with refused("INVALID_VALUE"):
        client.do(f"{kind}Destroy", view)


def test_contexts_stack(client: Client) -> None:
    first = client.create_context(0)
    second = client.create_context(1)
    assert client.current_device() == 1
    for _ in range(13):
        client.do("cuCtxPushCurrent_v2", first)
    with refused("OUT_OF_MEMORY"):
        client.do("cuCtxPushCurrent_v2", first)
    for _ in range(13):
        client.do("cuCtxPopCurrent_v2", 0)
    assert client.current_device() == 1
    client.do("cuCtxSetCurrent", 0)
    assert client.current_device() == 0
    client.destroy_context(second)
    client.do("cuCtxPopCurrent_v2", 0)
    client.do("cuCtxPopCurrent_v2", 0)
    with refused("INVALID_CONTEXT"):
        client.do("cuCtxPopCurrent_v2", 0)
