"""Records a sample of each finished job that was submitted with features.

Knows: when such a job has its GPUs and when it ends, the readings that a sample is made of. Must
not know: the use of samples (core/forecast).

Readings are made every two seconds while such a job runs: the memory that its processes have in the
ledger, the utilisation of its GPUs, the steps that it reports. After a restart of the manager they
begin anew. A sample is stored after the step in which its job ended: a manager that is killed
between the two loses it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodemgr.core.forecast import features as feature_form
from nodemgr.core.forecast.features import Features
from nodemgr.core.forecast.samples import LEAST_STEPS, NOTHING_PREDICTED, Predicted, Sample
from nodemgr.core.model.effects import Publish
from nodemgr.core.model.encoding import EncodingError
from nodemgr.core.model.entities import MS, Job, JobState, PredictedRun, Progress, Task
from nodemgr.core.model.values import replace
from nodemgr.core.views import figures
from nodemgr.core.views.figures import Readings
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.store.database import StoreFailed

PERIOD_S = 2.0


@dataclass(slots=True)
class Followed:
    """A running job with features, and its readings so far."""

    job_id: str
    user: str
    gpu_model: str
    features: Features
    predicted: Predicted
    peak_bytes: int = 0
    percents: Counter[int] = field(default_factory=Counter)
    """How many readings had each utilisation."""
    first: Progress | None = None
    last: Progress | None = None

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
        if self.first is None or self.last is None or progress.done < self.last.done:
            self.first = progress
        self.last = progress

    def pace(self) -> tuple[int | None, int]:
        """(time of a step, steps), as the job reported them; None: too few."""
        if self.first is None or self.last is None:
            return None, 0
        steps = self.last.done - self.first.done
        if steps < LEAST_STEPS:
            return None, steps
        return (self.last.at_ns - self.first.at_ns) // steps, steps


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

    def _granted(self, fields: Mapping[str, Any]) -> None:
        if "job" in fields and (task := self._daemon.state.tasks.get(fields["task"])) is not None:
            self._follow(task)

    def _follow(self, task: Task) -> None:
        state = self._daemon.state
        job = None if task.job_id is None else state.jobs.get(task.job_id)
        names = {state.gpus[uuid].name for uuid in task.gpus}
        if job is None or not job.run.predicted or len(names) != 1:
            return
        found = self._features(job)
        if found is None:
            return
        (name,) = names
        self._followed[task.task_id] = Followed(
            job.job_id, job.user, name, found, _predicted(job.run.predicted, name)
        )
        self._watch()

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
            followed.peak_bytes = max(followed.peak_bytes, self._charged_bytes(task, readings))
            percent = figures.of_task(state, task, readings).utilization_percent
            if percent is not None:
                followed.percents[percent] += 1
            if (progress := state.progress.get(task_id)) is not None:
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
        """A job that did not end well has no run time, and a sample only with enough steps."""
        if self._is_closed:
            return
        is_done = self._has_ended_well(followed.job_id)
        step_ns, steps = followed.pace()
        if step_ns is None and not is_done:
            return
        iterations = followed.features.iterations
        if step_ns is None and iterations >= LEAST_STEPS:
            step_ns, steps = held_ns // iterations, iterations
        predicted = followed.predicted
        self._save(
            Sample(
                wall_ns=self._daemon.clock.wall_ns(),
                user=followed.user,
                gpu_model=followed.gpu_model,
                features=followed.features,
                run_ms=held_ns // MS,
                peak_bytes=followed.peak_bytes or None,
                utilization_percent=followed.median_percent,
                step_ns=step_ns,
                steps=steps,
                predicted=predicted if is_done else replace(predicted, run_ms=None),
            )
        )

    def _has_ended_well(self, job_id: str) -> bool:
        if job_id in self._daemon.state.jobs:
            return False
        try:
            ended = self._daemon.journal.ended(job_id, 1)
        except (StoreFailed, EncodingError):
            return False
        return any(row.job.state is JobState.DONE for row in ended)


def _predicted(rows: tuple[PredictedRun, ...], name: str) -> Predicted:
    row = next((row for row in rows if row.gpu_model == name), None)
    if row is None:
        return NOTHING_PREDICTED
    return Predicted(row.memory_bytes, row.percent, row.step_ns, row.run_ms)
