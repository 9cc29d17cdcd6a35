"""A manager on the machine's real GPUs.

Every test here is skipped, with the reason, where there is none.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.nvml import missing_gpu
from tests.support.manager import Manager
from tests.support.programs import Program

PROGRAMS = Path(__file__).with_name("programs")


def missing_torch() -> str | None:
    """Why tests with PyTorch cannot run here."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    import torch

    return None if torch.version.cuda else "PyTorch is a CPU build"


@pytest.fixture(scope="session", autouse=True)
def real_gpu() -> None:
    if reason := missing_gpu(os.environ):
        pytest.skip(f"no GPU answers ({reason})")


@pytest.fixture
def make_manager() -> Iterator[Callable[..., Manager]]:
    """As in tests/conftest.py, which needs packages that a machine with a GPU may lack."""
    managers: list[Manager] = []

    def make(simulate: str | None) -> Manager:
        managers.append(Manager(simulate))
        return managers[-1].start()

    yield make
    for manager in managers:
        manager.close()


@pytest.fixture
def node(make_manager: Callable[..., Manager]) -> Manager:
    return make_manager(simulate=None)


@pytest.fixture
def program(node: Manager) -> Callable[..., Program]:
    """Starts programs/NAME in an env: it prints JSON lines, and continues at each line of input."""
    if reason := missing_torch():
        pytest.skip(reason)

    def start(env: str, name: str, *arguments: object, **variables: Any) -> Program:
        variables.setdefault("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))
        return Program(
            node.spawn(
                env, [sys.executable, str(PROGRAMS / name), *map(str, arguments)], **variables
            )
        )

    return start
