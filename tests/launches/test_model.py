"""The gate keeps its aims in the model, whose clock no load of this machine changes."""

from __future__ import annotations

import subprocess
import sys

from tests.shim.world import ROOT


def test_tasks_get_their_shares_and_fill_the_gpu() -> None:
    command = [sys.executable, str(ROOT / "bench" / "launches" / "turns.py"), "--rounds", "2"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
