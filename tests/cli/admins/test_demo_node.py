"""`nodemgr demo` as a person runs it, whole and broken."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run, clean_environment, one_line
from tests.support.limits import WAIT_LIMIT_S


@pytest.fixture
def nodemgr(nodemgr_process: Run) -> Run:
    """Runs the command line as a person does."""
    return nodemgr_process


def test_the_demo(nodemgr: Run, short_dir: Path) -> None:
    result = nodemgr("demo", run_dir=None, environment={"TMPDIR": str(short_dir)})
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[-1] == "All of it happened."
    assert 15 <= len(lines) <= 30
    for said in (
        r"no NVIDIA GPU here, so a simulated node",
        r"route: LD_PRELOAD -> sitecustomize -> import hook",
        r"route: LD_PRELOAD -> the shim's cuInit",
        r"r3 waits: place 1 in queue normal: ",
        r"CUDA_ERROR_OUT_OF_MEMORY",
        r"waited \d+\.\d ms in all",
        r"free again \d+\.\d ms after the kill",
    ):
        assert re.search(said, result.stdout), said
    assert list(short_dir.iterdir()) == [], "nothing is left behind"


def test_where_sockets_do_not_fit_into_tmpdir_the_demo_takes_another(
    nodemgr: Run, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    result = nodemgr("demo", run_dir=None, environment={"TMPDIR": str(deep)})
    assert (result.returncode, result.stderr) == (0, "")


def test_sources_in_the_current_directory_do_not_stand_in_for_the_installation(
    tmp_path: Path,
) -> None:
    """`pip install .

    && nodemgr demo`: the current directory is a checkout, in which nothing was built.
    """
    for package in ("nodemgr", "client_plugin", "sitecustomize"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(
            "raise ImportError('the checkout was imported')"
        )
    result = subprocess.run(
        [sys.executable, "-P", "-m", "nodemgr", "demo"],
        env=clean_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


BROKEN = """
import sys
import nodemgr.cli.admins.demo as demo
from nodemgr.cli import main
demo.STEP_TIMEOUT_S = 300

def hurried(step):  # there is no wait for a step that does not happen
    def run(story):
        for waits in (story.stage, *story.stage._programs):
            waits._timeout_s = 1
        step(story)
    return run

demo.STEPS = [
    (headline, hurried(step) if number == {step} else step)
    for number, (headline, step) in enumerate(demo.STEPS, 1)
]
{change}
sys.exit(main(["demo"]))
"""


@pytest.mark.parametrize(
    ("change", "step"),
    [
        ("demo.examples_dir = lambda: __import__('pathlib').Path('/tmp/nothing-here')", 2),
        ("demo.HOLD = ('/bin/sleep', 60)", 3),
        ("demo.GRANT_SHARE = 0.25", 4),
        ("demo.BEYOND_BYTES = -2 * demo.GIB", 5),
        ("demo.Program.kill = lambda program: 0", 7),
    ],
    ids=[
        "no script",
        "a program without CUDA",
        "room for everybody",
        "a batch that is not too large",
        "nobody is killed",
    ],
)
def test_the_demo_tells_what_did_not_happen(change: str, step: int) -> None:
    result = subprocess.run(
        [sys.executable, "-c", BROKEN.format(change=change, step=step)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert result.returncode == 1
    assert one_line(result).startswith(f"demo: step {step} (")
    assert "All of it happened" not in result.stdout


def test_ctrl_c_leaves_nothing_running(short_dir: Path) -> None:
    command, environment = (
        [sys.executable, "-u", "-m", "nodemgr", "demo"],
        clean_environment(TMPDIR=str(short_dir)),
    )
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        match = re.search(r"manager: pid (\d+)", process.stdout.readline())
        assert match is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_LIMIT_S)
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(match[1]), 0)
    assert list(short_dir.iterdir()) == []
