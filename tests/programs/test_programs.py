"""Each row of the table (table.py): bare on the simulated driver, and under `nodemgr run`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs.table import PROGRAMS, SAME, Program
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager

FORGOTTEN = ("NODEMGR_", "CUDA_", "LD_", "PYTHON")


@pytest.fixture(scope="module")
def node() -> Iterator[Manager]:
    manager = Manager(simulate="2x16GiB").start()
    manager.quota("alice", 2, memory_bytes=8 << 30)
    yield manager
    manager.close()


def result(program: Program, node: Manager, folder: Path, under: str) -> str:
    folder.mkdir()
    for name, text in program.files.items():
        (folder / name).write_text(text)
    kept = {key: text for key, text in os.environ.items() if not key.startswith(FORGOTTEN)}
    bin_directory = str(Path(sys.executable).parent)
    variables = {
        **kept,
        "PATH": f"{bin_directory}:{kept['PATH']}",
        "PYTHON": sys.executable,
        "LD_LIBRARY_PATH": str(node.run_dir / "sim"),
        "NODEMGR_RUN_DIR": str(node.run_dir),
        "HOLD": str(Path(__file__).parents[2] / "nodemgr" / "_sim" / "hold"),
        "UNDER": under,
    }
    return subprocess.run(
        ["bash", "-c", program.script], cwd=folder, env=variables, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=WAIT_LIMIT_S,
        check=False,
    ).stdout.strip()  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program(program: Program, node: Manager, tmp_path: Path) -> None:
    bare = result(program, node, tmp_path / "bare", "")
    assert bare == program.bare
    ours = result(
        program, node, tmp_path / "ours", shlex.join(["nodemgr", "run", "--env", "alice", "--"])
    )
    assert ours == (bare if program.ours == SAME else program.ours)
