"""`reliable` that may wait for a GPU that fails less, on simulated clusters; not in the product.

    python bench/placement/waiting.py [--seeds 300] [--short]

A job whose time is known leaves idle GPUs on which it would fail more than MOST_RISK times, for at
most a quarter of its time and 2 h, while the plan has enough others for it by then. At most a
quarter of the GPUs in service stand idle by this rule, and it is off where too few GPUs are good.
Later jobs may take what it leaves. Batches and failures are the same for both orders; differences
to `reliable` and to warm least failures are paired, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import heapq
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from bench.placement.policies import MAIN, PUBLISHED
from node import against_target, finish
from nodemgr.core.placement.policies import SizedJob as Job
from nodemgr.placement import batch_model, evaluation, plain_policies
from nodemgr.placement.batch_model import BatchModel, BatchOutcome
from nodemgr.placement.batches import HOUR_MS, SimJob
from nodemgr.placement.failures import Cluster
from nodemgr.placement.observed import SimPolicy
from nodemgr.placement.rollouts import Instance, made_up

MOST_RISK = 0.5
"""Failures of a GPU that a job would meet on it, up to its end or its next checkpoint."""
MOST_WAIT_MS = 2 * HOUR_MS
LEAST_GPUS = 4
MAIN_PERCENT, WORST_PERCENT = -3.0, 1.0
"""The targets, without which the rule stays out of the product."""
WAKE = 4
"""An event at which a wait is over."""
CLUSTERS: Mapping[str, tuple[Cluster, int]] = {
    "main: a fifth fails 40 times as often": (MAIN, 40),
    "half of the GPUs are bad": (replace(MAIN, bad_part=0.5), 40),
    "32 GPUs": (replace(MAIN, gpus=32), 80),
    "bad GPUs fail 10 times as often": (replace(MAIN, bad_factor=10.0), 40),
    "a checkpoint every half hour": (replace(MAIN, checkpoint_ms=HOUR_MS // 2), 40),
    "other GPUs are bad after 10 days": (replace(MAIN, drift_hours=240.0), 40),
    **{f"published rates, 1 of 16 x {cluster.bad_factor}": (cluster, 40)
       for cluster in PUBLISHED.values()},
}
"""By name: the cluster, and the jobs of a batch."""


class WaitingModel(BatchModel):
    """The batch model in which a job may leave idle GPUs for a while."""

    def __init__(self, instance: Instance, policy: SimPolicy) -> None:
        super().__init__(instance.jobs, instance.failures, policy)
        self._until_ms: dict[tuple[int, int], int] = {}
        """By job and attempt: the end of its wait, which begins once."""

    def _handle(self, now_ms: int, kind: int, number: int, attempt: int) -> None:
        if kind != WAKE:
            super()._handle(now_ms, kind, number, attempt)

    def _start(self, now_ms: int) -> None:
        place, kept = 0, set[int]()
        while place < len(self.waiting):
            job = self.jobs[self.waiting[place]]
            if job.gpus > sum(self.is_up):
                place += 1
                continue
            free = [gpu for gpu in self._free_for(job) if gpu not in kept]
            if len(free) < job.gpus:
                return
            good = self._good(job, now_ms)
            chosen = [gpu for gpu in free if gpu in good]
            if self._waits(job, free, good, now_ms):
                kept.update(chosen)
                place += 1
                continue
            chosen = chosen if len(chosen) >= job.gpus else free
            candidates = self.observed.refresh(now_ms, chosen)
            order = self.policy(candidates, Job(job.gpus, job.hours))
            del self.waiting[place]
            self._take(job, tuple(chosen[at] for at in order[: job.gpus]), now_ms)

    def _good(self, job: SimJob, now_ms: int) -> set[int]:
        """The GPUs in service on which the job risks little."""
        every_ms = self.cluster.checkpoint_ms
        at_risk_ms = min(self._left_ms(job), math.inf if every_ms is None else every_ms)
        up = [gpu for gpu in range(self.cluster.gpus) if self.is_up[gpu]]
        seen = self.observed.refresh(now_ms, up)
        return {gpu.index for gpu in seen if gpu.rate_per_hour * at_risk_ms / HOUR_MS <= MOST_RISK}

    def _left_ms(self, job: SimJob) -> int:
        return job.work_ms - self.progress_ms[job.number]

    def _waits(self, job: SimJob, free: Sequence[int], good: set[int], now_ms: int) -> bool:
        """Whether the job leaves the poor GPUs of `free` idle now."""
        if sum(gpu in good for gpu in free) >= job.gpus:
            return False
        in_service = sum(self.is_up)
        poor = sum(gpu not in good for gpu in free)
        if in_service < LEAST_GPUS or len(good) < job.gpus or poor > in_service / 4:
            return False
        entry = job.number, self.attempts[job.number]
        if entry not in self._until_ms:
            self._until_ms[entry] = now_ms + min(self._left_ms(job) // 4, MOST_WAIT_MS)
            heapq.heappush(self.events, (self._until_ms[entry], WAKE, job.number, 0))
        until_ms = self._until_ms[entry]
        held = [self.holder[gpu] for gpu in good if gpu not in free]
        ends = [self.running[each].end_ms for each in held if each is not None]
        coming = sum(gpu in good for gpu in free) + sum(end <= until_ms for end in ends)
        return now_ms < until_ms and coming >= job.gpus


def figures(cluster: Cluster, jobs: int, name: str, seeds: int) -> list[list[BatchOutcome]]:
    """Outcomes of warm least failures, of `reliable`, and of `reliable` that waits."""
    found: list[list[BatchOutcome]] = [[], [], []]
    draw, reliable = made_up(cluster, jobs), plain_policies.product("reliable")
    for each in range(seeds):
        instance = draw(Random(f"waiting/{name}/{each}"), f"waiting/{name}/{each}")
        for row, policy in zip(found, (plain_policies.warm_least_failures, reliable), strict=False):
            row.append(batch_model.run(instance.jobs, instance.failures, policy))
        found[2].append(WaitingModel(instance, reliable).run())
    return found


def show(name: str, found: Sequence[Sequence[BatchOutcome]]) -> evaluation.PairedDifference:
    """Print the row; the makespan's difference to `reliable`."""
    warm, plain, waits = ([each.makespan_ms for each in row] for row in found)
    means = [[statistics.fmean(each.completions_ms) for each in row] for row in found]
    columns = [(waits, plain), (means[2], means[1]), (waits, warm), (means[2], means[0])]
    pairs = [evaluation.paired(own, other) for own, other in columns]
    texts = [f"{f'{pair.mean:+.1f} ± {pair.half:.1f}':>14}" for pair in pairs]
    print(f"{name:40}{''.join(texts)}", flush=True)
    return pairs[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=300)
    options = parse(parser, seeds=2)
    print(f"{options.seeds} seeds; percent, below 0: earlier")
    print(f"{'':40}{'to reliable':>28}{'to warm least failures':>28}")
    print(f"{'':40}{'all done':>14}{'mean job':>14}{'all done':>14}{'mean job':>14}")
    made = {
        name: show(name, figures(cluster, jobs, name, options.seeds))
        for name, (cluster, jobs) in CLUSTERS.items()
    }
    first = next(iter(made.values()))
    against_target("main", first.mean, MAIN_PERCENT, "%")
    against_target("main, upper end", first.mean + first.half, 0.0, "%")
    for name, pair in made.items():
        against_target(name, pair.mean, WORST_PERCENT, "%")
    finish(options)


if __name__ == "__main__":
    main()
