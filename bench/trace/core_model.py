"""The batch problem on the manager's decision core: queue, quota, requeues, scheduling passes.

Knows: the core's events, and that an attempt on a GPU that fails ends. Must not know: how a policy
decides. It is a batch_model.BatchModel whose starts come from the core: the core decides which
jobs start and on which GPUs. It takes some hundred times as long, so trainings use the fast model;
tests/placement/test_core_model.py holds that both give the same times.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodemgr.core import manager
from nodemgr.core.manager import Draft, Transition
from nodemgr.core.model.effects import StartJob
from nodemgr.core.model.entities import Cause, Config, Gpu, JobPayload, JobSpec, Quota, RunSpec
from nodemgr.core.model.events import (
    Event,
    GpusChanged,
    JobEnded,
    JobStarted,
    LaunchHostChanged,
    Match,
    SetQuota,
    Submission,
    SubmitJobs,
    Tick,
)
from nodemgr.core.placement import policies
from nodemgr.core.placement.policies import SizedJob
from nodemgr.placement.batch_model import COMES, DOWN, END, UP, BatchModel
from nodemgr.placement.batches import HOUR_MS, SimJob
from nodemgr.placement.failures import Failures
from nodemgr.placement.observed import GPU_BYTES, SimPolicy, uuid_of

MS = 1_000_000
ENV = "batch"
MODEL = "simulated"
CONFIG = Config(
    placement="learned",
    queues=(("normal", 0),),
    ageing_ms=0,
    backfill_depth=0,
    requeue_pause_ms=0,
    max_requeue_pause_ms=0,
    drain_failures=0,
)
"""Strictly in order; a failed job goes back to its place at once; no GPU is drained."""


class CoreModel(BatchModel):
    """One run. `config`: settings of the manager, whose policy then decides instead of `policy`."""

    def __init__(
        self,
        jobs: Sequence[SimJob],
        failures: Failures,
        policy: SimPolicy,
        config: Config | None = None,
    ) -> None:
        super().__init__(jobs, failures, policy)
        self.state = Draft(CONFIG if config is None else config)
        self.state.learn(OrderScorer(self))
        self.now_ms = 0
        self._offset_ms = round(self.cluster.history_hours * HOUR_MS) + HOUR_MS
        self._starts: list[StartJob] = []
        self._ids: list[str] = [""] * len(jobs)
        self._numbers: dict[str, int] = {}
        """By the core's id of each job."""
        self._open(with_history=config is not None)

    def _open(self, *, with_history: bool) -> None:
        """The node before the batch; its history counts for the manager's policies alone."""
        self.now_ms = -round(self.cluster.history_hours * HOUR_MS)
        was_up, self.is_up = self.is_up, [True] * self.cluster.gpus
        self._inventory()
        self._step(LaunchHostChanged("", True, "", self._wall_ns()))
        self._step(SetQuota(ENV, Quota(1 << 20), "simulation", self._wall_ns()))
        if not with_history:
            self.now_ms, self.is_up = 0, was_up
            self._inventory()
            return
        past = [
            (time_ms + after, gpu, bool(after))
            for gpu, times in enumerate(self.failures.times_ms)
            for time_ms in times
            if time_ms < 0
            for after in (0, self.cluster.recovery_ms)
            if time_ms + after < 0
        ]
        for time_ms, gpu, is_up in sorted(past):
            self.now_ms, self.is_up[gpu] = time_ms, is_up
            self._inventory()
        assert self.is_up == was_up
        self.now_ms = 0

    def _wall_ns(self) -> int:
        return (self._offset_ms + self.now_ms) * MS

    def _inventory(self) -> None:
        gpus = [
            Gpu(uuid_of(gpu), gpu, MODEL, GPU_BYTES, is_up) for gpu, is_up in enumerate(self.is_up)
        ]
        self._step(GpusChanged(tuple(gpus), self._wall_ns()))

    def _step(self, event: Event) -> None:
        """The passes that it asks for follow when all events of this time are in (`_start`)."""
        transition = manager.step(self.state, event, self._wall_ns())
        transition.apply()
        self._noted(transition)

    def _noted(self, transition: Transition) -> None:
        self._starts += [each for each in transition.effects if isinstance(each, StartJob)]

    def _handle(self, now_ms: int, kind: int, number: int, attempt: int) -> None:
        self.now_ms = now_ms
        if kind == END and number in self.running and self.attempts[number] == attempt:
            super()._handle(now_ms, kind, number, attempt)
            self._ended(number, 0)
        elif kind == DOWN:
            holder = self.holder[number]
            super()._handle(now_ms, kind, number, attempt)
            self._inventory()
            if holder is not None:
                self._ended(holder, 1)
        elif kind == UP:
            super()._handle(now_ms, kind, number, attempt)
            self._inventory()
        elif kind == COMES:
            super()._handle(now_ms, kind, number, attempt)
            self._submit(self.jobs[number])

    def _submit(self, job: SimJob) -> None:
        run = self._run_spec(job)
        payload = JobPayload(("train",), "/", ())
        submission = Submission(
            job.number, "user", ENV, JobSpec("", "user", 1, 1), payload, "train", run, None
        )
        self._step(SubmitJobs((submission,), self._wall_ns()))
        self._ids[job.number] = f"j{self.state.counters['jobs']}"
        self._numbers[self._ids[job.number]] = job.number

    def _run_spec(self, job: SimJob) -> RunSpec:
        return RunSpec("train", job.gpus, None, None, expected_ms=job.work_ms)

    def _ended(self, number: int, exit_code: int) -> None:
        wall_ns = self._wall_ns()
        self._step(
            JobEnded(
                self._ids[number], self.attempts[number], exit_code, None, "", Cause.OWN, "",
                wall_ns, wall_ns,
            )
        )  # fmt: skip

    def _start(self, now_ms: int) -> None:
        wall_ns = self._wall_ns()
        self._step(Tick(wall_ns, frozenset(), None))  # interrupted jobs enter the queue again
        self._step(Match(wall_ns))
        starts, self._starts = self._starts, []
        for start in starts:
            self._started(start, now_ms)

    def _started(self, start: StartJob, now_ms: int) -> None:
        number = self._numbers[start.job_id]
        self.waiting.remove(number)
        gpus = tuple(self.state.gpus[uuid].index for uuid in start.gpus)
        self._take(self.jobs[number], gpus, now_ms)
        assert self.attempts[number] == start.attempt
        self._step(JobStarted(start.job_id, start.attempt, None, self._wall_ns()))


class OrderScorer:
    """The order of a simulated policy as scores: the core asks for a learned policy's."""

    fault = ""

    def __init__(self, model: CoreModel) -> None:
        self._model = model

    def __call__(self, candidates: Sequence[policies.KnownGpu], job: SizedJob, /) -> list[float]:
        model, gpus = self._model, [gpu.index for gpu in candidates]
        order = model.policy(model.observed.refresh(model.now_ms, gpus), job)
        ranks = {at: rank for rank, at in enumerate(order)}
        return [-float(ranks.get(at, len(gpus))) for at in range(len(gpus))]
