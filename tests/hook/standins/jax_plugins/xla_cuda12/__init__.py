"""The CUDA plugin: counts devices while it registers itself, and reads its memory fraction then."""

import os

import cuda_driver
from jax._src import xla_bridge

fraction = None


def initialize():
    global fraction
    fraction = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
    cuda_driver.device_count()
    xla_bridge._backend_factories["cuda"] = cuda_driver.device_count
