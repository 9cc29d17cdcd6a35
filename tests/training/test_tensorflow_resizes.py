"""TensorFlow's workers come, go and are killed: the same samples, losses and parameters."""

from __future__ import annotations

from multiprocessing import forkserver, popen_forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tensorflow")
from client_plugin.training.plan import SamplePlan
from tests.training import kills, programs, test_resizes
from tests.training import tensorflow_programs as own

PLAN = SamplePlan(
    programs.SAMPLES, programs.BATCH, programs.MOST, programs.epochs_of(200), programs.SEED
)
SERVER = forkserver.ForkServer()
SERVER.set_forkserver_preload(["tests.training.tensorflow_programs"])
"""A process that has imported TensorFlow can be forked until its first operation."""


class _Forked(popen_forkserver.Popen):
    """A process of SERVER, in place of the server of PyTorch's workers."""

    def _launch(self, process_obj: Any) -> None:
        patch = pytest.MonkeyPatch()
        with patch.context() as patched:
            patched.setattr(forkserver, "connect_to_new_process", SERVER.connect_to_new_process)
            super()._launch(process_obj)


class _Process(ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> _Forked:
        return _Forked(process_obj)


FORKS = SimpleNamespace(Process=_Process)


@pytest.mark.slow
def test_twenty_resizes_in_two_hundred_steps(tmp_path: Path) -> None:
    """Of SGD with momentum, with a learning rate that falls from step to step."""
    losses, model = own.plain("sgd", 200, PLAN)
    agent = test_resizes.run(tmp_path, "sgd", 200, 20, seed=4, program=own.train, context=FORKS)
    test_resizes.judge(agent, losses, own.numbers_of(model), PLAN)
    assert agent.generation == 21 == len(agent.resized)


@pytest.mark.slow
def test_kills_at_random_instants_repeat_at_most_one_step(tmp_path: Path) -> None:
    agent = kills.storm(tmp_path, 5, seed=2, program=own.train, context=FORKS, max_per_gpu=64)
    steps = kills.judge(agent, 5, own.plain)
    assert steps > 5
