"""One framework in an environment: its memory, a result, a refusal, and that it goes on.

    python framework.py torch|jax|cupy|numba|triton BYTES

BYTES: the environment's memory. Prints one JSON line: each answer, or its error's type and text.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GIB = 1 << 30
KERNEL = """import triton, triton.language as tl
@triton.jit
def add_one(pointer, COUNT: tl.constexpr):
    index = tl.arange(0, COUNT)
    tl.store(pointer + index, tl.load(pointer + index) + 1)
"""
"""Triton reads a kernel's source from its file."""


class Trials:
    """Answers by name; an error is an answer."""

    def __init__(self, memory_bytes: int) -> None:
        self.small, self.large = memory_bytes // 8, memory_bytes + GIB
        self.found: dict[str, Any] = {}

    def __call__(self, name: str, call: Callable[[], Any]) -> None:
        try:
            self.found[name] = call()
        except Exception as error:
            text = " ".join(str(error).split())
            self.found[name] = f"{type(error).__name__}: {text[:160]}"


def torch_(trial: Trials) -> None:
    import torch

    def allocated(size: int) -> int:
        return torch.empty(size, dtype=torch.uint8, device="cuda").nbytes

    def product() -> float:
        ones = torch.ones(512, 512, device="cuda")
        return float((ones @ ones)[0, 0])

    def graph() -> float:
        recorded, numbers = torch.cuda.CUDAGraph(), torch.ones(1000, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.graph(recorded):
            more = numbers + 1
        recorded.replay()
        torch.cuda.synchronize()
        return float(more.sum())

    def compiled() -> float:
        twice = torch.compile(lambda numbers: (numbers * 2 + 1).relu())
        return float(twice(torch.ones(1000, device="cuda")).sum())

    if torch.version.cuda is None:
        trial.found["lacking"] = "torch is a CPU build"
        return
    trial("memory", lambda: torch.cuda.mem_get_info()[1])
    trial("result", product)
    trial("refused", lambda: allocated(trial.large))
    trial("again", lambda: allocated(trial.small))
    trial("graph", graph)
    trial("compile", compiled)


def jax_(trial: Trials) -> None:
    if not any(importlib.util.find_spec(f"jax_cuda{major}_plugin") for major in (12, 13)):
        trial.found["lacking"] = "jax is a CPU build"
        return
    import jax

    trial("memory", lambda: jax.devices()[0].memory_stats()["bytes_limit"])
    trial("result", lambda: float(jax.numpy.ones(8).sum()))
    trial("refused", lambda: float(jax.numpy.ones(trial.large // 4).sum()))
    trial("again", lambda: float(jax.numpy.ones(1 << 20).sum()))


def cupy_(trial: Trials) -> None:
    import cupy

    trial("memory", lambda: cupy.cuda.runtime.memGetInfo()[1])
    trial("result", lambda: float(cupy.ones(8).sum()))
    trial("refused", lambda: cupy.empty(trial.large, "u1").nbytes)
    trial("again", lambda: cupy.empty(trial.small, "u1").nbytes)


def numba_(trial: Trials) -> None:
    import numpy
    from numba import cuda

    @cuda.jit
    def add_one(numbers: Any) -> None:
        index = cuda.grid(1)
        if index < numbers.size:
            numbers[index] += 1

    def total() -> float:
        numbers = cuda.to_device(numpy.zeros(64, "f4"))
        add_one[1, 64](numbers)
        return float(numbers.copy_to_host().sum())

    trial("memory", lambda: cuda.current_context().get_memory_info()[1])
    trial("result", total)
    trial("refused", lambda: cuda.device_array(trial.large, "u1").size)
    trial("again", lambda: cuda.device_array(trial.small, "u1").size)


def triton_(trial: Trials) -> None:
    import torch

    def total() -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.py"
            path.write_text(KERNEL)
            spec = importlib.util.spec_from_file_location("kernel", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            numbers = torch.zeros(64, device="cuda")
            module.add_one[(1,)](numbers, 64)
            return float(numbers.sum())

    if torch.version.cuda is None:
        trial.found["lacking"] = "torch is a CPU build"
        return
    trial("result", total)


RUNS = {"torch": torch_, "jax": jax_, "cupy": cupy_, "numba": numba_, "triton": triton_}


def main() -> None:
    began_s = time.perf_counter()
    trial = Trials(int(sys.argv[2]))
    RUNS[sys.argv[1]](trial)
    trial.found["seconds"] = round(time.perf_counter() - began_s, 1)
    print(json.dumps(trial.found), flush=True)


main()
