"""The bench of the verbs still runs: its short form. What it measures is no test's business."""

from __future__ import annotations

import subprocess
import sys

from tests.cli.conftest import ROOT, clean_environment


def test_it_prints_a_row_for_each_verb() -> None:
    said = subprocess.run(
        [sys.executable, "bench/verbs.py", "--rounds", "1"], cwd=ROOT, env=clean_environment(), capture_output=True, text=True,
        timeout=110, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (0, "")
    rows = said.stdout.splitlines()
    names = ("python -c pass", "submit", "queue", "status", "logs", "wait", "history", "run", "quota show", "queue, in a container")
    for name in names:
        assert any(row.startswith(f"{name} ") for row in rows), name
