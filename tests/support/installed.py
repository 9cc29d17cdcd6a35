"""Packages that a test or its programs import: found without importing them at collection."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


def require(package: str, name: str) -> None:
    """Skip the test, or the module that is being collected, where the package is not installed.

    `pytest.importorskip` would import it. Packages of the extra `frameworks` have a mark instead.
    """
    top = package.partition(".")[0]
    if importlib.util.find_spec(top) is None or importlib.util.find_spec(package) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)


def later(package: str) -> Any:
    """The package, imported at the first use of a public name of it.

    Each worker reads all test files: 20 s of PyTorch and TensorFlow for each of them.
    """

    class Later:
        def __getattr__(self, attribute: str) -> Any:
            if attribute.startswith("_"):  # pytest asks each object that it collects for some
                raise AttributeError(attribute)
            return getattr(importlib.import_module(package), attribute)

    return Later()
