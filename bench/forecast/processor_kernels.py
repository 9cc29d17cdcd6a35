"""The bytes that TensorFlow's kernels of a processor take beside tensors: for the check alone.

Formulas follow the published source of TensorFlow's kernels; no constant is fitted. They stand in
for those of a GPU where a forecast is held against a processor.
"""

from __future__ import annotations

import math

from client_plugin.prediction import graph_workspaces
from client_plugin.prediction.graph_costs import GraphNode
from client_plugin.prediction.operation_costs import TensorSize

WORKING_SET_BYTES = 30 << 20
"""A convolution's gradient unfolds as many images at a time as fill such a cache."""
INDEX_BYTES = 8


def of_processor(node: GraphNode) -> int:
    taken = graph_workspaces.of_any(node)
    if node.kind == "Conv2DBackpropInput":
        return taken + _unfolded(node.inputs[2], node.inputs[1])
    if node.kind == "Conv2DBackpropFilter":
        return taken + _unfolded(node.inputs[2], node.outputs[0])
    if node.kind == "MaxPoolGrad":  # the place of each maximum is found anew
        return taken + INDEX_BYTES * node.inputs[1].elements
    return taken


def _unfolded(gradient: TensorSize, kernel: TensorSize) -> int:
    """Images as the rows of a matrix product; the last block may be larger than the batch."""
    places = math.prod(gradient.shape[1:-1])
    row = math.prod(kernel.shape[:-1])
    channels = kernel.shape[-1]
    unit = places * row + places * channels + row * channels
    width = gradient.element_bytes
    images = -(-(WORKING_SET_BYTES // width) // unit)
    return images * places * row * width
