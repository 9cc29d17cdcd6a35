"""Packages that a test's programs import: found without importing them into the test's process."""

from __future__ import annotations

import importlib.util

import pytest


def require(package: str, name: str) -> None:
    """Skip the test, or the module that is being collected, where the package is not installed.

    `pytest.importorskip` would import it: PyTorch or TensorFlow into each worker.
    """
    top = package.partition(".")[0]
    if importlib.util.find_spec(top) is None or importlib.util.find_spec(package) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
