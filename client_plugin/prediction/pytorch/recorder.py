"""A record of a training on fake tensors: the lives of storages, and the nodes of each step.

Knows: storages, sizes, which operators are views. Must not know: how fake tensors are made, when
the training is stopped.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from .. import operation_costs
from ..caching_allocator import StorageEvent
from ..features import KindTable, StepWork
from ..operation_costs import NodeSizes, TensorSize

HALVES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
FREE = ("detach", "alias", "empty", "empty_like", "empty_strided", "new_empty", "set_", "_to_copy")
"""Operators that compute nothing; _to_copy moves bytes, which are counted."""


class StepRecord:
    """The nodes of one training step."""

    def __init__(self) -> None:
        self.work = StepWork()
        self.kinds = KindTable()
        self.depth = 0
        self.start_live_bytes = 0
        self.activation_bytes: Optional[int] = None
        self.came: Tuple[int, ...] = ()
        """The shape of the first tensor that came from the processor; a number has none."""
        self.first_input: Tuple[int, ...] = ()
        """The shape of the first tensor that the model got."""

    @property
    def batch(self) -> Tuple[int, ...]:
        """The shape of the batch, without a dimension where it is not known."""
        return self.first_input or self.came


class Recorder:
    """Storages on the fake GPU, and the step that is under way."""

    def __init__(self, begun: Callable[[], None] = lambda: None) -> None:
        """`begun` is called when the first tensor is on the GPU."""
        self._begun = begun
        self.events: List[StorageEvent] = []
        self.live_bytes = 0
        self.peak_live_bytes = 0
        self.step = StepRecord()
        self.last_step: Optional[StepRecord] = None
        self._alive: Dict[int, Tuple[Any, int, int]] = {}
        self.has_products = False
        """Whether cuBLAS was used."""
        self.has_plain_products = False
        """Whether one was made without a gradient."""
        self.batches: List[Tuple[int, ...]] = []
        """The shapes of batches, each once."""
        self.later_bytes = 0
        """Memory that steps after the recorded ones keep."""
        self._count = 0

    def storage(self, tensor: torch.Tensor) -> None:
        """A tensor on the fake GPU was made; its storage is new or known."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        number, size = self._count, storage.nbytes()
        self._count += 1
        reference = weakref.ref(storage, lambda _gone: self._freed(key))
        self._alive[key] = (reference, number, size)
        self.events.append(StorageEvent(number, size))
        if len(self.events) == 1:
            self._begun()
        self.live_bytes += size
        self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes)

    def _freed(self, key: int) -> None:
        _, number, size = self._alive.pop(key)
        self.events.append(StorageEvent(number, 0, is_freed=True))
        self.live_bytes -= size

    def extra(self, size: int) -> None:
        """Memory that a library takes and keeps."""
        self.events.append(StorageEvent(self._count, size))
        self._count += 1
        self.live_bytes += size
        self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes)

    def with_libraries(self) -> List[StorageEvent]:
        """The events, with the memory that libraries take for themselves, and later steps."""
        workspace = operation_costs.MATRIX_WORKSPACE_BYTES if self.has_products else 0
        return [StorageEvent(-1, workspace), StorageEvent(-2, self.later_bytes), *self.events]

    def passing(self, size: int) -> None:
        """Memory that a kernel takes and gives back."""
        if size:
            self.events.append(StorageEvent(self._count, size))
            self.events.append(StorageEvent(self._count, 0, is_freed=True))
            self._count += 1
            self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes + size)

    def came_from_processor(self, shape: Sequence[int]) -> None:
        self.step.came = self.step.came or tuple(shape)

    def node(self, operator: Any, inputs: List[torch.Tensor], outputs: List[torch.Tensor],
             arguments: Sequence[Any]) -> None:  # fmt: skip
        name = operator._schema.name.partition("::")[2]
        is_backward = torch._C._current_graph_task_id() != -1
        if is_backward and self.step.activation_bytes is None:
            self.step.activation_bytes = max(0, self.live_bytes - self.step.start_live_bytes)
        if operator.is_view or name in FREE[:-1]:
            return
        sizes = _node_sizes(name, inputs, outputs, arguments)
        if not _is_in_order(inputs):
            self.passing(operation_costs.workspace_bytes(name, sizes))
        self.has_products |= name in operation_costs.MATRIX_PRODUCTS
        is_plain = name in operation_costs.FORMULAS and not torch.is_grad_enabled()
        self.has_plain_products |= is_plain and not is_backward
        step = self.step
        operations = 0 if name in FREE else operation_costs.operations(name, sizes)
        step.depth += name in operation_costs.FORMULAS and not is_backward
        step.work.add(_precision(name, inputs), operations, operation_costs.bytes_moved(sizes))
        for kind, elements in operation_costs.kinds(name, sizes):
            step.kinds.add(kind, elements)

    def step_ended(self) -> None:
        if self.step.batch and self.step.batch not in self.batches:
            self.batches.append(self.step.batch)
        self.last_step, self.step = self.step, StepRecord()
        self.step.start_live_bytes = self.live_bytes


def _is_in_order(inputs: List[torch.Tensor]) -> bool:
    """Whether the images have the order that the kernels of convolutions read."""
    return any(
        one.dim() == 4
        and one.size(1) > 1
        and one.is_contiguous(memory_format=torch.channels_last)
        and not one.is_contiguous()
        for one in inputs[:2]
    )


def _node_sizes(
    name: str, inputs: List[torch.Tensor], outputs: List[torch.Tensor], arguments: Sequence[Any]
) -> NodeSizes:
    sizes = NodeSizes(
        [TensorSize(tuple(one.shape), one.element_size()) for one in inputs],
        [TensorSize(tuple(one.shape), one.element_size()) for one in outputs],
    )
    if name == "convolution" and len(arguments) > 6:
        return sizes._replace(is_transposed=bool(arguments[6]))
    if name == "convolution_backward" and len(arguments) > 10:
        return sizes._replace(output_mask=tuple(arguments[10]), is_transposed=bool(arguments[7]))
    if name == "_scaled_dot_product_flash_attention" and len(arguments) > 4:
        return sizes._replace(is_causal=bool(arguments[4]))
    return sizes


def _precision(name: str, inputs: List[torch.Tensor]) -> str:
    kind = inputs[0].dtype if inputs else torch.float32
    if kind is torch.float64:
        return "float64"
    if name not in operation_costs.TENSOR_CORES:
        return "float32"
    if kind in HALVES:
        return HALVES[kind]
    is_convolution = name.startswith("convolution")
    allowed = (
        torch.backends.cudnn.allow_tf32 if is_convolution else torch.backends.cuda.matmul.allow_tf32
    )
    return "tf32" if allowed else "float32"
