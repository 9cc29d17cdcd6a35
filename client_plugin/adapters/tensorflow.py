"""TensorFlow: listing the devices in the eager context initialises CUDA.

The first session of the old API initialises it, too.

Knows: tensorflow.python's context, session and device_lib. Must not know: how a lease is acquired.
To list the physical devices is a first use here: TensorFlow can neither count nor name them without
initialising the driver.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from .. import hook, lease, stderr

DEFAULTS = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
FIRST_USE_UNSEEN = False
MIB = 1 << 20


def adapt(tensorflow: ModuleType) -> None:
    python = "tensorflow.python."
    build: Any = hook.member(sys.modules.get(python + "platform.build_info"), "build_info") or {}
    if not build.get("is_cuda_build"):
        return
    context = hook.member(sys.modules.get(python + "eager.context"), "Context")
    hook.gate(context, "_initialize_physical_devices", _lists_anew)
    hook.gate(context, "ensure_initialized", _starts, _limit_memory)
    hook.gate(
        hook.member(sys.modules.get(python + "client.session"), "BaseSession"), "__init__", _always
    )
    hook.gate(sys.modules.get(python + "client.device_lib"), "list_local_devices", _always)


def _lists_anew(context: Any, reinitialize: bool = False) -> bool:
    return reinitialize or getattr(context, "_physical_devices", None) is None


def _starts(context: Any) -> bool:
    return not context._initialized


def _always(*_args: Any, **_kwargs: Any) -> bool:
    return True


def _limit_memory(context: Any) -> None:
    """Without the shim: a logical device of the grant's size on each GPU.

    A GPU that the user has divided is left alone.
    """
    if lease.preloaded():
        return
    try:
        configuration = sys.modules[type(context).__module__].LogicalDeviceConfiguration
        devices = [
            device
            for device in context.list_physical_devices("GPU")
            if device not in context._virtual_device_map
        ]
        for device, limit_bytes in zip(devices, lease.limits()):
            context.set_logical_device_configuration(
                device, [configuration(memory_limit=limit_bytes // MIB)]
            )
    except Exception as error:
        stderr.report("TensorFlow's memory limit", error)
