"""Operations, bytes and kinds of PyTorch's operators, from the sizes of their tensors.

Own formulas: a multiplication with an addition is two operations; a tensor that is read or written
moves each of its bytes once. Pure: operators are names, tensors are TensorSize.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple


class TensorSize(NamedTuple):
    """The shape of a tensor and the bytes of one element."""

    shape: Tuple[int, ...]
    element_bytes: int = 4

    @property
    def elements(self) -> int:
        return product(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.element_bytes


class NodeSizes(NamedTuple):
    """One node of the graph: its tensors, and those arguments that formulas need."""

    inputs: Sequence[TensorSize]
    outputs: Sequence[TensorSize]
    output_mask: Sequence[bool] = ()
    is_causal: bool = False
    is_transposed: bool = False


def product(numbers: Sequence[int]) -> int:
    whole = 1
    for number in numbers:
        whole *= number
    return whole


def _matrices(node: NodeSizes, first: int = 0) -> int:
    """Of a product: each element of the result is a sum over the inner dimension."""
    return 2 * node.outputs[0].elements * node.inputs[first].shape[-1]


def _dot(node: NodeSizes) -> int:
    return 2 * node.inputs[0].elements


def _added_matrices(node: NodeSizes) -> int:
    return _matrices(node, 1)


def _convolved(result: TensorSize, weight: TensorSize) -> int:
    """Each element of the result is a sum over one filter; groups are in the filter's shape."""
    return 2 * result.elements * product(weight.shape[1:])


def _convolution(node: NodeSizes) -> int:
    """A transposed one is the gradient of another: its input is that one's result."""
    return _convolved(node.inputs[0] if node.is_transposed else node.outputs[0], node.inputs[1])


def _convolution_gradients(node: NodeSizes) -> int:
    """Inputs: the gradient, the input, the weight. Each gradient costs one convolution."""
    result = node.inputs[1] if node.is_transposed else node.inputs[0]
    return sum(node.output_mask[:2]) * _convolved(result, node.inputs[2])


def _attention(node: NodeSizes, products: int = 2) -> int:
    """Queries and keys: (..., length, head). Two products of their lengths forward."""
    queries, keys = node.inputs[0], node.inputs[1]
    whole = 2 * products * queries.elements * keys.shape[-2]
    return whole // 2 if node.is_causal else whole


def _attention_gradients(node: NodeSizes) -> int:
    """Inputs: the gradient first. Five products, of which one is the forward's again."""
    return _attention(node._replace(inputs=node.inputs[1:]), 5)


FORMULAS: Dict[str, Callable[[NodeSizes], int]] = {
    "mm": _matrices,
    "bmm": _matrices,
    "mv": _matrices,
    "dot": _dot,
    "addmm": _added_matrices,
    "addmv": _added_matrices,
    "baddbmm": _added_matrices,
    "addbmm": _added_matrices,
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_backward": _convolution_gradients,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_flash_attention_backward": _attention_gradients,
    "_scaled_dot_product_efficient_attention_backward": _attention_gradients,
}
"""The operator's name without its overload -> the operations of one node.

Any other operator has one operation for each element that it writes.
"""
TENSOR_CORES = frozenset(FORMULAS)
"""Operators that matrix units run, at their own peak."""


def operations(name: str, node: NodeSizes) -> int:
    formula = FORMULAS.get(name)
    if formula is not None:
        return formula(node)
    return sum(output.elements for output in node.outputs)


MATRIX_WORKSPACE_BYTES = 8_320 << 10
"""PyTorch gives cuBLAS so much at its first product (more from capability 9.0 on)."""
MATRIX_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot")


def workspace_bytes(name: str, node: NodeSizes) -> int:
    """The bytes that the kernels of a node take beside its tensors, while they run.

    Those of a convolution copy images into the order in which they compute: first the image and
    then the result; backward the image and the gradient.
    """
    if name in ("convolution", "_convolution") and node.inputs and node.outputs:
        return max(node.inputs[0].bytes, node.outputs[0].bytes)
    if name == "convolution_backward" and len(node.inputs) > 1:
        return node.inputs[0].bytes + node.inputs[1].bytes
    return 0


def bytes_moved(node: NodeSizes) -> int:
    return sum(size.bytes for size in (*node.inputs, *node.outputs))


_KINDS: Dict[str, Tuple[str, ...]] = {
    "addv2": ("add", "add_", "_foreach_add_"),
    "mul": ("mul", "mul_"),
    "matmul": ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv"),
    "conv2d": ("convolution", "_convolution"),
    "concat": ("cat",),
    "softmax": ("_softmax", "_log_softmax", "_scaled_dot_product_flash_attention",
                "_scaled_dot_product_efficient_attention"),
    "relu": ("relu", "relu_", "clamp_min", "clamp_min_", "hardtanh", "hardtanh_"),
    "maxpool": ("max_pool2d_with_indices", "max_pool3d_with_indices"),
    "avgpool": ("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "mean"),
}  # fmt: skip
KIND_OF = {operator: kind for kind, operators in _KINDS.items() for operator in operators}


def kinds(name: str, node: NodeSizes) -> List[Tuple[str, int]]:
    """The kinds of a node in the published table, with the elements of the input."""
    found = []
    kind = KIND_OF.get(name)
    if kind is not None and node.inputs:
        source = _kind_input(name, node)
        found.append((kind, source.elements))
    if name == "addmm" or (name in ("convolution", "_convolution") and len(node.inputs) > 2):
        found.append(("biasadd", node.outputs[0].elements))
    if name == "convolution_backward" and len(node.output_mask) > 2 and node.output_mask[2]:
        found.append(("biasaddgrad", node.inputs[0].elements))
    if name == "sum" and _is_bias_sum(node):
        found.append(("biasaddgrad", node.inputs[0].elements))
    return found


def _kind_input(name: str, node: NodeSizes) -> TensorSize:
    """The largest one, as TensorFlow's nodes count (graph_costs.py).

    Of a sum with a product, the product's; of a concatenation, all.
    """
    if name == "cat":
        return TensorSize((sum(part.elements for part in node.inputs),))
    if name.startswith("_scaled_dot"):
        queries, keys = node.inputs[0], node.inputs[1]
        return TensorSize((product(queries.shape[:-1]) * keys.shape[-2],))
    is_sum = name in ("addmm", "baddbmm", "addmv")
    return max(node.inputs[1:] if is_sum else node.inputs, key=lambda one: one.elements)


def _is_bias_sum(node: NodeSizes) -> bool:
    """A gradient of (batch, features) that is summed over the batch."""
    source: Optional[TensorSize] = node.inputs[0] if node.inputs else None
    result: Any = node.outputs[0] if node.outputs else None
    return (
        source is not None
        and result is not None
        and len(source.shape) >= 2
        and product(result.shape) == source.shape[-1] > 1
    )
