"""A fast model of the batch problem: jobs in the order of service on GPUs that fail.

Knows: that the core starts jobs in order, each on whole GPUs of its own, passes over a job that is
wider than the GPUs in service, and puts an interrupted job back to its place. Must not know: how a
policy decides. bench/trace/core_model.py runs the same batch on the decision core itself;
tests/placement/test_core_model.py compares both. Trainings use this model, since a batch takes it a
hundredth of the time.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

from nodemgr.core.placement.policies import SizedJob as Job
from nodemgr.placement.batches import HOUR_MS, SimJob
from nodemgr.placement.failures import BadCluster, Failures
from nodemgr.placement.observed import Observed, SimPolicy


class BatchOutcome(NamedTuple):
    """The result of one batch under one policy."""

    makespan_ms: int
    """The maximum completion time."""
    completions_ms: tuple[int, ...]
    """By job; the horizon for one that did not end."""
    interruptions: int
    lost_gpu_ms: int
    """GPU time of work that was lost."""
    is_done: bool


class RunningJob(NamedTuple):
    job: SimJob
    start_ms: int
    end_ms: int
    gpus: tuple[int, ...]


END, DOWN, UP, COMES = range(4)
"""Events at one time are handled in this order."""


class BatchModel:
    """One run. `limit_ms`: the run stops when it has lasted longer."""

    def __init__(
        self,
        jobs: Sequence[SimJob],
        failures: Failures,
        policy: SimPolicy,
        limit_ms: float | None = None,
    ) -> None:
        check(jobs, failures)
        self.jobs, self.failures, self.policy = jobs, failures, policy
        self.cluster = failures.cluster
        horizon_ms = round(self.cluster.horizon_hours * HOUR_MS)
        self.horizon_ms = horizon_ms if limit_ms is None else min(horizon_ms, limit_ms)
        self.observed = Observed(failures)
        self.running: dict[int, RunningJob] = {}
        self.waiting: list[int] = []
        """The numbers of jobs, in order."""
        self.done_ms: dict[int, int] = {}
        self.progress_ms = [0] * len(jobs)
        self.attempts = [0] * len(jobs)
        self.holder: list[int | None] = [None] * self.cluster.gpus
        self.avoided: list[set[int]] = [set() for _ in jobs]
        """The GPUs that failed under each job."""
        self.interruptions = self.lost_gpu_ms = 0
        self.events: list[tuple[int, int, int, int]] = [
            (job.comes_ms, COMES, job.number, 0) for job in jobs
        ]
        self.is_up = [True] * self.cluster.gpus
        for gpu in range(self.cluster.gpus):
            self._next_failure(gpu, -1)
            times = failures.times_ms[gpu]
            before = bisect_left(times, 0)
            if before and (back_ms := times[before - 1] + self.cluster.recovery_ms) > 0:
                self.is_up[gpu] = False
                self.events.append((back_ms, UP, gpu, 0))
        heapq.heapify(self.events)

    def _next_failure(self, gpu: int, after_ms: int) -> None:
        next_ms = self.failures.next_ms(gpu, after_ms)
        if next_ms <= self.horizon_ms:
            heapq.heappush(self.events, (int(next_ms), DOWN, gpu, 0))

    def run(self) -> BatchOutcome:
        while self.events and len(self.done_ms) < len(self.jobs):
            now_ms = self.events[0][0]
            if now_ms > self.horizon_ms:
                break
            while self.events and self.events[0][0] == now_ms:
                _, kind, number, attempt = heapq.heappop(self.events)
                self._handle(now_ms, kind, number, attempt)
            self._start(now_ms)
        horizon_ms = int(self.horizon_ms)
        completions = tuple(self.done_ms.get(job.number, horizon_ms) for job in self.jobs)
        return BatchOutcome(
            max(completions, default=0),
            completions,
            self.interruptions,
            self.lost_gpu_ms,
            len(self.done_ms) == len(self.jobs),
        )

    def _handle(self, now_ms: int, kind: int, number: int, attempt: int) -> None:
        if kind == END:
            if number in self.running and self.attempts[number] == attempt:
                self.done_ms[number] = now_ms
                self._free(number)
        elif kind == DOWN:
            self._fail(number, now_ms)
        elif kind == UP:
            self.is_up[number] = True
        else:
            insort(self.waiting, number)

    def _free(self, number: int) -> RunningJob:
        attempt = self.running.pop(number)
        for gpu in attempt.gpus:
            self.holder[gpu] = None
            self.observed.gpus[gpu].tasks = 0
        return attempt

    def _fail(self, gpu: int, now_ms: int) -> None:
        self.observed.failed(gpu, now_ms)
        self.is_up[gpu] = False
        heapq.heappush(self.events, (now_ms + self.cluster.recovery_ms, UP, gpu, 0))
        self._next_failure(gpu, now_ms)
        number = self.holder[gpu]
        if number is None:
            return
        attempt = self._free(number)
        saved_ms = saved_work(attempt, self.progress_ms[number], now_ms, self)
        ran_ms = now_ms - attempt.start_ms
        self.lost_gpu_ms += (ran_ms - (saved_ms - self.progress_ms[number])) * attempt.job.gpus
        self.progress_ms[number] = saved_ms
        self.interruptions += 1
        if self.cluster.avoids:
            self.avoided[number].add(gpu)
        insort(self.waiting, number)

    def _start(self, now_ms: int) -> None:
        place, in_service = 0, sum(self.is_up)
        while place < len(self.waiting):
            job = self.jobs[self.waiting[place]]
            if job.gpus > in_service:
                place += 1  # it delays no later job until enough GPUs are back
                continue
            free = self._free_for(job)
            if len(free) < job.gpus:
                return
            candidates = self.observed.refresh(now_ms, free)
            order = self.policy(candidates, Job(job.gpus, job.hours))
            del self.waiting[place]
            self._take(job, tuple(free[at] for at in order[: job.gpus]), now_ms)

    def _free_for(self, job: SimJob) -> list[int]:
        """The idle GPUs without those that failed under the job, where there are enough others."""
        up = [gpu for gpu in range(self.cluster.gpus) if self.is_up[gpu]]
        avoided = self.avoided[job.number]
        if avoided and len(others := [gpu for gpu in up if gpu not in avoided]) >= job.gpus:
            up = others
        return [gpu for gpu in up if self.holder[gpu] is None]

    def _take(self, job: SimJob, gpus: tuple[int, ...], now_ms: int) -> None:
        number = job.number
        self.attempts[number] += 1
        restart_ms = self.cluster.restart_ms if self.attempts[number] > 1 else 0
        end_ms = now_ms + restart_ms + job.work_ms - self.progress_ms[number]
        self.running[number] = RunningJob(job, now_ms, end_ms, gpus)
        for gpu in gpus:
            self.holder[gpu] = number
            self.observed.gpus[gpu].tasks = 1
            self.observed.gpus[gpu].starts += 1
        heapq.heappush(self.events, (end_ms, END, number, self.attempts[number]))


def saved_work(attempt: RunningJob, before_ms: int, now_ms: int, model: BatchModel) -> int:
    """The work of a job that its last checkpoint holds, when the attempt fails now."""
    every_ms = model.cluster.checkpoint_ms
    if every_ms is None:
        return 0
    restart_ms = attempt.end_ms - attempt.start_ms - (attempt.job.work_ms - before_ms)
    done_ms = before_ms + max(0, now_ms - attempt.start_ms - restart_ms)
    return done_ms - done_ms % every_ms


def check(jobs: Sequence[SimJob], failures: Failures) -> None:
    """Raises BadCluster if a job is of no time, or is wider than the cluster."""
    gpus = failures.cluster.gpus
    for job in jobs:
        if not 1 <= job.gpus <= gpus or job.work_ms < 1 or job.comes_ms < 0:
            raise BadCluster(
                f"job {job.number} of the batch needs {job.gpus} GPUs of a cluster of {gpus}",
                f"a job needs 1 to {gpus} GPUs and a time above 0",
            )


def run(jobs: Sequence[SimJob], failures: Failures, policy: SimPolicy) -> BatchOutcome:
    return BatchModel(jobs, failures, policy).run()
