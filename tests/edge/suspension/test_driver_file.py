"""The libcuda that the suspension process loads: the one of the driver whose NVML answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nodemgr import simulator
from nodemgr.edge.suspension.driver_file import _beside_nvml
from tests.gpu.keeper import answer_of, keeper
from tests.support.manager import Manager

GIB, MIB = 1 << 30, 1 << 20


def mapped(path: Path) -> str:
    return f"7f00-7f01 r-xp 00000000 fe:00 77    {path}\n"


@pytest.mark.parametrize("folder", ["driver", "a driver"])
@pytest.mark.parametrize("end", ["", ".580.65.06", ".1 (deleted)"])
def test_it_lies_beside_the_mapped_nvml(tmp_path: Path, folder: str, end: str) -> None:
    directory = tmp_path / folder
    directory.mkdir()
    maps = ["7f00-7f01 rw-p 00000000 00:00 0\n", mapped(directory / f"libnvidia-ml.so{end}")]
    assert _beside_nvml(maps) is None  # NVML alone
    (directory / "libcuda.so.1").touch()
    assert _beside_nvml(maps) == directory / "libcuda.so.1"


def test_without_an_nvml_the_linker_chooses() -> None:
    assert _beside_nvml([]) is None


def test_a_task_is_suspended_where_the_driver_is_found_by_a_variable_alone(
    tmp_path: Path, make_manager: Callable[..., Manager]
) -> None:
    """LD_LIBRARY_PATH is the manager's own; its suspension process does not get it."""
    folder = tmp_path / "driver"
    simulator.create(folder, 1, 8 * GIB).close()
    around = {"LD_LIBRARY_PATH": os.fspath(folder)}
    node = make_manager(simulate=None, environment=around)
    node.quota("alice", 1)
    program = keeper(node, "alice", 16 * MIB, **around)
    (task,) = node.status()["tasks"]
    node.call("task_suspend", task=task["id"])
    assert node.task(task["id"])["suspended"]
    node.call("task_resume", task=task["id"])
    assert answer_of(program) == "same"
