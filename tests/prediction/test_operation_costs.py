"""Operations, bytes and kinds of single nodes, counted by hand."""

from __future__ import annotations

import pytest

from client_plugin.prediction import graph_costs
from client_plugin.prediction.graph_costs import GraphNode
from client_plugin.prediction.operation_costs import (
    NodeSizes,
    TensorSize,
    bytes_moved,
    kinds,
    operations,
    workspace_bytes,
)


def node(inputs: list[tuple[int, ...]], output: tuple[int, ...], **more: object) -> NodeSizes:
    sizes = NodeSizes([TensorSize(shape) for shape in inputs], [TensorSize(output)])
    return sizes._replace(**more)  # type: ignore[arg-type]


IMAGE, FILTERS, RESULT = (8, 6, 10, 10), (12, 6, 3, 3), (8, 12, 8, 8)
CONVOLUTION = 2 * (8 * 12 * 8 * 8) * (6 * 3 * 3)
HEADS = (2, 4, 64, 32)
ATTENTION = 4 * 2 * 4 * 64 * 64 * 32
COSTS = {
    "mm": (node([(3, 5), (5, 7)], (3, 7)), 2 * 3 * 5 * 7),
    "bmm": (node([(2, 3, 5), (2, 5, 7)], (2, 3, 7)), 2 * 2 * 3 * 5 * 7),
    "addmm": (node([(7,), (3, 5), (5, 7)], (3, 7)), 2 * 3 * 5 * 7),
    "convolution": (node([IMAGE, FILTERS], RESULT), CONVOLUTION),
    "convolution_backward": (
        node([RESULT, IMAGE, FILTERS], IMAGE, output_mask=(True, True, True)),
        2 * CONVOLUTION,
    ),
    "_scaled_dot_product_efficient_attention": (node([HEADS] * 3, HEADS), ATTENTION),
    "_scaled_dot_product_flash_attention": (
        node([HEADS] * 3, HEADS, is_causal=True),
        ATTENTION // 2,
    ),
    "_scaled_dot_product_efficient_attention_backward": (
        node([HEADS] * 4, HEADS),
        ATTENTION * 5 // 2,
    ),
    "relu": (node([(3, 5)], (3, 5)), 15),
}


@pytest.mark.parametrize("name", COSTS)
def test_operations(name: str) -> None:
    sizes, expected = COSTS[name]
    assert operations(name, sizes) == expected


def test_a_grouped_convolution_has_the_operations_of_its_groups() -> None:
    depthwise = node([(8, 6, 10, 10), (6, 1, 3, 3)], (8, 6, 8, 8))
    assert operations("convolution", depthwise) == 2 * (8 * 6 * 8 * 8) * 9
    back = node([(8, 6, 8, 8), (8, 6, 10, 10), (6, 1, 3, 3)], (8, 6, 10, 10))
    both = back._replace(output_mask=(True, True, False))
    assert operations("convolution_backward", both) == 2 * operations("convolution", depthwise)


def test_a_transposed_convolution_is_a_gradient() -> None:
    up = node([(8, 12, 8, 8), (12, 6, 3, 3)], (8, 6, 10, 10), is_transposed=True)
    assert operations("convolution", up) == CONVOLUTION


def test_each_tensor_moves_its_bytes_once() -> None:
    half = NodeSizes([TensorSize((3, 5), 2), TensorSize((), 4)], [TensorSize((3, 5), 2)])
    assert bytes_moved(half) == 2 * 30 + 4


KINDS = {
    "add": (node([(2, 1_000)], (2, 1_000)), [("addv2", 2_000)]),
    "addmm": (
        node([(7,), (3, 5), (5, 7)], (3, 7)),
        [("matmul", 35), ("biasadd", 21)],
    ),
    "convolution": (node([IMAGE, FILTERS], RESULT), [("conv2d", 4_800)]),
    "cat": (node([(2, 3), (2, 5)], (2, 8)), [("concat", 16)]),
    "sum": (node([(32, 10)], (1, 10)), [("biasaddgrad", 320)]),
    "gelu": (node([(3,)], (3,)), []),
    "_scaled_dot_product_efficient_attention": (
        node([HEADS] * 3, HEADS),
        [("softmax", 2 * 4 * 64 * 64)],
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds(name: str) -> None:
    sizes, expected = KINDS[name]
    assert kinds(name, sizes) == expected


@pytest.mark.parametrize("shapes", [[(3, 50), (50, 7)], [(300, 5), (5, 7)], [(2, 3, 4), (2, 4, 9)]])
def test_a_product_counts_the_same_in_both_frameworks(shapes: list[tuple[int, ...]]) -> None:
    """[74]: the largest input of the node, be it the activation or the weight."""
    result = (*shapes[0][:-1], shapes[1][-1])
    sizes, bias = [TensorSize(shape) for shape in shapes], TensorSize(result[-1:])
    made = TensorSize(result)
    added = [*graph_costs.kinds(GraphNode("MatMul", sizes, [made])),
             *graph_costs.kinds(GraphNode("BiasAdd", [made, bias], [made]))]  # fmt: skip
    name = "addmm" if len(result) == 2 else "baddbmm"
    known = kinds(name, NodeSizes([bias, *sizes], [made]))
    assert known == (added if name == "addmm" else added[:1])
    assert kinds("mm", NodeSizes(sizes, [made])) == added[:1]


def test_an_image_smaller_than_its_filters_counts_them() -> None:
    sizes = [TensorSize((1, 8, 4, 4)), TensorSize((16, 8, 3, 3))]
    (known,) = graph_costs.kinds(GraphNode("Conv2D", sizes, [TensorSize((1, 16, 2, 2))]))
    assert kinds("convolution", NodeSizes(sizes, [TensorSize((1, 16, 2, 2))])) == [known]


def test_a_convolution_with_a_bias_adds_it() -> None:
    assert kinds("convolution", node([IMAGE, FILTERS, (12,)], RESULT))[1] == ("biasadd", 6_144)


def test_a_convolution_copies_its_images() -> None:
    image, result = 4 * 4_800, 4 * 6_144
    assert workspace_bytes("convolution", node([IMAGE, FILTERS], RESULT)) == max(image, result)
    backward = node([RESULT, IMAGE, FILTERS], IMAGE)
    assert workspace_bytes("convolution_backward", backward) == image + result
    assert workspace_bytes("mm", node([(3, 5), (5, 7)], (3, 7))) == 0
