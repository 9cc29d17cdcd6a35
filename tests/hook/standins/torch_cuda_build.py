"""install(torch) gives PyTorch's CPU build the initialisation functions of its CUDA build.

It is called after the import.

The rest of torch.cuda, the C++ code that looks up torch.cuda._lazy_init included, is PyTorch's own.
"""

import os
from types import SimpleNamespace

import cuda_driver


def install(torch):
    def initialise():
        if cuda_driver.device_count() == 0:
            raise RuntimeError("No CUDA GPUs are available")

    def count():
        try:
            return cuda_driver.device_count()
        except cuda_driver.DriverError:
            return 0

    fractions = {}
    torch.cuda._cudart = SimpleNamespace()
    torch.cuda._get_device_properties = lambda index: SimpleNamespace(
        total_memory=cuda_driver.total_bytes(index), major=9, minor=0, name="stand-in"
    )
    torch._C._cuda_init = initialise
    torch._C._cuda_getDeviceCount = count
    torch._C._cuda_isInBadFork = lambda: False
    torch._C._cuda_getArchFlags = lambda: None
    torch._C._cuda_getDevice = lambda: int(os.environ.get("LOCAL_RANK", "0"))
    torch._C._cuda_exchangeDevice = lambda device: 0
    torch._C._cuda_setMemoryFraction = lambda fraction, device: fractions.update({device: fraction})

    torch.cuda._device_count_nvml = lambda: -1
    torch.standin_fractions = fractions
