"""The functions of torch._C that reach the driver."""

import cuda_driver

fractions = {}


def _cuda_init():
    if cuda_driver.device_count() == 0:
        raise RuntimeError("No CUDA GPUs are available")


def _cuda_getDeviceCount():
    try:
        return cuda_driver.device_count()
    except cuda_driver.DriverError:
        return 0


def _cuda_setMemoryFraction(fraction, device):
    fractions[device] = fraction
