"""Elastic and rigid jobs on the manager's decision core: starts, offers, recalls, ends.

Knows: the words of a leader, and the costs of a resize as parameters. Must not know: how the core
decides. The GPUs never fail here. An elastic job does the same work as a rigid one; its speed
depends on its number of GPUs (`Efficiency`).

`ElasticModel.check` counts the run again from the spans in which each job had each GPU.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.trace.core_model import ENV, MS, CoreModel
from nodemgr.core.manager import Transition
from nodemgr.core.model.effects import Effect, SendOffer, SendRecall, SendWithdrawn, StartJob
from nodemgr.core.model.entities import Config, GpuRange, RunSpec, Transport, Uuid, Word
from nodemgr.core.model.events import (
    Acquire,
    Caller,
    ElasticWord,
    Match,
    ProcessGone,
    Tick,
    UnreclaimedChanged,
)
from nodemgr.placement.batch_model import COMES, END, RunningJob
from nodemgr.placement.batches import HOUR_MS, SimJob
from nodemgr.placement.failures import Cluster, Failures
from nodemgr.placement.observed import uuid_of

JOIN, LEAVE, WAKE = range(COMES + 1, COMES + 4)
UNITS = 1_000_000
"""The work of one millisecond on the GPUs that the job names."""
NEVER_SILENT_MS = 1 << 40
CONFIG = Config(
    placement="index", queues=(("normal", 0),), timeout_ms=NEVER_SILENT_MS, drain_failures=0
)
"""The manager's defaults, with one queue. Simulated processes have no beats."""


class ResizeCosts(NamedTuple):
    join_ms: int = 660
    """From an offer to the first step on the GPU. The others train on."""
    pause_ms: int = 190
    """No worker of the job trains for this time after each change of its GPUs."""
    leave_ms: int = 700
    """From a recall to the free GPU: the rest of a step, and 200 ms. It trains until then."""


class Range(NamedTuple):
    least: int
    most: int


class HeldSpan(NamedTuple):
    """One job had one GPU."""

    gpu: int
    number: int
    from_ms: int
    until_ms: int


class Stretch(NamedTuple):
    """One job trained on so many GPUs for a while, without a pause."""

    number: int
    gpus: int
    lasts_ms: int


class ElasticModelFault(AssertionError):
    """The books of a run contradict each other."""


def units_per_ms(gpus: int, named: int, efficiency: float) -> int:
    """The speed on `gpus`; the job's work is given for `named`.

    `efficiency`: the part that remains of each GPU's speed when their number doubles.
    """
    speed: float = (gpus / named) ** (1 + math.log2(efficiency))
    return round(UNITS * speed)


class SimTraining:
    """The progress of one elastic job."""

    def __init__(self, job: SimJob, held: Sequence[Uuid], now_ms: int, efficiency: float) -> None:
        self.job = job
        self.held = set(held)
        self.working = set(held)
        """Without GPUs that join or leave."""
        self.left = job.work_ms * UNITS
        self.stretches: list[Stretch] = []
        self.resized_ms: list[int] = []
        self._efficiency = efficiency
        self._at_ms = self._paused_until_ms = now_ms

    def advance(self, now_ms: int) -> None:
        """Does the work until now."""
        lasts_ms = now_ms - max(self._at_ms, self._paused_until_ms)
        if lasts_ms > 0:
            self.left = max(0, self.left - self._speed() * lasts_ms)
            self.stretches.append(Stretch(self.job.number, len(self.working), lasts_ms))
        self._at_ms = now_ms

    def resize(self, now_ms: int, working: set[Uuid], pause_ms: int) -> None:
        self.advance(now_ms)
        self.working = working
        self._paused_until_ms = now_ms + pause_ms
        if self.resized_ms[-1:] != [now_ms]:
            self.resized_ms.append(now_ms)

    def end_ms(self) -> int:
        return max(self._at_ms, self._paused_until_ms) + -(-self.left // self._speed())

    def _speed(self) -> int:
        return units_per_ms(len(self.working), self.job.gpus, self._efficiency)


class ElasticModel(CoreModel):
    """One run. `ranges`: of the elastic jobs, by number."""

    def __init__(
        self,
        jobs: Sequence[SimJob],
        gpus: int,
        ranges: Mapping[int, Range],
        costs: ResizeCosts,
        efficiency: float,
        *,
        known: bool = True,
    ) -> None:
        self.known = known
        self.ranges, self.costs, self.efficiency = ranges, costs, efficiency
        self.trainings: dict[int, SimTraining] = {}
        """Of elastic jobs, also of those that have ended."""
        self.started_ms: dict[int, int] = {}
        self.spans: list[HeldSpan] = []
        self._holds: dict[int, tuple[int, int]] = {}
        """By GPU: the job, and since when."""
        self._joins: dict[tuple[int, Uuid], int] = {}
        self._leaves: dict[tuple[int, Uuid], int] = {}
        """Times at which workers are ready, and at which recalled GPUs are left, by job and GPU."""
        self._found: list[Effect] = []
        self._is_awake = False
        self._wakes_ms = -1
        hours = 2 + sum(job.work_ms for job in jobs) * 4 / HOUR_MS + _last_ms(jobs) / HOUR_MS
        calm = Cluster(gpus, rate_per_hour=0.0, history_hours=0.0, horizon_hours=hours)
        super().__init__(jobs, Failures(calm, "calm"), _unasked, CONFIG)

    # -- the core's part --

    def _run_spec(self, job: SimJob) -> RunSpec:
        wanted = self.ranges.get(job.number)
        if wanted is None:
            expected_ms = job.work_ms if self.known else None
            return RunSpec("train", job.gpus, None, None, expected_ms=expected_ms)
        gpu_range = GpuRange(wanted.most, is_elastic=True)
        longest_ms = job.work_ms * UNITS // units_per_ms(wanted.least, job.gpus, self.efficiency)
        expected_ms = longest_ms if self.known else None
        return RunSpec(
            "train", wanted.least, None, None, expected_ms=expected_ms, gpu_range=gpu_range
        )

    def _noted(self, transition: Transition) -> None:
        wanted = StartJob | SendOffer | SendRecall | SendWithdrawn
        self._found += [each for each in transition.effects if isinstance(each, wanted)]
        self._is_awake = self._is_awake or transition.then is not None

    def _start(self, now_ms: int) -> None:
        """Passes until nothing changes any more; then the next time that the core wants."""
        while True:
            self._step(Tick(self._wall_ns(), frozenset(), None))
            self._step(Match(self._wall_ns()))
            self._is_awake = False
            found, self._found = self._found, []
            for effect in found:
                self._follow(effect, now_ms)
            if not self._is_awake and not self._found:
                break
        self._books_agree()
        wake_ns = self.state.wake_ns()
        if wake_ns is not None:
            self._wake(now_ms, now_ms + max(1, -(-(wake_ns - self._wall_ns()) // MS)))

    def _wake(self, now_ms: int, due_ms: int) -> None:
        """At most one event of this kind is due before another one."""
        if not now_ms < self._wakes_ms <= due_ms:
            self._wakes_ms = due_ms
            heapq.heappush(self.events, (due_ms, WAKE, 0, 0))

    def _follow(self, effect: Effect, now_ms: int) -> None:
        if isinstance(effect, StartJob):
            self._started(effect, now_ms)
        elif isinstance(effect, SendOffer):
            self._offered(effect.connection, effect.uuid, now_ms)
        elif isinstance(effect, SendRecall):
            due_ms = now_ms + min(effect.in_ms, self.costs.leave_ms)
            self._due(self._leaves, LEAVE, effect.connection, effect.uuid, due_ms)
        elif isinstance(effect, SendWithdrawn):
            self._leaves.pop((effect.connection, effect.uuid), None)

    # -- the leader's part --

    def _take(self, job: SimJob, gpus: tuple[int, ...], now_ms: int) -> None:
        self.started_ms[job.number] = now_ms
        for gpu in gpus:
            self._hold(gpu, job.number, now_ms)
        super()._take(job, gpus, now_ms)
        if job.number in self.ranges:
            held = [uuid_of(gpu) for gpu in gpus]
            self.trainings[job.number] = SimTraining(job, held, now_ms, self.efficiency)
            self._set_end(job.number)

    def _started(self, start: StartJob, now_ms: int) -> None:
        super()._started(start, now_ms)
        number = self._numbers[start.job_id]
        if number in self.ranges:
            task = self.state.tasks[self.state.jobs[start.job_id].task_id or ""]
            least, most = self.ranges[number]
            gpu_range = GpuRange(most, is_elastic=True)
            caller, wall_ns = _leader(number), self._wall_ns()
            self._step(
                Acquire(
                    caller, "a", task.token,
                    RunSpec("train", least, None, None, gpu_range=gpu_range), 1, None, wall_ns,
                )
            )  # fmt: skip

    def _offered(self, number: int, uuid: Uuid, now_ms: int) -> None:
        """The leader takes the GPU; its worker is ready after a while."""
        self._hold(self._index(uuid), number, now_ms)
        self.trainings[number].held.add(uuid)
        self._say(number, Word.ACCEPTED, uuid)
        self._due(self._joins, JOIN, number, uuid, now_ms + self.costs.join_ms)

    def _handle(self, now_ms: int, kind: int, number: int, attempt: int) -> None:
        self.now_ms = now_ms
        if kind in (JOIN, LEAVE):
            key, due = (number, uuid_of(attempt)), self._joins if kind == JOIN else self._leaves
            if due.get(key) == now_ms:
                del due[key]
                (self._joined if kind == JOIN else self._left)(*key, now_ms)
        elif kind == END and number in self.running:
            if self.running[number].end_ms == now_ms:  # not resized since
                self._ends(number, now_ms)
                super()._handle(now_ms, kind, number, attempt)
        elif kind != WAKE:
            super()._handle(now_ms, kind, number, attempt)

    def _joined(self, number: int, uuid: Uuid, now_ms: int) -> None:
        training = self.trainings[number]
        training.resize(now_ms, training.working | {uuid}, self.costs.pause_ms)
        self._set_end(number)

    def _left(self, number: int, uuid: Uuid, now_ms: int) -> None:
        training = self.trainings[number]
        self._joins.pop((number, uuid), None)
        self._say(number, Word.LEFT, uuid)
        self._step(UnreclaimedChanged(_leader(number).process, uuid, 0, self._wall_ns()))
        training.held.remove(uuid)
        self._release(self._index(uuid), now_ms)
        if uuid in training.working:
            training.resize(now_ms, training.working - {uuid}, self.costs.pause_ms)
            self._set_end(number)

    def _say(self, number: int, word: Word, uuid: Uuid) -> None:
        self._step(ElasticWord(_leader(number), "w", word, uuid, self._wall_ns()))

    def _ends(self, number: int, now_ms: int) -> None:
        training = self.trainings.get(number)
        held = list(self.running[number].gpus)
        if training is not None:
            training.advance(now_ms)
            held = [self._index(uuid) for uuid in training.held]
            for due in (self._joins, self._leaves):
                for uuid in training.held:
                    due.pop((number, uuid), None)
            self._step(ProcessGone(_leader(number).process, self._wall_ns()))
        for gpu in held:
            self._release(gpu, now_ms)

    def _set_end(self, number: int) -> None:
        training, attempt = self.trainings[number], self.running[number]
        gpus = tuple(sorted(self._index(uuid) for uuid in training.held))
        self.running[number] = RunningJob(attempt.job, attempt.start_ms, training.end_ms(), gpus)
        heapq.heappush(self.events, (training.end_ms(), END, number, self.attempts[number]))

    def _due(
        self, due: dict[tuple[int, Uuid], int], kind: int, number: int, uuid: Uuid, time_ms: int
    ) -> None:
        due[number, uuid] = time_ms
        heapq.heappush(self.events, (time_ms, kind, number, self._index(uuid)))

    def _index(self, uuid: Uuid) -> int:
        return self.state.gpus[uuid].index

    # -- the books --

    def _hold(self, gpu: int, number: int, now_ms: int) -> None:
        if gpu in self._holds:
            holder = self._holds[gpu][0]
            raise ElasticModelFault(f"GPU {gpu} goes to job {number}, and job {holder} has it")
        self._holds[gpu] = number, now_ms

    def _release(self, gpu: int, now_ms: int) -> None:
        number, from_ms = self._holds.pop(gpu)
        self.spans.append(HeldSpan(gpu, number, from_ms, now_ms))

    def _books_agree(self) -> None:
        """The GPUs of the core's leases are those of the simulated jobs."""
        found = {
            self._index(uuid): self._numbers[task.job_id or ""]
            for task in self.state.tasks.values()
            for uuid in task.gpus
        }
        if found != {gpu: number for gpu, (number, _) in self._holds.items()}:
            raise ElasticModelFault(f"at {self.now_ms} ms the core's leases are {found}")

    def check(self) -> None:
        """Raises ElasticModelFault unless each job did its work, no more and no less."""
        held_ms: dict[int, int] = {}
        for span in self.spans:
            held_ms[span.number] = held_ms.get(span.number, 0) + span.until_ms - span.from_ms
        for job in self.jobs:
            training = self.trainings.get(job.number)
            lasts_ms = self.done_ms[job.number] - self.started_ms[job.number]
            if training is None:
                if lasts_ms != job.work_ms or held_ms[job.number] != lasts_ms * job.gpus:
                    raise ElasticModelFault(f"job {job.number} had its GPUs for {lasts_ms} ms")
                continue
            speeds = [self._units(job, stretch) for stretch in training.stretches]
            done = sum(speed * stretch.lasts_ms for speed, stretch in speeds)
            beyond = done - job.work_ms * UNITS
            trained_ms = sum(each.gpus * each.lasts_ms for each in training.stretches)
            if not 0 <= beyond < speeds[-1][0]:
                raise ElasticModelFault(f"job {job.number} did {beyond} units of work too much")
            if trained_ms > held_ms[job.number]:
                raise ElasticModelFault(f"job {job.number} trained on GPUs that it did not have")

    def _units(self, job: SimJob, stretch: Stretch) -> tuple[int, Stretch]:
        return units_per_ms(stretch.gpus, job.gpus, self.efficiency), stretch


def _leader(number: int) -> Caller:
    pid = number + 1
    return Caller(number, ENV, f"unix:{pid}:{pid}", Transport.UNIX, pid, "user")


def _last_ms(jobs: Sequence[SimJob]) -> int:
    return max((job.comes_ms for job in jobs), default=0)


def _unasked(*_: object) -> list[int]:
    raise ElasticModelFault("the manager's policy decides")
