"""Requests with a class on GPUs that fail: the source's order, and that order with failures.

    python bench/placement/classes.py [--seeds 300] [--only WORD] [--short]

Both choose by the core's table (scheduler/allocator.py). In the source's order, the compute left
(latency-sensitive) or the predicted time (best effort), failures decide among equals alone. With
failures, a latency-sensitive request prefers a GPU on which it will probably not fail: so does the
manager. The time of a best-effort one has its risk of failures in it: that is tried here alone.
Requests come over two days, each on one GPU,
and meet the same failures in both; differences are paired, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import heapq
import statistics
import sys
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from bench.placement.policies import MAIN, PUBLISHED
from nodemgr.core.model.entities import WHOLE_PERCENT, TaskClass
from nodemgr.core.placement import policies
from nodemgr.core.placement.policies import SizedJob
from nodemgr.core.scheduler.allocator import Ask, Candidate, Choice, choose
from nodemgr.placement import batches, evaluation
from nodemgr.placement.batches import HOUR_MS
from nodemgr.placement.failures import Cluster, Failures
from nodemgr.placement.observed import GPU_BYTES, Observed, SeenGpu

LS, BE = TaskClass.LATENCY_SENSITIVE, TaskClass.BEST_EFFORT
ARRIVALS_MS = 48 * HOUR_MS
SPEEDS = (1.0, 1.5)
"""Of the GPUs by turns, for best effort: two models."""
COUNTS = {LS: 300, BE: 90}
MANY = 64
UNKNOWN = "main, no times are known"
CLUSTERS: Mapping[str, Cluster] = {
    "main: a fifth fails 40 times as often": MAIN,
    "half of the GPUs are bad": replace(MAIN, bad_part=0.5),
    "bad GPUs fail 10 times as often": replace(MAIN, bad_factor=10.0),
    "all GPUs fail alike": replace(MAIN, bad_factor=1.0),
    "a checkpoint every half hour": replace(MAIN, checkpoint_ms=HOUR_MS // 2),
    "other GPUs are bad after 10 days": replace(MAIN, drift_hours=240.0),
    **{f"published rates, 1 of 16 x {each.bad_factor}": each for each in PUBLISHED.values()},
}


class Arrival(NamedTuple):
    number: int
    task_class: TaskClass
    percent: int
    work_ms: int
    """On a GPU of speed 1."""
    comes_ms: int
    knows_time: bool = True


class Outcome(NamedTuple):
    times_ms: tuple[int, ...]
    """By request: from its arrival to its end."""
    interruptions: int
    left_percents: tuple[int, ...]
    """By choice: the compute that the GPU had left."""


END, DOWN, UP, COMES = range(4)


class ClassesModel:
    """One run. Requests start strictly in order; a failed GPU interrupts all that are on it."""

    def __init__(
        self, arrivals: Sequence[Arrival], failures: Failures, *, counts_failures: bool
    ) -> None:
        self.arrivals, self.failures, self.cluster = arrivals, failures, failures.cluster
        self.counts_failures = counts_failures
        self.observed = Observed(failures)
        self.running: dict[int, tuple[int, int, int]] = {}
        """By request: its GPU, its start and its end."""
        self.taken_percents = [0] * self.cluster.gpus
        self.waiting: list[int] = []
        self.attempts, self.done_ms = [0] * len(arrivals), dict[int, int]()
        self.progress_ms, self.is_up = [0] * len(arrivals), [True] * self.cluster.gpus
        self.interruptions, self.left_percents = 0, list[int]()
        self.events = [(each.comes_ms, COMES, each.number, 0) for each in arrivals]
        for gpu, times in enumerate(failures.times_ms):
            self.events += [(each, DOWN, gpu, 0) for each in times[bisect_left(times, 0) :]]
        heapq.heapify(self.events)

    def run(self) -> Outcome:
        while len(self.done_ms) < len(self.arrivals) and self.events:
            now_ms, kind, number, attempt = heapq.heappop(self.events)
            if kind == COMES:
                insort(self.waiting, number)
            elif kind == UP:
                self.is_up[number] = True
            elif kind == DOWN:
                self._fail(number, now_ms)
            elif self.attempts[number] == attempt and number in self.running:
                self._leave(number)
                self.done_ms[number] = now_ms
            self._start(now_ms)
        end_ms = round(self.cluster.horizon_hours * HOUR_MS)
        times = [self.done_ms.get(each.number, end_ms) - each.comes_ms for each in self.arrivals]
        return Outcome(tuple(times), self.interruptions, tuple(self.left_percents))

    def _leave(self, number: int) -> tuple[int, int, int]:
        attempt = self.running.pop(number)
        self.observed.gpus[attempt[0]].tasks -= 1
        self.taken_percents[attempt[0]] -= self.arrivals[number].percent
        return attempt

    def _fail(self, gpu: int, now_ms: int) -> None:
        self.observed.failed(gpu, now_ms)
        self.is_up[gpu] = False
        heapq.heappush(self.events, (now_ms + self.cluster.recovery_ms, UP, gpu, 0))
        for number in [each for each, (on, *_) in self.running.items() if on == gpu]:
            _, _, end_ms = self._leave(number)
            every_ms = self.cluster.checkpoint_ms
            if every_ms is not None:
                left_ms = round((end_ms - now_ms) * self._speed(self.arrivals[number], gpu))
                done_ms = self.arrivals[number].work_ms - left_ms
                self.progress_ms[number] = max(
                    self.progress_ms[number], done_ms - done_ms % every_ms
                )
            self.interruptions += 1
            insort(self.waiting, number)

    def _speed(self, arrival: Arrival, gpu: int) -> float:
        return SPEEDS[gpu % len(SPEEDS)] if arrival.task_class is BE else 1.0

    def _start(self, now_ms: int) -> None:
        while self.waiting:
            arrival = self.arrivals[self.waiting[0]]
            chosen = self._chosen(arrival, now_ms)
            if chosen is None:
                return
            number, gpu = self.waiting.pop(0), chosen.number
            restart_ms = self.cluster.restart_ms if self.attempts[number] else 0
            run_ms = (arrival.work_ms - self.progress_ms[number]) / self._speed(arrival, gpu)
            end_ms = now_ms + restart_ms + round(run_ms)
            self.attempts[number] += 1
            self.left_percents.append(chosen.free_percent)
            self.running[number] = gpu, now_ms, end_ms
            self.observed.gpus[gpu].tasks += 1
            self.taken_percents[gpu] += arrival.percent
            heapq.heappush(self.events, (end_ms, END, number, self.attempts[number]))

    def _chosen(self, arrival: Arrival, now_ms: int) -> Candidate | None:
        up = [gpu for gpu in range(self.cluster.gpus) if self.is_up[gpu]]
        seen = {gpu.index: gpu for gpu in self.observed.refresh(now_ms, up)}
        left_ms = arrival.work_ms - self.progress_ms[arrival.number]
        job = SizedJob(1, left_ms / HOUR_MS if arrival.knows_time else None)
        key = policies.reliable_key(job)
        rows = [self._row(arrival, gpu, job, left_ms) for gpu in seen.values()]
        ask = Ask(1, MANY, None, MANY, percent=arrival.percent, task_class=arrival.task_class)
        answer = choose(ask, rows, lambda row: key(_known(seen[row.number])))
        return answer.fresh[0] if isinstance(answer, Choice) else None

    def _row(self, arrival: Arrival, gpu: SeenGpu, job: SizedJob, left_ms: int) -> Candidate:
        """As scheduler/placement.py makes it."""
        free_percent = WHOLE_PERCENT - self.taken_percents[gpu.index]
        time_ms = None
        if arrival.task_class is BE:
            time_ms = left_ms / self._speed(arrival, gpu.index)
        is_endangered = False
        if self.counts_failures:
            is_endangered = policies.is_endangered(_known(gpu), job)
            if time_ms is not None:
                time_ms += lost_ms(gpu.rate_per_hour, time_ms)
        return Candidate(
            gpu.uuid, gpu.index, False, gpu.tasks, GPU_BYTES, 0, free_percent=free_percent,
            time_ms=None if time_ms is None else round(time_ms), is_endangered=is_endangered,
        )  # fmt: skip


def lost_ms(rate_per_hour: float, time_ms: float) -> float:
    """The mean time that failures cost a job of this time; small risks count nothing."""
    job = SizedJob(1, time_ms / HOUR_MS)
    if not policies.is_risky(rate_per_hour, job.counted_hours):
        return 0.0
    return policies.expected_loss(rate_per_hour, job) * HOUR_MS


def _known(gpu: SeenGpu) -> policies.KnownGpu:
    return policies.KnownGpu(
        gpu.index, gpu.uuid, GPU_BYTES, gpu.tasks, gpu.rate_per_hour, gpu.age_hours,
        gpu.quiet_hours,
    )  # fmt: skip


def arrivals(
    random: Random, task_class: TaskClass, gpus: int, *, knows_time: bool
) -> tuple[Arrival, ...]:
    """Of one class, in the order of arrival: so many for 16 GPUs."""
    count = max(1, COUNTS[task_class] * gpus // MAIN.gpus)
    jobs = batches.made_up(random, count, 1)
    comes = sorted(random.randrange(ARRIVALS_MS) for _ in jobs)
    percents = [
        WHOLE_PERCENT if task_class is BE else 10 * random.randint(1, 5) for _ in jobs
    ]  # fmt: skip
    return tuple(
        Arrival(job.number, task_class, percent, job.work_ms, comes_ms, knows_time)
        for job, comes_ms, percent in zip(jobs, comes, percents, strict=True)
    )


class Row(NamedTuple):
    """Of both orders, the source's first."""

    times: evaluation.PairedDifference
    """Of the mean time from arrival to end, in percent."""
    interruptions: tuple[float, float]
    left_percents: tuple[float, float]


def row(
    cluster: Cluster, task_class: TaskClass, name: str, seeds: int, *, knows_time: bool = True
) -> Row:
    pairs = list[tuple[Outcome, Outcome]]()
    for each in range(seeds):
        seed = f"classes/{name}/{each}"
        come = arrivals(Random(seed), task_class, cluster.gpus, knows_time=knows_time)
        failures = Failures(cluster, seed)
        pairs.append((
            ClassesModel(come, failures, counts_failures=False).run(),
            ClassesModel(come, failures, counts_failures=True).run(),
        ))  # fmt: skip
    old, new = zip(*pairs, strict=True)
    means = [[statistics.fmean(one.times_ms) for one in side] for side in (old, new)]
    return Row(
        evaluation.paired(means[1], means[0]),
        tuple(statistics.fmean(one.interruptions for one in side) for side in (old, new)),
        tuple(statistics.fmean(statistics.fmean(one.left_percents) for one in side)
              for side in (old, new)),
    )  # fmt: skip


def rows(seeds: int, only: str) -> Iterator[tuple[str, Row]]:
    cases = [(task_class, name, True) for task_class in (LS, BE) for name in CLUSTERS]
    for task_class, name, knows_time in (*cases, (LS, UNKNOWN, False)):
        title, cluster = f"{task_class.value}, {name}", CLUSTERS.get(name, MAIN)
        if only in title:
            yield title, row(cluster, task_class, name, seeds, knows_time=knows_time)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--only", default="", help="rows with this in their name")
    options = parse(parser, seeds=2)
    print(f"{options.seeds} seeds; the source's order, then with failures; below 0: earlier")
    print(f"{'':60}{'mean time, %':>16}{'interruptions':>18}{'compute left, %':>18}")
    for name, found in rows(options.seeds, options.only):
        time = f"{found.times.mean:+.1f} ± {found.times.half:.1f}"
        ends = "{:.1f}, {:.1f}".format(*found.interruptions)
        left = "{:.1f}, {:.1f}".format(*found.left_percents)
        print(f"{name:60}{time:>16}{ends:>18}{left:>18}", flush=True)


if __name__ == "__main__":
    main()
