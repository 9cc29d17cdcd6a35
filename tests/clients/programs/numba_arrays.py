"""numba-cuda as its users write it: arrays to the device and back.

It runs a kernel, too, where the compiler is installed.

    numba_arrays.py [BYTES]

Prints one line of JSON. The kernel's result is not looked at. Must not know: on
what it runs.
"""

import json
import os
import sys

import numpy
from numba import cuda


@cuda.jit
def double(values):
    index = cuda.grid(1)
    if index < values.size:
        values[index] *= 2


def launch(values):
    """The result of a kernel's launch: "launched", or why there is no compiler here."""
    try:
        double[values.size // 256 + 1, 256](values)
        cuda.synchronize()
    except (ImportError, OSError, cuda.cudadrv.error.NvvmSupportError, RuntimeError) as error:
        return "no compiler: " + type(error).__name__
    return "launched"


def main():
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 20
    values = numpy.arange(1000, dtype=numpy.float32)
    on_device = cuda.to_device(values)
    same = bool((on_device.copy_to_host() == values).all())
    try:
        large, refused = cuda.device_array(size, dtype=numpy.uint8), None
    except cuda.cudadrv.driver.CudaAPIError as error:
        large, refused = None, error.msg
    name = cuda.current_context().device.name  # bytes in some releases
    free, total = cuda.current_context().get_memory_info()
    seen = {
        "pid": os.getpid(),
        "devices": len(cuda.gpus),
        "name": name.decode() if isinstance(name, bytes) else name,
        "total_bytes": total,
        "free_bytes": free,
        "large_bytes": large.nbytes if large is not None else 0,
        "refused": refused,
        "same_bytes": same,
        "kernel": launch(on_device),
    }
    print(json.dumps(seen), flush=True)


main()
