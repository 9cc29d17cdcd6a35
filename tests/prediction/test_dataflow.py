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


VARIABLES = frozenset({0})


def peak_beside_variable(*nodes: FlowNode) -> int:
    flow = Flow(nodes, SIZES, (0,), VARIABLES)
    return replay(lives(flow)[0]).live_peak_bytes


READ = FlowNode("ReadVariableOp", (0,), (1,))


def test_a_variable_is_read_and_written_in_its_place() -> None:
    assert peak_beside_variable(READ, FlowNode("MatMul", (1,), (2,))) == 200
    update = FlowNode("AssignSubVariableOp", (0, 2), (), waits_for=(1,))
    assert peak_beside_variable(READ, FlowNode("MatMul", (1,), (2,)), update) == 200


def test_an_update_copies_a_variable_whose_value_is_still_to_be_read() -> None:
    for kind in ("AssignSubVariableOp", "ResourceApplyMomentum", "ResourceScatterAdd"):
        nodes = (
            READ,
            FlowNode("MatMul", (1,), (2,)),
            FlowNode(kind, (0, 2), (), waits_for=(1,)),
            FlowNode("MatMul", (1,), (3,), waits_for=(2,)),
        )
        assert peak_beside_variable(*nodes) == 300, "the old value, the new one, and a result"


def test_a_value_that_nothing_else_reads_becomes_the_variable() -> None:
    made = (READ, FlowNode("MatMul", (1,), (2,)))
    assign = FlowNode("AssignVariableOp", (0, 2), ())
    after = FlowNode("MatMul", (), (3,), waits_for=(2,))
    assert peak_beside_variable(*made, assign, after) == 200
    later = FlowNode("MatMul", (2,), (4,), waits_for=(3,))
    assert peak_beside_variable(*made, assign, after, later) == 300, "it is copied"


def test_an_input_that_is_read_twice_is_not_written_over() -> None:
    one = FlowNode("MatMul", (0,), (1,))
    assert peak(one, FlowNode("Mul", (1, 1), (2,))) == 300


def test_what_a_kernel_takes_is_given_back() -> None:
    def chain(*scratch: int) -> int:
        return peak(*[FlowNode("MatMul", (at,), (at + 1,), scratch_bytes=size)
                      for at, size in enumerate(scratch)])  # fmt: skip

    assert chain(0, 0) == 300
    assert chain(1_000, 0) == 1_200
    assert chain(0, 1_000) == 1_300
    assert chain(70, 70) == 370
