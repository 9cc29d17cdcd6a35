"""bench/restart.py in its short form: it runs, and its table has both rows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_bench_of_a_start_runs_and_prints_its_table() -> None:
    command = [sys.executable, str(ROOT / "bench" / "restart.py"), "--mib", "2"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"an empty store +[0-9.]+ +[0-9.]+", ended.stdout)
    assert re.search(r"4 held jobs, files of [0-9]+ MiB +[0-9.]+ +[0-9.]+", ended.stdout)
