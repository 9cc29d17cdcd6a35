"""Policies of placement on simulated GPUs that fail: the table of docs/placement.md.

    python bench/placement/policies.py [--seeds 300] [--source-rounds 3000] [--write] [--short]

All policies meet the same batches and the same failures. Differences are paired, with 95 %
intervals. The source's network is trained here, on one cluster whose bad GPUs are always the same
(the training set), and is compared there and on other clusters (the test set). The scorer has the
shipped weights, which were trained on other seeds than any that is used here.

--write: makes docs/placement.md and its two pictures from the figures; it needs matplotlib.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from bench.placement import optimum
from node import against_target, finish
from nodemgr.core.placement.policies import SizedJob as Job
from nodemgr.edge.placement import weights as weights_file
from nodemgr.placement import evaluation
from nodemgr.placement.batches import HOUR_MS
from nodemgr.placement.evaluation import Make, PairedDifference, PolicyRow
from nodemgr.placement.failures import Cluster, Failures
from nodemgr.placement.observed import Observed
from nodemgr.placement.rollouts import Draw, Instance, made_up
from nodemgr.placement.scorer import Round
from nodemgr.placement.source_method import SourceTraining

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "nodemgr" / "placement" / "scorer.json"
PAGE, PICTURES = ROOT / "docs" / "placement.md", ROOT / "docs" / "pictures"
TRAINED_ON = "train/1"
"""The seed of the bad GPUs on which the source's network is trained."""
SCORER, SOURCE, KNOWN = "equivariant scorer", "source's network", "reliable, known rates"
RELIABLE, OPTIMUM = "reliable (Gamma-Poisson)", "exact optimum, in hindsight"
MAIN = Cluster()
SMALL = Cluster(gpus=5)
PUBLISHED = {
    f"published failure rates, 1 GPU in 16 fails {factor} times as often": replace(
        MAIN, rate_per_hour=1 / 50_000, bad_part=1 / 16, bad_factor=factor
    )
    for factor in (100, 1_000)
}
"""419 failures in 54 days on 16 384 GPUs."""
JOBS, SMALL_JOBS = 40, 5
HISTORIES_DAYS = (0, 3, 10, 30)
WIDE_GPUS, BATCH = 1_000, 8
AIM_PERCENT = 3.0
MOST_US = {RELIABLE: 100.0, SCORER: 1_000.0, SOURCE: 1_000.0}
Policies = Mapping[str, Make]


class Section(NamedTuple):
    title: str
    seeds: int
    rows: list[PolicyRow]


def instances(draw: Draw, seeds: int, name: str) -> Iterator[Instance]:
    """`name`: seeds of other sections, and those of trainings, are others."""
    return (draw(Random(f"{name}/{each}"), f"{name}/{each}") for each in range(seeds))


def say(text: str = "") -> None:
    print(text, flush=True)


def interval(found: PairedDifference) -> str:
    return f"{found.mean:+.1f} ± {found.half:.1f}"


def show(section: Section) -> None:
    say(f"\n{section.title}; {section.seeds} seeds")
    say(f"{'':30}{'hours':>8}{'to random, %':>16}{'to warm, %':>16}{'undone':>8}")
    for row in section.rows:
        random, warm = interval(row.against_random), interval(row.against_warm)
        say(f"{row.name:30}{row.hours:8.2f}{random:>16}{warm:>16}{row.undone:8}")


def run(title: str, draw: Draw, seeds: int, policies: Policies) -> Section:
    section = Section(title, seeds, evaluation.table(instances(draw, seeds, title), policies))
    show(section)
    return section


def trained_source(rounds: int) -> tuple[Make, list[Round]]:
    training = SourceTraining(made_up(MAIN, JOBS, TRAINED_ON), 1, MAIN.gpus)
    begin, curve = time.monotonic(), []
    for number in range(rounds):
        curve.append(training.round(number))
    say(f"source's network: {rounds} rounds in {(time.monotonic() - begin) / 60:.1f} minutes")
    return evaluation.learned(training.weights({})), curve


def sections(seeds: int, jobs: int, all_policies: Policies, sizeless: Policies) -> list[Section]:
    """`sizeless`: policies for clusters of any size."""
    half_hour = replace(MAIN, checkpoint_ms=HOUR_MS // 2)
    drifting = replace(MAIN, drift_hours=240.0)
    return [
        run("test set: other clusters, no checkpoints", made_up(MAIN, jobs), seeds, all_policies),
        run("training set of the source's network, no checkpoints",
            made_up(MAIN, jobs, TRAINED_ON), seeds, all_policies),
        run("test set, a checkpoint every half hour", made_up(half_hour, jobs), seeds,
            all_policies),
        run("test set, other GPUs are bad after each 10 days", made_up(drifting, jobs), seeds,
            all_policies),
        run("8 GPUs (an unseen size)", made_up(Cluster(gpus=8), jobs // 2), seeds, sizeless),
        run("64 GPUs (an unseen size)", made_up(Cluster(gpus=64), jobs * 4), max(2, seeds // 4),
            sizeless),
        *(run(name, made_up(each, jobs), seeds, sizeless) for name, each in PUBLISHED.items()),
    ]  # fmt: skip


def small(seeds: int, policies: Policies) -> Section:
    """Beside the exact optimum."""
    draw, title = made_up(SMALL, SMALL_JOBS), "5 GPUs, 5 jobs, beside the exact optimum"
    best, cut = {}, 0
    for instance in instances(draw, seeds, title):
        found = optimum.find(instance, 1_000)
        best[instance.seed] = found.makespan_ms / HOUR_MS
        cut += not found.is_exact
    rows = evaluation.table(instances(draw, seeds, title), policies)
    others = [
        [evaluation.makespan_hours(instance, evaluation.POLICIES[name])
         for instance in instances(draw, seeds, title)]
        for name in (evaluation.RANDOM, evaluation.WARM)
    ]  # fmt: skip
    own = list(best.values())
    random, warm = (evaluation.paired(own, other) for other in others)
    rows.append(PolicyRow(OPTIMUM, statistics.fmean(own), random, warm, 0))
    section = Section(f"{title} ({cut} searches were cut)", seeds, rows)
    show(section)
    return section


def learning_of_rates(seeds: int, jobs: int) -> list[tuple[int, PairedDifference]]:
    """`reliable` against known rates, after histories of several lengths."""
    say(f"\nreliable against known rates, by the history before the batch; {seeds} seeds")
    found = []
    for days in HISTORIES_DAYS:
        draw = made_up(replace(MAIN, history_hours=24.0 * days), jobs)
        own, known = (
            [evaluation.makespan_hours(instance, evaluation.POLICIES[name])
             for instance in instances(draw, seeds, "rates")]
            for name in (RELIABLE, KNOWN)
        )  # fmt: skip
        found.append((days, evaluation.paired(own, known)))
        say(f"{f'{days} days':30}{interval(found[-1][1]):>16} %")
    return found


class Speed(NamedTuple):
    name: str
    small_us: float
    """A decision at 16 GPUs."""
    wide_us: float
    batches_s: float
    """Decisions for 8 jobs on 1 000 GPUs, in a second."""


def speeds(policies: Policies, rounds: int) -> list[Speed]:
    say(f"\n{'a decision, median':30}{'16 GPUs':>12}{'1000 GPUs':>12}{'8 jobs a second':>18}")
    found = []
    for name, make in policies.items():
        few = timed(make, MAIN.gpus, rounds)
        many = few if name == SOURCE else timed(make, WIDE_GPUS, rounds)
        speed = Speed(name, few, many, 1e6 / many / BATCH)
        found.append(speed)
        wide = ("-", "-") if name == SOURCE else (f"{many:.0f} us", f"{speed.batches_s:.0f}")
        say(f"{name:30}{f'{few:.0f} us':>12}{wide[0]:>12}{wide[1]:>18}")
    return found


def timed(make: Make, gpus: int, rounds: int) -> float:
    """Microseconds of one decision for a job on 2 GPUs, without the look at the GPUs."""
    failures = Failures(Cluster(gpus=gpus), "speed")
    policy = make(Instance((), failures, "speed"))
    candidates, job = Observed(failures).refresh(0, range(gpus)), Job(2, 5.0)
    found = []
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        policy(candidates, job)
        found.append((time.perf_counter_ns() - begin) / 1e3)
    return statistics.median(found)


class Found(NamedTuple):
    """The figures of a whole run."""

    options: argparse.Namespace
    sections: list[Section]
    rates: list[tuple[int, PairedDifference]]
    speeds: list[Speed]
    curve: list[Round]


def measure(options: argparse.Namespace) -> Found:
    jobs = 6 if options.short else JOBS
    scorer = evaluation.learned(weights_file.load(options.weights))
    source, curve = trained_source(options.source_rounds)
    sizeless = {**evaluation.POLICIES, SCORER: scorer}
    all_policies = {**sizeless, SOURCE: source}
    tables = sections(options.seeds, jobs, all_policies, sizeless)
    tables.append(small(options.seeds, sizeless))
    rates = learning_of_rates(options.seeds, jobs)
    found = speeds(all_policies, 5 if options.short else 200)
    return Found(options, tables, rates, found, curve)


def against_targets(found: Found) -> None:
    own = next(row for row in found.sections[0].rows if row.name == SCORER)
    against_target("scorer to warm least failures", own.against_warm.mean, -AIM_PERCENT, "%")
    months = next(pair.mean for days, pair in found.rates if days == HISTORIES_DAYS[-1])
    against_target("reliable to known rates, 30 days", months, AIM_PERCENT, "%")
    for speed in found.speeds:
        if speed.name in MOST_US:
            against_target(f"{speed.name}, 16 GPUs", speed.small_us, MOST_US[speed.name], "us")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--source-rounds", type=int, default=3_000)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--write", action="store_true", help="make docs/placement.md")
    options = parse(parser, seeds=2, source_rounds=2)
    found = measure(options)
    if options.write:
        from placement_page import write

        write(found, PAGE, PICTURES)
    against_targets(found)
    finish(options)


if __name__ == "__main__":
    main()
