"""The bytes that kernels of TensorFlow's operators take beside their tensors, from tensors' sizes.

Pure: operators are names, tensors are TensorSize.
"""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple

from .graph_costs import GraphNode

PLANES = ("NCHW", "NCDHW")
"""Orders of images that a GPU's convolutions copy into the order in which they compute."""


def of_gpu(node: GraphNode) -> int:
    """The bytes that a kernel of a GPU takes while it runs.

    The copies are those of PyTorch's convolutions (operation_costs). cuDNN's faster algorithms take
    more where there is room; without it TensorFlow takes another one.
    """
    formula = _GPU.get(node.kind)
    if formula is None or node.attributes.get("data_format") not in PLANES:
        return of_any(node)
    return formula(node)


def of_any(node: GraphNode) -> int:
    """The bytes that a kernel takes on a processor as well as on a GPU."""
    return _einsum(node) if node.kind == "Einsum" else 0


def _convolution(node: GraphNode) -> int:
    return max(node.inputs[0].bytes, node.outputs[0].bytes)


def _input_gradient(node: GraphNode) -> int:
    """Inputs: the sizes, the filter, the gradient."""
    return node.inputs[2].bytes + node.outputs[0].bytes


def _filter_gradient(node: GraphNode) -> int:
    """Inputs: the input, the sizes, the gradient."""
    return node.inputs[0].bytes + node.inputs[2].bytes


_GPU: Dict[str, Callable[[GraphNode], int]] = {
    "Conv2D": _convolution,
    "_FusedConv2D": _convolution,
    "Conv3D": _convolution,
    "Conv2DBackpropInput": _input_gradient,
    "Conv3DBackpropInputV2": _input_gradient,
    "Conv2DBackpropFilter": _filter_gradient,
    "Conv3DBackpropFilterV2": _filter_gradient,
}

ELLIPSIS = "."
BATCH, FREE, SUMMED = range(3)


class _Equation(NamedTuple):
    """Two factors and their product; a dimension is a letter."""

    factors: List[str]
    product: str

    def part(self, label: str) -> int:
        """The part of a matrix product in which a dimension is."""
        if label not in self.product:
            return SUMMED
        return BATCH if label == ELLIPSIS or all(label in one for one in self.factors) else FREE

    def age(self, label: str) -> int:
        """An ellipsis comes first, the letters follow in the order of their first use."""
        return -1 if label == ELLIPSIS else "".join(self.factors).index(label)

    def is_matrix(self, labels: str) -> bool:
        """Whether a factor is read as it is: batch, rows, sum, or batch, sum, rows."""
        for turned in ((0, 1, 2), (0, 2, 1)):
            keys = [(turned[self.part(one)], self.age(one)) for one in labels]
            if keys == sorted(keys):
                return True
        return False

    def made(self) -> str:
        """The product's dimensions as the kernel makes them."""
        letters = sorted(set("".join(self.factors)), key=self.age)
        batch = [one for one in letters if self.part(one) == BATCH]
        rows = [[one for one in letters if one in labels and self.part(one) == FREE]
                for labels in self.factors]  # fmt: skip
        return "".join([*batch, *rows[0], *rows[1]])


def _einsum(node: GraphNode) -> int:
    """Factors and product are copied where their dimensions are not in the order of matrices."""
    text = str(node.attributes.get("equation", "")).replace("...", ELLIPSIS).replace(" ", "")
    sources, _, target = text.partition("->")
    equation = _Equation(sources.split(","), target)
    if len(equation.factors) != 2 or len(node.inputs) != 2:
        return 0
    copies = [
        tensor.bytes
        for labels, tensor in zip(equation.factors, node.inputs)
        if not equation.is_matrix(labels)
    ]
    if equation.made() != target:
        copies += [one.bytes for one in node.outputs]
    return sum(copies)
