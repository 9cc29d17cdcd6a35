from numba.cuda.cudadrv import driver, error, nvvm

__all__ = ["driver", "error", "nvvm"]
