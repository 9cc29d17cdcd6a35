"""A job's output that the manager's sheet refuses for a while is not lost, and needs no event."""

from __future__ import annotations

import subprocess
from pathlib import Path

from csrc import build
from tests.client_c.compiled import compile_c


def test_output_that_a_full_sheet_refuses_is_tried_again(tmp_path: Path) -> None:
    """`said` and the limit of the wait in ms: before, and with room."""
    left_out = ("runner/attempt.c", "runner/main.c", "start/start.c")
    sources = [
        source
        for source in map(str, build.sources_of("nodemgr-runner"))
        if not source.endswith(left_out)
    ]
    program = compile_c(
        tmp_path / "full_sheet", [*sources, Path(__file__).with_name("full_sheet.c")]
    )
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0 5000\n3 -1\n")
