"""Kills of workers at random instants: `python -m tests.training.kills [--kills 500] [--seed 1]`.

No hang (a watchdog ends the run), at most the step under way repeated, never a wrong sum: each
step's loss is that of the same training on one device without a kill.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from client_plugin.training.plan import SamplePlan
from tests.training import programs
from tests.training.agent import Agent

SIZE = 3
STEPS = 200_000
CLOSE = 1e-5
PAUSE_S = 0.2


class Storm:
    """Kills, and workers in place of the killed ones."""

    def __init__(self, agent: Agent, seed: int) -> None:
        self._agent = agent
        self._chance = random.Random(seed)
        self.kills = 0

    def strike(self) -> None:
        """At a random instant, one kill; sometimes before the one before it is mended."""
        agent = self._agent
        if self._chance.random() < 0.5:
            seen = len(agent.reports)
            agent.until(lambda: len(agent.reports) > seen + SIZE and self._repaired())
        end_s = time.monotonic() + self._chance.random() * PAUSE_S
        while (left_s := end_s - time.monotonic()) > 0:
            agent.turn(left_s)
            self._repaired()
        holders = self._holders()
        may = [each for each in agent.living if each not in holders or len(holders) > 1]
        if may:
            agent.kill(victim := self._chance.choice(may))
            agent.until(lambda: victim in agent.gone)
            self.kills += 1

    def _holders(self) -> list[int]:
        """Living workers with the state: one of them must stay."""
        formed = set().union(*self._agent.resized.values())
        return [each for each in self._agent.living if each in formed]

    def _repaired(self) -> bool:
        agent = self._agent
        if len(agent.living) < SIZE:
            agent.begin(SIZE - len(agent.living))
        new = sorted(agent.warm.difference(agent.members))
        if agent.is_formed and new:
            agent.enter(agent.members + new)
        return True


def storm(
    directory: Path,
    kills: int,
    seed: int,
    *,
    program: Callable[..., Any] = programs.train,
    **options: Any,
) -> Agent:
    with Agent(directory, program, "sgd", STEPS, **options) as agent:
        agent.enter(agent.spawn(SIZE))
        tempest = Storm(agent, seed)
        while tempest.kills < kills:
            tempest.strike()
        seen = len(agent.reports)
        agent.until(lambda: len(agent.reports) > seen + SIZE)
        agent.is_stopping = True
        agent.until(lambda: all(each in agent.gone for each in agent.members))
    return agent


def judge(agent: Agent, kills: int, plain: Callable[..., Any] = programs.plain) -> int:
    """Compares every reported step with the training without kills; returns their number."""
    reports = [each for each in agent.reports if not each.get("done")]
    last = max(each["step"] for each in reports)
    epochs = programs.epochs_of(STEPS)
    plan = SamplePlan(programs.SAMPLES, programs.BATCH, programs.MOST, epochs, programs.SEED)
    losses, _ = plain("sgd", last + 1, plan)
    by_worker = defaultdict(list)
    for each in reports:
        assert abs(each["loss"] - losses[each["step"]]) < CLOSE, each
        by_worker[each["worker"]].append(each["step"])
    assert {each["step"] for each in reports} == set(range(last + 1))
    for worker, steps in by_worker.items():
        gaps = {after - before for before, after in pairwise(steps)}
        assert gaps <= {1, 2}, f"worker {worker}: {gaps}"
    done = [each for each in agent.reports if each.get("done")]
    assert done
    assert {each["step"] for each in done} == {last + 1}
    killed = [code for code in agent.gone.values() if code != 0]
    assert killed.count(-9) >= kills
    assert set(killed) == {-9}
    return last + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nmk") as directory:
        agent = storm(Path(directory), chosen.kills, chosen.seed)
    steps = judge(agent, chosen.kills)
    print(
        f"{chosen.kills} kills, {steps} steps, {agent.generation} generations, "
        f"{time.monotonic() - begin_s:.0f} s: no hang, no wrong sum"
    )


if __name__ == "__main__":
    main()
