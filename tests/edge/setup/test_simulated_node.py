"""A manager, and the command line, import the simulator under `serve --simulate` alone.

The GPUs of these nodes are simulated too: the driver's libraries on the linker's path are the
simulator's, and the manager cannot tell.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodemgr import simulator
from tests.support.manager import Manager

GIB = 2**30
Make = Callable[..., Manager]
MODULES = ("nodemgr.simulator", "nodemgr.edge.setup.simulated_node")
TELL = {"PYTHONPROFILEIMPORTTIME": "1"}
"""Python prints each module that it imports on stderr."""


def imported(log: str) -> set[str]:
    names = {line.rpartition("|")[2].strip() for line in log.splitlines() if "import time:" in line}
    assert "nodemgr" in names, "nothing was told"
    return names.intersection(MODULES)


@pytest.fixture
def node(make_manager: Make, tmp_path: Path) -> Manager:
    """A manager that was not told to simulate."""
    simulator.create(tmp_path, 2, 8 * GIB).close()
    driver = {"LD_LIBRARY_PATH": str(tmp_path), "NODEMGR_DEVICE_GATE": "off"}
    return make_manager(simulate=None, environment={**driver, **TELL})


def test_a_manager_of_real_gpus_imports_nothing_of_the_simulator(node: Manager) -> None:
    node.quota("alice", 1, memory_bytes=4 * GIB)
    assert len(node.status()["gpus"]) == 2
    node.stop()
    assert imported(node.log) == set()


def test_a_manager_of_simulated_gpus_does(make_manager: Make) -> None:
    manager = make_manager(simulate="1x8GiB", environment=TELL)
    manager.stop()
    assert imported(manager.log) == set(MODULES)


@pytest.mark.parametrize(
    "words",
    [("status",), ("quota", "set", "alice", "--gpus", "1"), ("quota", "show"), ("doctor",)],
    ids=" ".join,
)
def test_the_verbs_import_nothing_of_the_simulator(node: Manager, words: tuple[str, ...]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "nodemgr", *words],
        env={**os.environ, **TELL, "NODEMGR_RUN_DIR": str(node.run_dir)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode in ((0, 1) if words == ("doctor",) else (0,)), result.stderr[-500:]
    assert imported(result.stderr) == set()
