"""PyCUDA: the driver is initialised by pycuda.driver.init(), which pycuda.autoinit calls too.

Knows: that function. Must not know: how a lease is got.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .. import hook, lease

DEFAULTS: dict[str, str] = {}
FIRST_USE_UNSEEN = False


def adapt(driver: ModuleType) -> None:
    def first_use(*_args: Any) -> bool:
        return not lease.acquired()

    hook.gate(driver, "init", first_use)
