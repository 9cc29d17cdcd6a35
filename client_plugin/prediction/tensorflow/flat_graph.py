"""The graph of a concrete function as one list of operators with the sizes of their tensors.

TensorFlow's own optimizer rewrites it as before a run: calls of functions are put in their place,
constants computed. Then the shapes are inferred anew. Knows: graphs, variables' handles. Must not
know: how the function was traced, what is predicted from it.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.training.saver import export_meta_graph

from ..operation_costs import TensorSize

NOT_INLINED = ("_XlaMustCompile", "_noinline")
"""Attributes that keep a call as it is."""
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
    arguments: List[TensorSize]
    trainable_elements: int
    bounded: List[str]
    """Operators whose result has a size that depends on values: an upper bound was taken."""


def flatten(
    concrete: Any, arguments: Sequence[Any] = (), elements: Sequence[Any] = ()
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
    definition = _inlined(_definition(graph, shapes, elements), graph)
    _show_values(definition, variables)
    flat = tf.Graph()
    with flat.as_default():
        tf.import_graph_def(definition, name="")
    first = [
        TensorSize(tuple(one.shape.as_list()), one.dtype.size)
        for one in (*elements, *given)
        if one.dtype.size and one.shape.is_fully_defined()
    ]
    return _as_table(flat, variables)._replace(
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
    """The graph with the shapes of this call. A call that XLA would compile is like any other."""
    definition = graph.as_graph_def()
    for node in definition.node:
        if node.name in shapes:
            node.attr["shape"].shape.CopyFrom(shapes[node.name].as_proto())
    functions = definition.library.function
    for one in (*functions, *_nodes(definition)):
        for name in NOT_INLINED:
            one.attr.pop(name, None)
    for node in _nodes(definition):
        if node.op == "IteratorGetNext" and elements:
            shown = node.attr["output_shapes"].list
            del shown.shape[:]
            shown.shape.extend(one.shape.as_proto() for one in elements)
    return definition


def _nodes(definition: Any) -> Iterator[Any]:
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def _inlined(definition: Any, graph: Any) -> Any:
    meta = export_meta_graph(graph_def=definition, graph=graph)
    wanted = [one.name for one in graph.outputs]
    wanted += [one.name for one in graph.control_outputs]
    wanted += [one.name for one in graph.get_operations() if one.type.startswith("Assign")]
    wanted += [one.name for one in graph.get_operations() if one.type.startswith("ResourceApply")]
    meta.collection_def["train_op"].node_list.value.extend(wanted)
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.remapping = options.OFF  # it joins operators for the processor alone
    return tf_optimizer.OptimizeGraph(config, meta)


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


def _as_table(flat: Any, variables: Dict[str, Tuple[Tuple[int, ...], int]]) -> FlatGraph:
    sizes: Dict[str, TensorSize] = {}
    lasting: List[str] = []
    bounded: List[str] = []
    operators: List[FlatOperator] = []
    for name, (shape, dtype) in variables.items():
        sizes[f"{name}:0"] = TensorSize(shape, tf.as_dtype(dtype).size)
        lasting.append(f"{name}:0")
    for one in flat.get_operations():
        inputs = [tensor.name for tensor in one.inputs]
        read = _attribute(one, "_reads")
        if read is not None:
            inputs = [read.decode() + ":0"]
        for number, tensor in enumerate(one.outputs):
            if tensor.name not in sizes:
                sizes[tensor.name] = _size(one, number, tensor, sizes, bounded)
                if one.type in ("Placeholder", "Const") and read is None:
                    lasting.append(tensor.name)
        operators.append(
            FlatOperator(
                one.name, one.type if read is None else "ReadVariableOp", inputs,
                [tensor.name for tensor in one.outputs],
                [before.name for before in one.control_inputs], _attributes(one),
            )
        )  # fmt: skip
    return FlatGraph(operators, sizes, lasting, [], 0, sorted(set(bounded)))


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


def _attribute(operator: Any, name: str) -> Optional[Any]:
    try:
        return operator.get_attr(name)
    except ValueError:
        return None


def _attributes(operator: Any) -> Dict[str, Any]:
    names = ("transpose_a", "adj_x", "equation")
    found = {name: _attribute(operator, name) for name in names}
    known: Dict[str, Any] = {
        name: one.decode() if isinstance(one, bytes) else one
        for name, one in found.items()
        if one is not None
    }
    known["device"] = operator.device
    return known


def _trainable(graph: Any) -> int:
    return sum(int(one.shape.num_elements() or 0) for one in graph.trainable_variables)
