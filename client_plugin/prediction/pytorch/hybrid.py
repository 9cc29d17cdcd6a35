"""The hybrid: tensors of the processor are real, tensors on `cuda` have no values.

A dispatch mode sees each operator. One that touches such a tensor, or makes a tensor on `cuda`,
runs without values and is recorded; any other runs as it is. A value that comes back from the GPU
is the real one where it is known (shadows), else a stand-in, which is counted.

Knows: operators. Must not know: how tensors have no values (tensor_forms), torch.cuda's functions
(stubs), files, processes.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Set, Tuple, Union

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ...messages import prediction as messages
from . import operator_forms
from .recorder import Recorder
from .shadows import Shadows
from .tensor_forms import FakeForm, MetaForm, SizeDependsOnValues

UNCHANGED = (
    "_amp_foreach_non_finite_check_and_unscale_",
    "_amp_update_scale_",
    "record_stream",
)
"""Operators that change values alone, or nothing; their results are their first arguments."""


class Hybrid(TorchDispatchMode):
    """The mode, one for a process."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.form: Union[FakeForm, MetaForm] = FakeForm()
        self.shadows = Shadows(self.is_fake)
        self.bounded: Set[str] = set()
        """Operators whose result has a size that depends on values: the upper bound was taken."""
        self.trouble: Optional[str] = None
        """Why the script cannot be followed further."""
        self.is_on = True
        self.current = 0
        """The number that the program has set; 0 in a call may mean it."""
        self.numbers: List[int] = []
        """Of the GPUs that the program has named."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False  # only a driver pins memory
        leaves = tree_leaves((args, kwargs))
        if not self.is_on or not any(map(self._touches_gpu, leaves)):
            return func(*args, **kwargs)
        for one in leaves:
            if isinstance(one, torch.device) and one.type == "cuda":
                self._named(one.index or self.current)
        self._refuse_nested(func, leaves)
        name = func._schema.name.partition("::")[2]
        if name == "_local_scalar_dense":
            return self.shadows.value(args[0])
        if name == "equal":
            return self.shadows.equal(args[0], args[1])
        if name in UNCHANGED:
            return args[0] if func._schema.returns else None
        if name.endswith("_") and isinstance(args[0], torch.Tensor) and not self.is_fake(args[0]):
            return args[0]  # a tensor of the processor takes values that are not known
        out = self._run(name, func, args, kwargs)
        self._record(func, args, leaves, out)
        out = tree_map(lambda one: self._home(one, args), out)
        self.shadows.follow(name, func, args, kwargs, out)
        return out

    def _named(self, number: int) -> None:
        """Of a program that has named another GPU first, 0 is the number of each tensor here."""
        if number not in self.numbers and (number or not self.numbers):
            self.numbers.append(number)

    def _refuse_nested(self, func: Any, leaves: List[Any]) -> None:
        for one in leaves:
            if isinstance(one, torch.Tensor) and one.is_nested:
                self._give_up(messages.LAYOUT_NOT_FOLLOWED(operator=func, layout=one.layout))
                raise NotImplementedError(str(self.trouble))

    def is_fake(self, one: Any) -> bool:
        return self.form.is_on_gpu(one)

    def _run(self, name: str, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        if name == "_pack_padded_sequence":
            shape, rows = operator_forms.packed_sequence(*args)
            return self.form.call(lambda: args[0].new_empty(shape)), rows
        if name == "_ctc_loss":
            return self.form.call(lambda: operator_forms.ctc_loss(*args))
        is_to_processor = getattr(kwargs.get("device"), "type", "cuda") == "cpu"
        args, kwargs = tree_map(self.form.without_values, (args, kwargs))
        try:
            return self.form.home(self.form.run(func, args, kwargs), is_to_processor)
        except SizeDependsOnValues:
            self.bounded.add(name)
            bound = self.form.call(lambda: _upper_bound(name, args))
            if bound is not None:
                return bound
            self._give_up(messages.NO_FAKE_FORM(operator=func))
            raise
        except NotImplementedError:
            self._give_up(messages.NO_FAKE_FORM(operator=func))
            raise

    def _give_up(self, reason: str) -> None:
        self.trouble = self.trouble or reason

    def _record(self, func: Any, args: Tuple[Any, ...], leaves: List[Any], out: Any) -> None:
        inputs = [one for one in leaves if isinstance(one, torch.Tensor)]
        outputs = [one for one in tree_leaves(out) if self.is_fake(one)]
        for one in outputs:
            if one.layout is not torch.strided:
                self._give_up(messages.LAYOUT_NOT_FOLLOWED(operator=func, layout=one.layout))
                raise NotImplementedError(str(self.trouble))
            self.recorder.storage(one)
        if func is torch.ops.aten._to_copy.default and outputs and not self.is_fake(args[0]):
            self.recorder.came_from_processor(args[0].shape)
        if outputs:
            self.recorder.node(func, inputs, outputs, args)

    def _home(self, one: Any, args: Tuple[Any, ...]) -> Any:
        """A result on the processor is a real tensor again."""
        if not self.form.is_for_processor(one):
            return one
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        return self.shadows.on_processor(one, source)

    def _touches_gpu(self, one: Any) -> bool:
        if isinstance(one, torch.device):
            return one.type in self.form.devices
        return self.form.is_without_values(one)


def _upper_bound(name: str, args: Tuple[Any, ...]) -> Optional[Any]:
    """The largest result: every element of the mask is true, every value is another one."""
    source = args[0]
    if name == "nonzero":
        return source.new_empty((source.numel(), source.dim()), dtype=torch.long)
    if name == "bincount":
        least = args[2] if len(args) > 2 else 0  # named: the number of classes
        return source.new_empty((least or source.numel(),), dtype=torch.long)
    if name == "masked_select":
        return source.new_empty((source.numel(),))
    if name in ("_unique2", "unique_dim", "unique_consecutive"):
        empty = source.new_empty((source.numel(),), dtype=torch.long)
        return source.new_empty((source.numel(),)), empty, empty.clone()
    if name == "index":
        indices: List[Any] = []
        for index in args[1]:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                positions = index.new_empty((index.numel(),), dtype=torch.long)
                indices += [positions] * index.dim()
            else:
                indices.append(index)
        return torch.ops.aten.index.Tensor(source, indices)
    return None
