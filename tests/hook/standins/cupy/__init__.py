"""As CuPy: importing it touches nothing; creating an array initialises CUDA, and so does its
compiled code, which nothing can wrap.
"""

import cuda_driver

from cupy import cuda
from cupy._creation.from_data import array

__all__ = ["array", "compiled_first_use", "cuda", "first_use"]


def first_use():
    array([1])
    return cuda_driver.device_count()


def compiled_first_use():
    return cuda_driver.device_count()
