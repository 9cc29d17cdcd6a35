"""A training whose steps can be compared: `script.py STEPS CHECKPOINT LINES`.

Each worker uses its simulated GPU as a CUDA program does, and appends a line of JSON to the file
LINES for each step that it has completed. Its losses stay far from 0, since the targets are noise.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import time
from typing import Any

import torch

SAMPLES, BATCH, MOST, SEED, FEATURES = 96, 12, 3, 5, 6
STEPS_PER_EPOCH = SAMPLES // BATCH
PAUSE_S = 0.004
MEMORY_BYTES = 2**20


def data() -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(3)
    shape = (SAMPLES, FEATURES)
    inputs = torch.randn(shape, generator=numbers, dtype=torch.float64)
    return inputs, torch.randn((SAMPLES, 1), generator=numbers, dtype=torch.float64)


class Momentum:
    """Descent with momentum in the form of an optimizer.

    The first optimizer of torch.optim in a process imports for 2 s of processor time.
    """

    def __init__(self, model: Any) -> None:
        self.param_groups = [{"params": list(model.parameters())}]
        self._speeds = [torch.zeros_like(each) for each in model.parameters()]

    def step(self) -> None:
        with torch.no_grad():
            for parameter, speed in zip(self.param_groups[0]["params"], self._speeds, strict=True):
                speed.mul_(0.9).add_(parameter.grad)
                parameter.sub_(speed, alpha=0.02)

    def state_dict(self) -> dict[str, Any]:
        return {"speeds": self._speeds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._speeds = [each.clone() for each in state["speeds"]]


def parts() -> tuple[Any, Momentum]:
    torch.manual_seed(1)
    model = torch.nn.Linear(FEATURES, 1, dtype=torch.float64)
    return model, Momentum(model)


def cost(model: Any, inputs: Any, targets: Any) -> Any:
    return torch.nn.functional.mse_loss(model(inputs), targets)


def use_gpu() -> None:
    """Join the lease on this worker's GPU, and keep some memory of it."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(MEMORY_BYTES)) == 0


def main() -> None:
    faulthandler.register(signal.SIGUSR1)  # a series that hangs prints all stacks
    steps, checkpoint, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    from nodemgr_client import elastic

    lines = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    worker = int(os.environ["NODEMGR_WORKER"])
    model, optimizer = parts()
    sizes = {"global_batch": BATCH, "max_per_gpu": MOST, "epochs": steps // STEPS_PER_EPOCH}
    kept = {"checkpoint": checkpoint, "checkpoint_every_s": 0.5}
    with elastic(model, optimizer, data(), seed=SEED, **sizes, **kept) as run:
        use_gpu()
        for inputs, targets in run:
            step, rank, size = run.step, run.rank, run.size
            run.backward(cost(model, inputs, targets))
            if run.step > step:
                said = {"step": step, "worker": worker, "rank": rank, "size": size,
                        "loss": run.loss}  # fmt: skip
                os.write(lines, json.dumps(said).encode() + b"\n")
                time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
