"""Values of small fake tensors, really computed where they are known.

`torch.tensor(0.5, device="cuda") * 2` is 1.0 here too, so that scalers, limits and counters of a
script behave. The result of a reduction over fake data is not known: it gets a stand-in, 1.0, and
everything that follows from it is marked. Knows: operators on real tensors. Must not know: the GPU.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .. import other_answers
from ..other_answers import Asked

MOST_ELEMENTS = 64
MOST_STATE_BYTES = 8_192
"""The state of a random generator, which ranks copy to the GPU and back."""
FALSE_OF_UNKNOWN = ("any", "isnan", "isinf", "ne", "logical_not")
"""Questions that a healthy training answers with no."""
_NAME = "_nodemgr_shadow"
_STAND_IN = "_nodemgr_stand_in"


class Shadows:
    """The shadow of a tensor is an attribute of it."""

    def __init__(self, is_fake: Callable[[Any], bool]) -> None:
        self.is_fake = is_fake
        self.asked = Asked(os.environ.get(other_answers.VARIABLE, ""))
        self.stand_ins = 0
        """The values that a script asked for and got a stand-in."""

    def of(self, tensor: Any) -> Optional[torch.Tensor]:
        return getattr(tensor, _NAME, None)

    def value(self, tensor: torch.Tensor) -> Any:
        """The number for `.item()` and its kind."""
        shadow = self.of(tensor)
        number = _one(tensor.dtype).item() if shadow is None else shadow.reshape(-1)[0].item()
        if shadow is not None and not getattr(tensor, _STAND_IN, False):
            return number
        self.stand_ins += 1
        if isinstance(number, bool):
            return self.asked.boolean(number, origin())
        return self.asked.number(number)

    def on_processor(self, one: Any, source: Any) -> torch.Tensor:
        """A tensor that comes from the GPU: its values where they are known, else stand-ins."""
        known = None if source is None else self.of(source)
        if known is not None and known.shape == one.shape:
            made = known.to(one.dtype).clone()
            if not getattr(source, _STAND_IN, False):
                return made
        else:
            made = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype)
            is_number = one.dtype.is_floating_point or one.dtype.is_complex
            made.fill_(int(is_number or one.dtype is torch.bool))
        if one.dtype is torch.bool and made.numel():
            made.fill_(self.asked.boolean(bool(made.flatten()[0]), origin()))
        elif one.dtype.is_floating_point and made.numel() == 1:
            made.fill_(self.asked.number(float(made)))
        return made

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Where the values of both are not known: of a sound training, they are equal."""
        if one.shape != other.shape:
            return False
        values = [self.of(each) if self.is_fake(each) else each for each in (one, other)]
        if values[0] is not None and values[1] is not None:
            return bool(torch.equal(values[0], values[1]))
        self.stand_ins += 1
        return True

    def follow(
        self, name: str, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any], out: Any
    ) -> None:
        """Compute the shadows of the results, or drop those that are no longer true."""
        results = [one for one in tree_leaves(out) if self.is_fake(one)]
        if not results or not all(map(_is_small, results)):
            return
        sources = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if all(self._is_known(one) for one in sources):
            self._compute(func, args, kwargs, results)
            marked = any(getattr(one, _STAND_IN, False) for one in sources)
            for one in results:
                setattr(one, _STAND_IN, marked)
        else:
            for one in results:
                self._set(one, None)
                if one.numel() == 1:
                    answer = _one(one.dtype)
                    if one.dtype is torch.bool and name in FALSE_OF_UNKNOWN:
                        answer = torch.zeros((), dtype=one.dtype)
                    self._set(one, answer.reshape(one.shape).clone())
                    setattr(one, _STAND_IN, True)

    def _is_known(self, one: torch.Tensor) -> bool:
        if self.is_fake(one):
            return self.of(one) is not None
        return _is_small(one)

    def _compute(
        self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any], results: Any
    ) -> None:
        def real(one: Any) -> Any:
            if self.is_fake(one):
                return self.of(one)
            if isinstance(one, torch.device):
                return torch.device("cpu")
            return one

        try:
            made = [
                one
                for one in tree_leaves(func(*tree_map(real, args), **tree_map(real, kwargs)))
                if isinstance(one, torch.Tensor)
            ]
        except Exception:
            made = []
        for place, one in enumerate(results):
            self._set(one, made[place] if len(made) == len(results) else None)

    def _set(self, one: torch.Tensor, value: Optional[torch.Tensor]) -> None:
        setattr(one, _NAME, value)


def origin() -> str:
    """File and line of the program's own code that asks; a package's where it has none."""
    frame: Any = sys._getframe(1)
    first = ""
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_OURS) and not path.startswith("<"):
            first = first or f"{os.path.basename(path)}:{frame.f_lineno}"
            if not any(part in path for part in _FOREIGN):
                return f"{_shown(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return first


def _shown(path: str) -> str:
    near = os.path.relpath(path)
    return path if near.startswith("..") else near


_OURS = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    os.path.dirname(os.path.abspath(torch.__file__)),
)
_FOREIGN = ("/site-packages/", "/dist-packages/", os.path.dirname(os.path.abspath(os.__file__)))


def _one(dtype: torch.dtype) -> torch.Tensor:
    return torch.ones((), dtype=dtype)


def _is_small(one: torch.Tensor) -> bool:
    most = MOST_STATE_BYTES if one.dtype is torch.uint8 else MOST_ELEMENTS
    return bool(one.numel() <= most)
