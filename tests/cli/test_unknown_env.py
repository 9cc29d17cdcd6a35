"""A name that is no environment ends every verb with one code, for administrators too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_plugin.ways.faults import Exit
from tests.support.manager import Manager

LINES = (
    "run --env ENV -- true", "submit --env ENV -- true", "predict --env ENV -- true",
    "queue --env ENV", "queue withdraw --env ENV j1", "queue hold --all-of ENV",
    "queue position --env ENV j1", "logs --env ENV j1", "wait --env ENV j1", "history --env ENV",
    "history --env ENV --json", "report --env ENV", "report --env ENV --json", "status --env ENV",
    "top --once --env ENV", "release --env ENV t1", "suspend --env ENV t1",
    "keep --for 1h --env ENV t1", "kernel install ENV --user", "env show ENV", "env rm ENV",
    "env rekey ENV", "quota show ENV", "quota rm ENV", "web token --env ENV",
)  # fmt: skip


@pytest.fixture(scope="module")
def node() -> Iterator[Manager]:
    manager = Manager(options=("--web", "127.0.0.1:0")).start()
    try:
        manager.call("quota_set", env="alice", gpus=1)
        yield manager
    finally:
        manager.close()


@pytest.mark.parametrize("line", LINES)
def test_an_unknown_environment_has_one_exit_code(node: Manager, line: str) -> None:
    words = line.replace("ENV", "nosuch").split()
    ended = subprocess.run(
        [sys.executable, "-m", "nodemgr", *words],
        env={**os.environ, "NODEMGR_RUN_DIR": str(node.run_dir)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (Exit.QUOTA_REFUSES, "")
    assert "no environment 'nosuch'" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("line", ["run --env bob -- true", "queue --env bob", "logs --env bob j1"])
def test_an_environment_whose_files_are_gone_is_not_called_unknown(
    tmp_path: Path, line: str
) -> None:
    """A cleaner has taken client.conf and the sockets, and no manager has made them again yet."""
    (tmp_path / "envs" / "bob").mkdir(parents=True)
    ended = subprocess.run(
        [sys.executable, "-m", "nodemgr", *line.split()],
        env={**os.environ, "NODEMGR_RUN_DIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (Exit.UNREACHABLE, "")
    assert ended.stderr == (
        f"nodemgr: the files of environment 'bob' in {tmp_path} are not whole: the manager makes "
        "them again within seconds, if it runs: `nodemgr doctor`\n"
    )
