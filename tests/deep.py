"""Run every property test with more examples: `python -m tests.deep [--times N] [FILE...]`.

The files are those that use tests/support/examples.py. Each file is one pytest process without a
time limit. Its output appears when it ends. Hypothesis prints how to reproduce a failing example;
keep that example as an `@example` or as a test of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support.examples import VARIABLE

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"


def files() -> list[str]:
    """The test files that hold property tests."""
    found = (
        path
        for path in TESTS.rglob("test_*.py")
        if "tests.support.examples import" in path.read_text()
    )
    return sorted(str(path.relative_to(ROOT)) for path in found)


def run(file: str, times: int) -> bool:
    """Run one file; True if all of its tests pass."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--timeout=0", file]
    begin_s = time.monotonic()
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {VARIABLE: str(times)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    good = ran.returncode == 0
    print(ran.stdout.splitlines()[-1] if good and ran.stdout else ran.stdout, flush=True)
    print(
        f"{'passed' if good else 'FAILED'}  {time.monotonic() - begin_s:6.0f} s  {file}", flush=True
    )
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--times",
        type=int,
        default=100,
        help="how many times the usual number of examples (default: 100)",
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="test files (default: all that hold property tests)",
    )
    options = parser.parse_args()
    if options.times < 1:
        parser.error(f"--times {options.times}: at least 1")
    results = [run(file, options.times) for file in options.files or files()]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
