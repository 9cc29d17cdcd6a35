"""TensorFlow's workers come, go and are killed: the same samples, losses and parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_plugin.training.plan import SamplePlan
from tests.support.installed import require
from tests.training import kills, programs, test_resizes
from tests.training import tensorflow_programs as own
from tests.training.pooled import WorkerPool, pool

require("tensorflow", "TensorFlow")

__all__ = ["pool"]
PLAN = SamplePlan(
    programs.SAMPLES, programs.BATCH, programs.BATCH, programs.epochs_of(200), programs.SEED
)
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tensorflow_resizes")]


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_twenty_resizes_in_two_hundred_steps(tmp_path: Path, kind: str, pool: WorkerPool) -> None:
    """With a learning rate that falls from step to step."""
    losses, numbers = pool.result(own.reference, kind, 200)
    agent = test_resizes.run(
        tmp_path, kind, 200, 20, seed=4, program=own.train, context=pool, max_per_gpu=32
    )
    test_resizes.judge(agent, losses, numbers, PLAN)
    assert agent.generation == 21 == len(agent.resized)


def test_kills_at_random_instants_repeat_at_most_one_step(tmp_path: Path, pool: WorkerPool) -> None:
    agent = kills.storm(tmp_path, 5, seed=2, program=own.train, context=pool, max_per_gpu=64)
    steps = kills.judge(agent, 5, lambda kind, steps, _: pool.result(own.reference, kind, steps))
    assert steps > 5
