"""NVIDIA's own headers, if this machine has them, for tests that compare ours with them.

Knows: the two places such headers come from (a CUDA toolkit, PyPI packages). Must not know:
anything of the simulator.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest

_PACKAGES = {
    "cuda.h": ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
    "cuda_runtime_api.h": ("nvidia-cuda-runtime",),
    "nvml.h": ("nvidia-nvml-dev", "nvidia-nvml-dev-cu12"),
}


def _packaged(header: str, package: str) -> list[Path]:
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.name == header]


def find(header: str) -> list[Path]:
    """Every copy of `header` (a row of _PACKAGES): real paths, no duplicates; [] without one."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include" / header
    launch_hosts = [toolkit] + [
        path for package in _PACKAGES[header] for path in _packaged(header, package)
    ]
    return sorted({path.resolve() for path in launch_hosts if path.is_file()})


def each(header: str) -> list[object]:
    """The same as pytest's parameters; without a header one that is skipped with the reason."""
    found: list[object] = [
        pytest.param(path, id=f"{header}-{number}") for number, path in enumerate(find(header))
    ]
    return found or [
        pytest.param(None, id=header, marks=pytest.mark.skip(reason=WHY_SKIPPED.format(header)))
    ]


WHY_SKIPPED = "no {}: install the CUDA toolkit or `pip install nvidia-cuda-runtime nvidia-nvml-dev`"
