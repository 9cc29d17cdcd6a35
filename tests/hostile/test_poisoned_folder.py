"""A manager that is started in a user's folder runs none of the user's code.

The folder has modules by the names of the manager's own and of the standard library.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodemgr.edge.forecast.trainer import Trainer
from tests.gpu.keeper import answer_of, keeper
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import ROOT, Manager

NAMES = ("json.py", "struct.py", "sitecustomize.py", "usercustomize.py", "zmq.py", "psutil.py")
PACKAGES = ("nodemgr", "client_plugin", "encodings")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Each module there leaves a file `ran` when it is imported, and ends the process."""
    trap = f"open({str(tmp_path / 'ran')!r}, 'w').write(__file__); raise SystemExit(99)\n"
    for name in (*NAMES, *(f"{package}/__init__.py" for package in PACKAGES)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(trap)
    tmp_path.chmod(0o755)
    return tmp_path


def test_the_folder_is_dangerous(folder: Path) -> None:
    """To a process that is started as the manager's processes are not."""
    command = [sys.executable, "-c", "import json"]
    assert subprocess.run(command, cwd=folder, check=False).returncode == 99
    assert (folder / "ran").exists()


def test_page_and_suspension_run_in_a_manager_that_was_started_there(
    folder: Path, make_manager: Callable[..., Manager]
) -> None:
    node = make_manager(
        simulate="1x4GiB", options=["--web", "127.0.0.1:0"], folder=folder,
        environment={"PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    node.quota("alice", 1)
    alice = keeper(node)
    node.call("task_suspend", task="t1")
    assert node.call("task_resume", task="t1")["suspension"] == "none"
    assert answer_of(alice) == "same"
    assert "web page at http://127.0.0.1:" in node.log
    assert not (folder / "ran").exists(), (folder / "ran").read_text()


def test_a_training_runs_in_a_manager_that_was_started_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, done = asyncio.new_event_loop(), []
    trainer = Trainer(loop, folder / "weights", list, lambda: done.append(1))
    monkeypatch.chdir(folder)
    trainer.begin()
    monkeypatch.undo()
    loop.call_later(WAIT_LIMIT_S, loop.stop)
    while trainer.pid is not None:
        loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    assert not (folder / "ran").exists(), (folder / "ran").read_text()


@pytest.mark.parametrize(
    "program", ["nodemgr/gate_hook.py", "nodemgr/arrival.py", "client_plugin/bin/nodemgr"]
)
def test_programs_that_a_container_runtime_and_users_start_there(
    folder: Path, program: str
) -> None:
    words = ["sh"] if program.startswith("client_plugin") else [sys.executable, "-I"]
    done = subprocess.run(
        [*words, ROOT / program, "status"], cwd=folder, input="{}", text=True,
        capture_output=True, timeout=WAIT_LIMIT_S, check=False,
        env={
            "PATH": "/usr/bin:/bin", "NODEMGR_ENV_DIR": "/nonexistent",
            **dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE"), str(folder)),
        },
    )  # fmt: skip
    assert done.returncode != 99, done.stderr
    assert not (folder / "ran").exists(), (folder / "ran").read_text()
