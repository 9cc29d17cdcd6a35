"""The wheel holds what a user's machine needs, in the places where the parts look for one
another.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from csrc.build import SHIM_DIRS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "nodemgr",
    "client_plugin",
    "sitecustomize",
    "csrc",
    "examples",
    "pyproject.toml",
    "README.md",
)
LEFT_OUT = shutil.ignore_patterns("*.so", "*.so.*", "_bin", "_sim", "_lib", "__pycache__")
NEEDED = {
    "nodemgr/_native.abi3.so", "nodemgr/cli/__init__.py", "nodemgr/core/__init__.py", "nodemgr/edge/__init__.py",
    "nodemgr/_service/nodemgr.service", "nodemgr/_service/nodemgr-jobs.service", "nodemgr/_bin/nodemgr-supervisor",
    "nodemgr/_sim/libcuda.so.1", "nodemgr/_sim/libnvidia-ml.so.1", "nodemgr/_sim/hold",
    "client_plugin/__init__.py", "client_plugin/_lib/libnodemgr.so",
    *(f"client_plugin/_lib/{directory}/libnodemgr.so" for directory in SHIM_DIRS),
    "client_plugin/bin/nodemgr",
    "client_plugin/_bin/nodemgr-runner",
    "client_plugin/verbs/__main__.py", "sitecustomize/sitecustomize.py",
    *(str(path.relative_to(ROOT)) for top in ("nodemgr", "client_plugin") for path in (ROOT / top).rglob("*.py")),
}  # fmt: skip


def copy_source(source: Path) -> Path:
    """Without anything built."""
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=LEFT_OUT)
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, source / name)
    return source


def build(source: Path, output: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Offline."""
    offline = ["--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    command = [sys.executable, "-m", "pip", "wheel", *offline, "-w", str(output), str(source)]
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    result = build(copy_source(source), output)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = output.iterdir()
    return built


def test_what_is_in_it(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= NEEDED
    assert "sitecustomize/__init__.py" not in names
    assert {name.split("/")[0] for name in names} == {
        "nodemgr",
        "client_plugin",
        "sitecustomize",
        "nodemgr-0.1.0.dist-info",
    }
    assert not [name for name in names if name.endswith((".c", ".h", ".def"))]


def test_what_others_run_is_executable(wheel: Path) -> None:
    for name in (
        "client_plugin/bin/nodemgr",
        "client_plugin/_bin/nodemgr-runner",
        "nodemgr/_bin/nodemgr-supervisor",
    ):
        assert zipfile.ZipFile(wheel).getinfo(name).external_attr >> 16 & 0o111


def test_it_is_for_every_python_from_3_11_on(wheel: Path) -> None:
    assert "-cp311-abi3-linux_" in wheel.name


def test_no_path_of_the_building_machine_is_in_it(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    for name in archive.namelist():
        assert str(ROOT).encode() not in archive.read(name), name


def test_unpacked_it_runs(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = (
        "import sys, nodemgr._native as n; print(n.__file__);"
        " print(n.lib.nm_wire_verb_direction(1))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == [str(tmp_path / "nodemgr" / "_native.abi3.so"), "1"]


NONE_THERE = (
    "nodemgr is built with a C compiler, and there is no 'no-such-compiler' here: install one"
    " (Debian, Ubuntu: apt-get install build-essential; Fedora, RHEL: dnf install gcc), or name"
    " yours in $CC"
)
UNSET = "unset it, or name a C compiler in it"


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("no-such-compiler", NONE_THERE),
        ("", f"the variable CC is set and names no compiler: {UNSET}"),
        ("  ", f"the variable CC is set and names no compiler: {UNSET}"),
        ("cc 'x", f'the variable CC is no command (No closing quotation): "cc \'x"; {UNSET}'),
    ],
)
def test_without_a_compiler_one_line_says_what_to_do(named: str, told: str, tmp_path: Path) -> None:
    result = build(copy_source(tmp_path), tmp_path / "wheel", CC=named)
    assert result.returncode != 0
    lines = result.stderr.partition("[end of output]")[0].strip().splitlines()
    assert lines[-1].strip() == told
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (
            "stdio.h",
            (
                r"the C compiler '.*/cc' builds no program here \(.*\): install one \(.*"
                r" build-essential;"
            ),
        ),
        (
            "Python.h",
            (
                r"the headers of Python 3\.\d+ are missing \(no Python\.h in /.*\): install them"
                r" \(.* python3\.\d+-dev;"
            ),
        ),
    ],
)
def test_what_a_compiler_lacks_is_named(missing: str, told: str, tmp_path: Path) -> None:
    lacking = tmp_path / "cc"
    lacking.write_text(
        f'#!/bin/sh\ntext=$(cat)\ncase $text in *{missing}*) exit 1; esac\necho "$text" | cc "$@"\n'
    )
    lacking.chmod(0o755)
    command = [sys.executable, "-m", "csrc.build"]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "CC": str(lacking)},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert re.match(told, last), result.stderr
