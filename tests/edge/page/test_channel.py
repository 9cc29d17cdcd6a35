"""The page process's way to the manager, where it is closed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """pytest's own directories are closed to other users."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o711)
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="an ordinary user's page process has the same user")
def test_a_run_directory_that_is_closed_to_the_page_is_named_once(open_directory: Path) -> None:
    closed = open_directory / "closed"
    closed.mkdir(mode=0o700)
    command = [sys.executable, "-m", "nodemgr", "serve", "--simulate", "1x1GiB"]
    command += ["--run-dir", str(closed / "run"), "--state-dir", str(closed / "state")]
    manager = subprocess.Popen(
        [*command, "--web", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True, cwd="/"
    )
    assert manager.stderr is not None
    lines = [manager.stderr.readline()]
    while "ready on" not in lines[-1]:
        lines.append(manager.stderr.readline())
    manager.terminate()
    lines += manager.stderr.read().splitlines()
    assert manager.wait() == 0
    found = [line for line in lines if "cannot reach the manager" in line]
    assert len(found) == 1
    assert f"{closed} is closed to other users; chmod o+x {closed}, or" in found[0]
