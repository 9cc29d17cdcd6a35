"""The steps `smi`, `demo`, `build` and `tests`: whole programs, by their own words."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from answers import SHOWN
from lacking import Lacking, compiler, needs_module, needs_program
from machine import GIB, ROOT, ended, node

SMI = (
    (),
    ("-L",),
    ("--query-gpu=memory.total,memory.used", "--format=csv"),
    ("--query-compute-apps=pid,used_memory", "--format=csv"),
    ("pmon", "-c", "1"),
    ("topo", "-m"),
)
SMI_S = 20
END_S = 5.0
TEST_S = 60
SOURCES = ("csrc", "client_plugin", "sitecustomize", "examples", "pyproject.toml", "README.md")


def smi(out: Path, limit_s: float) -> str:
    """nvidia-smi bare and in an environment; what it printed is in the log."""
    program = needs_program("nvidia-smi")
    with node() as running:
        running.envs(8 * GIB)
        runs = {
            (kind, words): ended([program, *words], running.around(kind), SMI_S, kind)
            for kind in ("bare", "shim")
            for words in SMI
        }
    said = []
    for kind in ("bare", "shim"):
        memory = re.findall(r"\d+MiB */ *\d+MiB", runs[kind, ()].stdout)[:1]
        codes = [runs[kind, words].returncode for words in SMI]
        said.append(f"{kind} {' '.join(memory) or 'no memory shown'}, exit statuses {codes}")
    return "; ".join(said)


def demo(out: Path, limit_s: float) -> str:
    run = ended([sys.executable, "-m", "nodemgr", "demo"], os.environ, limit_s - END_S)
    last = last_line(run)
    if run.returncode:
        raise RuntimeError(f"the demo ended with {run.returncode}: {last}")
    return last


def build(out: Path, limit_s: float) -> str:
    """Of a copy of the sources."""
    compiler()
    for name in ("cffi", "setuptools"):
        needs_module(name)
    with tempfile.TemporaryDirectory(prefix="nmf", dir="/tmp") as folder:
        for name in SOURCES:
            source = ROOT / name
            if source.is_dir():
                built = shutil.ignore_patterns("*.so", "*.so.1", "_bin", "_lib")
                shutil.copytree(source, Path(folder) / name, ignore=built)
            else:
                shutil.copy(source, folder)
        (Path(folder) / "nodemgr").mkdir()
        began_s = time.monotonic()
        run = subprocess.run(
            [sys.executable, "-m", "csrc.build"], cwd=folder, capture_output=True, text=True,
            timeout=limit_s - END_S, check=False,
        )  # fmt: skip
        print(run.stdout, run.stderr)
    if run.returncode:
        text = run.stdout + run.stderr
        if "Python.h" in text:
            raise Lacking("there is no Python.h: take the built outputs along")
        raise RuntimeError(f"the build ended with {run.returncode}: {last_line(run)}")
    return f"built in {time.monotonic() - began_s:.0f} s"


def tests(out: Path, limit_s: float) -> str:
    """tests/gpu, one at a time; all that they print in pytest.txt."""
    needs_module("pytest")
    command = [
        *("timeout", "-s", "INT", str(int(limit_s - END_S)), sys.executable, "-m", "pytest"),
        *("tests/gpu", "-m", "gpu", "-q", "-s", "-rA", "-p", "no:cacheprovider"),
        *("--confcutdir", "tests/gpu", "-o", "addopts=--import-mode=importlib"),
    ]
    if shutil.which("timeout") is None:
        raise Lacking("there is no timeout on PATH")
    run = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NODEMGR_TEST_WAIT_S": str(TEST_S)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    (out / "pytest.txt").write_text(run.stdout + run.stderr)
    red = re.findall(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    line = f"{last_line(run)} {' '.join(red[: 4 * SHOWN])}".strip()
    if run.returncode:
        raise RuntimeError(line)
    return line


def last_line(run: subprocess.CompletedProcess[str]) -> str:
    return ((run.stdout + run.stderr).strip().splitlines() or ["it printed nothing"])[-1]
