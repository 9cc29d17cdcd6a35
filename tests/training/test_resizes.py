"""Resizes at step boundaries: the same samples, the same losses, the same parameters."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_plugin.training.plan import SamplePlan
from tests.training import programs
from tests.training.agent import HOLD, Agent

pytestmark = pytest.mark.frameworks

PLAN = SamplePlan(
    programs.SAMPLES, programs.BATCH, programs.MOST, programs.epochs_of(200), programs.SEED
)
CLOSE = 1e-5
LARGEST = 4


def run(
    directory: Path,
    kind: str,
    steps: int,
    resizes: int,
    seed: int,
    *,
    program: Callable[..., Any] = programs.train,
    **options: Any,
) -> Agent:
    """A training whose workers change at random steps; grown and shrunk by the seed."""
    chance = random.Random(seed)
    sizes = [2]
    for _ in range(resizes):
        sizes.append(chance.choice([n for n in range(1, LARGEST + 1) if n != sizes[-1]]))
    when = sorted(chance.sample(range(2, steps - 15), resizes))
    planned = list(zip(when, sizes[1:], strict=True))
    with Agent(directory, program, kind, steps, **options) as agent:

        def resize(report: dict[str, Any]) -> object:
            if report.get("done") or report["rank"] != 0 or not planned:
                return None
            if report["step"] < planned[0][0] or not agent.is_formed:
                return None
            size = planned[0][1]
            staying = min(size, len(agent.members))
            new = joiners(agent, size - staying)
            if new is None:
                return HOLD
            planned.pop(0)
            agent.enter(chance.sample(agent.members, staying) + new)
            return None

        agent.on_step = resize
        agent.enter(agent.spawn(2))
        agent.until_all_ended()
    return agent


def joiners(agent: Agent, count: int) -> list[int] | None:
    """Workers that are ready to join; None: not so many are, yet.

    They start after the end of those that leave, so that no more than LARGEST ever run.
    """
    parting = [each for each in agent.living if each in agent.entered.difference(agent.members)]
    coming = [each for each in agent.living if each not in agent.entered]
    if len(coming) < count and not parting:
        agent.begin(count - len(coming))
    ready = sorted(agent.warm.difference(agent.entered))
    return ready[:count] if len(ready) >= count else None


def judge(agent: Agent, losses: list[float], numbers: list[float], plan: SamplePlan) -> None:
    steps = len(losses)
    assert set(agent.gone.values()) == {0}, agent.messages[-5:]
    reports = [each for each in agent.reports if not each.get("done")]
    for step in range(steps):
        own = sorted((each for each in reports if each["step"] == step), key=lambda r: r["rank"])
        assert [each["rank"] for each in own] == list(range(own[0]["size"])), step
        assert [sample for each in own for sample in each["samples"]] == plan.samples_of(step)
        for each in own:
            assert each["loss"] == pytest.approx(losses[step], abs=CLOSE), step
    done = [each for each in agent.reports if each.get("done")]
    assert [each["is_main"] for each in done].count(True) == 1
    for each in done:
        assert each["step"] == steps
        assert each["numbers"] == pytest.approx(numbers, rel=1e-4, abs=CLOSE)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_resizes_change_no_loss_and_no_sample(tmp_path: Path, kind: str) -> None:
    losses, model = programs.plain(kind, 40, PLAN)
    judge(run(tmp_path, kind, 40, 4, seed=1), losses, programs.numbers_of(model), PLAN)


@pytest.mark.parametrize("kind", ["noisy sgd"])
def test_with_virtual_workers_dropout_and_batch_statistics_do_not_change(
    tmp_path: Path, kind: str
) -> None:
    losses, model, _ = programs.train({}, kind, 40)
    plan = PLAN._replace(virtual_workers=4)
    judge(run(tmp_path, kind, 40, 4, seed=2), losses, programs.numbers_of(model), plan)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sgd", "adamw", "noisy sgd", "noisy adamw"])
def test_twenty_resizes_in_two_hundred_steps(tmp_path: Path, kind: str) -> None:
    """The two tests above have four resizes in forty steps."""
    if "noisy" in kind:
        losses, model, _ = programs.train({}, kind, 200)
    else:
        losses, model = programs.plain(kind, 200, PLAN)
    plan = PLAN._replace(virtual_workers=4 if "noisy" in kind else 0)
    agent = run(tmp_path, kind, 200, 20, seed=3)
    judge(agent, losses, programs.numbers_of(model), plan)
    assert agent.generation == 21 == len(agent.resized)
