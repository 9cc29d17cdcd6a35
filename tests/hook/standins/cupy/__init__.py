"""As CuPy: its import touches nothing; the creation of an array initialises CUDA.

So does its compiled code, which nothing can wrap.
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
