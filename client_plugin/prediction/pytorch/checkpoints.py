"""`torch.save` and `torch.load` where tensors on the GPU have no values.

A file holds their shapes; a tensor of the processor is in it as it is. Without a private view of
the disk no file is written: it would take the place of a checkpoint with values. Knows: what
`torch.save` writes. Must not know: how tensors have no values, operators.
"""

from __future__ import annotations

import os
import pickle
import types
from typing import Any, Callable, Dict, List, Tuple, Type

import torch
from torch.utils._pytree import tree_map

from .. import outcome

CPU = torch.device("cpu")
_loading: List[CheckpointLoad] = []
"""The loads that are under way, the innermost last."""


class CheckpointLoad:
    """One load: where its tensors go."""

    def __init__(self, map_location: Any) -> None:
        self._map_location = map_location
        self._on_gpu: Dict[int, Any] = {}
        """Storages that the file has on the GPU; they are kept, so that no address is reused."""
        self._made: Dict[Tuple[Any, ...], torch.Tensor] = {}

    def device(self, location: str) -> torch.device:
        """A function as `map_location` is not asked: most of them name the processor."""
        place = self._map_location
        if isinstance(place, dict):
            place = place.get(location, location)
        elif place is None:
            place = location
        elif callable(place):
            return CPU
        return torch.device("cuda") if str(place).startswith("cuda") else CPU

    def storage(self, storage: Any, location: str) -> Any:
        if self.device(location) != CPU:
            self._on_gpu[storage._cdata] = storage
        return storage

    def moved(self, one: Any) -> Any:
        if isinstance(one, torch.nn.Module):
            return one.cuda() if self._on_gpu else one
        is_moved = (
            isinstance(one, torch.Tensor)
            and one.layout is torch.strided
            and one.device == CPU
            and one.untyped_storage()._cdata in self._on_gpu
        )
        return one.cuda() if is_moved else one

    def made(self, form: Tuple[Any, ...]) -> torch.Tensor:
        """Tensors that shared a storage and a shape share one again."""
        if form not in self._made:
            _storage, shape, stride, dtype = form
            fresh = torch.empty_strided(shape, stride, dtype=dtype, device=self.device("cuda:0"))
            self._made[form] = fresh.zero_()
        return self._made[form].detach()


def _rebuilt(form: Tuple[Any, ...], is_parameter: bool, requires_grad: bool) -> torch.Tensor:
    tensor = _loading[-1].made(form)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _pickler(is_without_values: Callable[[Any], bool]) -> Type[pickle.Pickler]:
    class ShapePickler(pickle.Pickler):
        """Writes a tensor on the GPU as its shape."""

        def reducer_override(self, one: Any) -> Any:
            if not is_without_values(one):
                return NotImplemented
            form = one.untyped_storage()._cdata, tuple(one.shape), one.stride(), one.dtype
            is_parameter = isinstance(one, torch.nn.Parameter)
            return _rebuilt, (form, is_parameter, one.requires_grad)

    return ShapePickler


def install(is_without_values: Callable[[Any], bool], say: Callable[[str], None]) -> None:
    """`say` gets the name of each file that the script saves."""
    is_confined = os.environ.get(outcome.CONFINED) == "1"
    plain_save, plain_load = torch.save, torch.load
    shapes = types.ModuleType("pickle")
    shapes.__dict__.update({**pickle.__dict__, "Pickler": _pickler(is_without_values)})
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals([_rebuilt])

    def save(thing: Any, f: Any, pickle_module: Any = None, *args: Any, **kwargs: Any) -> None:
        name = getattr(f, "name", f)
        if isinstance(name, (str, os.PathLike)):
            say(os.fspath(name))
            if not is_confined:
                return
        plain_save(thing, f, shapes, *args, **kwargs)

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        loading = CheckpointLoad(map_location)
        _loading.append(loading)
        try:
            return tree_map(loading.moved, plain_load(f, loading.storage, *args, **kwargs))
        finally:
            _loading.pop()

    torch.save, torch.load = save, load
