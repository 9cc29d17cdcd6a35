"""Operations, bytes and kinds of TensorFlow's operators, from the sizes of their tensors.

Own formulas, like those of operation_costs. Pure: operators are names, tensors are TensorSize.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from .operation_costs import TensorSize, product


class GraphNode(NamedTuple):
    """One operator of the graph: its tensors, and those attributes that formulas need."""

    kind: str
    inputs: Sequence[TensorSize]
    outputs: Sequence[TensorSize]
    attributes: Mapping[str, Any] = {}


def _product(node: GraphNode) -> int:
    """Each element of the result is a sum over the inner dimension."""
    shape = node.inputs[0].shape
    turned = node.attributes.get("transpose_a") or node.attributes.get("adj_x")
    return 2 * node.outputs[0].elements * shape[-2 if turned else -1]


def _einsum(node: GraphNode) -> int:
    """A multiplication and an addition for each tuple of all the indices."""
    sources = str(node.attributes.get("equation", "")).partition("->")[0].split(",")
    sizes: Dict[str, int] = {}
    for labels, tensor in zip(sources, node.inputs):
        named = labels.replace("...", "")
        for label, size in zip(reversed(named), reversed(tensor.shape)):
            sizes[label] = size
        rest = tensor.shape[: len(tensor.shape) - len(named)]
        sizes["..."] = max(sizes.get("...", 1), product(rest))
    return 2 * product(list(sizes.values()))


def _convolution(node: GraphNode) -> int:
    return 2 * node.outputs[0].elements * product(node.inputs[1].shape[:-1])


def _input_gradient(node: GraphNode) -> int:
    """Inputs: the sizes, the filter, the gradient."""
    return 2 * node.inputs[2].elements * product(node.inputs[1].shape[:-1])


def _filter_gradient(node: GraphNode) -> int:
    """Inputs: the input, the sizes, the gradient."""
    return 2 * node.inputs[2].elements * product(node.outputs[0].shape[:-1])


def _depthwise(node: GraphNode) -> int:
    return 2 * node.outputs[0].elements * product(node.inputs[1].shape[:2])


def _depthwise_input_gradient(node: GraphNode) -> int:
    return 2 * node.inputs[2].elements * product(node.inputs[1].shape[:2])


def _depthwise_filter_gradient(node: GraphNode) -> int:
    return 2 * node.inputs[2].elements * product(node.outputs[0].shape[:2])


def _recurrent(node: GraphNode) -> int:
    """Inputs: (time, batch, features), then the state, and the weights in one vector."""
    length, batch = node.inputs[0].shape[:2]
    weights = max(one.elements for one in node.inputs[1:4] if len(one.shape) == 1)
    return 2 * length * batch * weights


def _recurrent_gradient(node: GraphNode) -> int:
    return 2 * _recurrent(node)


FORMULAS: Dict[str, Callable[[GraphNode], int]] = {
    "MatMul": _product,
    "BatchMatMul": _product,
    "BatchMatMulV2": _product,
    "BatchMatMulV3": _product,
    "Einsum": _einsum,
    "Conv2D": _convolution,
    "Conv3D": _convolution,
    "_FusedConv2D": _convolution,
    "_FusedMatMul": _product,
    "Conv2DBackpropInput": _input_gradient,
    "Conv2DBackpropFilter": _filter_gradient,
    "Conv3DBackpropInputV2": _input_gradient,
    "Conv3DBackpropFilterV2": _filter_gradient,
    "DepthwiseConv2dNative": _depthwise,
    "DepthwiseConv2dNativeBackpropInput": _depthwise_input_gradient,
    "DepthwiseConv2dNativeBackpropFilter": _depthwise_filter_gradient,
    "CudnnRNNV3": _recurrent,
    "CudnnRNNBackpropV3": _recurrent_gradient,
}
"""The operator -> the operations of one node.

Any other operator has one operation for each element that it writes.
"""

KINDS: Dict[str, Tuple[str, ...]] = {
    "addv2": ("AddV2", "Add", "AddN"),
    "biasadd": ("BiasAdd",),
    "biasaddgrad": ("BiasAddGrad",),
    "mul": ("Mul",),
    "matmul": ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"),
    "conv2d": ("Conv2D", "DepthwiseConv2dNative"),
    "concat": ("ConcatV2",),
    "softmax": ("Softmax", "LogSoftmax"),
    "relu": ("Relu", "Relu6", "LeakyRelu"),
    "maxpool": ("MaxPool", "MaxPool3D", "MaxPoolV2"),
    "avgpool": ("AvgPool", "AvgPool3D"),
}
KIND_OF = {operator: kind for kind, operators in KINDS.items() for operator in operators}


FUSED = "_Fused"
"""An operator of this prefix also does those of its attribute `fused_ops`, on its result."""


def operations(node: GraphNode) -> int:
    formula = FORMULAS.get(node.kind)
    if formula is not None:
        return formula(node)
    return sum(output.elements for output in node.outputs)


def bytes_moved(node: GraphNode) -> int:
    return sum(size.bytes for size in (*node.inputs, *node.outputs))


def kinds(node: GraphNode) -> List[Tuple[str, int]]:
    """The kinds of a node in the published table, with the elements of the largest input."""
    kind = KIND_OF.get(node.kind[len(FUSED) :] if node.kind.startswith(FUSED) else node.kind)
    if kind is None or not node.inputs:
        return []
    sizes = [one.elements for one in node.inputs]
    found = [(kind, sum(sizes) if kind == "concat" else max(sizes))]
    for name in node.attributes.get("fused_ops", ()):
        if name in KIND_OF:
            found.append((KIND_OF[name], node.outputs[0].elements))
    return found
