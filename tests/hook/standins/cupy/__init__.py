"""As CuPy: importing it touches nothing, the first use initialises CUDA."""

import cuda_driver


def first_use():
    return cuda_driver.device_count()
