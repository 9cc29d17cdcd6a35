"""The gate keeps its aims in the model, whose clock no load of this machine changes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.shim.world import ROOT


@pytest.mark.parametrize(
    ("rows", "rounds"),
    [
        ("shares", 1),
        ("shares 10:90, 20 ms", 6),
        ("limits", 1),
        ("pauses", 3),
        ("long", 1),
        ("stops", 1),
        ("pretenders", 5),
        ("beside kernels", 1),
    ],
)
def test_the_gate_keeps_its_aims(rows: str, rounds: int) -> None:
    """Tasks get their shares and fill the GPU; a service is quick, and leaves them the rest.

    A kernel of 20 ms is 2 points: a round in which a holder kept its turn while another task
    launched beside it came to 4.
    """
    program = ROOT / "bench" / "launches" / "turns.py"
    command = [sys.executable, str(program), "--rounds", str(rounds), "--only", rows]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
