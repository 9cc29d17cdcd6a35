"""A day of a cluster's trace with elastic and rigid jobs, on nodemgr's decision core.

    python bench/trace/day.py [TRACE.csv.gz] [--day 77] [--load 1] [--picture FILE.png]

TRACE (or NODEMGR_PHILLY_TRACE): as in replay.py, which names its sources. Days
are counted in steps of 24 hours from its first submission; the default one is a day of median
demand, in November 2017.

The jobs are dealt to nodes of 16 GPUs in turn, in their order of submission: one manager rules one
node. The number of nodes gives the offered load. Jobs of more than 16 GPUs are left out. The jobs
of the day before run too, so that the day does not begin with idle nodes; figures are of the jobs
that are submitted in the day, and the use of the GPUs is that of the day.

A part of the jobs is elastic: from half of the GPUs that the trace names (at least 1) to four times
as many, at most 8. An elastic job does the work of the trace's job. Its speed is that of the trace
on the trace's number of GPUs; with each doubling of its GPUs, --efficiency of the speed of each
remains. The same jobs are elastic in all rows, and those of a smaller part are among those of a
larger one.

The core decides: starts, backfill, offers after the calm, recalls. The leader's part has the costs
of a resize that were measured with PyTorch on this project's machine (docs/elastic.md). The times
of jobs are known to the core as expected times; of an elastic job, the time on its least number.
After each run the books are checked (ElasticModel.check): each job did exactly its work.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from bench.trace.elastic_model import ElasticModel, HeldSpan, Range, ResizeCosts
from nodemgr.placement.batches import SimJob, TraceJob, read_trace

DAY_S, MS = 86_400, 1_000
WIDEN, MOST = 4, 8
BINS = 144
RESTARTS = ResizeCosts(join_ms=12_000, pause_ms=9_200, leave_ms=10_000)
"""The pauses of torchrun, which starts all workers anew (measured: docs/elastic.md)."""


class Case(NamedTuple):
    """One row of the table."""

    name: str
    part: float
    """Of the jobs that are elastic."""
    efficiency: float
    costs: ResizeCosts
    known: bool = True
    """The core knows the jobs' times."""


class Outcome(NamedTuple):
    """The jobs of the day, in the order of their numbers, and the use of all GPUs."""

    completions_s: list[float]
    waits_s: list[float]
    used: list[float]
    """The part of the GPUs that jobs have, by bin of the day."""
    resizes: float
    """Of an elastic job."""
    took_s: float


class Day(NamedTuple):
    jobs: list[TraceJob]
    """Also those of the day before."""
    nodes: int
    node_gpus: int

    def run(self, case: Case) -> Outcome:
        begin_s = time.process_time()
        found: list[tuple[int, float, float]] = []
        spans: list[HeldSpan] = []
        resizes = elastic = 0
        for node in range(self.nodes):
            numbers = range(node, len(self.jobs), self.nodes)
            model = self._model(case, numbers)
            outcome = model.run()
            assert outcome.is_done
            model.check()
            for job, end_ms in zip(model.jobs, outcome.completions_ms, strict=True):
                if job.comes_ms >= DAY_S * MS:
                    wait_ms = model.started_ms[job.number] - job.comes_ms
                    found.append((numbers[job.number], end_ms - job.comes_ms, wait_ms))
            spans += model.spans
            elastic += len(model.trainings)
            resizes += sum(len(each.resized_ms) for each in model.trainings.values())
        return Outcome(
            [ms / MS for _, ms, _ in sorted(found)],
            [ms / MS for _, _, ms in sorted(found)],
            used(spans, self.nodes * self.node_gpus),
            resizes / max(1, elastic),
            time.process_time() - begin_s,
        )

    def _model(self, case: Case, numbers: Sequence[int]) -> ElasticModel:
        jobs, ranges = [], {}
        for own, number in enumerate(numbers):
            comes, lasts, gpus = self.jobs[number]
            jobs.append(SimJob(own, gpus, lasts * MS, comes * MS))
            if Random(f"elastic/{number}").random() < case.part:
                most = max(gpus, min(MOST, WIDEN * gpus, self.node_gpus))
                ranges[own] = Range(max(1, gpus // 2), most)
        return ElasticModel(
            jobs, self.node_gpus, ranges, case.costs, case.efficiency, known=case.known
        )


def used(spans: Sequence[HeldSpan], gpus: int) -> list[float]:
    width_ms = DAY_S * MS // BINS
    sums = [0] * BINS
    for span in spans:
        first, last = (at - DAY_S * MS for at in (span.from_ms, span.until_ms))
        for number in range(max(0, first // width_ms), min(BINS, last // width_ms + 1)):
            begin = number * width_ms
            sums[number] += max(0, min(last, begin + width_ms) - max(first, begin))
    return [total / width_ms / gpus for total in sums]


def of_trace(jobs: list[TraceJob], day: int, load: float, node_gpus: int) -> Day:
    """The jobs of the day (counted from the first of the trace) and of the one before it."""
    begin = (day - 1) * DAY_S
    found = [
        TraceJob(job.comes_s - begin, job.lasts_s, job.gpus)
        for job in jobs
        if 0 <= job.comes_s - begin < 2 * DAY_S and job.gpus <= node_gpus
    ]
    work = sum(job.lasts_s * job.gpus for job in found)
    return Day(found, max(1, round(work / (2 * DAY_S) / load / node_gpus)), node_gpus)


def made_up() -> Day:
    """For the short form: jobs of several sizes, some of which wait."""
    random = Random("short")
    jobs = [
        TraceJob(
            random.randrange(2 * DAY_S), random.randrange(60, 30_000), random.choice((1, 1, 2, 4))
        )
        for _ in range(60)
    ]
    return Day(sorted(jobs), 2, 4)


def percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def span(seconds: float) -> str:
    for size, unit in ((3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def row(case: Case, outcome: Outcome, rigid: Outcome) -> str:
    ends, waits = outcome.completions_s, outcome.waits_s
    later = sum(
        mine > plain + 60 for mine, plain in zip(ends, rigid.completions_s, strict=True)
    ) / len(ends)
    figures = [
        *(span(each) for each in (statistics.median(ends), statistics.fmean(ends))),
        *(span(each) for each in (percentile(ends, 0.95), statistics.fmean(waits))),
        span(percentile(waits, 0.95)),
        f"{statistics.fmean(outcome.used):.0%}",
        f"{outcome.resizes:.1f}",
        f"{later:.0%}",
    ]
    return f"{case.name:48}" + "".join(f"{each:>10}" for each in figures)


def picture(path: Path, found: Sequence[tuple[str, Outcome]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, outcome in found:
        ends = sorted(outcome.completions_s)
        hours = [seconds / 3_600 for seconds in ends]
        left.plot(hours, [(at + 1) / len(ends) for at in range(len(ends))], label=name)
        right.plot([24 * at / BINS for at in range(BINS)], [100 * each for each in outcome.used])
    left.set_xscale("log")
    left.set_xlabel("time from submission to end, hours")
    left.set_ylabel("part of the day's jobs")
    left.legend()
    right.set_xlabel("hour of the day")
    right.set_ylabel("GPUs that jobs have, %")
    right.set_ylim(0, 100)
    figure.savefig(path, dpi=90)


def cases(part: float, efficiency: float, costs: ResizeCosts) -> dict[str, list[Case]]:
    """By heading; the first case of each group is the one without elastic jobs."""
    some = f"{part:.0%} elastic"
    return {
        f"efficiency {efficiency:g}": [
            Case("rigid", 0, efficiency, costs),
            Case(some, part, efficiency, costs),
            Case("all elastic", 1, efficiency, costs),
            Case(f"{some}, efficiency 0.8", part, 0.8, costs),
            Case(f"{some}, efficiency 1", part, 1, costs),
            Case(f"{some}, pauses of a restart (torchrun)", part, efficiency, RESTARTS),
        ],
        "times of jobs not known to the core": [
            Case("rigid", 0, efficiency, costs, known=False),
            Case(some, part, efficiency, costs, known=False),
            Case("all elastic", 1, efficiency, costs, known=False),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument(
        "trace", nargs="?", type=Path, default=os.environ.get("NODEMGR_PHILLY_TRACE")
    )
    parser.add_argument("--day", type=int, default=77)
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--node-gpus", type=int, default=16)
    parser.add_argument("--part", type=float, default=0.5)
    parser.add_argument("--efficiency", type=float, default=0.9)
    measured = ResizeCosts()
    for name in measured._fields:
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=getattr(measured, name))
    parser.add_argument("--picture", type=Path)
    options = parse(parser)
    if not (options.load > 0 and 0 < options.part <= 1 and 0.5 < options.efficiency <= 1):
        parser.error("a load above 0, a part above 0 up to 1, an efficiency above 0.5 up to 1")
    costs = ResizeCosts(*(getattr(options, name) for name in measured._fields))
    if options.short:
        day = made_up()
    elif options.trace is None or not Path(options.trace).exists():
        parser.error("name the trace, or set NODEMGR_PHILLY_TRACE")
    else:
        jobs = read_trace(Path(options.trace))
        day = of_trace(jobs, options.day, options.load, options.node_gpus)
        if not any(job.comes_s >= DAY_S for job in day.jobs):
            parser.error(f"the trace has no job of day {options.day} on up to {day.node_gpus} GPUs")
    counted = sum(job.comes_s >= DAY_S for job in day.jobs)
    work_s = sum(job.lasts_s * job.gpus for job in day.jobs)
    load = work_s / (2 * DAY_S * day.nodes * day.node_gpus)
    print(
        f"{counted} jobs of the day, {len(day.jobs) - counted} of the day before, on {day.nodes}"
        f" nodes of {day.node_gpus} GPUs: offered load {load:.2f}; {costs}"
    )
    drawn = []
    for heading, group in cases(options.part, options.efficiency, costs).items():
        print(f"\n{heading:48}" + "".join(f"{each:>10}" for each in HEAD))
        rigid: Outcome | None = None
        for case in group:
            outcome = day.run(case)
            rigid = rigid or outcome
            print(f"{row(case, outcome, rigid)}   ({outcome.took_s:.0f} s)", flush=True)
            drawn.append((case.name, outcome))
    if options.picture is not None:
        picture(options.picture, drawn[:3])


HEAD = ("median", "mean", "95 %", "wait", "95 %", "in use", "resizes", "later")


if __name__ == "__main__":
    main()
