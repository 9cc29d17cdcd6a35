"""As numba.cuda: its driver remembers a failed initialisation."""

from numba.cuda.cudadrv import driver as _driver
from numba.cuda.cudadrv import error, nvvm


def is_available():
    try:
        return _driver.driver.is_available and nvvm.is_available()
    except error.CudaSupportError:
        return False


def first_use():
    return _driver.driver.count()
