"""The end of a worker that leaves, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from tests.support.manager import ROOT

SCRIPT = """
import atexit, sys
from client_plugin.training.quick_exit import end_quickly

class Torn:
    def __del__(self):
        print("torn down")

kept = Torn()
atexit.register(print, "the first exit function")
try:
    end_quickly()
    atexit.register(print, "the last exit function")
    raise SystemExit(0)
finally:
    print("finally", end=" ")
"""


def test_exit_functions_run_and_the_interpreter_is_not_torn_down() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "finally the last exit function\nthe first exit function\n"
