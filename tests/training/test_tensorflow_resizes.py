"""TensorFlow's workers come, go and are killed: the same samples, losses and parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_plugin.training.plan import SamplePlan
from tests.training import kills, programs, test_resizes
from tests.training import tensorflow_programs as own
from tests.training.pooled import WorkerPool, pool

__all__ = ["pool"]
STEPS = 200
PLAN = SamplePlan(
    programs.SAMPLES, programs.BATCH, programs.BATCH, programs.epochs_of(STEPS), programs.SEED
)
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.slow,
    pytest.mark.xdist_group("tensorflow_resizes"),
]


@pytest.mark.parametrize(
    ("kind", "steps", "resizes"),
    [
        ("adamw", 40, 4),
        pytest.param("sgd", STEPS, 20, marks=pytest.mark.long),
        pytest.param("adamw", STEPS, 20, marks=pytest.mark.long),
    ],
)
def test_resizes_change_no_loss_and_no_sample(
    tmp_path: Path, kind: str, steps: int, resizes: int, pool: WorkerPool
) -> None:
    """With a learning rate that falls from step to step."""
    losses, numbers = pool.result(own.reference, kind, steps)
    agent = test_resizes.run(
        tmp_path, kind, steps, resizes, seed=4, program=own.train, context=pool, max_per_gpu=32
    )
    test_resizes.judge(agent, losses, numbers, PLAN)
    assert agent.generation == resizes + 1 == len(agent.resized)


def test_kills_at_random_instants_repeat_at_most_one_step(tmp_path: Path, pool: WorkerPool) -> None:
    agent = kills.storm(tmp_path, 5, seed=2, program=own.train, context=pool, max_per_gpu=64)
    steps = kills.judge(agent, 5, lambda kind, steps, _: pool.result(own.reference, kind, steps))
    assert steps > 5
