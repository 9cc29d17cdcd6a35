"""Graphs in the order of an executor, with the lives of their storages."""

from __future__ import annotations

from client_plugin.prediction.caching_allocator import StorageEvent, replay
from client_plugin.prediction.dataflow import Flow, FlowNode, lives, order

SIZES = (100, 100, 100, 100, 100)


def peak(*nodes: FlowNode, kept: tuple[int, ...] = (0,)) -> int:
    return replay(lives(Flow(nodes, SIZES, kept))[0]).live_peak_bytes


def test_nodes_run_in_the_order_in_which_they_become_ready() -> None:
    nodes = (
        FlowNode("MatMul", (1,), (2,)),
        FlowNode("MatMul", (0,), (1,)),
        FlowNode("NoOp", (), ()),
        FlowNode("MatMul", (0,), (3,), waits_for=(0,)),
    )
    assert order(nodes) == [1, 2, 0, 3]


def test_a_loop_is_run_once() -> None:
    nodes = (
        FlowNode("Merge", (0, 2), (1,)),
        FlowNode("NextIteration", (1,), (2,)),
        FlowNode("Exit", (1,), (3,)),
    )
    assert order(nodes) == [0, 1, 2]


def test_a_storage_lives_until_its_last_reader_has_run() -> None:
    chain = (
        FlowNode("MatMul", (0,), (1,)),
        FlowNode("MatMul", (1,), (2,)),
        FlowNode("MatMul", (2,), (3,)),
    )
    assert peak(*chain) == 300
    assert peak(*chain, FlowNode("MatMul", (1, 3), (4,))) == 400


def test_an_operator_on_elements_writes_over_an_input_that_no_other_reads() -> None:
    one, two = FlowNode("MatMul", (0,), (1,)), FlowNode("Relu", (1,), (2,))
    assert peak(one, two) == 200
    assert peak(one, two, FlowNode("MatMul", (1, 2), (3,))) == 400, "tensor 1 is read again"
    assert peak(FlowNode("Relu", (0,), (1,))) == 200, "a variable stays as it is"


def test_a_view_keeps_its_storage_alive() -> None:
    nodes = (
        FlowNode("MatMul", (0,), (1,)),
        FlowNode("Reshape", (1,), (2,)),
        FlowNode("MatMul", (2,), (3,)),
    )
    events, ran = lives(Flow(nodes, SIZES, (0,)))
    assert ran == [0, 1, 2]
    assert events[:4] == [
        StorageEvent(0, 100), StorageEvent(1, 100), StorageEvent(2, 100),
        StorageEvent(1, 0, is_freed=True),
    ]  # fmt: skip


def test_results_without_a_reader_are_freed_at_once() -> None:
    assert peak(*[FlowNode("MatMul", (0,), (at,)) for at in range(1, 5)]) == 200
