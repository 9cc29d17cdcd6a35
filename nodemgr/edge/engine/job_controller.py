"""Passes jobs between the core and the factory: starts, stops and ends.

Knows: the job types of the core and of the factory, and a job's environment variables. Must not
know: the decisions on a job (core), how a job is run (the factory).

Each report of the factory becomes an event of the core. None is lost: while the store fails, a
job's files stay, so that the next manager can read its end again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path

from client_plugin.messages.form import relayed
from nodemgr.core.model import effects, events, job_ids
from nodemgr.core.model.encoding import EncodingError
from nodemgr.core.model.entities import (
    UNDER_WAY,
    Cause,
    Job,
    JobState,
    ProcessKey,
    RunSpec,
    Uuid,
)
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler import launch_hosts
from nodemgr.core.state import host_use
from nodemgr.core.state.driver_numbers import driver_numbers
from nodemgr.edge.containers.payload import renew_client
from nodemgr.edge.engine.foundation import Foundation
from nodemgr.edge.engine.host_limits import HostLimits
from nodemgr.edge.engine.step_engine import Handlers, StepEngine
from nodemgr.edge.executor import leaf_limits
from nodemgr.edge.executor.interface import (
    ExecutorListener,
    NoLimits,
    ResourceFactory,
    RunOrder,
    Status,
)
from nodemgr.edge.executor.log_retention import MOST_JOBS, LogRetention
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.journald import INFO, WARNING, Journald
from nodemgr.edge.ledger.peaks import Peaks
from nodemgr.edge.rpc.turns import InTurn
from nodemgr.edge.store.database import StoreFailed
from nodemgr.messages import doctor

MOST_SETTLED = 3
"""Most final jobs in one turn of the loop: each may be a look at files, and their removal."""
MOST_NAMED = 20
"""Most unknown jobs in one line."""
TASK, VISIBLE, CUDA = "NODEMGR_TASK", "NODEMGR_VISIBLE", "CUDA_VISIBLE_DEVICES"
CUDA_ORDER, VISIBLE_AS = "CUDA_DEVICE_ORDER", "NODEMGR_VISIBLE_AS"
JOB, ARRAY_INDEX = "NODEMGR_JOB", "NODEMGR_ARRAY_INDEX"
COUNT_STEPS = "NODEMGR_COUNT_STEPS"
"""Steps of optimizers are reported as progress (client_plugin/progress.py)."""

Sink = Callable[[Job, int, Status, str], None]


def no_sink(job: Job, attempt: int, status: Status, log_tail: str) -> None:
    """Ends of attempts are in the history alone."""


def environ(
    submitted: Iterable[str],
    start: effects.StartJob,
    client: Path | None = None,
    numbers: Sequence[str] = (),
) -> tuple[str, ...]:
    """The job's variables and the submitter's, without those of the submitter's lease or job.

    The job sees its lease's GPUs before anything uses CUDA, as `sh` and torchrun expect it; an
    elastic job's processes get their own from its leader. A CUDA_VISIBLE_DEVICES that was given
    for the job itself is a choice among them. On this node it loads the present `client`.
    `numbers`: the driver's, of the lease's GPUs.
    """
    variables = dict(entry.partition("=")[::2] for entry in submitted)
    if client is not None and not start.run.place:
        renew_client(variables, str(client))
    visible = variables.pop(VISIBLE, None)
    if visible is not None and variables.get(CUDA) == visible:
        del variables[CUDA]
    for name in (TASK, JOB, ARRAY_INDEX, COUNT_STEPS):
        variables.pop(name, None)
    variables[JOB] = f"{start.job_id}:{start.attempt}"
    if start.array_index is not None:
        variables[ARRAY_INDEX] = str(start.array_index)
    if start.run.predicted:
        variables[COUNT_STEPS] = "1"
    if start.gpus:
        variables[TASK] = start.token
    if start.run.gpu_range is None or not start.run.gpu_range.is_elastic:
        chosen = _seen(variables.get(CUDA), start.gpus)
        if variables.get(VISIBLE_AS) == "index":
            chosen = tuple(dict(zip(start.gpus, numbers, strict=True))[gpu] for gpu in chosen)
        seen = ",".join(chosen)
        variables.update({CUDA_ORDER: "PCI_BUS_ID", CUDA: seen, VISIBLE: seen})
    return tuple(f"{name}={value}" for name, value in variables.items())


def _seen(mask: str | None, gpus: tuple[str, ...]) -> tuple[str, ...]:
    """The GPUs of a lease that a mask names; a mask of other GPUs' UUIDs is a wish that failed."""
    chosen = []
    for entry in () if mask is None else mask.split(","):
        name = entry.strip(" \t")
        if name.isascii() and name.isdigit() and int(name) < len(gpus):
            chosen.append(gpus[int(name)])
        elif named := [gpu for gpu in gpus if name and gpu.startswith(name)]:
            chosen.append(named[0])
        else:
            break
    is_wish = mask is None or mask.lstrip(" \t").startswith(("GPU-", "MIG-"))
    return tuple(dict.fromkeys(chosen)) or (gpus if is_wish else ())


def into_journal(journald: Journald) -> Sink:
    """Writes each attempt's end to the system's journal: `journalctl NODEMGR_JOB=j12`."""

    def write(job: Job, attempt: int, status: Status, log_tail: str) -> None:
        well = status.exit_code == 0
        how = status.why or (
            f"signal {status.signal}"
            if status.signal is not None
            else f"exit code {status.exit_code}"
        )
        journald.write(
            {
                "MESSAGE": (
                    f"job {job.job_id} of {job.env} ({job.run.command}), attempt {attempt}:"
                    f" {how}\n{log_tail}".rstrip()
                ),
                "PRIORITY": INFO if well else WARNING,
                "SYSLOG_IDENTIFIER": "nodemgr-job",
                "NODEMGR_JOB": job.job_id,
                "NODEMGR_ENV": job.env,
                "NODEMGR_ATTEMPT": attempt,
            }
        )

    return write


def _listed(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


class Jobs:
    """Implements the factory's listener and the engine's effects for jobs."""

    def __init__(
        self,
        base: Foundation,
        engine: StepEngine,
        read_gpus: Callable[[Callable[[], None]], None],
        peaks: Peaks,
        took: Callable[[str, int], None],
        executor: Callable[[ExecutorListener], ResourceFactory],
        client: Path | None,
        sink: Sink,
    ) -> None:
        """`read_gpus` calls back when the core knows the current health of the GPUs.

        `took` charges an env for a duration (ns) in the loop. `executor` is called once, with the
        listener of its reports. `client`: the present copy of the client, which jobs of this node
        load. `sink` receives the status and the log tail of each attempt that ends.
        """
        self._loop, self._clock, self._state = base.loop, base.clock, base.state
        self._journal, self._engine = base.journal, engine
        self._read_gpus = read_gpus
        self._peaks = peaks
        self._took = took
        self._requeued_before_start: dict[str, list[tuple[str, int]]] = {}
        """Attempts that could not begin, by reason; each reason is one event."""
        self._starts: InTurn[effects.StartJob] = InTurn()
        """Of attempts without an order yet, by env."""
        self._stopped_first: dict[tuple[str, int], str | None] = {}
        """Those attempts; the reason of one that is to be stopped and so gets no order."""
        self.orders_given = 0
        self._unknown: list[str] = []
        """Jobs that have files or run here and that the store did not have at the start."""
        self._finished: InTurn[str] = InTurn()
        """Final jobs, by env; their files stay until the store has their end."""
        self.on_final: list[Callable[[str], None]] = []
        """Called with each final job, in the loop, after its end was stored."""
        self.on_attempt_end: list[Callable[[str], None]] = []
        """Called with the job of each attempt that has ended."""
        self._sink, self._client = sink, client
        self._has_gate, self.closes_jobs = base.gate is not None, base.node_gate.closes_jobs
        self.factory = executor(self)
        self.host_limits = HostLimits(base.loop, base.state, self.factory)
        self._log_retention = LogRetention(
            self.factory,
            base.journal,
            base.settings.job_logs_bytes,
            base.settings.job_logs_days,
            lambda job_id: job_id in base.state.jobs,
        )

    def handlers(self) -> Handlers:
        """The effects on jobs."""
        return {
            effects.StartJob: self._start,
            effects.StopJob: self._stop,
            effects.LimitJob: self._limit,
            effects.ForgetJob: self._forget,
        }

    # -- starts --

    def _start(self, effect: effects.StartJob) -> None:
        """The store lists it as started. Its files take milliseconds: it has a turn of its own."""
        self._starts.add(effect.env, effect)
        self._stopped_first[effect.job_id, effect.attempt] = None
        if len(self._starts) == 1:
            self._loop.call_soon(self._start_next)

    def _start_next(self) -> None:
        """One start of each env in turn, whose turn at the clients' packets is shorter for it."""
        began_ns, effect = self._clock.monotonic_ns(), self._starts.take()
        if self._starts:
            self._loop.call_soon(self._start_next)
        stopped = self._stopped_first.pop((effect.job_id, effect.attempt))
        try:
            if stopped is None:
                self._give_order(effect)
            else:
                self._never_run(effect, Status("ended", why=stopped))
        except Exception as error:
            stderr_log.fault(f"starting job {effect.job_id}", error)
            why = f"could not be started: {error}"
            self._loop.call_soon(
                self._never_run, effect, Status("ended", why=why, cause=Cause.NOT_STARTED)
            )
        self._took(effect.env, self._clock.monotonic_ns() - began_ns)

    def _give_order(self, effect: effects.StartJob) -> None:
        spec = self._state.specs[effect.spec_id]
        try:
            payload = self._journal.payload(effect.spec_id)
        except (StoreFailed, EncodingError) as error:
            why = f"its command cannot be read from the store: {error}"
            self._never_run(effect, Status("ended", why=why, cause=Cause.CANNOT_RUN))
            return
        if payload is None:
            why = "its command is not in the store any more: submit it again"
            self._never_run(effect, Status("ended", why=why, cause=Cause.CANNOT_RUN))
            return
        order = RunOrder(
            job_id=effect.job_id,
            attempt=effect.attempt,
            env=effect.env,
            run=effect.run,
            gpus=effect.gpus,
            user=spec.user,
            uid=spec.uid,
            gid=spec.gid,
            umask=spec.umask,
            env_limits=self.host_limits.of_env(effect.env),
            argv=payload.argv,
            cwd=payload.cwd,
            environ=environ(
                payload.environ,
                effect,
                self._client,
                driver_numbers(self._state, effect.gpus, self._seen(effect, spec.uid)),
            ),
        )
        self.orders_given += 1
        self.factory.create(order)

    def _seen(self, effect: effects.StartJob, uid: int) -> Container[Uuid] | None:
        """The GPUs that a device gate opens to a job; None: it sees all."""
        if effect.run.place:
            held = {uuid for env, uuid in self._state.grants if env == effect.env}
            return held if self._has_gate else None
        return effect.gpus if self.closes_jobs() and uid != 0 else None

    def _never_run(self, effect: effects.StartJob, status: Status) -> None:
        self.ended(effect.job_id, effect.attempt, status, "", self._clock.wall_ns())

    def resume(self) -> None:
        """After a restart: adopt running jobs, report ended ones, requeue unbegun ones.

        A job that was stored as started but never began is requeued at its old place.
        """
        state = self._state
        names = self.factory.names()
        if last := max([self._journal.jobs_named, *(job_ids.order(name)[0] for name in names)]):
            self._engine.submit(events.NamesTaken(last, self._clock.wall_ns()))
        expected = [
            (job.job_id, job.attempt) for job in state.jobs.values() if job.state in UNDER_WAY
        ]
        for job_id, attempt in self.factory.adopt(expected):
            if state.jobs[job_id].attempts[-1].started_wall_ns is None:
                self.requeued_before_start(job_id, attempt, "the manager ended before it was begun")
            else:
                self._loop.call_soon(self._lost, job_id, attempt)
        for job in state.jobs.values():
            if job.state is JobState.STOPPING:  # the last manager may not have ordered the stop
                self.factory.withdraw(job.job_id, job.attempt, job.why, warns=job.yields)
            task = None if job.task_id is None else state.tasks[job.task_id]
            if task is not None and task.run.time_limit_ms is not None:  # it may have moved
                self.factory.limit(job.job_id, job.attempt, task.extended_limit_ms)
        ended = self._journal.last_ended(2 * MOST_JOBS)
        self._report_unknown(names, {job_id for job_id, _ in ended})
        self._log_retention.begin(ended, self._clock.wall_ns())

    def _report_unknown(self, names: Iterable[str], ended: Container[str]) -> None:
        """Reports in one line the jobs that ran or run here without a row in the store.

        None is started again.
        """
        if self._journal.lost:
            self._journal.note("store.lost", reason=self._journal.lost)
        known = (self._state.jobs, ended)
        over = [
            name
            for name in names
            if not any(name in some for some in known) and not self._journal.ended(name, 1)
        ]
        running = [f"{job_id} (start {attempt})" for job_id, attempt in self.factory.strays()]
        self._unknown = sorted(
            {job_id for job_id, _ in self.factory.strays()} | set(over), key=job_ids.order
        )
        is_known, line = self.unknown()
        if not is_known:
            stderr_log.say(line)
        if self._unknown:
            self._journal.note(
                "job.unknown", jobs=self._unknown[:MOST_NAMED], running=running[:MOST_NAMED]
            )

    def unknown(self) -> tuple[bool, str]:
        """For the doctor: whether the store has all jobs that run or ran here.

        The line describes the rest.
        """
        running = [f"{job_id} (start {attempt})" for job_id, attempt in self.factory.strays()]
        said = (
            [f"{self._journal.lost} (earlier losses: nodemgr events --since 0 --name store.lost)"]
            if self._journal.lost
            else []
        )
        if running:
            said.append(
                f"running, and not known to the store: {_listed(running)}; what runs goes on "
                "within its time limit and is not started again (nodemgr queue withdraw ends it)"
            )
        over = [
            name
            for name in self._unknown
            if name not in {job_id for job_id, _ in self.factory.strays()}
        ]
        if over:
            said.append(
                f"the files of {_listed(over)}, which the store does not know, are kept under jobs "
                "in the state directory"
            )
        return not said, relayed("; ".join(said)) if said else doctor.ALL_JOBS_KNOWN()

    def is_unknown(self, job_id: str) -> bool:
        """Whether a process runs under this id and the store has no such job."""
        return bool(self._unknown_attempts(job_id))

    def withdraw_unknown(self, job_id: str, why: str) -> None:
        """Ends all its attempts."""
        for attempt in self._unknown_attempts(job_id):
            self.factory.withdraw(*attempt, why)

    def _unknown_attempts(self, job_id: str) -> list[tuple[str, int]]:
        return [
            stray
            for stray in self.factory.strays()
            if stray[0] == job_id and job_id not in self._state.jobs
        ]

    def _lost(self, job_id: str, attempt: int) -> None:
        """Ends a job that the store has as started and that has no files."""
        lost = Status("ended", why="nothing is known of it any more", cause=Cause.SUPERVISOR_LOST)
        self.ended(job_id, attempt, lost, "", self._clock.wall_ns())

    # -- ends --

    def _stop(self, effect: effects.StopJob) -> None:
        attempt = effect.job_id, effect.attempt
        if attempt in self._stopped_first:
            self._stopped_first[attempt] = effect.why
            return
        self.factory.withdraw(effect.job_id, effect.attempt, effect.why, warns=effect.warns)

    def _limit(self, effect: effects.LimitJob) -> None:
        self.factory.limit(effect.job_id, effect.attempt, effect.time_limit_ms)

    def env_changed(self, env: str) -> None:
        """Its quota is new; jobs that run have the new limit at once."""
        if env in self._state.envs:
            self.host_limits.set_env(env)

    def enter(
        self, env: str, process: ProcessKey, run: RunSpec,
        then: Callable[[str | None], None],
    ) -> None:  # fmt: skip
        """Holds a command of a user to its limits and those of its environment."""
        self.env_changed(env)  # no job has made its cgroup yet
        self.factory.enter(env, process, leaf_limits.of_run(run), then)

    def note_of_command(self, run: RunSpec, why: str | None) -> str | None:
        """A line about the limits of a command that do not hold.

        `why`: the reason why it has no cgroup of its own; None: it has one.
        """
        lost = self.factory.no_limits(host_use.NODE) if why is None else NoLimits(why)
        return lost.of_command() if lost is not None and lost.are_named_by(run) else None

    def _forget(self, effect: effects.ForgetJob) -> None:
        self._finished.add(effect.env, effect.job_id)
        if len(self._finished) == 1:
            self._loop.call_soon(self.settle)

    def settle(self) -> None:
        """Reports final jobs to `on_final`, of each env in turn.

        Log retention may delete their files once the store has their end.
        """
        if self._journal.fault is not None:
            return  # called again when the store can be written
        for _ in range(min(MOST_SETTLED, len(self._finished))):
            began_ns = self._clock.monotonic_ns()
            env, job_id = self._finished.next_owner(), self._finished.take()
            for notify in self.on_final:
                try:
                    notify(job_id)
                except Exception as error:  # the others are still called
                    stderr_log.fault(f"telling that {job_id} has ended", error)
            if job_id not in self._state.jobs:  # else it will run again
                self._log_retention.add(job_id, self._clock.wall_ns())
            self._took(env, self._clock.monotonic_ns() - began_ns)
        if self._finished:
            self._loop.call_soon(self.settle)

    # -- reports of the factory (resource_factory.Listener) --

    def _of_boottime(self, boot_ns: int | None) -> int | None:
        return None if boot_ns is None else self._clock.of_boottime(boot_ns)

    def started(
        self, job_id: str, attempt: int, pid: int | None, wall_ns: int, boot_ns: int | None = None
    ) -> None:
        at_ns = self._of_boottime(boot_ns)
        self._step(job_id, events.JobStarted(job_id, attempt, pid, wall_ns, at_ns))

    def _step(self, job_id: str, event: events.Event) -> None:
        """A step for a job counts in its env's turn at the clients' packets."""
        began_ns, job = self._clock.monotonic_ns(), self._state.jobs.get(job_id)
        self._engine.submit(event)
        if job is not None:
            self._took(job.env, self._clock.monotonic_ns() - began_ns)

    def ended(
        self,
        job_id: str,
        attempt: int,
        status: Status,
        log_tail: str,
        wall_ns: int,
        boot_ns: int | None = None,
    ) -> None:
        job = self._state.jobs.get(job_id)
        if job is not None and job.attempt == attempt:
            try:
                self._sink(job, attempt, status, log_tail)
            except OSError as error:
                stderr_log.say(f"the end of job {job_id}'s output is in the history alone: {error}")
        ended = events.JobEnded(
            job_id,
            attempt,
            status.exit_code,
            status.signal,
            status.why,
            status.cause,
            log_tail,
            status.started_wall_ns,
            wall_ns,
            started_ns=self._of_boottime(status.started_boot_ns),
            at_ns=self._of_boottime(boot_ns),
            host=status.host,
        )

        def notify() -> None:
            job = self._state.jobs.get(job_id)
            peak_bytes = 0 if job is None else self._peaks.of_task(job.task_id)
            was_refused = job is not None and self._peaks.take_refusal(job.task_id)
            cause = ended.cause
            if was_refused and cause is Cause.OWN and status.exit_code != 0:
                cause = Cause.GPU_MEMORY
            self._step(job_id, replace(ended, peak_bytes=peak_bytes, cause=cause))
            for notify_end in self.on_attempt_end:
                notify_end(job_id)

        if (
            job is not None
            and job.task_id is not None
            and status.cause is Cause.OWN
            and status.exit_code != 0
        ):
            # a lost GPU may be the cause, and the job notices it before the next reading
            self._read_gpus(notify)
        else:
            notify()

    def requeued_before_start(self, job_id: str, attempt: int, why: str) -> None:
        """Attempts with one reason are one commit.

        Each is back at its old place before any is matched.
        """
        if not self._requeued_before_start:
            self._loop.call_soon(self._give_back)
        self._requeued_before_start.setdefault(why, []).append((job_id, attempt))

    def _give_back(self) -> None:
        requeued_before_start, self._requeued_before_start = self._requeued_before_start, {}
        for why, attempts in requeued_before_start.items():
            self._engine.submit(
                events.JobRequeuedBeforeStart(tuple(attempts), why, self._clock.wall_ns())
            )

    def health(self) -> dict[str, str | None]:
        """Whether the node itself can start a job now, and the error if not."""
        up = self._state.is_up(launch_hosts.HERE)
        return {
            "state": "ok" if up else "down",
            "error": None if up else launch_hosts.why_down(self._state, launch_hosts.HERE),
        }

    def close(self) -> None:
        self.host_limits.close()
        self.factory.close()

    def launch_host_changed(self, place: str, is_up: bool, why: str) -> None:
        self._engine.submit(events.LaunchHostChanged(place, is_up, why, self._clock.wall_ns()))
        if is_up and not place:
            self.host_limits.settle_all()
