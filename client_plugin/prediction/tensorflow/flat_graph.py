"""The graph of a concrete function as one list of operators with the sizes of their tensors.

TensorFlow's own optimizer rewrites it as before a run (rewriting.py). Then the shapes are inferred
anew. Knows: graphs, variables' handles. Must not know: how the function was traced, what is
predicted from it.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import tensorflow as tf

from ..operation_costs import TensorSize
from .rewriting import GPU, Device, all_nodes, rewritten

RECURRENT_RESERVE = 8
"""cuDNN keeps about so many values for each one of the result of a recurrent layer."""


class FlatOperator(NamedTuple):
    """One operator; its tensors are named by TensorFlow."""

    name: str
    kind: str
    inputs: List[str]
    outputs: List[str]
    waits_for: List[str]
    attributes: Dict[str, Any]


class FlatGraph(NamedTuple):
    """The step as it would run."""

    operators: List[FlatOperator]
    sizes: Dict[str, TensorSize]
    lasting: List[str]
    """Tensors that live on: variables, constants, the arguments."""
    variables: List[str]
    """The handles among them."""
    arguments: List[TensorSize]
    trainable_elements: int
    bounded: List[str]
    """Operators whose result has a size that depends on values: an upper bound was taken."""


def flatten(
    concrete: Any,
    arguments: Sequence[Any] = (),
    elements: Sequence[Any] = (),
    device: Device = GPU,
) -> FlatGraph:
    """`arguments`: the tensors of the call, where the function was traced for any shape of them.

    `elements`: the tensors of one batch, where the function gets an iterator.

    Raises an error of TensorFlow's, or ValueError.
    """
    graph = concrete.graph
    variables = _variables(graph)
    placeholders = graph.inputs[: len(graph.inputs) - len(graph.captures)]
    given = list(arguments) if len(arguments) == len(placeholders) else placeholders
    shapes = {
        inside.op.name: one.shape for inside, one in zip(placeholders, given) if one.dtype.size
    }
    definition = rewritten(_definition(graph, shapes, elements), graph, device)
    _show_values(definition, variables)
    flat = tf.Graph()
    with flat.as_default():
        tf.import_graph_def(definition, name="")
    first = [
        TensorSize(tuple(one.shape.as_list()), one.dtype.size)
        for one in (*elements, *given)
        if one.dtype.size and one.shape.is_fully_defined()
    ]
    attributes = {node.name: node.attr for node in definition.node}
    return _as_table(flat, attributes, variables)._replace(
        arguments=first, trainable_elements=_trainable(graph)
    )


def _variables(graph: Any) -> Dict[str, Tuple[Tuple[int, ...], int]]:
    """The placeholder of a variable's handle -> its shape, and the number of its type."""
    found = {}
    for outside, inside in graph.captures:
        if outside.dtype is not tf.resource:
            continue
        data = getattr(outside, "_handle_data", None)
        parts = list(data.shape_and_type) if data is not None and data.is_set else []
        if len(parts) == 1 and not parts[0].shape.unknown_rank:
            shape = tuple(max(0, dim.size) for dim in parts[0].shape.dim)
            found[inside.op.name] = (shape, parts[0].dtype)
    return found


def _definition(graph: Any, shapes: Dict[str, Any], elements: Sequence[Any]) -> Any:
    """The graph with the shapes of this call."""
    definition = graph.as_graph_def()
    for node in definition.node:
        if node.name in shapes:
            node.attr["shape"].shape.CopyFrom(shapes[node.name].as_proto())
    for node in all_nodes(definition):
        if node.op == "IteratorGetNext" and elements:
            shown = node.attr["output_shapes"].list
            del shown.shape[:]
            shown.shape.extend(one.shape.as_proto() for one in elements)
    return definition


def _show_values(definition: Any, variables: Dict[str, Tuple[Tuple[int, ...], int]]) -> None:
    """Reads of variables get their shapes: the import does not know what a handle is of."""
    by_name = {node.name: node for node in definition.node}
    for node in definition.node:
        if node.op != "ReadVariableOp":
            continue
        handle = _through(by_name, node.input[0])
        if handle not in variables:
            continue
        shape, dtype = variables[handle]
        waits = [one for one in node.input if one.startswith("^")]
        node.op = "Placeholder"
        del node.input[:]
        node.input.extend(waits)
        node.attr.clear()
        node.attr["dtype"].type = dtype
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
        node.attr["_reads"].s = handle.encode()


def _through(by_name: Dict[str, Any], name: str) -> str:
    """The placeholder from which a handle comes, through the operators that hand it on."""
    name = name.partition(":")[0]
    while name in by_name and by_name[name].op in ("Identity", "Switch", "Enter"):
        name = by_name[name].input[0].partition(":")[0]
    return name


def _as_table(
    flat: Any, attributes: Dict[str, Any], variables: Dict[str, Tuple[Tuple[int, ...], int]]
) -> FlatGraph:
    """`attributes`: of each node of the definition; TensorFlow's own look-up of one is slow."""
    sizes: Dict[str, TensorSize] = {}
    lasting: List[str] = []
    bounded: List[str] = []
    operators: List[FlatOperator] = []
    for name, (shape, dtype) in variables.items():
        sizes[f"{name}:0"] = TensorSize(shape, tf.as_dtype(dtype).size)
        lasting.append(f"{name}:0")
    for one in flat.get_operations():
        inputs = [tensor.name for tensor in one.inputs]
        known = attributes[one.name]
        read = known["_reads"].s.decode() if "_reads" in known else None
        if read is not None:
            inputs = [f"{read}:0"]
        for number, tensor in enumerate(one.outputs):
            if tensor.name not in sizes:
                sizes[tensor.name] = _size(one, number, tensor, sizes, bounded)
                if one.type in ("Placeholder", "Const") and read is None:
                    lasting.append(tensor.name)
        operators.append(
            FlatOperator(
                one.name, one.type if read is None else "ReadVariableOp", inputs,
                [tensor.name for tensor in one.outputs],
                [before.name for before in one.control_inputs], _attributes(known),
            )
        )  # fmt: skip
    handles = [f"{name}:0" for name in variables]
    return FlatGraph(operators, sizes, lasting, handles, [], 0, sorted(set(bounded)))


def _size(
    operator: Any, number: int, tensor: Any, sizes: Dict[str, TensorSize], bounded: List[str]
) -> TensorSize:
    width = tensor.dtype.size if tensor.dtype.size is not None else 0
    if tensor.dtype in (tf.resource, tf.variant, tf.string):
        return TensorSize((0,), 0)
    if tensor.shape.is_fully_defined():
        return TensorSize(tuple(tensor.shape.as_list()), width)
    known = [sizes[one.name] for one in operator.inputs if one.name in sizes]
    if operator.type.startswith("CudnnRNN") and number >= 3:
        elements = sizes[operator.outputs[0].name].elements if number == 3 else 0
        return TensorSize((RECURRENT_RESERVE * elements,), width)
    if operator.type.startswith("FusedBatchNorm"):
        return TensorSize((0,), width)  # what cuDNN reserves
    if operator.outputs and known:
        bounded.append(operator.type)
        return max(known, key=lambda size: size.elements)._replace(element_bytes=width)
    return TensorSize((0,), width)


def _attributes(node: Any) -> Dict[str, Any]:
    found: Dict[str, Any] = {
        name: node[name].b for name in ("transpose_a", "adj_x") if name in node
    }
    for name in ("equation", "data_format"):
        if name in node:
            found[name] = node[name].s.decode()
    if "fused_ops" in node:
        found["fused_ops"] = [one.decode() for one in node["fused_ops"].list.s]
    return found


def _trainable(graph: Any) -> int:
    return sum(int(one.shape.num_elements() or 0) for one in graph.trainable_variables)
