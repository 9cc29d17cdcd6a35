"""A stand-in for CuPy, for machines without it.

It has the few calls that examples/train.py makes, on the CUDA driver through ctypes. It is no array
library. As in CuPy, importing it does not touch CUDA; the first use initialises the driver.
"""

from . import cuda

__version__ = "0 (stand-in)"
__all__ = ["cuda"]
