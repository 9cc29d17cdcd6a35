"""The gate keeps its aims in the model, whose clock no load of this machine changes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.shim.world import ROOT


@pytest.mark.parametrize(
    "rows", ["shares", "limits", "long", "stops", "pretenders", "beside kernels"]
)
def test_the_gate_keeps_its_aims(rows: str) -> None:
    """Tasks get their shares and fill the GPU; a service is quick, and leaves them the rest."""
    program = ROOT / "bench" / "launches" / "turns.py"
    command = [sys.executable, str(program), "--rounds", "1", "--only", rows]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
