"""`python bench/first` on the simulator: each step answers, or names what it lacks.

The figures are no test's business.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nodemgr import simulator
from tests.support.manager import ROOT

GIB = 1 << 30


def first(
    *words: object, python: str = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "bench/first", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def results(out: Path) -> Mapping[str, Any]:
    """By step: state, seconds, line."""
    found: Mapping[str, Any] = json.loads((out / "results.json").read_text())["steps"]
    return found


@pytest.fixture
def driver(tmp_path: Path) -> str:
    """The folder of a simulated driver with one GPU."""
    folder = tmp_path / "driver"
    simulator.create(folder, 1, 80 * GIB).close()
    return str(folder)


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python with the standard library alone."""
    venv.create(tmp_path / "python", symlinks=True, with_pip=False)
    return tmp_path / "python" / "bin" / "python"


def test_the_facts_and_the_node_are_told_and_marked_as_the_simulators(
    tmp_path: Path, driver: str
) -> None:
    ended = first("--out", tmp_path / "out", "--only", "facts,node", LD_LIBRARY_PATH=driver)
    assert (ended.returncode, ended.stderr) == (0, "")
    found = results(tmp_path / "out")
    assert found["node"]["line"].startswith("(simulator) 1 x Simulated GPU, 85899345920 bytes")
    assert found["facts"]["line"].startswith("(simulator) GPUs 1, name Simulated GPU")
    assert ended.stdout.count("THE SIMULATOR: no figure here is a GPU's") == 2  # first line, table


def test_a_module_that_is_lacking_is_named_without_a_traceback(
    tmp_path: Path, driver: str, bare_python: Path
) -> None:
    ended = first(
        "--out", tmp_path / "out", "--only", "node",
        python=str(bare_python), LD_LIBRARY_PATH=driver, PYTHONPATH="",
    )  # fmt: skip
    assert results(tmp_path / "out")["node"]["state"] == "skipped"
    assert results(tmp_path / "out")["node"]["line"] == "(simulator) zmq is not installed"
    assert (ended.returncode, "Traceback" in ended.stdout + ended.stderr) == (0, False)


def test_a_library_that_is_no_driver_is_no_driver(tmp_path: Path) -> None:
    """An empty file in the way of the linker: each step that needs a driver is skipped."""
    (tmp_path / "libcuda.so.1").touch()
    ended = first("--out", tmp_path / "out", "--only", "node,driver", LD_LIBRARY_PATH=str(tmp_path))
    if "no driver" not in ended.stdout:
        pytest.skip("this machine has a driver")
    assert {row["state"] for row in results(tmp_path / "out").values()} == {"skipped"}
    assert "Traceback" not in ended.stdout + ended.stderr


def test_no_time_left_is_a_reason(tmp_path: Path) -> None:
    ended = first("--out", tmp_path / "out", "--only", "facts", "--seconds", "1")
    assert ended.returncode == 0
    line = results(tmp_path / "out")["facts"]["line"]
    assert re.match(r"no time left: [01] s of --seconds", line), line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "facts,tea"], "no step is called tea; the steps: facts, node, driver"),
        (["--wheels", "/nonexistent"], "there is no wheel in /nonexistent"),
    ],
)
def test_a_wrong_option_is_one_line(words: list[str], said: str) -> None:
    ended = first(*words)
    assert ended.returncode == 2
    assert f"error: {said}" in ended.stderr.splitlines()[-1]


def test_an_unusable_simulated_node_is_one_line(tmp_path: Path) -> None:
    ended = first("--out", tmp_path, "--simulate", "4y80GiB")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
    assert ended.stderr.startswith("there is no simulated node: ")
