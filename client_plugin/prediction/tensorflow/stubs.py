"""tf.config and tf.test as a program finds them on a machine with one idle GPU.

Operators are traced and not run, so that no GPU is missed. Knows: the functions that list and set
up devices. Must not know: graphs, outcomes.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import tensorflow as tf

GPU_BYTES = 80 << 30
NAME, CAPABILITY = "NVIDIA A100-SXM4-80GB", (8, 0)


class VisibleGpus:
    """The GPUs that the program leaves itself."""

    def __init__(self) -> None:
        self.are_hidden = False

    def set_visible(self, devices: Any, device_type: Any = None) -> None:
        given = devices if isinstance(devices, (list, tuple)) else [devices]
        has_gpu = any(getattr(one, "device_type", "") == "GPU" for one in given)
        if device_type in (None, "GPU"):
            self.are_hidden = not has_gpu


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _listing(plain: Callable[..., Any], gpu: Any, gpus: VisibleGpus) -> Callable[..., Any]:
    def listed(device_type: Any = None) -> List[Any]:
        found = [] if gpus.are_hidden or device_type not in (None, "GPU") else [gpu]
        return found if device_type == "GPU" else [*plain(device_type), *found]

    return listed


def install() -> VisibleGpus:
    gpus = VisibleGpus()
    config: Any = tf.config
    physical = config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    logical = config.LogicalDevice("/device:GPU:0", "GPU")
    listings = {
        "list_physical_devices": physical,
        "list_logical_devices": logical,
        "get_visible_devices": physical,
    }
    stubs: Dict[str, Callable[..., Any]] = {
        name: _listing(getattr(config, name), device, gpus) for name, device in listings.items()
    }
    stubs.update(
        set_visible_devices=gpus.set_visible,
        set_memory_growth=_nothing,
        get_memory_growth=_answer(True),
        set_logical_device_configuration=_nothing,
        set_virtual_device_configuration=_nothing,
        get_device_details=_answer({"compute_capability": CAPABILITY, "device_name": NAME}),
        get_memory_info=_answer({"current": 0, "peak": 0}),
        get_memory_usage=_answer(0),
        reset_memory_stats=_nothing,
    )
    for place in (config, config.experimental):
        for name, stub in stubs.items():
            if hasattr(place, name):
                setattr(place, name, stub)
    for name, value in (("is_gpu_available", True), ("is_built_with_cuda", True),
                        ("gpu_device_name", "/device:GPU:0")):  # fmt: skip
        setattr(tf.test, name, _answer(value))
    config.set_soft_device_placement(True)  # `with tf.device("/GPU:0")`
    return gpus
