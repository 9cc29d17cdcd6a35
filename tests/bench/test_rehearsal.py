"""`python bench/first` as on a bare machine: few packages, no network, the simulator as the driver.

Its parts and its wrong options: test_first.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import zipfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.bench.test_first import bare_python, driver, first, results
from tests.support.manager import ROOT

__all__ = ["bare_python", "driver"]
pytestmark = pytest.mark.slow
MOST_FILES = 8
LACKING = ("pyzmq", "cffi", "pycparser")
"""Brought along as wheels (docs/inside/real-gpu.md)."""
PRESENT = (
    *("click", "psutil", "nvidia-ml-py"),
    *("pytest", "pluggy", "iniconfig", "packaging", "pygments"),
)
WITHOUT = {
    "train": "torch is not installed",
    "build": "setuptools is not installed",
    "smi": "there is no nvidia-smi on PATH",
    "frameworks": "cupy is not installed; jax is not installed; numba is not installed;"
    " torch is not installed; triton is not installed; there is no nvcc on PATH",
}
"""By step: its line on that machine."""
NOTHING_OF_IT = ("LD_", "PYTHON", "NODEMGR_", "CUDA_", "VIRTUAL_ENV", "COV_")
SECONDS = 1_200
"""A busy machine takes as long as it needs; a step still has its own limit."""


def files_of(packages: Iterable[str]) -> Iterable[tuple[Path, str]]:
    """The installed files and their names in a folder of packages."""
    for package in packages:
        for file in metadata.files(package) or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                yield Path(str(file.locate())), str(file)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for package in LACKING:
        with zipfile.ZipFile(folder / f"{package}-1-py3-none-any.whl", "w") as wheel:
            for path, name in files_of([package]):
                wheel.write(path, name)
    return folder


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    for path, name in files_of(PRESENT):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(path)
    return folder


def rehearse(
    tmp_path: Path, python: Path, wheels: Path, driver: str, *words: str, **variables: str
) -> Mapping[str, Any]:
    """The results of a run on that machine; each line is the simulator's, none has a traceback."""
    apart = ["unshare", "-n"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user cannot have a network namespace of its own")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(NOTHING_OF_IT)}
    out = tmp_path / "out"
    options = ("--out", str(out), "--wheels", str(wheels), "--seconds", str(SECONDS))
    ended = subprocess.run(
        [*apart, str(python), str(ROOT / "bench" / "first"), *options, *words],
        cwd=tmp_path,
        env={**clean, "PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": driver, **variables},
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    print(ended.stdout)
    assert (ended.stderr, "Traceback" in ended.stdout) == ("", False)
    found = results(out)
    assert all(row["line"].startswith("(simulator) ") for row in found.values())
    assert len(list(out.iterdir())) <= MOST_FILES
    return found


def test_the_whole_runs_on_a_bare_machine_with_packages_by_a_variable(
    tmp_path: Path, bare_python: Path, wheels: Path, packages: Path, driver: str
) -> None:
    found = rehearse(tmp_path, bare_python, wheels, driver, PYTHONPATH=str(packages))
    for step, row in found.items():
        line = row["line"].removeprefix("(simulator) ")
        if step in WITHOUT:
            assert line == WITHOUT[step]
        elif step == "tests":  # what a busy machine measures is no fault
            assert re.search(r"\b1[0-9] passed, 9 skipped|failed, [0-9]+ passed", line), line
        else:
            assert row["state"] == "ok", f"{step}: {line}"
    assert "bytes same" in found["suspend"]["line"]
    assert "refused" not in found["suspend"]["line"].split("managed")[0]


def test_the_processes_of_a_manager_run_with_packages_by_a_pth_file(
    tmp_path: Path, bare_python: Path, wheels: Path, packages: Path, driver: str
) -> None:
    """The suspension process and the demo's programs find the modules that the manager found."""
    base = {"base": str(bare_python.parents[1]), "platbase": str(bare_python.parents[1])}
    site = Path(sysconfig.get_path("purelib", "venv", vars=base))
    (site / "packages.pth").write_text(f"{packages}\n")
    found = rehearse(tmp_path, bare_python, wheels, driver, "--only", "suspend,demo")
    assert {row["state"] for row in found.values()} == {"ok"}, found
    assert "by the manager task_suspend " in found["suspend"]["line"]
    assert found["demo"]["line"] == "(simulator) All of it happened."


def test_steps_of_libcuda_alone_run_bare_where_a_manager_cannot(
    tmp_path: Path, driver: str, bare_python: Path
) -> None:
    ended = first(
        "--out", tmp_path / "out", "--only", "driver,suspend,answers",
        python=str(bare_python), LD_LIBRARY_PATH=driver, PYTHONPATH="",
    )  # fmt: skip
    assert (ended.returncode, "Traceback" in ended.stdout + ended.stderr) == (0, False)
    found = {step: row["line"] for step, row in results(tmp_path / "out").items()}
    assert re.match(r"\(simulator\) cuInit [0-9]+ ms, retain [0-9]+ ms \(bare\)", found["driver"])
    assert found["driver"].endswith("; bare alone: zmq is not installed")
    assert "Checkpoint 0 in" in found["suspend"]
    assert "by_order: zmq is not installed" in found["suspend"]
    assert "153 codes: simulator differs in 0" in found["answers"]
