"""Attributes of tensors, their classes of a program's own, and shapes that are still unknown.

A tensor without values is another object than the one that was moved: it gets them here. Knows:
Python's side of tensors. Must not know: operators, what is recorded, files.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Callable, Dict

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

PREFIX = "_nodemgr_"
KIND, MOVED = f"{PREFIX}kind", f"{PREFIX}moved"
with FakeTensorMode():
    OWN = frozenset(vars(torch.empty(0))) | {"_is_param"}
"""Attributes that PyTorch gives each fake tensor."""

_fake_kinds: Dict[Any, Any] = {}


def attributes(one: Any) -> Dict[str, Any]:
    """Those of the program."""
    known = vars(one).items()
    return {name: value for name, value in known if name not in OWN and PREFIX not in name}


def kind(one: Any) -> Any:
    """The class that the program knows."""
    if isinstance(one, FakeTensor) and not hasattr(type(one), KIND):
        return torch.nn.Parameter if isinstance(one, torch.nn.Parameter) else torch.Tensor
    return getattr(type(one), KIND, type(one))


def become(one: Any, wanted: Any) -> Any:
    """`one` as a tensor of the program's own class; a class with slots is left out."""
    if wanted not in (torch.Tensor, torch.nn.Parameter):
        with suppress(TypeError):
            one.__class__ = _fake_kind(wanted) if isinstance(one, FakeTensor) else wanted
    return one


def _fake_kind(wanted: Any) -> Any:
    if wanted not in _fake_kinds:
        own = {KIND: wanted, "__module__": wanted.__module__}
        made = type(wanted)(wanted.__name__, (wanted, FakeTensor), own)
        override = wanted.__torch_function__
        if hasattr(override, "__func__"):  # a class of fake tensors was given none
            made.__torch_function__ = classmethod(override.__func__)
        _fake_kinds[wanted] = made
    return _fake_kinds[wanted]


def move_later(one: Any, fn: Callable[[Any], Any]) -> Any:
    """A tensor without a shape stays; an empty tensor is moved in its place, until it has one."""
    data = getattr(one, MOVED, None)
    setattr(one, MOVED, fn(torch.empty(0, dtype=one.data.dtype) if data is None else data))
    return one


def install(is_fake: Callable[[Any], bool]) -> None:
    tensor: Any = torch.Tensor
    parameter: Any = torch.nn.parameter
    lazy = parameter.UninitializedTensorMixin
    as_subclass, materialize = tensor.as_subclass, lazy.materialize

    def converted(self: Any, wanted: Any) -> Any:
        wanted = getattr(wanted, KIND, wanted)
        if is_fake(self):
            return become(torch.ops.aten.alias(self), wanted)
        return as_subclass(self, wanted)

    def materialized(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        data = getattr(self, MOVED, self.data)
        made = torch.empty(shape, device=device or data.device, dtype=dtype or data.dtype)
        if not is_fake(made):
            materialize(self, shape, device, dtype)
            return
        is_parameter = isinstance(self, torch.nn.Parameter)
        if isinstance(made, FakeTensor):  # no copy, to which PyTorch keeps a reference
            made.requires_grad_(self.requires_grad)
            setattr(made, "_is_param", is_parameter)  # noqa: B010
        elif is_parameter:
            made = torch.nn.Parameter(made, self.requires_grad)
        vars(made).update(attributes(self))
        torch.utils.swap_tensors(self, made)

    tensor.as_subclass, lazy.materialize = converted, materialized
    for each in (UninitializedBuffer, UninitializedParameter):
        setattr(each, "__new__", _without_shape(each.__new__, is_fake))  # noqa: B010


def _without_shape(make: Any, is_fake: Callable[[Any], bool]) -> Any:
    """A lazy module can be made on the GPU."""

    def made(cls: Any, *args: Any, device: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
        data = torch.empty(0, device=device, dtype=dtype)
        one = make(cls, *args, device="cpu", dtype=data.dtype, **kwargs)
        if is_fake(data):
            setattr(one, MOVED, data)
        return one

    return made
