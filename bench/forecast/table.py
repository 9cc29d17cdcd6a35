"""How good forecasts are, on this machine: one table.

    python bench/forecast/table.py [--short] [--trainings N] [--models N] [--runs N]
                                   [--keep FILE] [--measured FILE]

- memory: the peak of live bytes of trainings on the processor against the forecast of
  `nodemgr predict` (bench/forecast/memory.py), and the seconds of a forecast beside the imports;
- the margin of memory (nodemgr/core/forecast/margins.py): how many trainings take more than memory
  and margin. In turn each family is left out, and the margin is the one that the errors of the
  other families ask for; with its least of 128 MiB, and without: most of these trainings are small;
- memory of TensorFlow (bench/forecast/keras_memory.py): models that were looked at while the
  forecast was made, and models held out; the surplus of what is filled in, and how many need more;
- step time: the learning loop on trainings on the processor (bench/forecast/learning.py): the
  roofline; what is learned after 10, 50 and 200 runs; the network and the nearest run alone; with
  each family left out; and the pace of the first 20 steps. --keep: a file of the measured runs,
  which is read if it is there;
- the same memory and utilisation on GPUs, from a file by path: --measured FILE has the columns of
  `nodemgr report --samples`, of this node or made from published measurements. Of utilisation the
  newest tenth is the test, and the other rows are learned from. Without a file: not measured.

Errors of memory and time are in percent of the measured figure. Errors of utilisation are in
percentage points. The program needs torch, except with --measured. Without tensorflow the rows of
TensorFlow are "not measured".
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import learning as loop

from arguments import parse
from node import against_target, at_least, finish
from nodemgr.core.forecast import features as feature_form
from nodemgr.core.forecast import gpu_models, learning, margins, network, roofline
from nodemgr.core.forecast.margins import Pair
from nodemgr.core.forecast.samples import Sample, SampleOwner

GOAL_MEMORY, GOAL_MEMORY_TAIL, GOAL_WITHIN, GOAL_LOW = 5.0, 15.0, 90.0, 1.0
GOAL_SECONDS, GOAL_POINTS, GOAL_SURPLUS = 3.0, 5.0, 60.0
LEAST_TESTS = 10


class Line(NamedTuple):
    """A row of the table; None: not measured."""

    title: str
    median: float | None = None
    tail: float | None = None
    unit: str = "%"
    goal: str = ""


def show(line: Line) -> None:
    cells = [
        "not measured" if figure is None else f"{figure:.1f} {line.unit}"
        for figure in (line.median, line.tail)
    ]
    show_cells(line.title, *cells, goal=line.goal)


def show_cells(title: str, first: str, second: str = "", goal: str = "") -> None:
    print(f"{title:60}{first:>14}{second:>14}  {goal}".rstrip(), flush=True)


def line_of(title: str, errors: Sequence[float], goal: str, unit: str = "%") -> Line:
    """The median and the 90 % quantile of the errors."""
    ordered = sorted(map(abs, errors))
    if not ordered:
        return Line(title, goal=goal)
    tail = ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)]
    return Line(title, statistics.median(ordered), tail, unit, goal)


def show_within(title: str, errors: Sequence[float]) -> None:
    """How many errors are within the aim, and how many forecasts are lower than that."""
    within = 100 * sum(abs(error) <= GOAL_MEMORY_TAIL for error in errors) / len(errors)
    below = 100 * sum(error < -GOAL_MEMORY_TAIL for error in errors) / len(errors)
    goal = f"within {GOAL_MEMORY_TAIL:.0f} %; too low by more. Aim: {GOAL_WITHIN:.0f} %"
    show_cells(title, f"{within:.0f} %", f"{below:.0f} %", goal)
    median = statistics.median(map(abs, errors))
    against_target(f"{title}, median", median, GOAL_MEMORY, "%")
    at_least(f"{title}, within {GOAL_MEMORY_TAIL:.0f} %", within, GOAL_WITHIN, "%")


# -- memory --


class Guess(NamedTuple):
    """A forecast of memory and the measured peak."""

    family: str
    guess_bytes: int
    peak_bytes: int
    seconds: float

    @property
    def error_percent(self) -> float:
        return 100 * (self.guess_bytes - self.peak_bytes) / self.peak_bytes

    @property
    def pair(self) -> Pair:
        return Pair(self.guess_bytes, self.peak_bytes, SampleOwner("env", "user"))


def memory(count: int) -> None:
    import memory as peaks

    truth, guesses = (peaks.rows_of(kind, count) for kind in ("measured", "forecast"))
    found = [
        Guess(family, guess, peak, seconds)
        for (_, family, peak, _), (_, _, guess, seconds) in zip(truth, guesses, strict=True)
    ]
    errors = [row.error_percent for row in found]
    title = f"memory, {len(errors)} trainings on the processor"
    show(line_of(title, errors, goal_of_memory()))
    show_within(title, errors)
    show_margins(found)
    spent = line_of(
        "seconds of a forecast beside the imports", [row.seconds for row in found],
        f"aim: {GOAL_SECONDS:.0f} s", "s",
    )  # fmt: skip
    show(spent)
    against_target(f"{spent.title}, 90 %", spent.tail or 0.0, GOAL_SECONDS, "s")


def show_margins(found: Sequence[Guess]) -> None:
    """How many trainings take more than the memory and the margin of the other families."""
    with_least = alone = by_default = 0
    for row in found:
        others = [other.pair for other in found if other.family != row.family]
        env = row.pair.owner.env
        missing_bytes = row.peak_bytes - row.guess_bytes
        with_least += missing_bytes > margins.memory_bytes(row.guess_bytes, others, env)
        part = margins.memory_per_mille(others, env)
        alone += missing_bytes * 1000 > row.guess_bytes * part
        by_default += missing_bytes * 1000 > row.guess_bytes * margins.DEFAULT_MEMORY_PER_MILLE
    for title, count in (
        ("the margin of other families, at least 128 MiB", with_least),
        ("the margin of other families alone", alone),
        ("15 % alone", by_default),
    ):
        show_cells(f"more memory than with {title}", f"{count} of {len(found)}")
        against_target(f"more than with {title}", 100 * count / len(found), GOAL_LOW, "%")


def memory_of_keras(models: int, steps: int) -> None:
    import keras_memory

    for title, is_held_out in (("looked at", False), ("held out", True)):
        found = keras_memory.measured(is_held_out, models, steps)
        errors = [row.error_percent for row in found]
        title = f"memory of TensorFlow, {len(errors)} models {title}"
        show(line_of(title, errors, goal_of_memory()))
        show_within(title, errors)
        surplus = [row.surplus_percent for row in found]
        low = sum(one < 0 for one in surplus)
        title += ", after the margin"
        median = statistics.median(surplus)
        show_cells(f"{title}: median surplus, too low", f"{median:.0f} %", str(low))
        against_target(f"{title}, median surplus", median, GOAL_SURPLUS, "%")
        against_target(f"{title}, too low", 100 * low / len(found), GOAL_LOW, "%")


def goal_of_memory() -> str:
    return f"aims: {GOAL_MEMORY:.0f} and {GOAL_MEMORY_TAIL:.0f} %"


def step_times(given: argparse.Namespace) -> Iterator[Line]:
    runs = loop.measured_runs(given)
    made, paces = list(loop.rows(runs)), loop.pace_errors(runs)
    for number, row in enumerate(made):
        prior = row.errors["roofline"][0]
        for way in loop.COLUMNS:
            if way == "roofline" and number and row.title.startswith("same"):
                continue  # the tests are the same
            goal = ""
            if way == "learned" and row.title.endswith("after 50"):
                goal = f"aim: {prior / 2:.0f} %, half of the roofline's error"
            yield Line(f"step time, {row.title}: {way}", *row.errors[way], goal=goal)
    for way, (middle, far) in paces.items():
        yield Line(f"step time, {way}", middle, far, goal=f"aim: {loop.GOAL_PACE:.0f} %")
    loop.against_targets(made, paces)


# -- a file of measurements --


def read(path: Path) -> list[Sample]:
    """Raises SystemExit with one line."""
    try:
        with path.open(newline="") as file:
            return [sample_of(row) for row in csv.DictReader(file)]
    except (OSError, KeyError, TypeError, ValueError, feature_form.FeaturesError) as error:
        sys.exit(f"{path} is no table of samples ({error!r}): see `nodemgr report --samples`")


def sample_of(row: Mapping[str, str]) -> Sample:
    """The work of a step is one row of the whole: the table has no more of it."""

    def figure(name: str) -> int:
        return int(row[name] or 0)

    richer = {name: figure(name) for name in feature_form.RICHER}
    work = ["float32", 0, richer["operations"], richer["bytes"], richer["kernels"]]
    parsed = feature_form.parse({
        "schema_version": feature_form.SCHEMA_VERSION,
        "framework": row["framework"],
        "graph": {name: figure(name) for name in feature_form.GRAPH},
        "execution": {name: figure(name) for name in feature_form.EXECUTION},
        "richer": richer,
        "work": [work] if any(work[2:]) else [],
        "memory": {"peak_bytes": figure("predicted_reserved_bytes")},
    })  # fmt: skip
    percent = row["utilization_percent"]
    return Sample(
        wall_ns=figure("ended_wall_ns"), env="", user="", gpu_model=row["gpu_model"],
        driver=row["driver"], features=parsed, run_ms=figure("run_ms"),
        peak_bytes=figure("peak_bytes") or None,
        utilization_percent=int(percent) if percent else None,
        step_ns=figure("step_ns") or None, steps=figure("steps"),
    )  # fmt: skip


def from_file(known: Sequence[Sample]) -> Iterator[Line]:
    errors = [
        100 * (row.features.peak_bytes - row.peak_bytes) / row.peak_bytes
        for row in known
        if row.peak_bytes and row.features.peak_bytes
    ]
    yield line_of(f"memory, {len(errors)} rows of the file", errors, goal_of_memory())
    used = sorted(
        (row for row in known if row.utilization_percent is not None), key=lambda row: row.wall_ns
    )
    count = max(LEAST_TESTS, len(used) // 10)
    older, tests = used[:-count], used[-count:]
    goal = f"aim: {GOAL_POINTS:.0f} points in-family"
    for way, found in utilization_errors(older, tests).items():
        yield line_of(f"utilisation, {len(found)} rows: {way}", found, goal, "points")


def utilization_errors(older: Sequence[Sample], tests: Sequence[Sample]) -> dict[str, list[float]]:
    """Of the roofline for all, and of what is learned where it does not abstain."""
    net = network.parse(json.dumps(learning.train(older))).compute
    found: dict[str, list[float]] = {"roofline": [], "learned": []}
    for row in tests:
        model = gpu_models.find(row.gpu_model)
        estimate = None if model is None else roofline.estimate(row.features, model)
        if model is None or estimate is None or row.utilization_percent is None:
            continue
        away = estimate.utilization_percent - row.utilization_percent
        found["roofline"].append(away)
        if net is not None and net.card.is_better:
            point = network.standardised(net, network.inputs(row.features, model, estimate))
            if network.is_known(net, point):
                found["learned"].append(away + network.correction(net, point, "compute"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trainings", type=int, default=0, help="for the memory; 0: all")
    parser.add_argument("--models", type=int, default=0, help="of Keras, of each list; 0: all")
    parser.add_argument("--keras-steps", type=int, default=5, help="measured of each of them")
    loop.add_arguments(parser)
    parser.add_argument("--measured", type=Path, help="a table of `nodemgr report --samples`")
    given = parse(parser, trainings=1, **loop.SHORT)
    known = None if given.measured is None else read(given.measured)
    print(f"{time.strftime('%Y-%m-%d')}, load {load()} at the start")
    show_cells("error of forecasts", "median", "90 %")
    memory(given.trainings)
    if given.short or importlib.util.find_spec("tensorflow") is None:
        show(Line("memory of TensorFlow"))
    else:
        memory_of_keras(given.models, given.keras_steps)
    if known is None:
        show(Line("memory, published or own GPU measurements"))
    show(Line("reserved memory, real memory_stats of a GPU"))
    for line in step_times(given):
        show(line)
    if known is None:
        show(Line("utilisation, published or own measurements"))
    else:
        for line in from_file(known):
            show(line)
    print(f"load {load()} at the end")
    finish(given)


def load() -> str:
    """The mean number of running programs, of the last minute and the last five."""
    return " and ".join(f"{figure:.1f}" for figure in os.getloadavg()[:2])


if __name__ == "__main__":
    main()
