"""cuda.bindings: cuInit of its driver module, with which most of its programs begin.

Its import is no use of CUDA: PyTorch imports it with itself. Its other modules initialise the
driver by themselves: the shim's cuInit waits there; without the shim nothing does.

Knows: cuda.bindings.driver. Must not know: who imports it.
A refusal is the driver's own answer where there is no device, as it is to a program in C.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .. import lease
from . import gate, member

DEFAULTS: dict[str, str] = {}
FIRST_USE_UNSEEN = False


def adapt(module: ModuleType) -> None:
    def first_use(*_args: Any, **_kwargs: Any) -> bool:
        return not lease.acquired()

    def no_device() -> tuple[Any]:
        return (member(module, "CUresult.CUDA_ERROR_NO_DEVICE"),)

    gate(module, "cuInit", first_use, refused=no_device)  # the package itself has none
