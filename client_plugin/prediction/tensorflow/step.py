"""The outcome of one training step of TensorFlow: its memory, work and kinds of operators.

Knows: the flat graph. Must not know: how a program is watched.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import tensorflow as tf

from .. import bfc_allocator, dataflow, graph_costs, graph_workspaces
from ..dataflow import Flow, FlowNode
from ..features import KindTable, StepWork
from ..graph_costs import GraphNode
from ..operation_costs import TensorSize
from .flat_graph import FlatGraph, FlatOperator, flatten

BACKWARD = "gradient_tape/"
"""A part of the names of the nodes that compute gradients."""
ASSIGNS = ("Assign", "ResourceApply", "ResourceSparseApply")
COMPILED = "_XlaMustCompile"
"""The attribute of a function, or of its call, that XLA compiles."""
FREE = dataflow.ALIASES | {"Const", "Placeholder", "NoOp", "Shape", "ShapeN", "ReadVariableOp"}
LOOPS = ("While", "StatelessWhile", "NextIteration", "DatasetReduce", "ReduceDataset")


def is_training(concrete: Any) -> bool:
    """Whether the function computes gradients."""
    return any(BACKWARD in one.name for one in _all_nodes(concrete))


def updates_weights(concrete: Any) -> bool:
    return any(one.op.startswith(ASSIGNS) for one in _all_nodes(concrete))


def has_loop(concrete: Any) -> bool:
    """Whether gradients are computed inside a loop of the graph: so often as values say."""
    library = {one.signature.name: one for one in _definition(concrete).library.function}
    inside: List[str] = []
    for node in _all_nodes(concrete):
        if node.op in LOOPS:
            inside += [one.func.name for one in node.attr.values() if one.func.name]
    seen = set()
    while inside:
        name = inside.pop()
        if name in seen or name not in library:
            continue
        seen.add(name)
        for node in library[name].node_def:
            if BACKWARD in node.name or node.op in graph_costs.FORMULAS:
                return True
            inside += [one.func.name for one in node.attr.values() if one.func.name]
    return False


def _definition(concrete: Any) -> Any:
    return concrete.graph.as_graph_def()


def _all_nodes(concrete: Any) -> Iterable[Any]:
    definition = _definition(concrete)
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def outcome_of(
    concrete: Any, arguments: Sequence[Any] = (), elements: Sequence[Any] = ()
) -> Dict[str, Any]:
    """As outcome.py has it, without what the program did around the step."""
    graph = flatten(concrete, arguments, elements)
    nodes = {one.name: one for one in graph.operators}
    flow = flow_of(graph, graph_workspaces.of_gpu)
    events, ran = dataflow.lives(flow)
    use = bfc_allocator.needed(events)
    work, kinds, depth = _costs([graph.operators[at] for at in ran], graph.sizes)
    batch = _largest(graph.arguments)
    return {
        "framework": f"tensorflow {tf.__version__} graph",
        "steps": 2,  # variables of the optimizer are in the graph: later steps are like this one
        "backwards": 1,
        "live_peak_bytes": use.live_peak_bytes,
        "allocated_peak_bytes": use.allocated_peak_bytes,
        "reserved_peak_bytes": use.reserved_peak_bytes,
        "kinds": kinds.elements(),
        "work": work.rows(),
        "kernels": work.kernels,
        "depth": depth,
        "operations": work.operations,
        "bytes": work.moved_bytes,
        "activation_bytes": _activations(graph, nodes),
        "parameters": graph.trainable_elements,
        "batch_size": batch.shape[0] if batch is not None else None,
        "input_elements": batch.elements if batch is not None else None,
        "stand_ins": 0,
        "bounded": graph.bounded,
    }


def is_on_processor(concrete: Any, scope: str = "") -> bool:
    """Whether the program has put the products of its matrices on the processor.

    `scope`: the device that `tf.device` names around the call, for nodes that name none.
    """
    heavy = [one for one in _all_nodes(concrete) if one.op in graph_costs.FORMULAS]
    return bool(heavy) and all("CPU" in (one.device or scope).upper() for one in heavy)


def is_compiled(concrete: Any) -> bool:
    """Whether XLA compiles a part of it."""
    parts = (concrete.function_def, *_definition(concrete).library.function, *_all_nodes(concrete))
    return any(COMPILED in one.attr and one.attr[COMPILED].b for one in parts)


def flow_of(graph: FlatGraph, workspace: Callable[[GraphNode], int]) -> Flow:
    """Tensors and nodes by number; `workspace`: the bytes that a kernel takes beside tensors."""
    number = {name: at for at, name in enumerate(graph.sizes)}
    place = {one.name: at for at, one in enumerate(graph.operators)}
    nodes = []
    for one in graph.operators:
        is_start = one.kind in ("Placeholder", "Const")
        outputs = [] if is_start else [number[name] for name in one.outputs]
        waits = [place[name] for name in one.waits_for if name in place]
        inputs = [number[name] for name in one.inputs if name in number]
        scratch = workspace(_costed(one, graph.sizes))
        nodes.append(FlowNode(one.kind, inputs, outputs, waits, scratch))
    sizes = [size.bytes for size in graph.sizes.values()]
    variables = frozenset(number[name] for name in graph.variables)
    return Flow(nodes, sizes, [number[name] for name in graph.lasting], variables)


def _costed(operator: FlatOperator, sizes: Dict[str, TensorSize]) -> GraphNode:
    return GraphNode(
        operator.kind,
        [sizes[name] for name in operator.inputs if name in sizes],
        [sizes[name] for name in operator.outputs],
        operator.attributes,
    )


def _costs(
    operators: Iterable[FlatOperator], sizes: Dict[str, TensorSize]
) -> Tuple[StepWork, KindTable, int]:
    work, kinds, depth = StepWork(), KindTable(), 0
    for one in operators:
        node = _costed(one, sizes)
        if one.kind in FREE or not any(size.bytes for size in (*node.outputs, *node.inputs)):
            continue
        for kind, elements in graph_costs.kinds(node):
            kinds.add(kind, elements)
        work.add(_precision(node), graph_costs.operations(node), graph_costs.bytes_moved(node))
        depth += one.kind in graph_costs.FORMULAS and BACKWARD not in one.name
    return work, kinds, depth


PRECISIONS = {8: "float64", 4: "float32", 2: "float16"}


def _precision(node: GraphNode) -> str:
    widths = [one.element_bytes for one in node.outputs or node.inputs]
    precision = PRECISIONS.get(widths[0] if widths else 4, "float32")
    if node.kind not in graph_costs.FORMULAS:
        return "float64" if precision == "float64" else "float32"
    if precision == "float32" and tf.config.experimental.tensor_float_32_execution_enabled():
        return "tf32"
    return precision


def _activations(graph: FlatGraph, nodes: Dict[str, FlatOperator]) -> int:
    """Bytes that forward nodes make and backward nodes read."""
    lasting = set(graph.lasting)
    saved = {
        name
        for one in nodes.values()
        if BACKWARD in one.name
        for name in one.inputs
        if name not in lasting and BACKWARD not in name
    }
    reads = {name for one in nodes.values() if one.kind == "ReadVariableOp" for name in one.outputs}
    return sum(graph.sizes[name].bytes for name in saved - reads if name in graph.sizes)


def _largest(arguments: List[TensorSize]) -> Optional[TensorSize]:
    """The first argument that has a batch."""
    return next((one for one in arguments if one.shape), None)
