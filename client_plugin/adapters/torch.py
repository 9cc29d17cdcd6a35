"""PyTorch: torch.cuda initialises lazily; the lease is acquired at that point.

Questions before that point are answered without the driver.

Knows: torch.cuda and the parts of torch._C that initialise the driver. Must not know: how a lease
is acquired. Every use of a CUDA tensor goes through torch.cuda._lazy_init (the C++ code looks it up
in the module too), which calls torch._C._cuda_init. The gate of the latter also covers modules that
imported the former by name. The rest of GATES reach the driver without it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from .. import hook, lease, progress, stderr
from . import torch_cache

# is_available() asks NVML, and does not initialise the driver
DEFAULTS = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
FIRST_USE_UNSEEN = False
_COUNTS = "_nodemgr_counts"
_FOLLOWS = "_nodemgr_follows_limit"

GATES = (
    ("cuda", "_lazy_init"),
    ("_C", "_cuda_init"),
    ("cuda.streams.Stream", "__new__"),
    ("cuda.graphs.CUDAGraph", "__new__"),
    ("cuda.memory.MemPool", "__init__"),
    ("Tensor", "pin_memory"),
    ("_C._distributed_c10d.ProcessGroupNCCL", "__init__"),
    ("_C._distributed_c10d.ProcessGroupNCCL2", "__init__"),
    ("_C._distributed_c10d.ProcessGroupNCCLLazy", "__init__"),
)


def adapt(torch: ModuleType) -> None:
    cuda: Any = hook.member(torch, "cuda")
    if cuda is None or hook.member(torch, "version.hip"):
        return

    def first_use(*_args: Any, **_kwargs: Any) -> bool:
        return bool(cuda._is_compiled()) and not cuda._initialized

    for path, name in GATES:
        owner = hook.member(torch, path)
        if owner is not None:
            hook.gate(owner, name, first_use)
    hook.question(cuda, "is_available", lambda gpus: gpus > 0, cuda._is_compiled)
    hook.question(cuda, "device_count", lambda gpus: gpus, cuda._is_compiled)
    hook.question(torch._C, "_cuda_getDeviceCount", lambda gpus: gpus, cuda._is_compiled)
    _count_steps()
    _follow_limit(cuda)
    if not lease.preloaded():
        cuda._lazy_call(lambda: _limit_memory(cuda))


def _count_steps() -> None:
    """Where the environment asks for it. Elsewhere a step calls no function of this package."""
    optimizers: Any = sys.modules.get("torch.optim.optimizer")
    register = getattr(optimizers, "register_optimizer_step_post_hook", None)
    if register is None or hasattr(optimizers, _COUNTS) or not progress.wanted():
        return
    setattr(optimizers, _COUNTS, True)
    register(progress.step)


def _follow_limit(cuda: Any) -> None:
    """Of a task with a range of memory. Without the shim a limit is never lowered."""
    optimizers: Any = sys.modules.get("torch.optim.optimizer")
    register = getattr(optimizers, "register_optimizer_step_post_hook", None)
    if register is None or hasattr(optimizers, _FOLLOWS) or not lease.preloaded():
        return
    if torch_cache.wanted():
        setattr(optimizers, _FOLLOWS, True)
        register(torch_cache.CacheWatch(cuda).step)


def _limit_memory(cuda: Any) -> None:
    """Without the shim: PyTorch's own allocator keeps to the grant.

    Runs when torch.cuda initialises.
    """
    try:
        for index, limit_bytes in enumerate(lease.limits()[: cuda.device_count()]):
            total_bytes = cuda.get_device_properties(index).total_memory
            if limit_bytes < total_bytes:
                cuda.set_per_process_memory_fraction(limit_bytes / total_bytes, index)
    except Exception as error:
        stderr.report("PyTorch's memory limit", error)
