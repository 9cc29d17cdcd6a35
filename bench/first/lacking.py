"""Needs of a step that this machine does not meet: a reason by name, no fault.

Standard library only.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import shutil


class Lacking(Exception):
    """The text is the whole reason, such as "torch is not installed"."""


def needs_module(name: str) -> None:
    """Without importing it. Raises Lacking."""
    if importlib.util.find_spec(name) is None:
        raise Lacking(f"{name} is not installed")


def needs_cuda_torch() -> None:
    """PyTorch's own version file is read, for its import takes seconds. Raises Lacking."""
    needs_module("torch")
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    if runpy.run_path(os.path.join(os.path.dirname(found.origin), "version.py"))["cuda"] is None:
        raise Lacking("torch is a CPU build")


def needs_program(name: str) -> str:
    """Its path. Raises Lacking."""
    found = shutil.which(name)
    if found is None:
        raise Lacking(f"there is no {name} on PATH")
    return found


def compiler() -> str:
    """The C compiler: $CC, else cc. Raises Lacking."""
    return needs_program(os.environ.get("CC", "cc"))
