"""The bytes that TensorFlow's kernels take beside tensors, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from client_plugin.prediction.graph_costs import GraphNode
from client_plugin.prediction.graph_workspaces import of_any, of_gpu
from client_plugin.prediction.operation_costs import TensorSize


def node(kind: str, inputs: list[Any], output: Any, **attributes: Any) -> GraphNode:
    return GraphNode(kind, [TensorSize(one) for one in inputs], [TensorSize(output)], attributes)


IMAGE, KERNEL, RESULT = (2, 3, 8, 8), (3, 3, 3, 5), (2, 5, 6, 6)
IMAGE_BYTES, RESULT_BYTES = 4 * 2 * 3 * 8 * 8, 4 * 2 * 5 * 6 * 6
PLANES = {
    "Conv2D": (node("Conv2D", [IMAGE, KERNEL], RESULT), max(IMAGE_BYTES, RESULT_BYTES)),
    "Conv2DBackpropInput": (
        node("Conv2DBackpropInput", [(4,), KERNEL, RESULT], IMAGE), IMAGE_BYTES + RESULT_BYTES
    ),
    "Conv2DBackpropFilter": (
        node("Conv2DBackpropFilter", [IMAGE, (4,), RESULT], KERNEL), IMAGE_BYTES + RESULT_BYTES
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANES)
def test_images_in_planes_are_copied_on_a_gpu(name: str) -> None:
    one, expected = PLANES[name]
    assert of_gpu(one._replace(attributes={"data_format": "NCHW"})) == expected
    assert of_gpu(one._replace(attributes={"data_format": "NHWC"})) == 0
    assert of_gpu(one) == of_any(one) == 0, "an order that is not named"


def test_other_operators_take_nothing() -> None:
    assert of_gpu(node("MatMul", [(8, 8), (8, 8)], (8, 8), data_format="NCHW")) == 0


QUERIES, SCORES = (2, 6, 3, 4), (2, 3, 6, 6)
QUERY_BYTES, SCORE_BYTES = 4 * 2 * 6 * 3 * 4, 4 * 2 * 3 * 6 * 6
EQUATIONS: dict[str, tuple[list[Any], Any, int]] = {
    "ab,bc->ac": ([(2, 3), (3, 4)], (2, 4), 0),
    "ab,cb->ac": ([(2, 3), (4, 3)], (2, 4), 0),
    "abc,cde->abde": ([(2, 7, 6), (6, 4, 3)], (2, 7, 4, 3), 0),
    "...a,ab->...b": ([(2, 7, 6), (6, 4)], (2, 7, 4), 0),
    "ab,bc->ca": ([(2, 3), (3, 4)], (4, 2), 4 * 8),
    # the heads are in the middle of both factors
    "bqhd,bkhd->bhqk": ([QUERIES, QUERIES], SCORES, 2 * QUERY_BYTES),
    # the scores are read as they are; the values are copied, and so is the result
    "bhqk,bkhd->bqhd": ([SCORES, QUERIES], QUERIES, 2 * QUERY_BYTES),
    # sums over two dimensions: the first factor has them in another order than the second
    "abc,cbd->ad": ([(2, 3, 4), (4, 3, 5)], (2, 5), 4 * 60),
    # one factor: nothing is known of it
    "ab->ba": ([(2, 3)], (3, 2), 0),
    "": ([(2, 3), (3, 4)], (2, 4), 0),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_factors_that_are_no_matrices_are_copied(equation: str) -> None:
    inputs, output, expected = EQUATIONS[equation]
    one = node("Einsum", inputs, output, equation=equation)
    assert of_any(one) == of_gpu(one) == expected
