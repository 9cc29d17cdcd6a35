"""Keeps the runs of recognised programs, and says what they took when one is submitted again.

Knows: the variable that carries a run's key, when a job has ended well, where runs are stored. Must
not know: how a program is recognised (client_plugin/verbs/launch/recognition.py), when earlier runs
count (core/forecast/earlier_runs.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from nodemgr.core.forecast import earlier_runs
from nodemgr.core.forecast.earlier_runs import (
    Closure,
    EarlierRun,
    Expected,
    GoodRun,
    Numbers,
    ProgramRuns,
    Recognised,
)
from nodemgr.core.model.effects import Publish
from nodemgr.core.model.encoding import EncodingError
from nodemgr.core.model.entities import MS, Cause, Job, JobState
from nodemgr.core.model.values import replace
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.store import program_rows
from nodemgr.edge.store.database import StoreFailed

MAX_REPORTS = 64
"""Of one environment: of jobs that have not ended yet, and of tasks that are no jobs."""


class RunKeeper:
    """The earlier runs of one manager."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._reports: dict[str, dict[str, Closure | None]] = {}
        """By environment and job; None: its modules are too many."""
        self._begun: dict[str, dict[str, dict[int, int]]] = {}
        """By environment and token of a task that is no job: its expected times, by GPUs."""
        daemon.jobs.on_final.append(self._ended)
        daemon.journal.observe_with(self._observe)
        daemon.loop.call_soon(self._forget_removed)

    def closures(self, env: str, keys: Iterable[str]) -> dict[str, Closure]:
        """Of those programs that have one."""
        found = {key: self._program(env, key).closure for key in keys}
        return {key: closure for key, closure in found.items() if closure is not None}

    def expected(self, env: str, key: str, numbers: Numbers, gpus: int) -> Expected | None:
        state = self._daemon.state
        models = {gpu.name for gpu in state.gpus.values()}
        return earlier_runs.expected(self._program(env, key), numbers, gpus, sorted(models))

    def begun(self, env: str, token: str, found: Recognised) -> None:
        """A process with this token runs the program; it has not asked for GPUs yet."""
        times: dict[int, int] = {}
        if found.holds and self._keeps(env):
            for gpus in {run.gpus for run in self._program(env, found.key).runs}:
                expected = self.expected(env, found.key, found.numbers, gpus)
                if expected is not None and expected.run_ms:
                    times[gpus] = expected.run_ms
        tokens = self._begun.setdefault(env, {})
        tokens.pop(token, None)
        tokens[token] = times
        if len(tokens) > MAX_REPORTS:
            del tokens[next(iter(tokens))]

    def times(self, env: str, token: str) -> dict[int, int]:
        """The expected milliseconds of a task that is no job, by its GPUs."""
        return self._begun.get(env, {}).get(token, {})

    def ran(self, env: str, found: Recognised, ran: GoodRun) -> None:
        """A task that is no job has ended well. Of memory nothing is kept."""
        known = self._daemon.state.gpus
        models = {known[uuid].name for uuid in ran.gpus if uuid in known}
        if not self._keeps(env) or len(models) != 1 or not known.keys() >= set(ran.gpus):
            return
        run = EarlierRun(found.numbers, len(ran.gpus), models.pop(), ran.run_ms)
        if ran.closure is not None:
            program = self._program(env, found.key).after(run, ran.closure)
            self._daemon.journal.save_program(env, found.key, earlier_runs.packed(program))

    def _keeps(self, env: str) -> bool:
        known = self._daemon.state.envs.get(env)
        return known is not None and known.quota.forecast != "off"

    def reported(self, env: str, user: str, job_id: str, closure: Closure | None) -> None:
        """A process of a job of this user's has ended well, and had loaded these files."""
        job = self._daemon.state.jobs.get(job_id)
        if job is None or (job.env, job.user) != (env, user):
            return
        reports = self._reports.setdefault(env, {})
        if job_id in reports:
            before = reports.pop(job_id)
            closure = earlier_runs.joined(before, closure)
        reports[job_id] = closure
        if len(reports) > MAX_REPORTS:
            del reports[next(iter(reports))]

    def _program(self, env: str, key: str) -> ProgramRuns:
        try:
            return earlier_runs.parse(self._daemon.journal.program(env, key))
        except StoreFailed:
            return ProgramRuns()

    def _observe(self, event: Publish) -> None:
        if event.name == "quota.removed":
            env = str(event.fields["env"])
            self._reports.pop(env, None)
            self._begun.pop(env, None)
            self._daemon.loop.call_soon(self._forget, env)

    def _forget(self, env: str) -> None:
        if env not in self._daemon.state.envs:
            self._daemon.journal.save_program(env, program_rows.ALL, "")

    def _forget_removed(self) -> None:
        """Of environments whose end a manager that was killed did not finish."""
        try:
            envs = self._daemon.journal.program_envs()
        except StoreFailed:
            return
        for env in envs:
            self._forget(env)

    def _ended(self, job_id: str) -> None:
        try:
            ended = self._daemon.journal.ended(job_id, 1)
            if not ended or ended[0].job.job_id != job_id:
                return
            job = ended[0].job
            payload = self._daemon.journal.payload(job.spec_id)
        except (StoreFailed, EncodingError):
            return
        reports = self._reports.get(job.env, {})
        has_report, closure = job_id in reports, reports.pop(job_id, None)
        said = None if payload is None else earlier_runs.key_of(payload.environ)
        if said is None or not self._keeps(job.env) or not job.attempts:
            return
        models = {self._model(uuid) for uuid in job.attempts[-1].gpus}
        if len(models) > 1:
            return
        key, numbers = said
        run_ms, peak_bytes = _run_ms(job), _peak_bytes(job)
        run = EarlierRun(
            numbers, job.run.gpus, models.pop() if models else "", run_ms or 0, peak_bytes
        )
        program = self._program(job.env, key)
        if any(attempt.cause is Cause.GPU_MEMORY for attempt in job.attempts):
            program = program.lacking(replace(run, run_ms=0))
        elif job.state is JobState.DONE and run_ms and (closure is not None or not has_report):
            program = program.after(run, closure)
        else:
            return
        self._daemon.journal.save_program(job.env, key, earlier_runs.packed(program))

    def _model(self, uuid: str) -> str:
        gpu = self._daemon.state.gpus.get(uuid)
        return "" if gpu is None else gpu.name


def _run_ms(job: Job) -> int | None:
    """Of a job that ran once, from its start to its end on the same GPUs."""
    last = job.attempts[-1] if job.attempts else None
    if last is None or last.started_ns is None or last.ended_ns is None or last.resizes:
        return None
    if job.attempt > 1:
        return None  # it may have gone on from its checkpoint
    run_ms = max(1, (last.ended_ns - last.started_ns) // MS)
    limit_ms, early = job.run.time_limit_ms, job.run.signal
    if early is not None and limit_ms is not None and run_ms >= limit_ms - early.before_ms:
        return None  # the signal ended it
    return run_ms


def _peak_bytes(job: Job) -> int | None:
    """The most of all its attempts on one GPU."""
    return max([attempt.peak_bytes or 0 for attempt in job.attempts], default=0) or None
