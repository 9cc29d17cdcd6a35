"""Each row of the table (table.py): bare on the simulated driver, and under `nodemgr run`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs.front import install_front
from tests.programs.table import PROGRAMS, SAME, Program
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import HOLD, ROOT, Manager

FORGOTTEN = ("NODEMGR_", "CUDA_", "LD_", "PYTHON", "PYTEST_")
BARE = """
run() { while [ "$1" != -- ]; do shift; done; shift; "$@"; }
job() { run "$@"; }
"""
OURS = """
run() { nodemgr run --env alice "$@"; }
job() {
    id=$(nodemgr submit --env alice "$@") || return
    nodemgr wait "$id" > /dev/null; nodemgr logs "$id"
}
"""
COUNT = """#!/bin/sh
exec "$PYTHON" -I -c '
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
cuda.cuInit(0)
cuda.cuDeviceGetCount(ctypes.byref(count))
print(count.value)'
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Manager]:
    manager = Manager(simulate="4x16GiB").start()
    manager.quota("alice", 4, memory_bytes=32 << 30)
    manager.quota("eager", 4, acquire="import")
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
        "LD_LIBRARY_PATH": str(node.run_dir / "sim"),
        "NODEMGR_RUN_DIR": str(node.run_dir),
    }


def hear_hangups() -> None:
    """Below nohup the signal is ignored, which programs inherit."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def result(program: Program, prelude: str, folder: Path, variables: dict[str, str]) -> str:
    folder.mkdir()
    for name, text in program.files.items():
        (folder / name).write_text(text)
    script = f"{prelude}\nexport -f run job\n{program.script}"
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=variables, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=WAIT_LIMIT_S,
        check=False, preexec_fn=hear_hangups,
    ).stdout.strip()  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program(program: Program, variables: dict[str, str], tmp_path: Path) -> None:
    if shutil.which(program.needs) is None:
        pytest.skip(f"there is no {program.needs} here")
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
