"""Jobs between the core and the door to what executes: what is asked for, what is to be started, what became of it.

Knows: the core's words for jobs, the factory's, and what a job finds in its environment. Must not know: what is decided about a
job (core), how one is run (the factory), how a submission travels.

Submissions that come together are one commit: the disk is waited for once for all of them. What the factory tells becomes an
event of the core, which forgets nothing of it: while the store fails a job's files stay, so that the next manager would learn of
its end again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Container, Iterable
from itertools import accumulate

from nodemgr.core.manager import State
from nodemgr.core.model import effects, events, job_ids
from nodemgr.core.model.encoding import EncodingError
from nodemgr.core.model.entities import UNDER_WAY, Cause, DenyCode, Job, JobState
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler import launch_hosts
from nodemgr.edge.engine.scheduler_loop import EventLoop
from nodemgr.edge.executor.interface import ResourceFactory, RunOrder, Status
from nodemgr.edge.executor.log_retention import MOST_JOBS, LogRetention
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.host.journald import INFO, WARNING, Journald
from nodemgr.edge.store.database import StoreFailed
from nodemgr.edge.store.journal import Journal

TURN_SUBMISSIONS = 64
"""At most so many are one step of the core: others, who wait for a grant, get their turn between two of them."""
TURN_BYTES = 8 * 2**20
"""And at most so many bytes of payloads, one submission excepted: the write-ahead log holds a whole commit."""
BEHIND_NS, BEHIND_READING_S = 10_000_000_000, 0.02
"""So long submissions wait at most for a log that is beyond its limit, and how often it is looked at meanwhile."""
GATHER_NS = 30_000_000
"""So long submissions that keep coming are gathered for one commit at most."""
MOST_NAMED = 20
"""Of unknown jobs, in one line."""
TASK, VISIBLE, CUDA = "NODEMGR_TASK", "NODEMGR_VISIBLE", "CUDA_VISIBLE_DEVICES"
JOB, ARRAY_INDEX = "NODEMGR_JOB", "NODEMGR_ARRAY_INDEX"

Answer = Callable[[effects.SubmitAnswered], None]
Sink = Callable[[Job, int, Status, str], None]


def environ(submitted: Iterable[str], start: effects.StartJob) -> tuple[str, ...]:
    """What the job's process finds: the submitter's variables, without the traces of a lease that he held himself, and the job's own."""
    variables = dict(entry.partition("=")[::2] for entry in submitted)
    visible = variables.pop(VISIBLE, None)
    if visible is not None and variables.get(CUDA) == visible:
        del variables[CUDA]
    for name in (TASK, JOB, ARRAY_INDEX):
        variables.pop(name, None)
    variables[JOB] = f"{start.job_id}:{start.attempt}"
    if start.array_index is not None:
        variables[ARRAY_INDEX] = str(start.array_index)
    if start.gpus:
        variables[TASK] = start.token
    else:
        variables[CUDA] = ""
    return tuple(f"{name}={value}" for name, value in variables.items())


def into_journal(journald: Journald) -> Sink:
    """Each attempt's end as an entry of the system's journal: `journalctl NODEMGR_JOB=j12`."""

    def write(job: Job, attempt: int, status: Status, log_tail: str) -> None:
        well = status.exit_code == 0
        how = status.why or (f"signal {status.signal}" if status.signal is not None else f"exit code {status.exit_code}")
        journald.write(
            {
                "MESSAGE": f"job {job.job_id} of {job.env} ({job.command}), attempt {attempt}: {how}\n{log_tail}".rstrip(),
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
    """The event loop's matcher, the factory's listener, and the daemon's effects for jobs."""

    factory: ResourceFactory
    event_loop: EventLoop
    log_retention: LogRetention

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        state: State,
        journal: Journal,
        submit: Callable[[events.Event], bool],
        match: Callable[[], None],
        read_gpus: Callable[[Callable[[], None]], None],
    ) -> None:
        """`submit` steps the core, `match` runs a scheduling pass along the queues; `read_gpus` calls back when the core knows which GPUs
        are
        healthy now."""
        self._loop = loop
        self._clock = clock
        self._state = state
        self._journal = journal
        self._submit = submit
        self._match = match
        self._read_gpus = read_gpus
        self._arrived: list[tuple[events.Submission, Answer]] = []
        self._answers: dict[int, Answer] = {}
        self._references = itertools.count(1)
        self._requeued_before_start: dict[str, list[tuple[str, int]]] = {}
        """Attempts that nobody could begin, by why, for the core to hear of together."""
        self._orders: list[RunOrder] = []
        """Of the jobs that the store calls started, for the event loop to give."""
        self._unknown: list[str] = []
        """Jobs that have files here, and of which the store knew nothing at the start."""
        self._finished: list[str] = []
        """Final jobs whose files stay until the store has their end."""
        self.sink: Sink = lambda job, attempt, status, log_tail: None
        """Takes the end of what each attempt said."""
        self.on_final: list[Callable[[str], None]] = []
        """Told of each job that became final, in the loop, after that was stored."""

    # -- what is asked for --

    def submit(self, submission: events.Submission, answer: Answer) -> None:
        """`answer` is called in the loop when the job is stored or refused. The submission's `ref` and `ended` are filled in here."""
        self._arrived.append((replace(submission, ref=next(self._references)), answer))
        if len(self._arrived) == 1:
            self._loop.call_soon(self._gather, 0, self._clock.monotonic_ns() + GATHER_NS)

    def _gather(self, seen: int, until_ns: int) -> None:
        """Those who send one after the other on one connection are read one in a turn: as long as each turn brings more, the disk is not
        yet waited for."""
        arrived = len(self._arrived)
        if seen < arrived < TURN_SUBMISSIONS and self._clock.monotonic_ns() < until_ns:
            self._loop.call_soon(self._gather, arrived, until_ns)
        else:
            self._commit()

    def _commit(self, until_ns: int | None = None) -> None:
        """Waits until the log has room, but not for ever: another program may keep it from being emptied."""
        if self._journal.is_behind():
            now_ns = self._clock.monotonic_ns()
            until_ns = now_ns + BEHIND_NS if until_ns is None else until_ns
            if now_ns < until_ns:
                self._loop.call_later(BEHIND_READING_S, self._commit, until_ns)
                return
        sizes = accumulate(submission.payload.size_bytes for submission, _ in self._arrived[:TURN_SUBMISSIONS])
        fitting = max(1, sum(size_bytes <= TURN_BYTES for size_bytes in sizes))
        arrived, self._arrived = self._arrived[:fitting], self._arrived[fitting:]
        if self._arrived:
            self._loop.call_soon(self._commit)
        submissions = []
        for submission, answer in arrived:
            self._answers[submission.ref] = answer
            try:
                if (known := self._ended_under(submission)) is not None:
                    self.answered(effects.SubmitAnswered(submission.ref, known, None, ""))
                else:
                    submissions.append(self._with_ended(submission))
            except StoreFailed as error:
                reason = f"the manager cannot look into its store now: {error}"
                self.answered(effects.SubmitAnswered(submission.ref, None, DenyCode.STORE_FULL, reason))
        if submissions and not self._submit(events.SubmitJobs(tuple(submissions), self._clock.wall_ns())):
            reason = f"the manager cannot store a job now: {self._journal.refused}"
            for submission in submissions:
                self.answered(effects.SubmitAnswered(submission.ref, None, DenyCode.STORE_FULL, reason))

    def _ended_under(self, submission: events.Submission) -> str | None:
        """The job that its submitter asks for again, since no answer reached him, if it has ended by now. (The core knows the living.)"""
        key = submission.env, submission.key
        return None if not submission.key or key in self._state.job_of_key else self._journal.job_of_key(*key)

    def _with_ended(self, submission: events.Submission) -> events.Submission:
        """What the history knows of those that it waits for, as of now."""
        if not submission.after:
            return submission
        return replace(submission, ended=self._journal.ended_states(submission.env, submission.after))

    def answered(self, effect: effects.SubmitAnswered) -> None:
        self._answers.pop(effect.ref)(effect)

    # -- what is to be started (event_loop.Matcher) --

    def is_queued(self) -> bool:
        """Also a grant that is smaller than its quota says waits for what becomes free."""
        return bool(self._state.requests or self._state.unsettled or self._orders)

    def run_pass(self) -> Iterable[RunOrder]:
        self._match()
        orders, self._orders = self._orders, []
        return orders

    def begin(self, effect: effects.StartJob) -> None:
        job, spec = self._state.jobs[effect.job_id], self._state.specs[effect.spec_id]
        try:
            payload = self._journal.payload(effect.spec_id)
        except (StoreFailed, EncodingError) as error:
            self._loop.call_soon(self._unreadable, effect, f"its command cannot be read from the store: {error}")
            return
        if payload is None:
            self._loop.call_soon(self._unreadable, effect, "its command is not in the store any more: submit it again")
            return
        self._orders.append(
            RunOrder(
                job_id=job.job_id, attempt=effect.attempt, env=effect.env, user=spec.user, uid=spec.uid, gid=spec.gid, argv=payload.argv,
                cwd=payload.cwd, environ=environ(payload.environ, effect), time_limit_ms=effect.time_limit_ms, place=job.place,
                umask=spec.umask,
            )
        )  # fmt: skip

    def _unreadable(self, effect: effects.StartJob, why: str) -> None:
        self.ended(effect.job_id, effect.attempt, Status("ended", why=why, cause=Cause.CANNOT_RUN), "", self._clock.wall_ns())

    def not_started(self, order: RunOrder, why: str) -> None:
        self.ended(order.job_id, order.attempt, Status("ended", why=why, cause=Cause.NOT_STARTED), "", self._clock.wall_ns())

    def resume(self) -> None:
        """After a restart: what runs is found again, what ended meanwhile is told, and what was stored but never begun has its place
        in the queue again."""
        state = self._state
        names = self.factory.names()
        if last := max([self._journal.jobs_named, *(job_ids.order(name)[0] for name in names)]):
            self._submit(events.NamesTaken(last, self._clock.wall_ns()))
        expected = [(job.job_id, job.attempt) for job in state.jobs.values() if job.state in UNDER_WAY]
        for job_id, attempt in self.factory.adopt(expected):
            if state.jobs[job_id].attempts[-1].started_wall_ns is None:
                self.requeued_before_start(job_id, attempt, "the manager ended before it was begun")
            else:
                self._loop.call_soon(self._lost, job_id, attempt)
        for job in state.jobs.values():
            if job.state is JobState.STOPPING:  # whether the last manager could still say so, nobody knows
                self.factory.withdraw(job.job_id, job.attempt, job.why)
        ended = self._journal.last_ended(2 * MOST_JOBS)
        self._report_unknown(names, {job_id for job_id, _ in ended})
        self.log_retention.begin(ended, self._clock.wall_ns())
        self.event_loop.wake("manager started")

    def _report_unknown(self, names: Iterable[str], ended: Container[str]) -> None:
        """What has run here, or runs, and the store does not know: it is kept, in one line, and none is started again."""
        if self._journal.lost:
            self._journal.note("store.lost", reason=self._journal.lost)
        known = (self._state.jobs, ended)
        over = [name for name in names if not any(name in some for some in known) and not self._journal.ended(name, 1)]
        running = [f"{job_id} (start {attempt})" for job_id, attempt in self.factory.strays()]
        self._unknown = sorted({job_id for job_id, _ in self.factory.strays()} | set(over), key=job_ids.order)
        is_known, line = self.unknown()
        if not is_known:
            stderr_log.say(line)
        if self._unknown:
            self._journal.note("job.unknown", jobs=self._unknown[:MOST_NAMED], running=running[:MOST_NAMED])

    def unknown(self) -> tuple[bool, str]:
        """For the doctor: whether the store knows of all that runs and has run here, and what it does not know."""
        running = [f"{job_id} (start {attempt})" for job_id, attempt in self.factory.strays()]
        said = [f"{self._journal.lost} (earlier losses: nodemgr events --since 0 --name store.lost)"] if self._journal.lost else []
        if running:
            said.append(
                f"running, and not known to the store: {_listed(running)}; what runs goes on within its time limit and is not started "
                "again (nodemgr queue withdraw ends it)"
            )
        over = [name for name in self._unknown if name not in {job_id for job_id, _ in self.factory.strays()}]
        if over:
            said.append(f"the files of {_listed(over)}, which the store does not know, are kept under jobs in the state directory")
        return not said, "; ".join(said) or "the store knows all that runs and has run here"

    def is_unknown(self, job_id: str) -> bool:
        """Something runs under this id, and the store has no such job."""
        return bool(self._unknown_attempts(job_id))

    def withdraw_unknown(self, job_id: str, why: str) -> None:
        """Ends it."""
        for attempt in self._unknown_attempts(job_id):
            self.factory.withdraw(*attempt, why)

    def _unknown_attempts(self, job_id: str) -> list[tuple[str, int]]:
        return [stray for stray in self.factory.strays() if stray[0] == job_id and job_id not in self._state.jobs]

    def _lost(self, job_id: str, attempt: int) -> None:
        """The store says that it ran, and its files are gone."""
        lost = Status("ended", why="nothing is known of it any more", cause=Cause.SUPERVISOR_LOST)
        self.ended(job_id, attempt, lost, "", self._clock.wall_ns())

    # -- what is to be ended --

    def stop(self, effect: effects.StopJob) -> None:
        """A job whose order was not given yet, a manager ago or now, is not started at all."""
        begun = [order for order in self._orders if (order.job_id, order.attempt) != (effect.job_id, effect.attempt)]
        if len(begun) < len(self._orders):
            self._orders = begun
            self.requeued_before_start(effect.job_id, effect.attempt, effect.why)
        else:
            self.factory.withdraw(effect.job_id, effect.attempt, effect.why)

    def forget(self, effect: effects.ForgetJob) -> None:
        self._finished.append(effect.job_id)
        if len(self._finished) == 1:
            self._loop.call_soon(self.settle)

    def settle(self) -> None:
        """Who waits for the end of a job hears of it; its files may go once the store has it."""
        if self._journal.fault is not None:
            return  # called again when it can be written
        finished, self._finished = self._finished, []
        for job_id in finished:
            for notify in self.on_final:
                try:
                    notify(job_id)
                except Exception as error:  # the others hear of it all the same
                    stderr_log.fault(f"telling that {job_id} has ended", error)
            if job_id not in self._state.jobs:  # else it is to run again
                self.log_retention.add(job_id, self._clock.wall_ns())

    # -- what the factory tells (resource_factory.Listener) --

    def started(self, job_id: str, attempt: int, pid: int | None, wall_ns: int) -> None:
        self._submit(events.JobStarted(job_id, attempt, pid, wall_ns))

    def ended(self, job_id: str, attempt: int, status: Status, log_tail: str, wall_ns: int) -> None:
        job = self._state.jobs.get(job_id)
        if job is not None and job.attempt == attempt:
            try:
                self.sink(job, attempt, status, log_tail)
            except OSError as error:
                stderr_log.say(f"the end of job {job_id}'s output is in the history alone: {error}")
        ended = events.JobEnded(
            job_id, attempt, status.exit_code, status.signal, status.why, status.cause, log_tail, status.started_wall_ns, wall_ns
        )

        def notify() -> None:
            self._submit(ended)

        if job is not None and job.task_id is not None and status.cause is Cause.OWN and status.exit_code != 0:
            self._read_gpus(notify)  # a lost GPU may be why, and the job notices it before the next reading
        else:
            notify()

    def requeued_before_start(self, job_id: str, attempt: int, why: str) -> None:
        """Many at once are one commit; each stands again where it stood before any of them is matched."""
        if not self._requeued_before_start:
            self._loop.call_soon(self._give_back)
        self._requeued_before_start.setdefault(why, []).append((job_id, attempt))

    def _give_back(self) -> None:
        requeued_before_start, self._requeued_before_start = self._requeued_before_start, {}
        for why, attempts in requeued_before_start.items():
            self._submit(events.JobRequeuedBeforeStart(tuple(attempts), why, self._clock.wall_ns()))

    def health(self) -> dict[str, str | None]:
        """Whether the node itself could start a job now, for those who ask why none moves."""
        up = self._state.is_up(launch_hosts.HERE)
        return {"state": "ok" if up else "down", "error": None if up else launch_hosts.why_down(self._state, launch_hosts.HERE)}

    def launch_host_changed(self, place: str, is_up: bool, why: str) -> None:
        self._submit(events.LaunchHostChanged(place, is_up, why, self._clock.wall_ns()))
