"""As TensorFlow's CUDA build, as far as CUDA's initialisation goes.

The names of tensorflow.python are the original's.
"""

from .python.client import device_lib, session
from .python.eager import context


def first_use():
    return len(context.context().list_physical_devices("GPU"))


__all__ = ["context", "device_lib", "first_use", "session"]
