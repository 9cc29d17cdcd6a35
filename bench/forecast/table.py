"""How good forecasts are, on this machine: one table.

    python bench/forecast/table.py [--short] [--trainings N] [--runs N] [--keep FILE]
                                   [--measured FILE]

- memory: the peak of live bytes of trainings on the processor against the forecast of
  `nodemgr predict` (bench/forecast/memory.py);
- step time: the learning loop on trainings on the processor (bench/forecast/learning.py): the
  roofline; what is learned after 10, 50 and 200 runs; the network and the nearest run alone; with
  each family left out; and the pace of the first 20 steps. --keep: a file of the measured runs,
  which is read if it is there;
- the same memory and utilisation on GPUs, from a file by path: --measured FILE has the columns of
  `nodemgr report --samples`, of this node or made from published measurements. Of utilisation the
  newest tenth is the test, and the other rows are learned from. Without a file: not measured.

Errors are in percent of the measured figure, those of utilisation in points. Needs torch, but for
--measured.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import learning as loop

from arguments import parse
from nodemgr.core.forecast import features as feature_form
from nodemgr.core.forecast import gpu_models, learning, network, roofline
from nodemgr.core.forecast.samples import Sample

GOAL_MEMORY, GOAL_MEMORY_TAIL, GOAL_STEPS, GOAL_POINTS = 5.0, 15.0, 10.0, 5.0
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
    print(f"{line.title:44}{cells[0]:>14}{cells[1]:>14}  {line.goal}".rstrip(), flush=True)


def line_of(title: str, errors: Sequence[float], goal: str, unit: str = "%") -> Line:
    """The median and the 90 % quantile of the errors."""
    ordered = sorted(map(abs, errors))
    if not ordered:
        return Line(title, goal=goal)
    tail = ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)]
    return Line(title, statistics.median(ordered), tail, unit, goal)


def memory(count: int) -> Line:
    import memory as peaks

    truth, guesses = (peaks.rows_of(kind, count) for kind in ("measured", "forecast"))
    errors = [
        100 * (guess[2] - real[2]) / real[2] for real, guess in zip(truth, guesses, strict=True)
    ]
    return line_of(f"memory, {len(errors)} trainings on the processor", errors, goal_of_memory())


def goal_of_memory() -> str:
    return f"aims: {GOAL_MEMORY:.0f} and {GOAL_MEMORY_TAIL:.0f} %"


def step_times(given: argparse.Namespace) -> Iterator[Line]:
    runs = loop.measured_runs(given)
    for number, row in enumerate(loop.rows(runs)):
        prior = row.errors["roofline"][0]
        for way in loop.COLUMNS:
            if way == "roofline" and number and row.title.startswith("same"):
                continue  # the tests are the same
            goal = ""
            if way == "learned" and row.title.endswith("after 50"):
                goal = f"aim: {prior / 2:.0f} %, half of the roofline's error"
            yield Line(f"step time, {row.title}: {way}", *row.errors[way], goal=goal)
    middle, far = loop.later_errors(runs)
    goal = f"aim: {GOAL_STEPS:.0f} %"
    yield Line("step time, by the first 20 steps", middle, far, goal=goal)


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
    loop.add_arguments(parser)
    parser.add_argument("--measured", type=Path, help="a table of `nodemgr report --samples`")
    given = parse(parser, trainings=1, **loop.SHORT)
    known = None if given.measured is None else read(given.measured)
    print(f"{'error of forecasts':44}{'median':>14}{'90 %':>14}")
    show(memory(given.trainings))
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


if __name__ == "__main__":
    main()
