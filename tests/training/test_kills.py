"""Workers killed at random instants; `python -m tests.training.kills` is the long form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_plugin.training.plan import SamplePlan
from tests.training import programs
from tests.training.agent import Agent
from tests.training.kills import judge, storm

pytestmark = pytest.mark.frameworks


@pytest.mark.slow
def test_kills_at_random_instants_repeat_at_most_one_step(tmp_path: Path) -> None:
    agent = storm(tmp_path, 5, seed=1)
    judge(agent, 5)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_costs_no_step(tmp_path: Path, victim: int) -> None:
    """The worker with the checkpoint, and another one."""
    with Agent(tmp_path, programs.train, "sgd", 12) as agent:

        def kill(report: dict[str, Any]) -> None:
            if report["step"] == 4 and report.get("worker") != victim and victim in agent.living:
                agent.kill(victim)

        agent.on_step = kill
        agent.enter(agent.spawn(2))
        agent.until_all_ended()
    plan = SamplePlan(programs.SAMPLES, programs.BATCH, programs.MOST, 2, programs.SEED)
    losses, _ = programs.plain("sgd", 12, plan)
    assert agent.gone == {victim: -9, 1 - victim: 0}
    seen = {each["step"]: each["loss"] for each in agent.reports if each["worker"] != victim}
    assert [seen[step] for step in range(12)] == pytest.approx(losses, abs=1e-5)
