"""cuda.bindings: nothing of it is wrapped, and its import is no use of CUDA: PyTorch imports it with itself. The shim's cuInit sees the
first use and waits through Python; without the shim nothing does.

Knows: that there is nothing to know. Must not know: who imports it.
"""

from __future__ import annotations

from types import ModuleType

DEFAULTS: dict[str, str] = {}
FIRST_USE_UNSEEN = False


def adapt(module: ModuleType) -> None:
    pass
