"""The exact optimum of a small batch in hindsight: the smallest maximum completion time.

Knows: the failures that are to come. Must not know: policies. The search tries the sets of GPUs
at each start of a job, and cuts a branch that has lasted as long as the best one found. Jobs start
in their order as soon as enough GPUs are free, as under every policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from nodemgr.core.placement.policies import SizedJob as Job
from nodemgr.placement.batch_model import BatchModel
from nodemgr.placement.batches import HOUR_MS
from nodemgr.placement.observed import SeenGpu
from nodemgr.placement.rollouts import Instance

MAX_GPUS = 6
MAX_RUNS = 20_000


class Optimum(NamedTuple):
    makespan_ms: int
    is_exact: bool
    """False: MAX_RUNS ended the search; the time was reached, and may not be the smallest."""


class _Path:
    """A policy that follows given choices, then takes the first one; it notes how many there are.

    The GPUs whose next failure is the latest come first, so the first path is good already.
    """

    def __init__(self, instance: Instance, choices: Sequence[int]) -> None:
        self.instance, self.choices = instance, choices
        self.counts: list[int] = []
        self.now_ms = 0

    def __call__(self, candidates: Sequence[SeenGpu], job: Job) -> Sequence[int]:
        now_ms = round(candidates[0].age_hours * HOUR_MS) - self._history_ms()
        next_ms = [self.instance.failures.next_ms(gpu.index, now_ms) for gpu in candidates]
        ordered = sorted(range(len(candidates)), key=lambda at: -next_ms[at])
        sets = list(combinations(ordered, job.gpus))
        place = len(self.counts)
        self.counts.append(len(sets))
        return sets[self.choices[place] if place < len(self.choices) else 0]

    def _history_ms(self) -> int:
        return round(self.instance.failures.cluster.history_hours * HOUR_MS)


def find(instance: Instance, max_runs: int = MAX_RUNS) -> Optimum:
    """Raises ValueError for a cluster of more than MAX_GPUS."""
    if instance.failures.cluster.gpus > MAX_GPUS:
        raise ValueError(f"more than {MAX_GPUS} GPUs")
    least_ms = _least(instance)
    best: int | None = None
    choices: list[int] = []
    for _ in range(max_runs):
        path = _Path(instance, choices)
        limit_ms = None if best is None else best - 1
        model = BatchModel(instance.jobs, instance.failures, path, limit_ms)
        outcome = model.run()
        if outcome.is_done or best is None:
            best = outcome.makespan_ms
        following = _following(choices, path.counts)
        if following is None or best <= least_ms:
            return Optimum(best, True)
        choices = following
    assert best is not None
    return Optimum(best, False)


def _least(instance: Instance) -> float:
    """No placement ends earlier: the longest job, and the work divided by the GPUs."""
    work_ms = sum(job.work_ms * job.gpus for job in instance.jobs)
    longest_ms = max((job.comes_ms + job.work_ms for job in instance.jobs), default=0)
    return max(longest_ms, work_ms / instance.failures.cluster.gpus)


def _following(choices: Sequence[int], counts: Sequence[int]) -> list[int] | None:
    """The next path in depth-first order; None: all were tried."""
    taken = [*choices[: len(counts)], *([0] * (len(counts) - len(choices)))]
    while taken:
        if taken[-1] + 1 < counts[len(taken) - 1]:
            taken[-1] += 1
            return taken
        taken.pop()
    return None
