"""The leader and the training library together, with PyTorch and gloo on the processor."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.elastic.led import HERE, Led, gone

pytestmark = [pytest.mark.frameworks, pytest.mark.slow]
SITECUSTOMIZE = HERE.parent.parent / "sitecustomize"


def steps(led: Led) -> list[int]:
    """The numbers of the steps that the lowest worker printed, in the order of its lines."""
    found = [re.match(r"step (\d+) by", line) for line in list(led.lines)]
    return [int(match[1]) for match in found if match]


def test_a_training_goes_on_through_offers_recalls_and_deaths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SITECUSTOMIZE))
    led = Led(tmp_path, str(HERE / "torch_training.py"), "1000000", gpus=2)
    try:
        led.line("by 1 of 2")
        led.lease("offer", 5)
        led.line("by 2 of 3")
        led.lease("recall", 1)
        led.word("left", "GPU-1")
        led.line("by 2 of 2")
        before = steps(led)
        assert before == list(range(before[0], before[0] + len(before))), "a step was repeated"
        os.kill(led.workers()[0], signal.SIGKILL)
        led.line("by 2 of 1")
        led.line("by 3 of 2")
        workers = led.workers().values()
        led.send(signal.SIGKILL)
        led.process.wait()
        gone(*workers)
    finally:
        led.close()


def test_the_only_worker_may_be_killed_and_its_newest_checkpoint_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SITECUSTOMIZE))
    path = tmp_path / "state"
    led = Led(tmp_path, str(HERE / "torch_training.py"), "1000000", str(path), gpus=1)
    try:
        led.line("by 0 of 1", times=40)
        first = led.workers()[0]
        os.kill(first, signal.SIGSTOP)  # no checkpoint is being renamed from now on
        led.line("worker 0 was stopped by a signal")
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        os.kill(first, signal.SIGKILL)
        led.line("the last worker with the training's state has ended")
        led.line("state cannot be read .*; the one before it, .*, takes its place")
        led.line(r"goes on from \S+ at step \d+ of")
        led.line("^step .* by [1-9]")
        before = steps(led)
        again = next(at for at in range(1, len(before)) if before[at] != before[at - 1] + 1)
        assert 0 < before[again] <= before[again - 1] + 1
        led.send(signal.SIGINT)
        assert led.end() == -signal.SIGINT
    finally:
        led.close()


@pytest.mark.long
def test_a_training_that_is_not_disturbed_ends_with_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/elastic/test_leader.py has a finished training without a framework."""
    monkeypatch.setenv("PYTHONPATH", str(SITECUSTOMIZE))
    led = Led(tmp_path, str(HERE / "torch_training.py"), "24", gpus=2)
    try:
        led.line("^finished step 24")
        assert led.end() == 0
    finally:
        led.close()
