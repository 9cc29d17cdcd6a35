"""A step of `python bench/first` as a process group: its limit, its end, its line."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import ROOT

RUN = """
import json, os, sys
sys.path[:0] = [sys.argv[1]]
import runner
from pathlib import Path
from plan import Step
runner.GRACE_S = 0.2
folder = Path(sys.argv[2])
step = Step("answer", "answering", "?", float(sys.argv[3]))
environ = {**os.environ, "PYTHONPATH": str(folder)}
with (folder / "log").open("w") as log:
    found = runner.run_step(step, step.limit_s, folder, environ, log.fileno())
print(json.dumps(found))
"""
STUBBORN = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def answer(out, limit_s):
    subprocess.Popen(["tail", "-f", "/dev/null", str(out / "log")])
    time.sleep(600)
"""


def run(folder: Path, text: str, limit_s: float = 60) -> tuple[str, str]:
    """The state and the line of a step with this module."""
    (folder / "answering.py").write_text(text)
    ended = subprocess.run(
        [sys.executable, "-c", RUN, str(ROOT / "bench" / "first"), str(folder), str(limit_s)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    state, _, line = json.loads(ended.stdout)
    return state, line


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return 'two\\nlines'", ("ok", "two lines")),
        ("import lacking; raise lacking.Lacking('no tea')", ("skipped", "no tea")),
        ("import no_such_module", ("skipped", "no_such_module is not installed")),
        ("raise RuntimeError('it is wrong')", ("failed", "it is wrong")),
        ("raise KeyError('gpu')", ("failed", "KeyError: 'gpu'")),
        (
            "print('so far'); import os; os._exit(3)",
            ("failed", "its process ended with 3; its last words: ===== answer so far"),
        ),
        (
            "import os; os.abort()",
            ("failed", "its process ended with -6; its last words: ===== answer"),
        ),
    ],
)
def test_each_end_is_one_line(tmp_path: Path, body: str, expected: tuple[str, str]) -> None:
    assert run(tmp_path, f"def answer(out, limit_s):\n    {body}\n") == expected


def test_a_module_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    state, line = run(tmp_path, "def answer(:\n")
    assert (state, line.split(":")[0]) == ("failed", "SyntaxError")


def processes_naming(word: str) -> list[int]:
    """Descriptors of the living processes with the word in their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes():
                found.append(os.pidfd_open(int(path.parent.name)))
    return found


def test_after_its_limit_no_process_of_the_step_is_left(tmp_path: Path) -> None:
    """Also where it does not hear SIGTERM."""
    state, line = run(tmp_path, STUBBORN, 1.0)
    assert (state, line.split(";")[0]) == ("timeout", "it took more than 1 s")
    for process in processes_naming(str(tmp_path)):  # killed, and perhaps not gone yet
        assert select.select([process], [], [], WAIT_LIMIT_S)[0]
        os.close(process)
