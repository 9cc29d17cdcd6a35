"""The ResourceFactory of this node: a launcher starts one supervisor for each attempt.

Knows: attempt directories, the launcher, pidfds, the handling of the loss of each. Must not know:
the queue, GPUs, leases, the submitter of a job.

A process begins an attempt by claiming its directory, which succeeds once. Its state is read
only from the directory, so a process may die at any time:
- unclaimed: not begun. The manager asks the launcher (again), or claims it and requeues the job.
- claimed by a living supervisor: the manager watches it; its death is the end.
- claimed by a dead supervisor: the record has the job's end. Without a record the supervisor was
  killed: the manager first ends the job's remaining processes, then reports the end.

In a container a runner replaces the launcher, and the supervisor is a process of the job's user. It
claims the attempt by a request, gets the order, and reports begin, output and end, which the
manager writes into the attempt's files. Impossible values are corrected. If it should end the job
and does not, the manager kills it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from client_plugin.fields import MAX_YIELD_MS
from client_plugin.messages import attempts
from client_plugin.messages.form import relayed, stated
from nodemgr.core.model.entities import END_GRACE_MS, Cause, ProcessKey
from nodemgr.edge.clients.client_server import Connection
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.clients.descriptor_filter import close_all
from nodemgr.edge.executor import attempt_directory, leaf_limits, orphans
from nodemgr.edge.executor.attempt_directory import AttemptFiles, Beginning, End
from nodemgr.edge.executor.interface import (
    ExecutorListener,
    NoLimits,
    RunOrder,
    Status,
    nothing,
)
from nodemgr.edge.executor.last_line import last_line
from nodemgr.edge.executor.launcher import SCOPE_KNOWN, Launcher, LauncherEndpoint
from nodemgr.edge.executor.output_writer import CHUNK_BYTES, OutputWriter
from nodemgr.edge.executor.runner_registry import AttemptName, Handout, Runners, on_the_node
from nodemgr.edge.gate.node_gate import NO_NODE_GATE, NodeGate
from nodemgr.edge.kernel import cgroups
from nodemgr.edge.kernel.processes import (
    ProcessTable,
    age_ms,
    boot_id,
    identify,
    pid_of,
    process_key,
    start_ticks,
)
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.edge.rpc.shared_buffers import new_sheet
from nodemgr.edge.rpc.wire import Fields
from nodemgr.messages import doctor, executor
from nodemgr.messages import jobs as messages

GRACE_MS = END_GRACE_MS
CHECK_S, MAX_CHECK_S = 0.05, 5.0
"""First and longest poll interval: another manager's supervisor does not report its start."""
ASKS, LIMITS, WARNS = signal.SIGUSR1, signal.SIGUSR2, signal.SIGPWR
"""The supervisor ends its job, reads its time limit, or ends it after its signal (jobs.h)."""
WITHDRAWN, TIME_LIMIT = attempts.WITHDRAWN(), attempts.TIME_LIMIT()
SUPERVISOR_KILLED = "its supervisor was killed; what was left of it was ended"
NO_RUNNER = "no process in its container could begin it"
CONTAINER_STOPPED = (
    "its container was stopped, or its supervisor there was killed; what was left of it was ended"
)
CLAIM_TIMEOUT_S = 60.0
"""Longest time for a runner to begin an attempt."""
RELUCTANCE_S = 10.0
"""Extra time for a supervisor to do what is due, before it is asked again or killed."""
LAST_WORDS_S = 10.0
"""Longest time to read what an ended supervisor said: a child of it may keep its connection."""
RETAINED_STARTS = 4
"""The newest attempts of one job with retained logs."""
NODE_WENT_DOWN = "the node went down while it ran"
IN_A_CONTAINER = NoLimits(doctor.LIMITED_BY_CONTAINER())
OUTPUT_BYTE_NS = 3
"""The cost of each byte of output from a container, for its environment."""
MOST_UNWRITTEN = 4
"""Reports of one supervisor that may wait for the disk; an honest one has one on a connection."""
_Fact = TypeVar("_Fact", Beginning, End)


class _Attempt:
    """An attempt that has not ended."""

    def __init__(self, name: AttemptName, files: AttemptFiles, place: str) -> None:
        self.name = name
        self.files = files
        self.place = place
        """Empty: this node; else a container on it."""
        self.session: Connection | None = None
        """The open connection of its supervisor in a container."""
        self.sheet = -1
        """Memory on which that supervisor writes its output; -1: none."""
        self.unwritten = 0
        """Reports of that supervisor that wait for the disk."""
        self.key: ProcessKey | None = None
        """Its watched supervisor."""
        self.started = False
        """Its start was reported."""
        self.mourned = False
        """Its supervisor was killed; its remaining processes are being ended."""
        self.why = ""
        """The reason of the request to end it."""
        self.ended_by: tuple[str, Cause] | None = None
        """Reason and cause of its end, if the manager knows more than the record."""
        self.hunt: orphans.Hunt | None = None
        self.ask_timer: asyncio.TimerHandle | None = None
        self.check_timer: asyncio.TimerHandle | None = None
        self.overdue: asyncio.TimerHandle | None = None
        """In a container: the timer of its forced end."""
        self.last_words: asyncio.TimerHandle | None = None
        """Its supervisor ended, and its connection is still read: the end of this wait."""


class NodeFactory:
    """ResourceFactory documents the verbs.

    `launcher` is made before the manager drops its rights; `close` closes it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listener: ExecutorListener, jobs_dir: Path,
        launcher: LauncherEndpoint, grace_ms: int = GRACE_MS, log_bytes: int = 0,
        host_of: Callable[[Session], str] = on_the_node,
        is_needed: Callable[[str], bool] = lambda _host: False,
        gate: NodeGate = NO_NODE_GATE,
    ) -> None:  # fmt: skip
        """`host_of` and `is_needed` are for the runners, which start jobs in containers."""
        self._loop, self._listener, self._gate = loop, listener, gate
        self._jobs_dir = jobs_dir
        self._grace_ms = grace_ms
        self._log_bytes = log_bytes
        self._boot = boot_id()
        self._attempts: dict[AttemptName, _Attempt] = {}
        self._told: set[AttemptName] = set()
        """Attempts that are over, until `delete` of their job."""
        self._supervisors: dict[ProcessKey, _Attempt] = {}
        self._strays: dict[ProcessKey, AttemptName] = {}
        """Supervisors of attempts that the store does not know."""
        self._table = ProcessTable(loop)
        self._closed = False
        self._makes_leaves = True
        """The launcher knows the packet `leaf`."""
        self._told_host: tuple[bool, str] | None = None
        self._entering: dict[str, Callable[[str | None], None]] = {}
        """By the name of the cgroup of a command."""
        self._limiting: deque[Callable[[], None]] = deque()
        """One for each limit that the launcher has not answered; it answers in order."""
        self._launcher = Launcher(loop, launcher, self._heard, self._launcher_changed)
        self._writer = OutputWriter(loop)
        self.runners = Runners(loop, self, host_of, is_needed)
        loop.call_soon(self._notify_host)

    # -- the verbs --

    def state(self) -> tuple[bool, str]:
        """For the doctor: (jobs can start, the launcher or the reason)."""
        return self._launcher.state()

    def no_limits(self, place: str) -> NoLimits | None:
        return IN_A_CONTAINER if place else self._launcher.no_limits()

    def create(self, order: RunOrder) -> None:
        name = (order.job_id, order.attempt)
        if name in self._attempts or name in self._told:
            return
        for supervisor in [key for key, stray in self._strays.items() if stray == name]:
            del self._strays[supervisor]
            self._table.unwatch(supervisor)
        attempt = self._attempts[name] = _Attempt(
            name, AttemptFiles(self._jobs_dir, *name), order.run.place
        )
        if not order.run.place and os.geteuid() not in (0, order.uid):
            why = (
                f"this manager belongs to uid {os.geteuid()} and starts its own user's jobs alone: "
                "ask an admin for the node's own"
            )
            self._end_soon(attempt, Status("ended", why=why, cause=Cause.CANNOT_RUN))
            return
        if attempt.files.exist():
            self._loop.call_soon(self._take_up, attempt)
            return
        for number in attempt_directory.attempts_of(self._jobs_dir, order.job_id):
            if (
                number <= order.attempt - RETAINED_STARTS
                and (order.job_id, number) not in self._attempts
            ):
                AttemptFiles(self._jobs_dir, order.job_id, number).remove()
        try:
            attempt.files.write(order, self._grace_ms, self._boot, self._log_bytes)
        except OSError as error:
            why = f"its files cannot be written to {self._jobs_dir}: {error.strerror}"
            self._end_soon(attempt, Status("ended", why=why, cause=Cause.NOT_STARTED))
        except ValueError as error:
            self._end_soon(attempt, Status("ended", why=str(error), cause=Cause.CANNOT_RUN))
        else:
            self._ask(attempt)

    def withdraw(self, job_id: str, attempt: int, why: str, *, warns: bool = False) -> None:
        found = self._attempts.get((job_id, attempt))
        if found is None:
            for supervisor in [
                key for key, name in self._strays.items() if name == (job_id, attempt)
            ]:
                self._table.kill(supervisor, ASKS)
            return
        found.why = why
        if found.files.give_up():
            self._end_soon(found, Status("ended", why=why))
        else:
            before_ms = found.files.facts().signal_ms if warns else 0
            self._signal(found, WARNS if before_ms else ASKS)
            if before_ms:
                before_ms = self._ask_after(found, before_ms)
            self._insist(found, before_ms + self._grace_ms, why, Cause.OWN)

    def _ask_after(self, attempt: _Attempt, before_ms: int) -> int:
        """Returns when its TERM is due at the latest.

        A supervisor waits for the whole time of its order, and one of an earlier version does not
        hear WARNS.
        """
        if attempt.ask_timer is not None:
            attempt.ask_timer.cancel()
        if before_ms <= MAX_YIELD_MS:
            due_s = before_ms / 1_000 + RELUCTANCE_S
        else:
            before_ms, due_s = MAX_YIELD_MS, MAX_YIELD_MS / 1_000
        attempt.ask_timer = self._loop.call_later(due_s, self._signal, attempt, ASKS)
        return before_ms

    def limit(self, job_id: str, attempt: int, time_limit_ms: int | None) -> None:
        found = self._attempts.get((job_id, attempt))
        if found is None:
            return
        with contextlib.suppress(OSError):  # then the present limit holds
            found.files.limit(time_limit_ms)
            self._signal(found, LIMITS)  # a supervisor in a container hears of it by a packet
            if found.session is not None:
                job, number = found.name
                found.session.answer("LIMIT", job=job, attempt=number, limit_ms=time_limit_ms)
            self._insist_on_limit(found)

    def scope(self) -> str:
        return self._launcher.scope

    def limit_cgroups(
        self, limits: Sequence[tuple[str, str]], then: Callable[[], None] = nothing
    ) -> None:
        asked = [
            name
            for name, limit in (limits if self._launcher.scope else ())
            if self._launcher.request(f"limit {name} {limit}")
        ]
        if asked:
            self._limiting += [*(nothing for _ in asked[1:]), then]
        else:
            then()

    def enter(
        self, env: str, process: ProcessKey, limits: Sequence[str],
        then: Callable[[str | None], None],
    ) -> None:  # fmt: skip
        _, pid, ticks = process.split(":")
        lost, scope = self._launcher.no_limits(), self._launcher.scope
        why = lost.why if lost is not None and lost.is_of_all() else None
        if why is None and Path(scope) in (cgroups.directory_of(pid) or Path()).parents:
            why = doctor.IN_A_CGROUP()
        identity = identify(process) if why is None else None
        if identity is None:
            then(why)
            return
        name = f"{env}/{leaf_limits.command_name(pid, ticks, limits)}"
        self.limit_cgroups([(name, limit) for limit in limits])
        if self._launcher.request(f"enter {name}", identity.pidfd):
            self._entering[name] = then
        else:
            then(doctor.LAUNCHER_AWAY())

    def delete(self, job_id: str) -> None:
        if attempt_directory.is_job_name(job_id) and not any(
            name[0] == job_id for name in self._attempts
        ):
            self._told = {name for name in self._told if name[0] != job_id}
            for number in attempt_directory.attempts_of(self._jobs_dir, job_id):
                AttemptFiles(self._jobs_dir, job_id, number).remove()
            shutil.rmtree(self._jobs_dir / job_id, ignore_errors=True)

    def logs(self, job_id: str, attempt: int | None = None) -> int:
        if not attempt_directory.is_job_name(job_id):
            raise FileNotFoundError(f"no job {job_id}")
        if attempt is None:
            attempt = max(attempt_directory.attempts_of(self._jobs_dir, job_id), default=0)
        return AttemptFiles(self._jobs_dir, job_id, attempt).open_log()

    def room_bytes(self, job_id: str) -> int:
        numbers = (
            attempt_directory.attempts_of(self._jobs_dir, job_id)
            if attempt_directory.is_job_name(job_id)
            else ()
        )
        return sum(AttemptFiles(self._jobs_dir, job_id, number).room_bytes() for number in numbers)

    def names(self) -> list[str]:
        return attempt_directory.jobs(self._jobs_dir)

    def job_of(self, pids: Sequence[int]) -> str | None:
        """A job's processes stay below its supervisor, which adopts orphans."""
        known = dict(self._supervisors)
        for attempt in self._attempts.values():
            if attempt.key is None:  # perhaps begun but not reported yet
                claim = attempt.files.claim()
                if (
                    claim is not None
                    and claim.supervisor is not None
                    and attempt.files.boot() == self._boot
                ):
                    known[claim.supervisor] = attempt
        supervisors = {pid_of(key): key for key in known}
        keys = (
            supervisors[pid]
            for pid in pids
            if pid in supervisors and supervisors[pid] == process_key(pid, start_ticks(pid) or 0)
        )
        return next((known[key].name[0] for key in keys), None)

    def adopt(self, expected: Iterable[AttemptName]) -> list[AttemptName]:
        wanted = dict.fromkeys(expected)
        for name in attempt_directory.attempts(self._jobs_dir):
            if name not in wanted:
                self._find_stray(name)
        requeued_before_start = []
        for name in wanted:
            files = AttemptFiles(self._jobs_dir, *name)
            if files.is_given_up():
                files.remove()
                self._told.add(name)
                requeued_before_start.append(name)
            elif name not in self._attempts:
                attempt = self._attempts[name] = _Attempt(name, files, files.facts().place)
                self._loop.call_soon(self._take_up, attempt)
        return requeued_before_start

    def close(self) -> None:
        self._closed = True
        for attempt in self._attempts.values():
            self._forget_plans(attempt)
        self._attempts.clear()
        self._supervisors.clear()
        self._strays.clear()
        self._table.close()
        self._launcher.close()
        self.runners.close()
        self._writer.close()

    def _notify_host(self) -> None:
        """Reports this node's launch state if it changed."""
        is_up, words = now = self._launcher.state()
        if now != self._told_host and not self._closed:
            self._told_host = now
            self._listener.launch_host_changed("", is_up, "" if is_up else words)

    # -- from an order to a supervisor --

    def _ask(self, attempt: _Attempt) -> None:
        """Asks the launcher or runner to start it.

        Without one the attempt is requeued: a failure would use up the job's tries without its
        fault, and a wait would block its GPUs.
        """
        if not attempt.place:
            # with the node's gate the cgroup's GPUs are opened before the job begins
            is_asked = self._launcher.request(
                f"leaf {attempt.files.facts().leaf}"
                if self._gate.closes_jobs() and self._makes_leaves
                else f"start {attempt.files.name}"
            )
        elif is_asked := self.runners.start(attempt.place, attempt.name):
            self._loop.call_later(CLAIM_TIMEOUT_S, self._not_claimed, attempt)
        if not is_asked:
            self._give_back(attempt)

    def _not_claimed(self, attempt: _Attempt) -> None:
        """Drops a runner that hangs, perhaps in a paused container. It may connect again."""
        if self._is_open(attempt) and attempt.files.claim() is None:
            self.runners.drop(attempt.place)

    def _is_open(self, attempt: _Attempt) -> bool:
        """It has no known supervisor, and its remains are not being ended."""
        return (
            self._attempts.get(attempt.name) is attempt
            and attempt.key is None
            and not attempt.mourned
        )

    def _give_back(self, attempt: _Attempt) -> None:
        """Requeues the attempt and blocks its claim. If it is already claimed, takes it up."""
        if attempt.files.is_given_up():
            why = NO_RUNNER if attempt.place else self._launcher.state()[1]
            self._loop.call_soon(self._notify_requeued_before_start, attempt, why)
        elif attempt.files.claim() is not None:
            self._take_up(attempt)

    def _notify_requeued_before_start(self, attempt: _Attempt, why: str) -> None:
        if self._attempts.get(attempt.name) is not attempt:
            return
        self._notify_host()  # first, or the job returns at once
        del self._attempts[attempt.name]
        self._told.add(attempt.name)
        attempt.files.remove()
        self._listener.requeued_before_start(*attempt.name, why)

    def _launcher_changed(self) -> None:
        """Back: repeats requests it may have missed. Gone: checks requests it may have received."""
        self._loop.call_soon(self._notify_host)
        while self._entering:
            self._entering.popitem()[1](doctor.LAUNCHER_AWAY())
        while self._limiting:
            self._limiting.popleft()()
        for attempt in [
            attempt
            for attempt in self._attempts.values()
            if not attempt.place and self._is_open(attempt)
        ]:
            self._take_up(attempt)
        for attempt in [
            attempt
            for attempt in self._attempts.values()
            if attempt.mourned and attempt.hunt is None
        ]:
            self._end_remains(attempt)

    def _heard(self, packet: str) -> None:
        verb, _, rest = packet.partition(" ")
        words = rest.split(" ")
        if verb == SCOPE_KNOWN:
            self._makes_leaves = True
            self._gate.stand_at(self._launcher.scope)
            for known in self._attempts.values():
                self._open_leaf(known)
            return
        if packet.startswith("failed - ") and self._makes_leaves:
            self._makes_leaves = False  # a launcher of the version before
            self._launcher_changed()
            return
        if verb in ("limited", "unlimited"):
            if self._limiting:
                self._limiting.popleft()()
            return
        if verb == "leaf":  # ENV/JOB.ATTEMPT
            words[0] = "/".join(words[0].rpartition("/")[2].rpartition(".")[::2])
        if (then := self._entering.get(words[0])) and verb in ("entered", "outside"):
            del self._entering[words[0]]
            then(relayed(" ".join(words[1:])) if verb == "outside" else None)
        job, _, number = words[0].partition("/")
        attempt = self._attempts.get((job, int(number) if number.isdigit() else 0))
        if attempt is None:
            return
        if verb == "forked":
            self._watch(attempt, process_key(int(words[1]), int(words[2])))
        elif verb == "leaf" and self._is_open(attempt):
            self._open_leaf(attempt)
            if not self._launcher.request(f"start {attempt.files.name}"):
                self._give_back(attempt)
        elif verb == "failed":
            self._lose(attempt, " ".join(words[1:]), Cause.NOT_STARTED)
        elif verb == "running":
            began = attempt_directory.said_beginning(" ".join(["started", *words[1:]]))
            if began is not None:
                self._notify_started(attempt, began)
        elif verb == "buried" and attempt.mourned and attempt.hunt is None:
            self._end_remains(attempt)

    def _open_leaf(self, attempt: _Attempt) -> None:
        leaf = "" if attempt.place else attempt.files.facts().leaf
        if leaf and self._gate.closes_jobs():
            self._gate.has_leaf(attempt.name[0], Path(self._launcher.scope, leaf))

    def _take_up(self, attempt: _Attempt) -> None:
        """Continues from the state in its directory."""
        if not self._is_open(attempt):
            return
        claim = attempt.files.claim()
        if claim is None:
            self._ask(attempt)
        elif claim.supervisor is None:
            self._give_back(attempt)
        elif attempt.files.boot() != self._boot:
            self._told_by_record(attempt, NODE_WENT_DOWN, Cause.NODE_DOWN)
        else:
            self._watch(attempt, claim.supervisor)
            self._check(attempt, CHECK_S)

    def _watch(self, attempt: _Attempt, supervisor: ProcessKey) -> None:
        if attempt.key is not None:
            return
        attempt.key = supervisor
        self._supervisors[supervisor] = attempt
        if not self._table.watch(supervisor, self._supervisor_gone):
            self._loop.call_soon(self._supervisor_gone, supervisor)
        self._insist_on_limit(attempt)  # it reads a file: the watch stands before

    def _check(self, attempt: _Attempt, pause_s: float) -> None:
        """Polls the record until the job runs or its supervisor is gone."""
        attempt.check_timer = None
        if (began := self._record(attempt)[0]) is not None:
            self._notify_started(attempt, began)
        elif attempt.key is not None:
            attempt.check_timer = self._loop.call_later(
                pause_s, self._check, attempt, min(2 * pause_s, MAX_CHECK_S)
            )

    def _notify_started(self, attempt: _Attempt, began: Beginning) -> None:
        if attempt.started:
            return
        attempt.started = True
        self._open_leaf(attempt)
        if attempt.check_timer is not None:
            attempt.check_timer.cancel()
        self._listener.started(*attempt.name, began.pid or None, began.wall_ns, began.boot_ns)

    def _record(self, attempt: _Attempt) -> tuple[Beginning | None, End | None]:
        """The supervisor's record.

        In a container: times clamped, no PID (it is of that namespace). Of an earlier boot: as at
        the begin of this one.
        """
        began, end = attempt.files.record()
        if attempt.files.boot() != self._boot:
            began = began and dataclasses.replace(began, boot_ns=0)
            end = end and dataclasses.replace(end, boot_ns=0)
        if attempt.place:
            began, end = began and _possible(attempt, began), end and _possible(attempt, end)
        return began, end

    # -- in containers (runners.Attempts) --

    def launch_host_changed(self, place: str, is_up: bool) -> None:
        """Reports a runner as up or gone. Gone: its unclaimed attempts are requeued."""
        if self._closed:
            return
        self._listener.launch_host_changed(place, is_up, "")
        if not is_up:
            for attempt in [
                attempt
                for attempt in self._attempts.values()
                if attempt.place == place and self._is_open(attempt)
            ]:
                self._give_back(attempt)

    def claimed(self, name: AttemptName, place: str, session: Connection) -> Handout:
        attempt = self._attempts.get(name)
        if attempt is None or attempt.place != place or attempt.mourned:
            raise OperationError(messages.NO_ATTEMPT())
        facts, identity = attempt.files.facts(), session.identity
        if (facts.uid, facts.gid) != (identity.uid, identity.gid):
            why = stated(
                f"the job was submitted with group {facts.gid}, but the runner of its container "
                f"was started with group {identity.gid}",
                "submit it again with the group of the container",
                "refused",
            )
            self._lose(attempt, why, Cause.CANNOT_RUN)
            raise OperationError(why)
        if self._supervisors.get(session.key, attempt) is not attempt:
            # its death would end one of them, and the other would stay for ever
            raise OperationError(
                "this process has claimed another job, and one process supervises one job",
                "claim each job in a process of its own",
                "refused",
            )
        if not attempt.files.claim_for(session.key):
            raise OperationError(
                "another process has started this attempt, or it is over",
                "the runner takes the next one",
                "refused",
            )
        self._watch(attempt, session.key)
        try:
            close_all({attempt.sheet} - {-1})
            attempt.sheet, attempt.session = -1, None
            attempt.sheet = new_sheet(CHUNK_BYTES)
            order = attempt.files.sealed_order()
        except OSError as error:
            why = stated(
                f"the files of the job cannot be opened ({error.strerror})",
                "see `nodemgr doctor` and the manager's log",
                "refused",
            )
            attempt.ended_by = why, Cause.NOT_STARTED
            raise OperationError(why) from None
        attempt.session = session
        return Handout(
            order, attempt.sheet, attempt.files.log_size_bytes(), self._log_bytes,
            attempt.files.limit_ms(),
        )  # fmt: skip

    def reported(
        self, name: AttemptName, session: Connection, verb: str, fields: Fields,
        then: Callable[[bool], None],
    ) -> None:  # fmt: skip
        attempt = self._attempts.get(name)
        if attempt is None or attempt.session is not session or attempt.key != session.key:
            raise OperationError(messages.NO_ATTEMPT())
        if attempt.unwritten >= MOST_UNWRITTEN:
            raise OperationError(executor.REPORT_NOT_WRITTEN())
        files = attempt.files
        fact: Beginning | End | None = None

        def written(is_done: bool) -> None:
            attempt.unwritten -= 1
            if isinstance(fact, Beginning) and self._attempts.get(name) is attempt:
                self._notify_started(attempt, fact)
            # output that the disk refuses is dropped: the job does not wait for room
            then(is_done or verb == "OUTPUT")

        if verb == "OUTPUT":
            size = min(fields["size"], CHUNK_BYTES)
            session.spend(size * OUTPUT_BYTE_NS)
            data = os.pread(attempt.sheet, size, 0)
            attempt.unwritten += 1
            self._writer.output(files.log, fields["at"], data, self._log_bytes, written)
            return
        if verb == "RUNNING":
            began = attempt_directory.said_beginning(fields["text"])
            fact = began and _possible(attempt, began)
        else:
            end = attempt_directory.said_end(fields["text"])
            fact = end and _possible(attempt, end)
        if fact is None:
            raise OperationError(
                "this is no report of a job's begin or end", "the client sends another", "refused"
            )
        attempt.unwritten += 1
        self._writer.record(files.record_path, *attempt_directory.record_line(fact), written)

    def failed(
        self, name: AttemptName, runs_for: str | None, session: Connection, why: str
    ) -> None:
        attempt = self._attempts.get(name)
        if attempt is None or not attempt.place:
            return
        if attempt.key == session.key:  # its end follows without a reason
            attempt.ended_by = why, Cause.CANNOT_RUN
        elif attempt.place == runs_for and self._is_open(attempt):
            self._lose(attempt, why, Cause.NOT_STARTED)

    def disconnected(self, session: Session) -> None:
        attempt = self._supervisors.get(session.key)
        if attempt is not None and attempt.session is session:
            attempt.session = None
            if attempt.last_words is not None:
                self._loop.call_soon(self._settle, attempt)

    def _insist(self, attempt: _Attempt, after_ms: int, why: str, cause: Cause) -> None:
        """Schedules a forced end: the user's processes can stop a supervisor in a container."""
        if attempt.place and attempt.key is not None:
            if attempt.overdue is not None:
                attempt.overdue.cancel()
            attempt.overdue = self._loop.call_later(
                after_ms / 1_000 + RELUCTANCE_S, self._end_by_force, attempt, why, cause
            )

    def _insist_on_limit(self, attempt: _Attempt) -> None:
        """Schedules the forced end after its time limit, unless it was asked to end before."""
        if not attempt.place or attempt.key is None or attempt.why:
            return
        limit_ms = attempt.files.limit_ms()
        if limit_ms is not None:
            left_ms = max(0, limit_ms - age_ms(attempt.key))
            self._insist(attempt, left_ms + self._grace_ms, TIME_LIMIT, Cause.TIME_LIMIT)
        elif attempt.overdue is not None:
            attempt.overdue.cancel()

    def _end_by_force(self, attempt: _Attempt, why: str, cause: Cause) -> None:
        if attempt.key is not None:
            attempt.ended_by = why, cause
            self._table.kill(attempt.key)

    # -- to its end --

    def _signal(self, attempt: _Attempt, number: signal.Signals) -> None:
        """Signals the supervisor that has claimed it."""
        claim = attempt.files.claim()
        if (
            claim is not None
            and claim.supervisor is not None
            and attempt.files.boot() == self._boot
        ):
            self._table.kill(claim.supervisor, number)

    def _supervisor_gone(self, supervisor: ProcessKey) -> None:
        attempt = self._supervisors.get(supervisor)
        if attempt is None:
            self._strays.pop(supervisor, None)
        elif attempt.session is None:
            self._settle(attempt)
        else:  # the kernel may report the end before what was said
            attempt.last_words = self._loop.call_later(LAST_WORDS_S, self._settle, attempt)

    def _settle(self, attempt: _Attempt) -> None:
        """Takes the attempt from its supervisor, which has ended."""
        supervisor = attempt.key
        if supervisor is None:
            return
        del self._supervisors[supervisor]
        attempt.key = None
        self._forget_plans(attempt)
        claim = attempt.files.claim()
        if claim is None:
            self._lose(attempt, "its supervisor ended before it began", Cause.SUPERVISOR_LOST)
        elif claim.supervisor != supervisor:  # the other of two requested supervisors has it
            self._take_up(attempt)
        elif attempt.files.record()[1] is not None:
            self._told_by_record(attempt, "", Cause.SUPERVISOR_LOST)
        else:
            attempt.mourned = True
            self._order_leaf("kill", attempt)
            if attempt.place or not self._launcher.request(f"bury {attempt.files.name}"):
                self._end_remains(attempt)

    def _end_remains(self, attempt: _Attempt) -> None:
        job, number = attempt.name
        began, order = None if attempt.place else attempt.files.record()[0], attempt.files.facts()
        gone = (
            (CONTAINER_STOPPED, Cause.CONTAINER_STOPPED)
            if attempt.place
            else (SUPERVISOR_KILLED, Cause.SUPERVISOR_LOST)
        )
        why, cause = attempt.ended_by or gone

        def done(refused: int) -> None:
            attempt.hunt = None
            self._order_leaf("remove", attempt)
            told = (
                f"{why}, except processes that are not ours to end: {refused}" if refused else why
            )
            self._told_by_record(attempt, told, cause)

        attempt.hunt = orphans.Hunt(
            self._loop, lambda: orphans.find(f"{job}:{number}", order, began), done
        )

    def _order_leaf(self, verb: str, attempt: _Attempt) -> None:
        """Its supervisor was killed or never began, which else ends and removes its cgroup."""
        if leaf := attempt.files.facts().leaf:
            self._launcher.request(f"{verb} {leaf}")

    def _lose(self, attempt: _Attempt, why: str, cause: Cause) -> None:
        """Ends an attempt that has not begun. If it is already claimed, takes it up."""
        if not attempt.files.is_given_up() and attempt.files.claim() is not None:
            self._take_up(attempt)
        else:
            self._end_soon(attempt, Status("ended", why=attempt.why or why, cause=cause))

    def _told_by_record(self, attempt: _Attempt, otherwise: str, cause: Cause) -> None:
        """Reports the recorded end; without one, `otherwise` and `cause`."""
        began, end = self._record(attempt)
        if began is not None:
            self._notify_started(attempt, began)
            if attempt.place and began.boot_ns is None:
                attempt.files.close_log()
        if end is None:
            end = End(time.time_ns(), None, None, cause, otherwise)
        elif end.why == WITHDRAWN and attempt.why:
            end = dataclasses.replace(end, why=attempt.why)
        if end.cause is Cause.NODE_DOWN and attempt.files.boot() == self._boot:
            # told to end, and the node is still up: it is not to be tried again at once
            cause = Cause.CONTAINER_STOPPED if attempt.place else Cause.SUPERVISOR_LOST
            end = dataclasses.replace(end, cause=cause)
        host = None if attempt.place else attempt.files.host_figures()
        status = dataclasses.replace(_status(began, end), host=host)
        self._notify_ended(attempt, status, end.wall_ns, end.boot_ns)

    def _end_soon(self, attempt: _Attempt, status: Status) -> None:
        """Reports the end of one that has not begun: later, not from within a verb."""
        if not attempt.place:
            self._order_leaf("remove", attempt)  # the gate may have had it made
        self._loop.call_soon(self._notify_ended, attempt, status, time.time_ns())

    def _notify_ended(
        self, attempt: _Attempt, status: Status, wall_ns: int, boot_ns: int | None = None
    ) -> None:
        if self._attempts.get(attempt.name) is not attempt:
            return
        del self._attempts[attempt.name]
        self._told.add(attempt.name)
        self._gate.has_ended(attempt.name[0])
        if attempt.key is not None:
            del self._supervisors[attempt.key]
            self._table.unwatch(attempt.key)
        self._forget_plans(attempt)
        facts, limit_ms = attempt.files.facts(), attempt.files.limit_ms()
        env = facts.leaf.partition("/")[0]
        attempt.files.forget_order()
        attempt.files.bound_log(self._log_bytes)
        tail = attempt.files.log_tail()
        if line := last_line(attempt.name[0], env, limit_ms, status, facts.signal):
            attempt.files.end_log(line)
        self._listener.ended(*attempt.name, status, tail, wall_ns, boot_ns)

    def strays(self) -> list[AttemptName]:
        return sorted(self._strays.values())

    def _find_stray(self, name: AttemptName) -> None:
        """An unexpected attempt does not begin.

        If it runs, it goes on, watched, within its limit.
        """
        files = AttemptFiles(self._jobs_dir, *name)
        claim = files.claim()
        if claim is None:
            files.give_up()
        elif (
            claim.supervisor is None or files.record()[1] is not None or files.boot() != self._boot
        ):
            return
        elif self._table.watch(claim.supervisor, self._supervisor_gone):  # else it is gone
            self._strays[claim.supervisor] = name

    @staticmethod
    def _forget_plans(attempt: _Attempt) -> None:
        for timer in (attempt.check_timer, attempt.ask_timer):
            if timer is not None:
                timer.cancel()
        if attempt.hunt is not None:
            attempt.hunt.close()
        if attempt.overdue is not None:
            attempt.overdue.cancel()
        if attempt.last_words is not None:
            attempt.last_words.cancel()
            attempt.last_words = None
        close_all({attempt.sheet} - {-1})
        attempt.sheet, attempt.session = -1, None


def _possible(attempt: _Attempt, fact: _Fact) -> _Fact:
    """A report of a supervisor in a container: its time clamped, its PID (of there) left out."""
    first_ns, last_ns = attempt.files.begun_wall_ns(), time.time_ns()
    wall_ns = max(first_ns, min(fact.wall_ns, last_ns))
    if isinstance(fact, Beginning):
        return Beginning(wall_ns, 0, 0, boot_ns=fact.boot_ns)
    return dataclasses.replace(fact, wall_ns=wall_ns)


def _status(began: Beginning | None, end: End) -> Status:
    told = end.exit_code, end.signal, end.why, end.cause
    if began is None:
        return Status("ended", None, None, *told)
    return Status("ended", began.pid or None, began.wall_ns, *told, began.boot_ns)
