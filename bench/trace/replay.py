"""A replay of a cluster's three months on the queue and planner of nodemgr's core.

The clock is simulated. It prints how long jobs wait when they are served strictly in order, by
priority with ageing, with backfill, and with both.

    python bench/trace/replay.py [TRACE.csv.gz] [--gpus N] [--load 1] [--depth 100]

TRACE (or NODEMGR_PHILLY_TRACE) has the columns timestamp, duration (s), num_gpus: 64 871 jobs of
Microsoft's Philly clusters, October to December 2017, as published with the AdaptDL artifact (OSDI
'21), derived from msr-fiddle/philly-traces ("Analysis of Large-Scale Multi-Tenant GPU Clusters for
DNN Training Workloads", USENIX ATC '19, CC-BY-4.0).

The pool without --gpus: the smallest number of servers with 8 GPUs whose capacity times `load`
covers the busiest week of the trace, and in which the largest job fits. The average week is no
measure: demand comes in waves, and in the weeks above it every order of service lets the queues
grow. A job may use any GPU. The duration of a job is also its time limit, known beforehand.

Parts of the core that run here: WorkQueue (insert, peek, pop, withdraw, ranks and ageing) in all
replays; Plan and its Profile, with the core's depth, for the backfill. The core makes a new plan at
each scheduling pass. Here one plan is kept, because every job ends as planned; when a job enters
ahead of others, only those others are planned again. At every CHECKED-th event the plan is compared
with a new one. Parts that do not run in these replays: quotas, memory, the placement on GPUs.
The first jobs (--core-jobs) run on the whole core too, in the simulator of nodemgr/placement, and
start when the strict replay says. day.py runs a day of the trace there, with elastic jobs.
"""

from __future__ import annotations

import argparse
import heapq
import math
import os
import statistics
import sys
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from bench.trace.core_model import CoreModel
from nodemgr.core.model.entities import Config
from nodemgr.core.scheduler.plan import Plan, Profile
from nodemgr.core.state.work_queue import ServiceOrder, WorkQueue
from nodemgr.placement import plain_policies
from nodemgr.placement.batches import SimJob, read_trace
from nodemgr.placement.failures import Cluster, Failures

SERVER_GPUS = 8
CORE_GPUS = 1_000
WEEK_S = 7 * 86_400
CHECKED = 2_000
CLASSES = (("1 GPU", 1, 1), ("2-8 GPUs", 2, 8), ("more", 9, 1 << 30))
Starts = list[int]
"""By job, in seconds."""


class Job(NamedTuple):
    comes: int
    lasts: int
    gpus: int


def made_up(count: int) -> list[Job]:
    """For the short form: no trace, but jobs of every class that have to wait."""
    gpus = (1, 2, 1, 4, 1, 8, 1, 12)
    return [
        Job(600 * number, 1_800 + 7_919 * number % 7_200, gpus[number % len(gpus)])
        for number in range(count)
    ]


def read(path: Path) -> list[Job]:
    """In the order of submission, in whole seconds since the first."""
    return [Job(*row) for row in read_trace(path)]


def servers(jobs: list[Job], load: float) -> int:
    """The GPUs of the pool."""
    weeks = Counter[int]()
    for job in jobs:
        weeks[job.comes // WEEK_S] += job.lasts * job.gpus
    least = max(max(weeks.values()) / WEEK_S / load, max(job.gpus for job in jobs))
    return -(-math.ceil(least) // SERVER_GPUS) * SERVER_GPUS


def strict(jobs: list[Job], gpus: int, queue: WorkQueue, queue_of: Callable[[Job], str]) -> Starts:
    """The first job in the order of service starts as soon as it fits.

    No other job starts before it.
    """
    starts = [0] * len(jobs)
    free, ends, come = gpus, list[tuple[int, int]](), 0
    while come < len(jobs) or queue:
        now = min([*(end for end, _ in ends[:1]), *(job.comes for job in jobs[come : come + 1])])
        while ends and ends[0][0] <= now:
            free += heapq.heappop(ends)[1]
        while come < len(jobs) and jobs[come].comes <= now:
            queue.insert(queue_of(jobs[come]), str(come), jobs[come].comes)
            come += 1
        while (first := queue.peek()) is not None and jobs[int(first)].gpus <= free:
            queue.pop()
            job = jobs[int(first)]
            starts[int(first)] = now
            free -= job.gpus
            heapq.heappush(ends, (now + job.lasts, job.gpus))
    return starts


class Planned(NamedTuple):
    order: ServiceOrder
    number: int
    """Of the job."""
    start: int
    before: Profile | None
    """Free GPUs over time, without this job and the jobs behind it.

    None: no job may enter ahead of others.
    """


class Backfill:
    """The beginning of the queues, planned as far as the core plans."""

    def __init__(
        self,
        jobs: list[Job],
        gpus: int,
        depth: int,
        queue: WorkQueue,
        queue_of: Callable[[Job], str],
    ) -> None:
        self.jobs = jobs
        self.gpus = gpus
        self.depth = depth
        self.queue = queue
        self.queue_of = queue_of
        self.ranks = len(list(queue.names())) > 1
        self.free = Profile(gpus, 0)
        self.starts = [0] * len(jobs)
        self.planned: list[Planned] = []
        """In the order of service."""
        self.checks = 0

    def run(self) -> Starts:
        come, events = 0, 0
        while come < len(self.jobs) or self.queue:
            now = min(
                [
                    *(row.start for row in self.planned),
                    *(job.comes for job in self.jobs[come : come + 1]),
                ]
            )
            self.free.advance(now)
            while come < len(self.jobs) and self.jobs[come].comes <= now:
                self.comes(come, now)
                come += 1
            while due := [place for place, row in enumerate(self.planned) if row.start <= now]:
                self.starts_now(due[0], now)
            events += 1
            if events % CHECKED == 0:
                self.check(now, come)
        return self.starts

    def comes(self, number: int, now: int) -> None:
        self.queue.insert(self.queue_of(self.jobs[number]), str(number), self.jobs[number].comes)
        order = self.queue.order(str(number))
        place = bisect(self.planned, order, key=lambda row: row.order)
        if place < self.depth:
            behind = self.planned[place:]
            if behind and behind[0].before is not None:
                self.free = behind[0].before
                self.free.advance(now)
            self.planned = self.planned[:place]
            for other in [number, *(row.number for row in behind)][: self.depth - place]:
                self.plan(other)

    def plan(self, number: int) -> None:
        """Behind all others."""
        job, before = self.jobs[number], self.free.copy() if self.ranks else None
        start = self.free.earliest(job.gpus, job.lasts)
        assert start is not None
        self.free.take(job.gpus, start, start + job.lasts)
        self.planned.append(Planned(self.queue.order(str(number)), number, start, before))

    def starts_now(self, place: int, now: int) -> None:
        """Start the job at `place` now.

        The jobs before it are planned beside it from now on; one more job comes within the depth.
        """
        row, job = self.planned[place], self.jobs[self.planned[place].number]
        for other in self.planned[:place]:
            if other.before is not None:
                other.before.take(job.gpus, now, now + job.lasts)
        del self.planned[place]
        self.queue.withdraw(str(row.number))
        self.starts[row.number] = now
        if len(self.planned) < min(self.depth, len(self.queue)):
            self.plan(int(next(islice(self.queue, len(self.planned), None))))

    def check(self, now: int, come: int) -> None:
        """A plan made anew says the same."""
        plan = Plan(self.gpus, now)
        for number, job in enumerate(self.jobs[:come]):
            if str(number) not in self.queue and self.starts[number] + job.lasts > now:
                plan.runs(job.gpus, self.starts[number] + job.lasts)
        assert [row.number for row in self.planned] == [
            int(entry) for entry in islice(self.queue, self.depth)
        ]
        for row in self.planned:
            start = plan.place(self.jobs[row.number].gpus, self.jobs[row.number].lasts)
            assert start is not None
            assert row.start == start.time, (row.number, row.start, start)
        self.checks += 1


def by_size(job: Job) -> str:
    """The fewer GPUs the higher the queue."""
    return "high" if job.gpus == 1 else "normal" if job.gpus <= SERVER_GPUS else "low"


def span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def show(name: str, jobs: list[Job], starts: Starts, gpus: int, took_s: float) -> None:
    last = jobs[-1].comes
    busy = sum(
        job.gpus * max(0, min(start + job.lasts, last) - start)
        for job, start in zip(jobs, starts, strict=True)
    )
    print(
        f"\n{name}: {busy / (gpus * last):.1%} of the GPUs in use until the last submission;"
        f" replayed in {took_s:.1f} s of a processor"
    )
    print(
        f"{'':12}{'jobs':>8}{'at once':>9}{'median':>11}{'90 %':>11}{'99 %':>11}"
        f"{'longest':>11}{'mean':>11}"
    )
    for label, least, most in (("all", 1, 1 << 30), *CLASSES):
        waits = sorted(
            start - job.comes
            for job, start in zip(jobs, starts, strict=True)
            if least <= job.gpus <= most
        )
        if not waits:
            continue
        at_once = sum(wait == 0 for wait in waits) / len(waits)
        figures = [waits[int(len(waits) * share)] for share in (0.5, 0.9, 0.99)] + [
            waits[-1],
            statistics.fmean(waits),
        ]
        print(
            f"{label:12}{len(waits):8,}{at_once:>9.0%}"
            + "".join(f"{span(figure):>11}" for figure in figures)
        )


def on_core(jobs: list[Job], load: float) -> None:
    """The first jobs on the whole decision core, with all its tables, on GPUs that never fail.

    The starts are those of the strict replay.
    """
    gpus = min(CORE_GPUS, servers(jobs, load))
    fitting = [job for job in jobs if job.gpus <= gpus]
    batch = [
        SimJob(number, job.gpus, job.lasts * 1_000, job.comes * 1_000)
        for number, job in enumerate(fitting)
    ]
    days = 2 + sum(job.lasts for job in fitting) / 3_600  # enough for one after the other
    calm = Cluster(gpus, rate_per_hour=0.0, history_hours=0.0, horizon_hours=days)
    begin = time.process_time()
    policy = plain_policies.product("index")
    outcome = CoreModel(batch, Failures(calm, "calm"), policy).run()
    took_s = time.process_time() - begin
    starts = [
        ended // 1_000 - job.lasts
        for ended, job in zip(outcome.completions_ms, fitting, strict=True)
    ]
    queue = WorkQueue((("normal", 0),))
    assert starts == strict(fitting, gpus, queue, lambda job: "normal")
    show(f"strictly in order, {len(fitting)} jobs on the whole core", fitting, starts, gpus, took_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument(
        "trace", nargs="?", type=Path, default=os.environ.get("NODEMGR_PHILLY_TRACE")
    )
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--depth", type=int, default=Config().backfill_depth)
    parser.add_argument("--core-jobs", type=int, default=500)
    options = parse(parser, gpus=16, core_jobs=60)
    if options.short:
        jobs = made_up(200)
    elif options.trace is None or not Path(options.trace).exists():
        parser.error("name the trace, or set NODEMGR_PHILLY_TRACE")
    else:
        jobs = read(Path(options.trace))
    gpus = options.gpus or servers(jobs, options.load)
    offered = sum(job.lasts * job.gpus for job in jobs) / (gpus * jobs[-1].comes)
    print(
        f"{len(jobs):,} jobs in {jobs[-1].comes / 86_400:.0f} days on {gpus} GPUs: offered load"
        f" {offered:.2f}"
    )
    ageing_s = Config().ageing_ms // 1_000
    backfill = Backfill(
        jobs, gpus, options.depth, WorkQueue((("normal", 0),)), lambda job: "normal"
    )
    both = Backfill(jobs, gpus, options.depth, WorkQueue(Config().queues, ageing_s), by_size)
    replays: tuple[tuple[str, Callable[[], Starts]], ...] = (
        (
            "strictly in order",
            lambda: strict(jobs, gpus, WorkQueue((("normal", 0),)), lambda job: "normal"),
        ),
        (
            "by priority (fewer GPUs first, ageing)",
            lambda: strict(jobs, gpus, WorkQueue(Config().queues, ageing_s), by_size),
        ),
        (f"in order with backfill (depth {options.depth})", backfill.run),
        ("by priority with backfill", both.run),
    )
    for name, replay in replays:
        begin = time.process_time()
        starts = replay()
        show(name, jobs, starts, gpus, time.process_time() - begin)
    on_core(jobs[: options.core_jobs], options.load)
    print(
        "\nThe lasting plan was found to be the same as one made anew"
        f" {backfill.checks + both.checks} times."
    )


if __name__ == "__main__":
    main()
