"""Numba, its own CUDA target or that of numba-cuda: the driver is initialised in one place.

Knows: numba.cuda and its Driver. Must not know: how a lease is got. Driver.ensure_initialized
remembers a failed cuInit for the life of the process: the lease is acquired before it. A refusal is
Numba's own CudaSupportError, which is_available() understands.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .. import hook

DEFAULTS: dict[str, str] = {}
FIRST_USE_UNSEEN = False


def adapt(cuda: ModuleType) -> None:
    driver: Any = hook.member(cuda, "cudadrv.driver.Driver")  # none in Numba's simulator

    def first_use(own: Any) -> bool:
        return not own.is_initialized

    def undecided() -> bool:
        # a driver that is disabled or missing counts as initialised
        return not hook.member(cuda, "cudadrv.driver.driver.is_initialized")

    def available(gpus: int) -> bool:
        return gpus > 0 and bool(hook.member(cuda, "cudadrv.nvvm").is_available())

    if driver is not None:
        hook.gate(
            driver,
            "ensure_initialized",
            first_use,
            refusal=hook.member(cuda, "cudadrv.error.CudaSupportError") or RuntimeError,
        )
        hook.question(cuda, "is_available", available, undecided)
