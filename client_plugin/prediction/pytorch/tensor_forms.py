"""The two forms of a tensor on a GPU that is not there: fake on `cuda`, or on the device `meta`.

A fake tensor keeps all rules of `cuda`, autocast among them, but needs parts of PyTorch that differ
between versions. A tensor on `meta` is made by any version; here it says that it is on `cuda`.
Knows: how operators run without values. Must not know: what is recorded.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

GPU = torch.device("cuda", 0)
META = torch.device("meta")
VALUES_MATTER = (
    "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "index",
    "repeat_interleave", "bincount",
)  # fmt: skip
"""Operators whose result may have any size, as values say."""


class SizeDependsOnValues(Exception):
    """The size of a result depends on values."""


class FakeForm:
    """Fake tensors on `cuda`."""

    method = "hybrid"
    devices = ("cuda",)
    """Devices by which an operator makes a tensor on the GPU."""

    def __init__(self) -> None:
        # the fallback runs an operator's kernel on a real tensor of the GPU
        self.fakes = FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True)

    def is_without_values(self, one: Any) -> bool:
        return isinstance(one, FakeTensor)

    def is_on_gpu(self, one: Any) -> bool:
        return isinstance(one, FakeTensor) and one.device.type == "cuda"

    def is_for_processor(self, one: Any) -> bool:
        """Whether a result belongs to the processor."""
        return isinstance(one, FakeTensor) and one.device.type != "cuda"

    def without_values(self, one: Any) -> Any:
        """A real tensor of the processor, as a fake one of its shape.

        A device of any number is the one GPU: each rank of a launcher takes the memory of its own.
        """
        if isinstance(one, torch.device):
            return GPU if one.type == "cuda" else one
        if not isinstance(one, torch.Tensor) or isinstance(one, FakeTensor):
            return one
        shape = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta")
        return FakeTensor(self.fakes, shape, one.device)

    def run(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Raises SizeDependsOnValues or NotImplementedError."""
        try:
            with self.fakes:
                return func(*args, **kwargs)
        except DynamicOutputShapeException as error:
            raise SizeDependsOnValues from error
        except UnsupportedOperatorException as error:
            raise NotImplementedError(str(error)) from error

    def home(self, out: Any, is_to_processor: bool) -> Any:
        """The results; those on the processor are known as such."""
        return out

    def call(self, make: Callable[[], Any]) -> Any:
        with self.fakes:
            return make()


class ForProcessor:
    """A result that belongs to the processor: its shape and type."""

    def __init__(self, made: torch.Tensor) -> None:
        self.shape, self.dtype = made.shape, made.dtype
        self._stride: Tuple[int, ...] = tuple(made.stride())

    def stride(self) -> Tuple[int, ...]:
        return self._stride


FROM_VALUES = (torch.tensor, torch.as_tensor)


class CudaToMeta(TorchFunctionMode):
    """Each call that names the device `cuda` names `meta`."""

    def __torch_function__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **kwargs)  # the call that takes it names `meta`
        name = getattr(func, "__name__", "")
        if name == "cuda" and args and isinstance(args[0], torch.Tensor):
            return func.__objclass__.to(args[0], META)
        if name == "to" and len(args) > 1 and type(args[1]) is int:
            args = (args[0], META, *args[2:])
        if type(kwargs.get("device")) is int:
            kwargs["device"] = META
        args, kwargs = tree_map(_as_meta, (args, kwargs))
        if func in FROM_VALUES and kwargs.get("device") == META:
            needs_gradient = kwargs.pop("requires_grad", False)
            made = func(*args, **{**kwargs, "device": None}).to(META)  # its values are known
            return made.requires_grad_() if needs_gradient else made
        return func(*args, **kwargs)


def _as_meta(one: Any) -> Any:
    if isinstance(one, torch.device):
        return META if one.type == "cuda" else one
    if isinstance(one, str) and (one == "cuda" or one.startswith("cuda:")):
        return META
    return one


class MetaForm:
    """Tensors on `meta` that say `cuda`."""

    method = "meta"
    devices = ("cuda", "meta")

    def __init__(self) -> None:
        base: Any = torch._C.TensorBase
        self._calls = CudaToMeta()
        self._is_running = False
        """PyTorch's own code for `meta` is to see the true device."""
        self._is_meta = base.is_meta.__get__
        self._plain_device = base.device.__get__

    def install(self) -> None:
        """Calls that name `cuda` make tensors on `meta` from now on.

        Of each tensor on `meta`, `device` is `cuda:0` for Python.
        """
        self._calls.__enter__()
        tensor: Any = torch.Tensor
        is_meta, plain = self._is_meta, self._plain_device
        is_cuda = tensor.is_cuda.__get__
        tensor.device = property(
            lambda one: GPU if is_meta(one) and not self._is_running else plain(one)
        )
        tensor.is_cuda = property(
            lambda one: is_cuda(one) or (not self._is_running and is_meta(one))
        )

    def is_without_values(self, one: Any) -> bool:
        return isinstance(one, torch.Tensor) and bool(self._is_meta(one))

    is_on_gpu = is_without_values

    def is_for_processor(self, one: Any) -> bool:
        return isinstance(one, ForProcessor)

    def without_values(self, one: Any) -> Any:
        if isinstance(one, torch.device):
            return META
        if not isinstance(one, torch.Tensor) or self._is_meta(one):
            return one
        return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta")

    def run(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        before, self._is_running = self._is_running, True
        try:
            return func(*args, **kwargs)
        except NotImplementedError as error:
            if func._schema.name.partition("::")[2] in VALUES_MATTER:
                raise SizeDependsOnValues from error
            raise
        finally:
            self._is_running = before

    def home(self, out: Any, is_to_processor: bool) -> Any:
        return tree_map(ForProcessor, out) if is_to_processor else out

    def call(self, make: Callable[[], Any]) -> Any:
        before, self._is_running = self._is_running, True
        try:
            return make()
        finally:
            self._is_running = before
