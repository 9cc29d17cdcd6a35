"""The state of a training as bytes for another worker: values in JSON, tensors raw, no pickle.

A pickle runs the code that it names, and a peer's socket proves nothing about its sender. Must not
know: models, sockets.
"""

from __future__ import annotations

import collections
import json
import math
import os
from typing import Any, Callable, Dict, List, Type

import torch

from ...messages.form import stated

_LENGTH_BYTES = 8
_PLAIN = (type(None), bool, int, float, str)
_LISTS: Dict[str, Type[Any]] = {"list": list, "tuple": tuple, "set": set}
_DICTS: Dict[str, Type[Any]] = {
    "dict": dict, "OrderedDict": collections.OrderedDict, "Counter": collections.Counter,
}  # fmt: skip
_TENSOR = "tensor"


def packed(value: Any) -> torch.Tensor:
    """Bytes on the processor. Raises TypeError for a value that no other worker could get."""
    pieces: List[torch.Tensor] = []
    text = json.dumps(_form(value, pieces)).encode()
    head = len(text).to_bytes(_LENGTH_BYTES, "big") + text
    return torch.cat([torch.frombuffer(bytearray(head), dtype=torch.uint8), *pieces])


def checked_length(announced_bytes: int) -> int:
    """Before room for them is made. Raises ValueError: more than this machine's memory."""
    most_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if not 0 <= announced_bytes <= most_bytes:
        raise ValueError(
            f"another worker announced a state of {announced_bytes} bytes; this machine has a"
            f" memory of {most_bytes} bytes"
        )
    return announced_bytes


def unpacked(whole: torch.Tensor) -> Any:
    """Raises ValueError: these are no bytes of `packed`. Checked before a tensor is made."""
    count = int.from_bytes(bytes(whole[:_LENGTH_BYTES].tolist()), "big")
    rest = whole[_LENGTH_BYTES:]
    if count > rest.numel():
        raise ValueError("the state of another worker is cut off")
    try:
        tree = json.loads(rest[:count].numpy().tobytes())
    except RecursionError:
        raise ValueError("the state of another worker is nested too deep") from None
    sizes: List[int] = []
    _walk(tree, lambda dtype, shape: sizes.append(math.prod(shape) * dtype.itemsize))
    if sum(sizes) != rest.numel() - count:
        raise ValueError("the state of another worker has tensors of other sizes than it names")
    pieces = iter(rest[count:].split(sizes) if sizes else ())

    def tensor(dtype: torch.dtype, shape: List[int]) -> torch.Tensor:
        return next(pieces).clone().view(dtype).reshape(shape)

    return _walk(tree, tensor)


def _form(value: Any, pieces: List[torch.Tensor]) -> Any:
    """A row of its kind and its parts; a plain value is itself."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        raw = value.detach().cpu().contiguous()
        pieces.append(raw.reshape(-1).view(torch.uint8))
        return [_TENSOR, str(raw.dtype), list(raw.shape)]
    kind = type(value).__name__
    if _DICTS.get(kind) is type(value):
        rows = [[_form(key, pieces), _form(each, pieces)] for key, each in value.items()]
        return [kind, rows]
    if _LISTS.get(kind) is type(value):
        return [kind, [_form(each, pieces) for each in value]]
    if isinstance(value, _PLAIN):
        return value
    if getattr(value, "shape", None) == () and isinstance(value.item(), _PLAIN):
        return value.item()  # a number of numpy's
    kind = type(value).__qualname__
    raise TypeError(
        stated(
            f"elastic: the optimizer or scheduler has a {kind} in its state, which no other worker"
            " can be given",
            "use one whose state is numbers, texts and tensors",
        )
    )


def _walk(form: Any, tensor: Callable[[torch.dtype, List[int]], Any]) -> Any:
    """The value of a form; `tensor` makes each of its tensors. Raises ValueError."""
    if isinstance(form, _PLAIN):
        return form
    try:
        kind, *parts = form
        if kind == _TENSOR:
            name, shape = parts
            dtype = getattr(torch, name[len("torch.") :])
            if isinstance(dtype, torch.dtype) and all(
                type(number) is int and number >= 0 for number in shape
            ):
                return tensor(dtype, shape)
        elif kind in _LISTS:
            return _LISTS[kind](_walk(each, tensor) for each in parts[0])
        elif kind in _DICTS:
            rows = [(_walk(key, tensor), _walk(each, tensor)) for key, each in parts[0]]
            return _DICTS[kind](dict(rows))
    except (TypeError, AttributeError, KeyError, RecursionError, RuntimeError) as error:
        raise ValueError(f"the state of another worker has no known form: {error}") from None
    raise ValueError("the state of another worker has no known form")
