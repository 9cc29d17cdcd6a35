"""This node as what executes jobs: the ResourceFactory behind which a launcher starts supervisors.

Knows: attempts' directories, the launcher, pidfds; what follows when one of them is gone. Must not know: the queue, GPUs,
leases, who asked for a job.

An attempt is begun by whoever claims its directory, and only once; what is believed of it is what lies there, so it does not
matter who died when:
- unclaimed: nobody has begun it. The launcher is asked (again), or the manager claims it, and it goes back to the queue.
- claimed by a living supervisor: it is watched; its death is the end.
- claimed by a dead one: the record says how the job ended. Without a record the supervisor was killed: what is left of the
  job is ended first, then told.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from nodemgr.core.model import ProcessKey
from nodemgr.edge import attempt_files, remains
from nodemgr.edge.attempt_files import AttemptFiles, Beginning, End
from nodemgr.edge.launcher import Launcher
from nodemgr.edge.processes import ProcessTable, boot_id, pid_of, process_key, start_ticks
from nodemgr.edge.resource_factory import Capacity, Listener, Order, Status

GRACE_MS = 30_000
"""Between the question to end and the end: a training may have something to save."""
LOOK_S, MAX_LOOK_S = 0.05, 5.0
"""A supervisor that another manager has started does not tell us that its job runs: how often to look."""
ASKS, LIMIT = signal.SIGUSR1, signal.SIGUSR2
WITHDRAWN = "withdrawn"
NEVER_BEGAN = "lost: it was never begun"
SUPERVISOR_KILLED = "its supervisor was killed; what was left of it was ended"
NODE_WENT_DOWN = "the node went down while it ran"

Name = tuple[str, int]


class _Attempt:
    """One that has not ended."""

    __slots__ = ("files", "hunt", "key", "look", "mourned", "name", "started", "why")

    def __init__(self, name: Name, files: AttemptFiles) -> None:
        self.name = name
        self.files = files
        self.key: ProcessKey | None = None
        """Its supervisor, watched."""
        self.started = False
        """The listener knows that it runs."""
        self.mourned = False
        """Its supervisor was killed: the launcher ends what is left."""
        self.why = ""
        """Why it was asked to end."""
        self.hunt: remains.Hunt | None = None
        self.look: asyncio.TimerHandle | None = None


class NodeFactory:
    """See the protocol for the verbs. `launcher` is made before the manager gives its rights up, and is closed with us."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listener: Listener, jobs_dir: Path, launcher: Launcher,
        gpus: Callable[[], int] = lambda: 0, grace_ms: int = GRACE_MS, log_bytes: int = 0,
    ) -> None:  # fmt: skip
        self._loop, self._listener = loop, listener
        self._jobs_dir = jobs_dir
        self._gpus = gpus
        self._grace_ms = grace_ms
        self._log_bytes = log_bytes
        self._boot = boot_id()
        self._attempts: dict[Name, _Attempt] = {}
        self._told: set[Name] = set()
        """Those that are over, as long as the job is not."""
        self._supervisors: dict[ProcessKey, _Attempt] = {}
        self._table = ProcessTable(loop, self._supervisor_gone)
        self._counts = {"started": 0, "ended": 0, "failed": 0}
        self._launcher = launcher
        self._closed = False
        self._told_place: tuple[bool, str] | None = None
        launcher.attach(loop, self._heard, self._launcher_changed)
        loop.call_soon(self._tell_place)

    # -- the verbs --

    def nodes(self) -> int:
        """0: no job can be started now."""
        return int(self._launcher.state()[0])

    def capacity(self) -> Capacity:
        return Capacity(nodes=self.nodes(), gpus=self._gpus(), running=len(self._attempts), **self._counts)

    def state(self) -> tuple[bool, str]:
        """For the doctor: can jobs be started, and by whom."""
        return self._launcher.state()

    def create(self, order: Order) -> None:
        name = (order.job_id, order.attempt)
        if name in self._attempts or name in self._told:
            return
        attempt = self._attempts[name] = _Attempt(name, AttemptFiles(self._jobs_dir, *name))
        if os.geteuid() not in (0, order.uid):
            why = f"this manager belongs to uid {os.geteuid()} and starts nobody else's jobs: ask an admin for the node's own"
            self._end_soon(attempt, Status("ended", why=why, hopeless=True))
            return
        if attempt.files.exist():
            self._loop.call_soon(self._take_up, attempt)
            return
        try:
            attempt.files.write(order, self._grace_ms, self._boot, self._log_bytes)
        except OSError as error:
            self._end_soon(attempt, Status("ended", why=f"its files cannot be written to {self._jobs_dir}: {error.strerror}"))
        except ValueError as error:
            self._end_soon(attempt, Status("ended", why=str(error), hopeless=True))
        else:
            self._ask(attempt)

    def withdraw(self, job_id: str, attempt: int, why: str) -> None:
        found = self._attempts.get((job_id, attempt))
        if found is None:
            return
        found.why = why
        if found.files.give_up():
            self._end_soon(found, Status("ended", why=why))
        else:
            self._signal(found, ASKS)

    def update(self, job_id: str, attempt: int, time_limit_ms: int | None) -> None:
        found = self._attempts.get((job_id, attempt))
        if found is not None and found.files.exist():
            with contextlib.suppress(OSError):  # a full disk: the old one stays
                found.files.set_limit(time_limit_ms)
                self._signal(found, LIMIT)

    def status(self, job_id: str, attempt: int) -> Status:
        files = AttemptFiles(self._jobs_dir, job_id, attempt)
        if not files.exist():
            return Status("unknown")
        began, end = files.record()
        found = self._attempts.get((job_id, attempt))
        if found is None and end is not None:
            return _status(began, end)
        if found is None:
            return Status("ended", why=NEVER_BEGAN if began is None else SUPERVISOR_KILLED)
        return Status("running", began.pid, began.wall_ns) if began is not None else Status("starting")

    def delete(self, job_id: str) -> None:
        if attempt_files.is_job_name(job_id) and not any(name[0] == job_id for name in self._attempts):
            self._told = {name for name in self._told if name[0] != job_id}
            shutil.rmtree(self._jobs_dir / job_id, ignore_errors=True)

    def logs(self, job_id: str, attempt: int | None = None) -> int:
        if not attempt_files.is_job_name(job_id):
            raise FileNotFoundError(f"no job {job_id}")
        if attempt is None:
            attempt = max(attempt_files.attempts_of(self._jobs_dir, job_id), default=0)
        return AttemptFiles(self._jobs_dir, job_id, attempt).open_log()

    def names(self) -> list[str]:
        return attempt_files.jobs(self._jobs_dir)

    def job_of(self, pids: Sequence[int]) -> str | None:
        """All that a job starts stays below its supervisor, which takes in whoever loses his parent."""
        known = dict(self._supervisors)
        for attempt in self._attempts.values():
            if attempt.key is None:  # begun perhaps, and nobody has told us yet
                claim = attempt.files.claim()
                if claim is not None and claim.supervisor is not None and attempt.files.boot() == self._boot:
                    known[claim.supervisor] = attempt
        supervisors = {pid_of(key): key for key in known}
        keys = (supervisors[pid] for pid in pids if pid in supervisors and supervisors[pid] == process_key(pid, start_ticks(pid) or 0))
        return next((known[key].name[0] for key in keys), None)

    def adopt(self, expected: Iterable[Name]) -> list[Name]:
        wanted = dict.fromkeys(expected)
        for name in attempt_files.attempts(self._jobs_dir):
            if name not in wanted:
                self._disown(AttemptFiles(self._jobs_dir, *name))
        unbegun = []
        for name in wanted:
            files = AttemptFiles(self._jobs_dir, *name)
            if files.is_given_up():
                files.remove()
                self._told.add(name)
                unbegun.append(name)
            elif name not in self._attempts:
                attempt = self._attempts[name] = _Attempt(name, files)
                self._loop.call_soon(self._take_up, attempt)
        return unbegun

    def close(self) -> None:
        self._closed = True
        for attempt in self._attempts.values():
            self._forget_plans(attempt)
        self._attempts.clear()
        self._supervisors.clear()
        self._table.close()
        self._launcher.close()

    def _tell_place(self) -> None:
        """This node's, where it changed."""
        is_up, words = now = self._launcher.state()
        if now != self._told_place and not self._closed:
            self._told_place = now
            self._listener.place_changed("", is_up, "" if is_up else words)

    # -- from an order to a supervisor --

    def _ask(self, attempt: _Attempt) -> None:
        """Where there is no launcher the attempt is given back: to fail, and to be tried again, would use up the tries of every job
        that waits, for nothing that is a job's fault; to wait would keep its GPUs from everybody."""
        if not self._launcher.say(f"start {attempt.files.name}"):
            self._give_back(attempt)

    def _give_back(self, attempt: _Attempt) -> None:
        """To the queue, and nobody ever begins it; unless somebody has."""
        if attempt.files.is_given_up():
            self._loop.call_soon(self._tell_unbegun, attempt, self._launcher.state()[1])
        elif attempt.files.claim() is not None:
            self._take_up(attempt)

    def _tell_unbegun(self, attempt: _Attempt, why: str) -> None:
        if self._attempts.get(attempt.name) is not attempt:
            return
        self._tell_place()  # before, or it would come again at once
        del self._attempts[attempt.name]
        self._told.add(attempt.name)
        attempt.files.remove()
        self._listener.unbegun(*attempt.name, why)

    def _launcher_changed(self) -> None:
        """There again: what it may not have heard is said again. Gone: what it may have heard is looked at."""
        self._loop.call_soon(self._tell_place)
        for attempt in [attempt for attempt in self._attempts.values() if attempt.key is None and not attempt.mourned]:
            self._take_up(attempt)
        for attempt in [attempt for attempt in self._attempts.values() if attempt.mourned and attempt.hunt is None]:
            self._end_remains(attempt)

    def _heard(self, packet: str) -> None:
        verb, _, rest = packet.partition(" ")
        words = rest.split(" ")
        job, _, number = words[0].partition("/")
        attempt = self._attempts.get((job, int(number) if number.isdigit() else 0))
        if attempt is None:
            return
        if verb == "forked":
            self._watch(attempt, process_key(int(words[1]), int(words[2])))
        elif verb == "failed":
            self._lose(attempt, " ".join(words[1:]))
        elif verb == "running":
            self._tell_started(attempt, Beginning(*map(int, words[1:4])))
        elif verb == "buried" and attempt.mourned and attempt.hunt is None:
            self._end_remains(attempt)

    def _take_up(self, attempt: _Attempt) -> None:
        """Goes on from what lies there."""
        if self._attempts.get(attempt.name) is not attempt or attempt.key is not None or attempt.mourned:
            return
        claim = attempt.files.claim()
        if claim is None:
            self._ask(attempt)
        elif claim.supervisor is None:
            self._give_back(attempt)
        elif attempt.files.boot() != self._boot:
            self._told_by_record(attempt, NODE_WENT_DOWN)
        else:
            self._watch(attempt, claim.supervisor)
            self._look(attempt, LOOK_S)

    def _watch(self, attempt: _Attempt, supervisor: ProcessKey) -> None:
        if attempt.key is not None:
            return
        attempt.key = supervisor
        self._supervisors[supervisor] = attempt
        if not self._table.watch(supervisor):
            self._loop.call_soon(self._supervisor_gone, supervisor)

    def _look(self, attempt: _Attempt, pause_s: float) -> None:
        """Does it run? Again and again, until it does or has ended."""
        attempt.look = None
        if (began := attempt.files.record()[0]) is not None:
            self._tell_started(attempt, began)
        elif attempt.key is not None:
            attempt.look = self._loop.call_later(pause_s, self._look, attempt, min(2 * pause_s, MAX_LOOK_S))

    def _tell_started(self, attempt: _Attempt, began: Beginning) -> None:
        if attempt.started:
            return
        attempt.started = True
        if attempt.look is not None:
            attempt.look.cancel()
        self._counts["started"] += 1
        self._listener.started(*attempt.name, began.pid, began.wall_ns)

    # -- to its end --

    def _signal(self, attempt: _Attempt, number: signal.Signals) -> None:
        """To whoever has claimed it."""
        claim = attempt.files.claim()
        if claim is not None and claim.supervisor is not None and attempt.files.boot() == self._boot:
            self._table.kill(claim.supervisor, number)

    def _supervisor_gone(self, supervisor: ProcessKey) -> None:
        attempt = self._supervisors.pop(supervisor, None)
        if attempt is None:
            return
        attempt.key = None
        self._forget_plans(attempt)
        claim = attempt.files.claim()
        if claim is None:
            self._lose(attempt, "its supervisor ended before it began")
        elif claim.supervisor != supervisor:  # the other of two that were asked for has it
            self._take_up(attempt)
        elif attempt.files.record()[1] is not None:
            self._told_by_record(attempt, "")
        else:
            attempt.mourned = True
            if not self._launcher.say(f"bury {attempt.files.name}"):
                self._end_remains(attempt)

    def _end_remains(self, attempt: _Attempt) -> None:
        job, number = attempt.name
        began, uid = attempt.files.record()[0], attempt.files.uid()

        def done(refused: int) -> None:
            attempt.hunt = None
            rest = f" but for {refused} processes that are not ours to end" if refused else ""
            self._told_by_record(attempt, SUPERVISOR_KILLED + rest)

        attempt.hunt = remains.Hunt(self._loop, lambda: remains.find(f"{job}:{number}", uid, began), done)

    def _lose(self, attempt: _Attempt, why: str) -> None:
        """It was not begun, and now never is; unless somebody has."""
        if not attempt.files.is_given_up() and attempt.files.claim() is not None:
            self._take_up(attempt)
        else:
            self._end_soon(attempt, Status("ended", why=attempt.why or why))

    def _told_by_record(self, attempt: _Attempt, otherwise: str) -> None:
        began, end = attempt.files.record()
        if began is not None:
            self._tell_started(attempt, began)
        if end is None:
            end = End(time.time_ns(), None, None, False, otherwise)
        elif end.why == WITHDRAWN and attempt.why:
            end = End(end.wall_ns, end.exit_code, end.signal, end.hopeless, attempt.why)
        self._tell_ended(attempt, _status(began, end), end.wall_ns)

    def _end_soon(self, attempt: _Attempt, status: Status) -> None:
        """Not from within a verb."""
        self._loop.call_soon(self._tell_ended, attempt, status, time.time_ns())

    def _tell_ended(self, attempt: _Attempt, status: Status, wall_ns: int) -> None:
        if self._attempts.get(attempt.name) is not attempt:
            return
        del self._attempts[attempt.name]
        self._told.add(attempt.name)
        if attempt.key is not None:
            del self._supervisors[attempt.key]
            self._table.unwatch(attempt.key)
        self._forget_plans(attempt)
        self._counts["ended"] += 1
        self._counts["failed"] += status.exit_code != 0
        attempt.files.forget_order()
        self._listener.ended(*attempt.name, status, attempt.files.log_tail(), wall_ns)

    def _disown(self, files: AttemptFiles) -> None:
        """Nobody expects it: it does not begin, and if it runs it is asked to end."""
        claim = files.claim()
        if claim is None:
            files.give_up()
        elif claim.supervisor is not None and files.record()[1] is None and files.boot() == self._boot:
            self._table.kill(claim.supervisor, ASKS)

    @staticmethod
    def _forget_plans(attempt: _Attempt) -> None:
        if attempt.look is not None:
            attempt.look.cancel()
        if attempt.hunt is not None:
            attempt.hunt.close()


def _status(began: Beginning | None, end: End) -> Status:
    pid, started = (None, None) if began is None else (began.pid, began.wall_ns)
    return Status("ended", pid, started, end.exit_code, end.signal, end.why, end.hopeless)
