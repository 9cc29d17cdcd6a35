"""`torch.save`, `torch.load` and pickle where tensors on the GPU have no values.

A file holds their shapes, and the values that are known; a tensor of the processor is in it as it
is. Without a private view of the disk no file is written: it would take the place of a checkpoint
with values. Knows: how a tensor is pickled. Must not know: how tensors have no values, operators.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.utils._pytree import tree_map

from .. import outcome
from . import tensor_kinds
from .shadows import Shadows

CPU = torch.device("cpu")
Form = Tuple[Any, ...]
"""Of a tensor: its storage, shape, stride and type."""


class StorageOnGPU:
    """A storage of the processor that a program has moved to the GPU."""

    device = torch.device("cuda", 0)

    def __init__(self, source: Any) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def _restored(storage: Any, location: str) -> Optional[StorageOnGPU]:
    """PyTorch asks it first: GPUs of all numbers are the one GPU."""
    return StorageOnGPU(storage) if location.startswith("cuda") else None


class CheckpointLoad:
    """One load: where its tensors go."""

    def __init__(self, map_location: Any) -> None:
        serialization: Any = torch.serialization
        self._restore = serialization._get_restore_location(map_location)
        self._on_gpu: Dict[int, Any] = {}
        """Storages that the file has on the GPU; they are kept, so that no address is reused."""
        self._devices: Dict[int, torch.device] = {}
        """Number of a storage without values -> its device."""
        self._made: Dict[Form, torch.Tensor] = {}

    def storage(self, storage: Any, location: str) -> Any:
        """A storage of the file, where it stays a real one."""
        place = self._restore(storage, location)
        if not isinstance(place, StorageOnGPU):
            return place
        self._on_gpu[storage._cdata] = storage
        return storage

    def _device(self, form: Form) -> torch.device:
        """As PyTorch asks for it: once for each storage. Its bytes are not touched."""
        number, shape, stride, dtype = form
        if number not in self._devices:
            source = torch.empty_strided(shape, stride, dtype=dtype).untyped_storage()
            self._devices[number] = self._restore(source, "cuda:0").device
        return self._devices[number]

    def moved(self, one: Any) -> Any:
        if isinstance(one, torch.nn.Module):
            return one.cuda() if self._on_gpu else one
        is_moved = (
            isinstance(one, torch.Tensor)
            and one.layout is torch.strided
            and one.device == CPU
            and one.untyped_storage()._cdata in self._on_gpu
        )
        return self._like(one, self._shared(_form(one), one.detach().cuda)) if is_moved else one

    def rebuilt(
        self, form: Form, is_parameter: bool, requires_grad: bool, known: Optional[torch.Tensor],
        kind: Any, attributes: Dict[str, Any],
    ) -> torch.Tensor:  # fmt: skip
        """`kind`: None, or a class of the program's own. PyTorch saves none of a parameter."""

        def fresh() -> torch.Tensor:
            _storage, shape, stride, dtype = form
            made = torch.empty_strided(shape, stride, dtype=dtype, device=self._device(form))
            return made.zero_() if known is None else made.copy_(known)

        tensor = self._shared(form, fresh)
        if is_parameter:
            tensor = torch.nn.Parameter(tensor, requires_grad)
        else:
            tensor = tensor_kinds.become(tensor.requires_grad_(requires_grad), kind or torch.Tensor)
        vars(tensor).update(attributes)
        return tensor

    def _shared(self, form: Form, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Tensors that shared a storage and a shape share one again."""
        if form not in self._made:
            self._made[form] = make()
        return self._made[form].detach()

    def _like(self, source: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Of the same kind: a leaf of the graph stays one."""
        if isinstance(source, torch.nn.Parameter):
            tensor = torch.nn.Parameter(tensor, source.requires_grad)
        else:
            tensor = tensor_kinds.become(tensor, type(source)).requires_grad_(source.requires_grad)
        vars(tensor).update(vars(source))
        return tensor


class LoadsUnderWay(threading.local):
    """Of one thread, the innermost load last."""

    def __init__(self) -> None:
        self.loads: List[CheckpointLoad] = []


_loading = LoadsUnderWay()


def _form(one: torch.Tensor) -> Form:
    return one.untyped_storage()._cdata, tuple(one.shape), one.stride(), one.dtype


def _rebuilt(*described: Any) -> torch.Tensor:
    """Its name is in the files. Without `torch.load`, the tensor is on the GPU again."""
    loading = _loading.loads[-1] if _loading.loads else CheckpointLoad(None)
    return loading.rebuilt(*described)


def install(shadows: Shadows, say: Callable[[str], None], abstain: Callable[[str], None]) -> None:
    """`say` gets the name of each file that is not written.

    `abstain` gets the reason where a file may be written that the script has no name for here.
    """
    is_confined = os.environ.get(outcome.CONFINED) == "1"
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals([_rebuilt])

    def described(one: torch.Tensor) -> Tuple[Any, ...]:
        if not is_confined:
            abstain(
                "the program saves tensors on the GPU into memory or by pickle, and without a "
                "private view of the disk they could take the place of a checkpoint: leave "
                "--unconfined out, or save by torch.save to a file"
            )
        is_parameter = isinstance(one, torch.nn.Parameter)
        known = shadows.of(one) if one.is_contiguous() else None
        kind = None if is_parameter else tensor_kinds.kind(one)
        kind = None if kind is torch.Tensor else kind
        own = tensor_kinds.attributes(one)
        return _rebuilt, (_form(one), is_parameter, one.requires_grad, known, kind, own)

    _move_storages()
    for kind in (torch.Tensor, torch.nn.Parameter):
        _reduce_by(kind, shadows.is_fake, described)
    plain_save, plain_load = torch.save, torch.load

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        name = f if isinstance(f, (str, os.PathLike)) else getattr(f, "name", None)
        if not is_confined and isinstance(name, (str, os.PathLike)):
            say(os.fspath(name))
        else:
            plain_save(obj, f, *args, **kwargs)

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        loading = CheckpointLoad(map_location)
        _loading.loads.append(loading)
        try:
            return tree_map(loading.moved, plain_load(f, loading.storage, *args, **kwargs))
        finally:
            _loading.loads.pop()

    torch.save, torch.load = save, load


def _move_storages() -> None:
    """A storage is moved to the GPU by a function that `torch.load` asks."""
    storage: Any = torch.UntypedStorage
    plain: Any = getattr(storage, "to", None)  # older versions have `cuda` alone

    def to(self: Any, *, device: Any, **kwargs: Any) -> Any:
        is_gpu = torch.device(device).type == "cuda"
        return StorageOnGPU(self) if is_gpu else plain(self, device=device, **kwargs)

    if plain is not None:
        storage.to = to
    storage.cuda = lambda self, *_args, **_kwargs: StorageOnGPU(self)
    torch.serialization.register_package(0, lambda _storage: None, _restored)


def _reduce_by(
    kind: Any, is_without_values: Callable[[Any], bool], described: Callable[[Any], Any]
) -> None:
    """Each pickler asks this method: that of `torch.save`, of dill, of a launcher."""
    plain = kind.__reduce_ex__

    def reduced(one: Any, protocol: Any) -> Any:
        return described(one) if is_without_values(one) else plain(one, protocol)

    kind.__reduce_ex__ = reduced
