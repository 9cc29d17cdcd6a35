"""As PyTorch's CUDA build, as far as CUDA's initialisation goes.

`cuda` has the original's names.
"""

from types import SimpleNamespace

from . import _C, cuda

version = SimpleNamespace(hip=None, cuda="12.6")


__all__ = ["_C", "cuda", "first_use", "version"]


def first_use():
    cuda.init()
    return cuda.device_count()
