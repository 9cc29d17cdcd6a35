"""Each row of the table (table.py): bare on the simulated driver, and under `nodemgr run`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.programs.front import install_front
from tests.programs.table import PROGRAMS, SAME, Program
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import HOLD, ROOT, Manager
from tests.support.wheel import Installation, installation, wheel

__all__ = ["installation", "wheel"]

FORGOTTEN = ("NODEMGR_", "CUDA_", "LD_", "PYTHON", "PYTEST_")
BARE = """
run() { while [ "$1" != -- ]; do shift; done; shift; "$@"; }
job() { run "$@"; }
install() { :; }
remove() { :; }
"""
OURS = """
run() { nodemgr run --env alice "$@"; }
job() {
    id=$(nodemgr submit --env alice "$@") || return
    nodemgr wait "$id" > /dev/null; nodemgr logs "$id"
}
pip() { "$PYTHON" -m pip --python "$INSTALLATION/bin/python" "$@"; }
install() { pip install --quiet --force-reinstall --no-deps --no-index "$WHEEL"; }
remove() { pip uninstall --quiet --yes nodemgr; }
"""
COUNT = """#!/bin/sh
exec "$PYTHON" -I -c '
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
cuda.cuInit(0)
cuda.cuDeviceGetCount(ctypes.byref(count))
print(count.value)'
"""


def start(**options: Any) -> Manager:
    manager = Manager(simulate="4x16GiB", **options).start()
    manager.quota("alice", 4, memory_bytes=32 << 30)
    manager.quota("eager", 4, acquire="import")
    return manager


@pytest.fixture(scope="module")
def node() -> Iterator[Manager]:
    manager = start()
    yield manager
    manager.close()


@pytest.fixture(scope="module")
def variables(node: Manager, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of the scripts; their PATH has `nodemgr`, `count` and `hold`."""
    programs = tmp_path_factory.mktemp("programs")
    install_front(programs)
    (programs / "count").write_text(COUNT)
    (programs / "count").chmod(0o755)
    (programs / "hold").symlink_to(HOLD)
    kept = {key: text for key, text in os.environ.items() if not key.startswith(FORGOTTEN)}
    return {
        **kept,
        "PATH": f"{programs}:{Path(sys.executable).parent}:{kept['PATH']}",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT / "tests" / "hook" / "standins"),
        "PYTHONDONTWRITEBYTECODE": "1",
        **node_of(node),
    }


def node_of(manager: Manager) -> dict[str, str]:
    return {
        "LD_LIBRARY_PATH": str(manager.run_dir / "sim"),
        "NODEMGR_RUN_DIR": str(manager.run_dir),
    }


@pytest.fixture
def installed(
    variables: dict[str, str], wheel: Path, installation: Installation
) -> Iterator[dict[str, str]]:
    """The same with a manager and the client of the installation."""
    programs = installation.directory / "bin"
    manager = start(program=[str(programs / "nodemgr")], folder=installation.directory)
    yield {
        **variables,
        **node_of(manager),
        "PATH": f"{programs}:{variables['PATH']}",
        "INSTALLATION": str(installation.directory),
        "WHEEL": str(wheel),
    }
    manager.close()


def hear_hangups() -> None:
    """Below nohup the signal is ignored, which programs inherit."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def result(program: Program, prelude: str, folder: Path, variables: dict[str, str]) -> str:
    folder.mkdir()
    for name, text in program.files.items():
        (folder / name).write_text(text)
    script = f"{prelude}\nexport -f $(compgen -A function)\n{program.script}"
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=variables, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=WAIT_LIMIT_S,
        check=False, preexec_fn=hear_hangups,
    ).stdout.strip()  # fmt: skip


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(row, id=row.name, marks=[pytest.mark.slow] if row.installed else [])
        for row in PROGRAMS
    ],
)
def test_program(program: Program, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if shutil.which(program.needs) is None:
        pytest.skip(f"there is no {program.needs} here")
    variables = request.getfixturevalue("installed" if program.installed else "variables")
    bare = result(program, BARE, tmp_path / "bare", variables)
    assert bare == program.bare
    ours = result(program, OURS, tmp_path / "ours", variables)
    assert ours == (bare if program.ours == SAME else program.ours)


def test_the_example_waits_for_no_line_at_a_terminal() -> None:
    """There a person sees it stop, and knows of no line that it reads."""
    leader, follower = os.openpty()
    script = (
        "import sys; sys.modules['cupy'] = sys; sys.path.insert(0, 'examples'); import train;"
        " train.step('done')"
    )
    with os.fdopen(leader), os.fdopen(follower) as terminal:
        found = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT, stdin=terminal, capture_output=True, text=True, timeout=WAIT_LIMIT_S,
            check=True,
        )  # fmt: skip
    assert found.stdout == "done\n"
