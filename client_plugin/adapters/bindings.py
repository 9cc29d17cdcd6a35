"""cuda.bindings: cuInit of its driver module, the first call of most of its programs.

The import is no use of CUDA: PyTorch imports it with itself. Its other modules initialise the
driver by themselves: the shim's cuInit waits there. Without the shim these calls do not wait.

Knows: cuda.bindings.driver. Must not know: the importing program. A refusal is the driver's own
answer on a machine without a device, as in a C program.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .. import hook, lease

DEFAULTS: dict[str, str] = {}
FIRST_USE_UNSEEN = False


def adapt(module: ModuleType) -> None:
    def first_use(*_args: Any, **_kwargs: Any) -> bool:
        return not lease.acquired()

    def no_device() -> tuple[Any]:
        return (hook.member(module, "CUresult.CUDA_ERROR_NO_DEVICE"),)

    hook.gate(module, "cuInit", first_use, refused=no_device)  # the package itself has none
