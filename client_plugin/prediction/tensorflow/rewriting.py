"""TensorFlow's own rewriting of a graph before a run, for a GPU that is not there.

Calls of functions are put in their place, constants computed, operators joined, and images brought
into the order that the device reads, as on the devices that a virtual cluster names. Knows:
TensorFlow's optimizer and its description of devices. Must not know: the forecast.
"""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple

from tensorflow.core.protobuf import config_pb2, device_properties_pb2
from tensorflow.python.grappler import cluster, tf_optimizer
from tensorflow.python.training.saver import export_meta_graph

NOT_INLINED = ("_XlaMustCompile", "_noinline")
"""Attributes that keep a call as it is."""
WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter")
PLACE = "/job:localhost/replica:0/task:0/device:"


class Device(NamedTuple):
    """The device on which the operators of a graph run, as the optimizer sees it."""

    kind: str
    memory_bytes: int
    vendor: str = ""
    model: str = ""
    frequency_mhz: int = 0
    cores: int = 0
    capability: str = ""


GPU = Device("GPU", 80 << 30, "NVIDIA", "A100-SXM4-80GB", 1_410, 108, "8.0")
PROCESSOR = Device("CPU", 256 << 20, frequency_mhz=2_000, cores=1)
"""The memory is TensorFlow's own default for a processor: its optimizer moves work to save it."""


def rewritten(definition: Any, graph: Any, device: Device) -> Any:
    """`definition` (of `graph`, a function's) as `device` would run it. Raises TensorFlow's errors.

    Operators that the program puts on the processor itself stay there. A call that XLA would
    compile is like any other. No node of the result names a device.
    """
    for function in definition.library.function:
        for name in NOT_INLINED:
            function.attr.pop(name, None)
    for node in all_nodes(definition):
        for name in NOT_INLINED:
            node.attr.pop(name, None)
        if "CPU" not in node.device.upper() or device.kind == "CPU":
            node.device = f"{PLACE}{device.kind}:0"
    meta = export_meta_graph(graph_def=definition, graph=graph)
    wanted = [one.name for one in (*graph.outputs, *graph.control_outputs)]
    wanted += [one.name for one in graph.get_operations() if one.type.startswith(WRITES)]
    meta.collection_def["train_op"].node_list.value.extend(wanted)
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    devices = [_described(one) for one in {PROCESSOR.kind: PROCESSOR, device.kind: device}.values()]
    found = tf_optimizer.OptimizeGraph(config, meta, cluster=cluster.Cluster(devices=devices))
    for node in found.node:
        node.device = ""  # the import of a graph spends a third of its time on devices
    return found


def all_nodes(definition: Any) -> Iterator[Any]:
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def _described(device: Device) -> Any:
    named = device_properties_pb2.NamedDevice(name=f"{PLACE}{device.kind}:0")
    known = named.properties
    known.type, known.vendor, known.model = device.kind, device.vendor, device.model
    known.frequency, known.num_cores = device.frequency_mhz, device.cores
    known.memory_size = device.memory_bytes
    if device.capability:
        known.environment["architecture"] = device.capability
    return named
