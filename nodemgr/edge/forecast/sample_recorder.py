"""Records a sample of each finished task with features.

Knows: when such a task has its GPUs and when it ends, the readings that a sample is made of. Must
not know: the use of samples (core/forecast).

A job has features if it was submitted with them; any other task, if a process of its environment
announced them with the task's token. Readings are made every two seconds while such a task runs:
the utilisation of its GPUs, the steps that it reports, and the memory that its processes have in
the ledger; a job's end has its exact peak. After a restart of the manager the readings of a job
begin anew, and announced features are lost.
A sample is stored after the step in which its task ended: a manager that is killed between the two
loses it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodemgr.core.forecast import features as feature_form
from nodemgr.core.forecast.features import Features
from nodemgr.core.forecast.samples import (
    LEAST_STEPS,
    NOTHING_PREDICTED,
    Announced,
    Predicted,
    Sample,
    SampleOwner,
)
from nodemgr.core.model.effects import Publish
from nodemgr.core.model.encoding import EncodingError
from nodemgr.core.model.entities import MS, Job, JobState, PredictedRun, Progress, Task
from nodemgr.core.model.values import replace
from nodemgr.core.views import figures
from nodemgr.core.views.figures import Readings
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.store.database import StoreFailed

PERIOD_S = 2.0
LEAST_SPAN_NS = 30_000 * MS
"""A run that used its GPU for less time gives no pace: its readings are two seconds apart."""
MAX_ANNOUNCED = 64
"""Of one environment."""


@dataclass(slots=True)
class Followed:
    """A running task with features, and its readings so far."""

    job_id: str | None
    """None: an interactive task. It has pauses, and no end that says how it went."""
    owner: SampleOwner
    gpu_model: str
    features: Features
    predicted: Predicted
    is_first: bool = True
    """False: earlier work of the same processes may have made the peak of their memory."""
    attempt: int = 0
    """Of the job."""
    peak_bytes: int = 0
    """Of the readings."""
    used_since_ns: int | None = None
    """The first reading in which its processes had memory on a GPU."""
    percents: Counter[int] = field(default_factory=Counter)
    """How many readings had each utilisation."""
    first: Progress | None = None
    last: Progress | None = None
    before_end: Progress | None = None
    """The last report before the end of a known whole. That of the end may be a second late."""

    @property
    def median_percent(self) -> int | None:
        left = (self.percents.total() + 1) // 2
        for percent, count in sorted(self.percents.items()):
            left -= count
            if left <= 0:
                return percent
        return None

    def reported(self, progress: Progress) -> None:
        """A count that falls begins another pass over the work: the pace is measured anew."""
        before = self.last
        if before is None or progress.done < before.done or progress.total != before.total:
            self.first, self.before_end = progress, None
        self.last = progress
        if progress.done != progress.total:
            self.before_end = progress

    def pace(self) -> tuple[int | None, int]:
        """(time of a step, steps), as the task reported them; None: too few, or no steps.

        A program counts its work in parts of its own, epochs say: with a known whole, the parts
        are counted as steps of the forecast. A whole without a forecast of its steps says nothing.
        """
        found: tuple[int | None, int] = None, 0
        for report in (self.before_end, self.last):
            if report is not None and found[0] is None:
                found = self._pace_until(report)
        return found

    def _pace_until(self, report: Progress) -> tuple[int | None, int]:
        if self.first is None:
            return None, 0
        steps, iterations = report.done - self.first.done, self.features.iterations
        if report.total is not None:
            steps = steps * iterations // max(1, report.total)
        if steps < LEAST_STEPS:
            return None, steps
        return (report.at_ns - self.first.at_ns) // steps, steps

    def pace_of_whole(self, end_ns: int) -> tuple[int | None, int]:
        """The same without reports, by the steps of the forecast, for a run that has done them all.

        From the first reading with memory on a GPU: imports and data come before it.
        """
        iterations = self.features.iterations
        if self.used_since_ns is None or iterations < LEAST_STEPS:
            return None, 0
        span_ns = end_ns - self.used_since_ns
        return (span_ns // iterations, iterations) if span_ns >= LEAST_SPAN_NS else (None, 0)

    def is_at_work(self, progress: Progress | None) -> bool:
        """Whether a reading of utilisation now is one of its training."""
        if self.job_id is not None:
            return True
        return progress is not None and (self.last is None or progress.done > self.last.done)


class SampleRecorder:
    """The recorder of one manager. All methods are called in the loop."""

    def __init__(
        self,
        daemon: Daemon,
        when_read: Callable[[Callable[[], None]], None],
        readings: Callable[[], Readings],
        save: Callable[[Sample], None],
    ) -> None:
        """`when_read` calls back after a reading; `readings` is the last one."""
        self._daemon, self._when_read, self._readings = daemon, when_read, readings
        self._save = save
        self._followed: dict[str, Followed] = {}
        """By task."""
        self._announced: dict[str, dict[str, Announced]] = {}
        """By environment and token, the latest last."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._takers: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "task.granted": self._granted,
            "task.ended": self._ended,
        }
        for task in daemon.state.tasks.values():
            self._follow(task)
        daemon.journal.observe_with(self.take)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def take(self, event: Publish) -> None:
        """An observer of the journal: called with each event."""
        taker = self._takers.get(event.name)
        if taker is not None:
            taker(event.fields)

    def announced(self, row: Announced) -> None:
        """Takes the features of the task with this token, which runs or will run.

        New ones end the sample of those before; an environment has the latest MAX_ANNOUNCED.
        """
        tokens = self._announced.setdefault(row.owner.env, {})
        tokens.pop(row.token, None)
        tokens[row.token] = row
        if len(tokens) > MAX_ANNOUNCED:
            del tokens[next(iter(tokens))]
        state = self._daemon.state
        task = state.tasks.get(state.task_of_token.get((row.owner.env, row.token), ""))
        if task is None:
            return
        before = self._followed.get(task.task_id)
        if before is not None and before.job_id is not None:
            return
        if before is not None:
            self._finish(before, self._daemon.clock.monotonic_ns() - task.since_ns)
        self._follow(task, is_first=before is None)

    def _granted(self, fields: Mapping[str, Any]) -> None:
        if "job" not in fields and not self._announced:
            return
        if (task := self._daemon.state.tasks.get(fields["task"])) is not None:
            self._follow(task)

    def _follow(self, task: Task, *, is_first: bool = True) -> None:
        names = {self._daemon.state.gpus[uuid].name for uuid in task.gpus}
        if len(names) != 1:
            return
        (name,) = names
        found = self._of_job(task, name) or self._of_announced(task, name)
        if found is not None:
            found.is_first = is_first
            self._followed[task.task_id] = found
            self._watch()

    def _of_job(self, task: Task, name: str) -> Followed | None:
        job = None if task.job_id is None else self._daemon.state.jobs.get(task.job_id)
        if job is None or not job.run.predicted:
            return None
        found, predicted = self._features(job), _predicted(job.run.predicted, name)
        if found is None:
            return None
        owner = SampleOwner(job.env, job.user)
        return Followed(job.job_id, owner, name, found, predicted, attempt=job.attempt)

    def _of_announced(self, task: Task, name: str) -> Followed | None:
        row = self._announced.get(task.env, {}).get(task.token)
        if row is None:
            return None
        return Followed(None, row.owner, name, row.features, row.predicted_on(name))

    def _features(self, job: Job) -> Features | None:
        try:
            payload = self._daemon.journal.payload(job.spec_id)
        except (StoreFailed, EncodingError):
            return None
        return None if payload is None else feature_form.from_text(payload.features)

    # -- readings --

    def _watch(self) -> None:
        if self._timer is None and self._followed and not self._is_closed:
            self._timer = self._daemon.loop.call_later(PERIOD_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._when_read(self._measure)
        self._watch()

    def _measure(self) -> None:
        if self._is_closed:
            return
        state, readings = self._daemon.state, self._readings()
        for task_id, followed in self._followed.items():
            task = state.tasks.get(task_id)
            if task is None:
                continue
            charged_bytes = self._charged_bytes(task, readings)
            followed.peak_bytes = max(followed.peak_bytes, charged_bytes)
            if charged_bytes and followed.used_since_ns is None:
                followed.used_since_ns = self._daemon.clock.monotonic_ns()
            progress = state.progress.get(task_id)
            percent = figures.of_task(state, task, readings).utilization_percent
            if percent is not None and followed.is_at_work(progress):
                followed.percents[percent] += 1
            if progress is not None:
                followed.reported(progress)

    def _charged_bytes(self, task: Task, readings: Readings) -> int:
        """The most on one of its GPUs, by the ledger."""
        members = [self._daemon.state.processes[key] for key in task.processes]
        return max(
            [sum([readings.charged(member, uuid) for member in members]) for uuid in task.gpus]
        )

    # -- the end --

    def _ended(self, fields: Mapping[str, Any]) -> None:
        followed = self._followed.pop(fields["task"], None)
        if followed is not None:  # the job's own end is in the same step
            self._daemon.loop.call_soon(self._finish, followed, fields["held_ns"])

    def _finish(self, followed: Followed, held_ns: int) -> None:
        """A job that did not end well has no run time, and a sample only with enough steps.

        Neither has an interactive task.
        """
        if self._is_closed:
            return
        job = self._job(followed.job_id)
        is_done = job is not None and job.state is JobState.DONE
        step_ns, steps = followed.pace()
        if step_ns is None and not is_done:
            return
        if step_ns is None:
            step_ns, steps = followed.pace_of_whole(self._daemon.clock.monotonic_ns())
        predicted = followed.predicted
        self._save(
            Sample(
                wall_ns=self._daemon.clock.wall_ns(),
                env=followed.owner.env,
                user=followed.owner.user,
                gpu_model=followed.gpu_model,
                driver=self._daemon.gpus.last.driver_version,
                features=followed.features,
                run_ms=held_ns // MS,
                peak_bytes=_peak_bytes(followed, job),
                utilization_percent=followed.median_percent,
                step_ns=step_ns,
                steps=steps,
                predicted=predicted if is_done else replace(predicted, run_ms=None),
            )
        )

    def _job(self, job_id: str | None) -> Job | None:
        """As it is now, living or ended; None: an interactive task, or the store fails."""
        if job_id is None or job_id in self._daemon.state.jobs:
            return self._daemon.state.jobs.get(job_id or "")
        try:
            ended = self._daemon.journal.ended(job_id, 1)
        except (StoreFailed, EncodingError):
            return None
        return ended[0].job if ended else None


def _peak_bytes(followed: Followed, job: Job | None) -> int | None:
    """The exact peak of a job's attempt; of an interactive task that of the readings."""
    if followed.job_id is None:
        return (followed.peak_bytes or None) if followed.is_first else None
    attempts = () if job is None else job.attempts
    return next((one.peak_bytes for one in attempts if one.number == followed.attempt), None)


def _predicted(rows: tuple[PredictedRun, ...], name: str) -> Predicted:
    row = next((row for row in rows if row.gpu_model == name), None)
    if row is None:
        return NOTHING_PREDICTED
    return Predicted(row.memory_bytes, row.percent, row.step_ns, row.run_ms)
