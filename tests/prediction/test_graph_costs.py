"""Operations, bytes and kinds of TensorFlow's operators, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from client_plugin.prediction.graph_costs import (
    KIND_OF,
    GraphNode,
    bytes_moved,
    kinds,
    operations,
)
from client_plugin.prediction.operation_costs import TensorSize


def node(kind: str, inputs: list[Any], *outputs: Any, **attributes: Any) -> GraphNode:
    return GraphNode(
        kind, [TensorSize(one) for one in inputs], [TensorSize(one) for one in outputs], attributes
    )


IMAGE, FILTER, RESULT = (2, 8, 8, 3), (3, 3, 3, 5), (2, 6, 6, 5)
CONVOLUTION = 2 * (2 * 6 * 6 * 5) * 27
DEPTHWISE = 2 * (2 * 6 * 6 * 3) * 9
OPERATIONS = {
    "MatMul": (node("MatMul", [(4, 6), (6, 5)], (4, 5)), 2 * 4 * 5 * 6),
    "MatMul, turned": (node("MatMul", [(6, 4), (6, 5)], (4, 5), transpose_a=True), 240),
    "BatchMatMulV2": (node("BatchMatMulV2", [(3, 4, 6), (3, 6, 5)], (3, 4, 5)), 3 * 240),
    "Einsum": (
        node("Einsum", [(2, 7, 6), (6, 4, 3)], (2, 7, 4, 3), equation="abc,cde->abde"),
        2 * 2 * 7 * 6 * 4 * 3,
    ),
    "Einsum, any rank": (
        node("Einsum", [(2, 7, 6), (6, 4)], (2, 7, 4), equation="...c,cd->...d"),
        2 * 2 * 7 * 6 * 4,
    ),
    "Conv2D": (node("Conv2D", [IMAGE, FILTER], RESULT), CONVOLUTION),
    "Conv2DBackpropInput": (
        node("Conv2DBackpropInput", [(4,), FILTER, RESULT], IMAGE), CONVOLUTION
    ),
    "Conv2DBackpropFilter": (
        node("Conv2DBackpropFilter", [IMAGE, (4,), RESULT], FILTER), CONVOLUTION
    ),
    "DepthwiseConv2dNative": (
        node("DepthwiseConv2dNative", [IMAGE, (3, 3, 3, 1)], (2, 6, 6, 3)), DEPTHWISE
    ),
    "CudnnRNNV3": (
        node("CudnnRNNV3", [(10, 4, 8), (1, 4, 6), (1, 4, 6), (500,)], (10, 4, 6)),
        2 * 10 * 4 * 500,
    ),
    "_FusedConv2D": (node("_FusedConv2D", [IMAGE, FILTER, (5,)], RESULT), CONVOLUTION),
    "_FusedMatMul": (node("_FusedMatMul", [(4, 6), (6, 5), (5,)], (4, 5)), 240),
    "Tanh": (node("Tanh", [(4, 5)], (4, 5)), 20),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_by_hand(name: str) -> None:
    one, expected = OPERATIONS[name]
    assert operations(one) == expected


def test_each_byte_is_read_or_written_once() -> None:
    assert bytes_moved(node("Add", [(4, 5), (5,)], (4, 5))) == 4 * (20 + 5 + 20)


def test_a_kind_has_the_elements_of_its_largest_input() -> None:
    assert kinds(node("AddV2", [(5,), (4, 5)], (4, 5))) == [("addv2", 20)]
    assert kinds(node("ConcatV2", [(4, 5), (4, 3), ()], (4, 8))) == [("concat", 33)]
    assert kinds(node("Tanh", [(4, 5)], (4, 5))) == []
    assert len(set(KIND_OF.values())) == 11, "all kinds of the published table"


def test_an_operator_that_joins_others_has_their_kinds() -> None:
    one = node("_FusedConv2D", [IMAGE, FILTER, (5,)], RESULT, fused_ops=["BiasAdd", "Relu", "Own"])
    result = 2 * 6 * 6 * 5
    assert kinds(one) == [("conv2d", 2 * 8 * 8 * 3), ("biasadd", result), ("relu", result)]
