"""How often an interval of a step's time contains the time, and how wide it is.

    python bench/forecast/intervals.py [--seeds 5] [--tests 200] [--keep FILE] [--short]

The trainings are those of bench/forecast/learning.py, on this machine's processor; --keep is its
file of measured runs, which is read if it is there. For each seed some runs are learned from, and
as many others are asked for by the manager's own rule (nodemgr/core/forecast/prediction.py): sizes
that were not seen, of known families. Then each family is left out in turn, and asked for.

A row: the answers, the part of them with an interval, the part of these intervals that contains the
time (aim: 85 to 95 %), the mean ratio of their ends, and the error: its median, and the median that
the answers state. For a family that was left out the aim is no interval in 95 % of the answers.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import learning as loop
from learning import FAMILIES, Run

from arguments import parse
from node import against_target, at_least, finish
from nodemgr.core.forecast import gpu_models, learning, network, prediction
from nodemgr.core.forecast.prediction import Known
from nodemgr.core.forecast.samples import SampleOwner

HOLD, ABSTAIN, WIDTH = (85.0, 95.0), 95.0, 3.0
ASKS = SampleOwner("another", "another")


class Asked(NamedTuple):
    """The answer for one training."""

    interval: tuple[float, float] | None
    step_ns: float
    truth_ns: int
    error_percent: int | None

    @property
    def is_within(self) -> bool:
        return self.interval is not None and self.interval[0] <= self.truth_ns <= self.interval[1]


def answers(learned: Sequence[Run], tests: Sequence[Run]) -> list[Asked]:
    samples = tuple(run.sample for run in learned)
    known = Known(samples, network.parse(json.dumps(learning.train(samples))))
    found = []
    for run in tests:
        model = gpu_models.find(run.sample.gpu_model)
        assert model is not None
        (row,) = prediction.predict(run.sample.features, (model,), ASKS, known)
        if row.step_ns is not None and run.sample.step_ns:
            by = row.step_ns
            found.append(Asked(by.interval, by.number, run.sample.step_ns, by.error_percent))
    return found


def against_targets(found: Sequence[Asked], unseen: Sequence[Asked]) -> None:
    given = [row for row in found if row.interval is not None]
    hold = 100 * sum(row.is_within for row in given) / max(1, len(given))
    at_least("intervals that hold", hold, HOLD[0], "%")
    against_target("intervals that hold", hold, HOLD[1], "%")
    ratios = [row.interval[1] / row.interval[0] for row in given if row.interval]
    against_target("mean ratio of the ends", statistics.mean(ratios or [0.0]), WIDTH, "times")
    silent = sum(row.interval is None for row in unseen)
    at_least("left out: no interval", 100 * silent / max(1, len(unseen)), ABSTAIN, "%")


def show(title: str, found: Sequence[Asked]) -> None:
    given = [row for row in found if row.interval is not None]
    within = sum(row.is_within for row in given)
    errors = [100 * abs(row.step_ns / row.truth_ns - 1) for row in found]
    stated = [row.error_percent for row in found if row.error_percent is not None]
    cells = [
        f"{title:28}{len(found):5} answers",
        f"{100 * len(given) / len(found):5.0f} % with an interval",
        f"{100 * within / len(given):5.0f} % hold" if given else "",
        f"ends {statistics.mean(r.interval[1] / r.interval[0] for r in given if r.interval):.2f}"
        if given else "",
        f"error {statistics.median(errors):.0f} %",
        f"stated {statistics.median(stated):.0f} %" if stated else "",
    ]  # fmt: skip
    print(", ".join(filter(None, cells)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    loop.add_arguments(parser)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tests", type=int, default=200, help="asked for with each seed")
    given = parse(parser, **{**loop.SHORT, "runs": 48, "seeds": 1, "tests": 8})
    runs = loop.measured_runs(given)
    every: list[Asked] = []
    for seed in range(given.seeds):
        mixed = random.Random(seed).sample(runs, len(runs))
        found = answers(mixed[given.tests : 2 * given.tests + 32], mixed[: given.tests])
        show(f"known families, seed {seed}", found)
        every += found
    show("known families", every)
    unseen: list[Asked] = []
    for family in FAMILIES:
        mixed = random.Random(family).sample(runs, len(runs))
        others = [run for run in mixed if run.family != family][: given.tests + 32]
        left_out = [run for run in mixed if run.family == family][: given.tests]
        found = answers(others, left_out)
        show(f"without {family}", found)
        unseen += found
    against_targets(every, unseen)
    finish(given)


if __name__ == "__main__":
    main()
