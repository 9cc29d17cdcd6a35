"""The examples: on one device without an environment, and with two workers of a leader."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.limits import WAIT_LIMIT_S
from tests.training import programs
from tests.training.agent import Agent
from tests.training.programs import torch

pytestmark = pytest.mark.frameworks


def run(name: str, *arguments: str) -> str:
    variables = {**os.environ, "PYTHONPATH": programs.SITE, "CUDA_VISIBLE_DEVICES": "",
                 "OMP_NUM_THREADS": "1"}  # fmt: skip
    command = [sys.executable, str(programs.ROOT / "examples" / name), *arguments]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=WAIT_LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_of_pytorch_learns_on_one_device() -> None:
    lines = run("elastic_torch.py", "--epochs", "4").splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        f"epoch {epoch}, 1 workers" for epoch in range(4)
    ]
    found = re.search(r"accuracy ([\d.]+)", lines[-1])
    assert found is not None
    assert float(found[1]) > 0.85


def test_the_example_of_pytorch_runs_with_two_workers(tmp_path: Path) -> None:
    path = tmp_path / "state"
    arguments = ("elastic_torch.py", "--epochs", "2", "--checkpoint", str(path))
    with Agent(tmp_path, programs.example, *arguments) as agent:
        agent.enter(agent.spawn(2))
        agent.until_all_ended()
    assert agent.gone == {0: 0, 1: 0}
    last = int(torch.load(path, weights_only=True)["step"])
    assert {"is": "checkpoint", "step": last + 1, "worker": 0} in agent.messages
    assert [each["worker"] for each in agent.messages if each["is"] == "done"] != []


def test_the_example_of_tensorflow_learns_on_one_device() -> None:
    lines = run("elastic_tensorflow.py", "--epochs", "4").splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        f"epoch {epoch}, 1 workers" for epoch in range(4)
    ]
    found = re.search(r"accuracy ([\d.]+)", lines[-1])
    assert found is not None
    assert float(found[1]) > 0.85
