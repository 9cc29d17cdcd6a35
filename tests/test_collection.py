"""Reading the test files loads no framework: each worker of a run reads all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["training", "prediction", "hook", "elastic", "clients"]
"""Their tests use frameworks."""
READ = """
import sys
import pytest
code = pytest.main(["-n", "0", "--collect-only", "-q", *sys.argv[1:]])
loaded = sorted({"torch", "tensorflow", "keras"} & set(sys.modules))
sys.exit(f"pytest ended with {code}, loaded: {loaded}" if code or loaded else 0)
"""


def test_no_framework_is_loaded() -> None:
    folders = [f"tests/{folder}" for folder in FOLDERS]
    read = subprocess.run(
        [sys.executable, "-c", READ, *folders], cwd=ROOT, capture_output=True, text=True
    )
    assert read.returncode == 0, read.stdout[-2_000:] + read.stderr[-2_000:]
