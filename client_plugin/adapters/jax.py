"""JAX: the lease is acquired before its backends are initialised.

Knows: jax._src.xla_bridge and how CUDA plugins are found. Must not know: how a lease is got. The
gate stands before the discovery of plugins: the CUDA plugin counts devices there already, inside an
`except:` that swallows all.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from types import ModuleType
from typing import Any

from .. import hook, lease, nvml, stderr

DEFAULTS = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
FIRST_USE_UNSEEN = False
FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
CUDA = frozenset({"cuda", "gpu"})


def adapt(jax: ModuleType) -> None:
    bridge: Any = sys.modules.get("jax._src.xla_bridge")

    def first_use() -> bool:
        return not hook.member(bridge, "_backends") and _wants_cuda(bridge)

    def cuda_backend(platform: str) -> bool:
        return platform in CUDA

    hook.gate(bridge, "backends", first_use, _limit_memory)
    hook.gate(bridge, "_init_backend", cuda_backend)


def _wants_cuda(bridge: Any) -> bool:
    """Whether JAX would use CUDA: by the user's platforms, else by the installed plugins."""
    platforms = (
        hook.member(bridge, "config.jax_platforms.value") or os.environ.get("JAX_PLATFORMS") or ""
    )
    if platforms:
        return not CUDA.isdisjoint(platforms.split(","))
    try:
        installed = importlib.import_module(
            "jax_plugins"
        ).__path__  # a namespace package: there is one where a plugin is
        plugins = [plugin.name for plugin in pkgutil.iter_modules(installed)]
    except ImportError:
        plugins = []
    plugins += [
        *(hook.member(bridge, "_backend_factories") or ()),
        os.environ.get("PJRT_NAMES_AND_LIBRARY_PATHS", ""),
    ]
    return any("cuda" in plugin for plugin in plugins)


def _limit_memory() -> None:
    """Without the shim: limit JAX's own allocator to the lease's smallest share of one GPU."""
    if lease.preloaded():
        return
    try:
        shares = [
            limit / nvml.total_bytes(uuid) for uuid, limit in zip(lease.gpus(), lease.limits())
        ]
        if shares and min(shares) < 1:
            lease.share(FRACTION, f"{min([*shares, float(os.environ.get(FRACTION) or 1)]):.4f}")
    except Exception as error:
        stderr.report("JAX's memory limit", error)
