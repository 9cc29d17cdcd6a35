"""As pycuda.driver: init() initialises CUDA."""

import cuda_driver


def init(flags=0):
    cuda_driver.initialise()


def first_use():
    init()
    return cuda_driver.device_count()
