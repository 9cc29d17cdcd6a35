"""Unmodified DDP scripts under the leader: real processes, gloo, the script's own checkpoints."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.elastic.led import HERE, Led
from tests.support.limits import WAIT_LIMIT_S

SCRIPT = HERE / "scripts" / "ddp.py"
pytestmark = [pytest.mark.frameworks, pytest.mark.slow]
Lead = Callable[..., Led]


@pytest.fixture
def lead(tmp_path: Path) -> Iterator[Lead]:
    """Starts leaders: lead("--steps", "100", gpus=2, checkpoint=path)."""
    started: list[Led] = []

    def start(
        *words: object, gpus: int = 1, checkpoint: Path | None = None,
        command: tuple[str, ...] = (str(SCRIPT),),
    ) -> Led:  # fmt: skip
        options = "" if checkpoint is None else f"--checkpoint {checkpoint}"
        led = Led(tmp_path, *command, *map(str, words), gpus=gpus, options=options)
        started.append(led)
        return led

    yield start
    for led in started:
        led.close()


def begins(led: Led, size: int, times: int = 1) -> int:
    """The step at which rank 0 begins in a round of this size."""
    found = re.search(r"at step (\d+)", led.line(rf"^starts at step \d+ as 0 of {size} ", times))
    assert found is not None
    return int(found[1])


def trains(led: Led, size: int, until: int = 0) -> int:
    """Waits until a round of this size has reached a step; returns the newest step."""
    end_s = time.monotonic() + WAIT_LIMIT_S
    while time.monotonic() < end_s:
        led.line(rf"^step \d+ of {size}$")
        steps = [
            int(m[1]) for x in list(led.lines) if (m := re.match(rf"step (\d+) of {size}$", x))
        ]
        if steps and steps[-1] >= until:
            return steps[-1]
        time.sleep(0.05)
    raise AssertionError(led.lines[-20:])


@pytest.mark.parametrize("form", ["file", pytest.param("directory", marks=pytest.mark.long)])
def test_a_script_grows_and_shrinks_from_its_checkpoint(
    lead: Lead, tmp_path: Path, form: str
) -> None:
    """tests/elastic/test_checkpoint_watch.py has a directory without a training."""
    path = tmp_path / "state"
    words = ["--in-directory"] if form == "directory" else []
    led = lead("--save", path, *words, checkpoint=path)
    trains(led, 1, 110)
    led.lease("offer", 4)
    led.word("accepted", "GPU-4")
    step = begins(led, 2)
    assert step >= 100
    assert step % 100 == 0
    led.line(rf"^\[worker 2\] starts at step {step} as 1 of 2 .* restart 1$")
    trains(led, 2, step + 110)
    led.lease("recall", 4, within_s=30.0)
    led.word("left", "GPU-4")
    assert begins(led, 1, times=2) >= step + 100
    led.send(signal.SIGINT)
    assert led.end() == -signal.SIGINT


def test_a_script_without_a_checkpoint_keeps_its_gpus(lead: Lead) -> None:
    led = lead(gpus=2)
    trains(led, 2, 5)
    led.lease("recall", 1, within_s=2.0)
    led.line(
        "worker 1 was (ended|killed), since GPU 1 was asked back"
    )  # in its first 30 s, or later
    led.word("left", "GPU-1")
    assert begins(led, 1) == 0
    led.lease("offer", 5)
    led.line("keeps its 1 GPU, since it has no checkpoint")
    led.word("decline", "GPU-5")


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_killed_worker_starts_all_again_from_the_checkpoint(
    lead: Lead, tmp_path: Path, victim: int
) -> None:
    """Any other worker than 0: tests/elastic/test_torchrun_rounds.py, without processes."""
    path = tmp_path / "state"
    led = lead("--save", path, gpus=2, checkpoint=path)
    trains(led, 2, 110)
    os.kill(led.workers()[victim], signal.SIGKILL)
    led.line(f"worker {victim} ended with signal SIGKILL")
    led.line("all workers start again from the checkpoint, since one ended with signal SIGKILL")
    assert begins(led, 2, times=2) >= 100


def test_a_script_that_crashes_in_each_start_is_given_up(lead: Lead, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text('raise RuntimeError("the script is wrong")')
    led = lead(gpus=2, checkpoint=tmp_path / "state", command=(str(wrong),))
    assert led.end() == 1
    assert sum("RuntimeError: the script is wrong" in line for line in led.lines) >= 4
    assert [line for line in led.lines if "not started again after 3 restarts in a row" in line]


def test_a_script_that_ends_well_ends_the_task(lead: Lead) -> None:
    led = lead("--steps", 20, gpus=2)
    assert led.end() == 0
    assert "finished as 0 of 2" in led.lines
    assert "[worker 1] finished as 1 of 2" in led.lines


@pytest.mark.parametrize("form", ["torchrun", pytest.param("module", marks=pytest.mark.long)])
def test_torchrun_as_the_command(lead: Lead, tmp_path: Path, form: str) -> None:
    """tests/elastic/test_torchrun.py reads both forms of the command."""
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    start = (torchrun,) if form == "torchrun" else (sys.executable, "-m", "torch.distributed.run")
    path = tmp_path / "state"
    command = (*start, "--standalone", "--nproc-per-node=2", str(SCRIPT))
    led = lead("--save", path, gpus=2, checkpoint=path, command=command)
    led.line("in place of torchrun; not used: --nproc-per-node, --standalone$")
    trains(led, 2, 110)
    led.lease("offer", 6)
    assert begins(led, 3) >= 100


def test_nccl_without_a_gpu_ends_with_the_words_of_torch(lead: Lead) -> None:
    led = lead("--backend", "nccl", gpus=2)
    assert led.end() != 0
    assert [line for line in led.lines if "NCCL" in line or "nccl" in line]
    assert [line for line in led.lines if re.search(r"elastic: worker \d ended with ", line)]
