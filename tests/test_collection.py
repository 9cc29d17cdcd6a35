"""Reading the test files loads no framework, and passes over none of them.

Each worker of a run reads all.
"""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

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


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    patterns = pytestconfig.getini("norecursedirs")
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    assert Path("tests/build") in folders
    assert [
        f"{folder} by {pattern}"
        for folder in sorted(folders)
        for pattern in patterns
        if any(fnmatch(part, pattern) for part in folder.parts)
    ] == []
