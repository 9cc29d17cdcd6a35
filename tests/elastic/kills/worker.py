"""A worker of the series of kills: its GPU, and its lines in the shared file."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import time
from typing import Any

PAUSE_S = 0.004
MEMORY_BYTES = 2**20


class StepLines:
    """Uses the simulated GPU as a CUDA program does, and appends a line for each step."""

    def __init__(self, path: str) -> None:
        faulthandler.register(signal.SIGUSR1)  # a series that hangs prints all stacks
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._worker = int(os.environ["NODEMGR_WORKER"])

    def use_gpu(self) -> None:
        """Join the lease on this worker's GPU, and keep some memory of it."""
        cuda = ctypes.CDLL("libcuda.so.1")
        context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
        assert cuda.cuInit(0) == 0
        assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
        assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(MEMORY_BYTES)) == 0

    def write(self, run: Any, step: int, rank: int, size: int) -> None:
        """The step `step`, made as `rank` of `size`, is complete."""
        said = {"step": step, "worker": self._worker, "rank": rank, "size": size, "loss": run.loss}
        os.write(self._file, json.dumps(said).encode() + b"\n")
        time.sleep(PAUSE_S)
