"""torch.cuda: initialised lazily."""

import os
from types import SimpleNamespace

import cuda_driver

from .. import _C

_initialized = False
_queued_calls = []


def _is_compiled():
    return hasattr(_C, "_cuda_getDeviceCount")


def is_available():
    return (
        device_count() > 0
        if os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") == "1"
        else _C._cuda_getDeviceCount() > 0
    )


def device_count():
    return _C._cuda_getDeviceCount()


def _lazy_call(call):
    _queued_calls.append(call)


def _lazy_init():
    global _initialized
    if not _initialized:
        _C._cuda_init()
        for call in _queued_calls:
            call()
        _initialized = True


def init():
    _lazy_init()


def get_device_properties(index):
    return SimpleNamespace(total_memory=cuda_driver.total_bytes(index))


def set_per_process_memory_fraction(fraction, index):
    _C._cuda_setMemoryFraction(fraction, index)
