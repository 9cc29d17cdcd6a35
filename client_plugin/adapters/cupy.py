"""CuPy: calls that create an array or a stream of random numbers acquire first.

CUDA's runtime would remember a cuInit that failed because the wait was cancelled.

Knows: cupy's creating functions, its random state, its questions. Must not know: how a lease is
acquired. CuPy's compiled code reaches the runtime from many places, so these gates do not cover all
of them. The other calls wait in the shim's cuInit; without the shim, therefore, the import
acquires.
"""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import Any

from .. import hook, lease

DEFAULTS: dict[str, str] = {}
FIRST_USE_UNSEEN = True
CREATION = "cupy._creation."
GATES = (
    ("random._generator", "get_random_state"),
    ("cuda.runtime", "getDevice"),
    ("cuda.runtime", "setDevice"),
    ("cuda.runtime", "memGetInfo"),
    ("cuda.runtime", "getDeviceProperties"),
)


def adapt(cupy: ModuleType) -> None:
    def first_use(*_args: Any, **_kwargs: Any) -> bool:
        return not lease.acquired()

    for name, value in list(vars(cupy).items()):
        if isinstance(value, FunctionType) and value.__module__.startswith(CREATION):
            hook.gate(cupy, name, first_use)
    for path, name in GATES:
        hook.gate(hook.member(cupy, path), name, first_use)
    runtime = hook.member(cupy, "cuda.runtime")

    def serves() -> bool:
        return _driver_serves(runtime)

    hook.question(hook.member(cupy, "cuda"), "is_available", lambda gpus: gpus > 0, serves)
    hook.question(runtime, "getDeviceCount", lambda gpus: gpus, serves)


def _driver_serves(runtime: Any) -> bool:
    """Whether the runtime takes this driver; if not, it refuses (35) before it calls cuInit.

    From CUDA 11 on it takes each driver of its major version. Neither question initialises CUDA.
    """
    versions = [hook.member(runtime, f"{part}GetVersion") for part in ("driver", "runtime")]
    if None in versions:
        return True
    driver, needed = (get() for get in versions)
    return bool(driver >= (needed // 1000 * 1000 if needed >= 11000 else needed))
