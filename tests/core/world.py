"""A node of one core, no edges: tests give it events in words, and read its effects.

Time stands still until a test moves it. Every step is checked: the promises, the books, and that
the store's rows alone give the same state again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from nodemgr.core.lifecycle import timers
from nodemgr.core.lifecycle.restart import restore
from nodemgr.core.manager import Draft, Transition, step
from nodemgr.core.model import array_rows, encoding, events, job_ids
from nodemgr.core.model.causes import Standing
from nodemgr.core.model.effects import (
    CloseLedger,
    DropCap,
    Effect,
    LowerLimit,
    OpenLedger,
    Publish,
    Save,
    SendDeny,
    SendFence,
    SendGrant,
    SendWait,
    SetCap,
    SetLimit,
    StartJob,
    SubmitAnswered,
)
from nodemgr.core.model.entities import (
    Cause,
    Config,
    Ended,
    FailureKind,
    Gpu,
    GpuRange,
    Grant,
    Job,
    JobPayload,
    JobSpec,
    Quota,
    Ranges,
    RunSpec,
    Task,
    TaskClass,
    Transport,
    Word,
)
from nodemgr.core.placement import xids
from nodemgr.core.state import accounting
from tests.core.invariants import promises

GIB = 1 << 30
MS = 1_000_000
S = 1_000 * MS
WALL = 1_700_000_000 * S
E = TypeVar("E")


def gpu(index: int, gib: int = 80, *, healthy: bool = True) -> Gpu:
    return Gpu(f"GPU-{index}", index, "simulated", gib * GIB, healthy)


class Node:
    """The state, the store as rows of JSON, and the time."""

    def __init__(self, gpus: int = 4, gib: int = 80, **config: Any) -> None:
        self.config = Config(**config)
        self.state = Draft(self.config)
        self.now_ns = 1_000 * S
        self.wall_ns = WALL
        self.store: dict[tuple[str, str], Any] = {}
        self._decoded: dict[tuple[str, str], tuple[Any, Any]] = {}
        """Each row's text, and its value."""
        self.effects: list[Save | Publish | Effect] = []
        """The effects of the last event, and of the events that followed from it."""
        self.wakes = 0
        """Ticks in the time that passed last."""
        self.beats: dict[str, int] = {}
        """When each process was last heard."""
        self.history: dict[str, Ended] = {}
        self.used: dict[tuple[str, str], int] = {}
        """Memory in use by env and GPU index, for the next Tick."""
        self.unkept: dict[tuple[str, str], int] = {}
        """The least of it that tasks without named memory use; else the others use theirs first."""
        self.limits: dict[tuple[str, str], int] = {}
        """The limit in each open ledger, as it was sent last."""
        self.caps: dict[tuple[str, str], SetCap] = {}
        """The cap of each task in an open ledger, as it was sent last."""
        self.orders: list[LowerLimit] = []
        """Orders to lower limits that the ledgers have not answered,"""
        self.holds_orders = False
        """and whether they do so later than at once."""
        self.may_fail = False
        """Entries may be set aside: elsewhere such a fault fails the test."""
        self.up: set[str] = set()
        """Places that were told to be."""
        self.gpus_are([gpu(index, gib) for index in range(gpus)])
        self.place()

    def progresses(self, pid: int, done: int, total: int | None, *, env: str = "a") -> list[Effect]:
        """A process reports its task's progress, a second after what happened last."""
        self.now_ns += S
        key = self.caller(env, pid).process
        return self.happens(events.Progressed(key, done, total, self.wall_ns))

    # -- the edge's part --

    def happens(self, event: events.Event) -> list[Effect]:
        """Steps the event and what follows from it; returns all effects."""
        self.effects = []
        following: events.Event | None = event
        while following is not None:
            alive = dict(self.state.unreclaimed_alive)
            transition = self._step(following)
            for failed in transition.failed if not self.may_fail else ():
                raise failed.cause
            assert promises.check_change(transition, following) == []
            transition.apply()
            self.effects += (*transition.saved, *transition.published, *transition.effects)
            for save in transition.saved:
                self._save(save)
                if save.kind == "grant" and save.value is not None:
                    # A process that left its lease, and asks anew, still uses its memory.
                    grant = (save.value.env, save.value.uuid)
                    self.used.setdefault(grant, alive.get(grant, 0))
            assert promises.check(self.state) == []
            self._ledgers_follow(transition)
            self.orders += [each for each in transition.effects if type(each) is LowerLimit]
            following = transition.then or self._ledger_answers()
        restored, rows = self.restored(), self.rows()
        assert restored.keys() == rows.keys()
        assert restored == rows
        return self.effects

    def _step(self, event: events.Event) -> Transition:
        return step(self.state, event, self.now_ns)

    def _ledgers_follow(self, transition: Transition) -> None:
        """The last limit that was sent for each open ledger is that of the grant.

        And the caps are those of the tasks that named their memory.
        """
        for effect in transition.effects:
            if isinstance(effect, OpenLedger | CloseLedger):
                self.limits = {key: at for key, at in self.limits.items() if key[0] != effect.env}
                self.caps = {key: at for key, at in self.caps.items() if key[0] != effect.env}
            elif isinstance(effect, SetLimit):
                self.limits[effect.env, effect.uuid] = effect.limit_bytes
            elif isinstance(effect, SetCap):
                self.caps[effect.env, effect.task_id] = effect
            elif isinstance(effect, DropCap):
                del self.caps[effect.env, effect.task_id]
        sent = {key: at for key, at in self.limits.items() if at}
        assert sent == self._open_limits()
        assert self.caps == self._open_caps()

    def _open_limits(self) -> dict[tuple[str, str], int]:
        return {
            key: grant.limit_bytes
            for key, grant in self.state.grants.items()
            if grant.limit_bytes and grant.env in self.state.members
        }

    def _open_caps(self) -> dict[tuple[str, str], SetCap]:
        state = self.state
        return {
            (task.env, task.task_id): SetCap(
                task.env,
                task.task_id,
                tuple(state.gpus[uuid].index for uuid in task.gpus),
                task.kept_bytes,
                max(task.kept_bytes, task.run.memory_most_bytes or 0),
            )
            for task in state.tasks.values()
            if task.kept_bytes and task.env in state.members
        }

    def unkept_bytes(self, key: tuple[str, str], used_bytes: int) -> int:
        """The figure of memory in use beyond what is kept for its task."""
        grant = self.state.grants.get(key)
        kept_bytes = 0 if grant is None else grant.kept_bytes
        return max(self.unkept.get(key, 0), used_bytes - kept_bytes, 0)

    def _ledger_answers(self) -> events.LimitLowered | None:
        """The answer to the oldest order to lower a limit, unless the ledger is held up."""
        if not self.orders or self.holds_orders:
            return None
        order = self.orders.pop(0)
        grant = self.state.grants.get((order.env, order.uuid))
        limit_bytes = None
        if grant is not None:
            key = (order.env, order.uuid)
            promised_bytes = grant.kept_bytes + self.unkept_bytes(key, self.used.get(key, 0))
            limit_bytes = min(grant.limit_bytes, max(order.least_bytes, promised_bytes))
        return events.LimitLowered(order.env, order.uuid, order.number, limit_bytes, self.wall_ns)

    def _save(self, save: Save) -> None:
        if save.kind == "history":
            if save.value is None:
                del self.history[save.key]
            else:
                self.history[save.key] = encoding.decode(
                    "history", encoding.encode("history", save.value)
                )
            return
        if isinstance(save.value, JobPayload):
            cwd = save.value.cwd.encode("utf-8", "surrogateescape")
            assert encoding.unpack(cwd, encoding.pack(save.value)) == save.value
            return
        if save.value is None:
            assert self.store.pop((save.kind, save.key), None) is not None, (
                f"{save} deletes nothing"
            )
            if save.kind == "grant":
                env, uuid = save.key.split("/")
                self.used.pop((env, uuid), None)
        else:
            self.store[save.kind, save.key] = encoding.encode(save.kind, save.value)

    def rows(self) -> dict[tuple[str, str], object]:
        return {(kind, key): value for kind, key, value in self.state.rows()}

    def restored(self) -> dict[tuple[str, str], object]:
        """The store's rows as values. A text is decoded once: nothing else has its value."""
        kept = self._decoded
        self._decoded = {
            row: found
            if (found := kept.get(row)) is not None and found[0] is data
            else (data, encoding.decode(row[0], data))
            for row, data in self.store.items()
        }
        return {
            row: value
            for row, (_, value) in self._decoded.items()
            if row[0] != "record" or value.ended_wall_ns is None
        }

    def restart(self, *, gone: Iterable[int] = ()) -> None:
        """kill -9 of the manager, and a new one that finds the store; `gone` died meanwhile."""
        rows = [
            (kind, key, encoding.decode(kind, data)) for (kind, key), data in self.store.items()
        ]
        self.orders = []
        self.state = restore(self.config, rows, self.now_ns)
        assert promises.check(self.state) == []
        self.caps = self._open_caps()
        self.limits = self._open_limits()  # the new manager writes the limits of its rows
        self.beats = {key: self.now_ns for key, _ in self.state.watched()}
        self.gpus_are(sorted(self.state.gpus.values(), key=lambda gpu: gpu.index))
        for pid in gone:
            self.dies(pid)
        self.happens(events.Match(self.wall_ns))
        assert not self.of(StartJob)  # until a launch host is reported
        self.effects = [
            effect for place in sorted(self.up) for effect in (self.place(place), self.effects)[1]
        ]

    # -- what happens --

    def gpus_are(self, gpus: Iterable[Gpu]) -> list[Effect]:
        return self.happens(events.GpusChanged(tuple(gpus), self.wall_ns))

    def fails(
        self,
        index: int,
        xid: int = 79,
        *,
        after_ms: int = 120_000,
    ) -> list[Effect]:
        """The driver reports an XID of the GPU, some time after the last event."""
        self.now_ns += after_ms * MS
        detail = xids.of_hardware(xid)
        assert detail is not None
        return self.happens(events.GpuFault(f"GPU-{index}", FailureKind.XID, detail, self.wall_ns))

    def drains(self, index: int, note: str = "") -> list[Effect]:
        return self.happens(events.DrainGpu(f"GPU-{index}", "root", note, self.wall_ns))

    def undrains(self, index: int) -> list[Effect]:
        return self.happens(events.ResumeGpu(f"GPU-{index}", "root", self.wall_ns))

    def repairs(self, index: int, note: str = "") -> list[Effect]:
        return self.happens(events.RepairGpu(f"GPU-{index}", "root", note, self.wall_ns))

    def reports_failure(self, index: int, note: str = "") -> list[Effect]:
        return self.happens(events.ReportFailure(f"GPU-{index}", "root", note, self.wall_ns))

    def loses(self, index: int) -> list[Effect]:
        return self.gpus_are([known for known in self.state.gpus.values() if known.index != index])

    def place(self, place: str = "", *, up: bool = True, why: str = "") -> list[Effect]:
        """Jobs can be started there, or cannot."""
        self.up = self.up | {place} if up else self.up - {place}
        return self.happens(events.LaunchHostChanged(place, up, why, self.wall_ns))

    def quota(self, env: str, gpus: int, gib: int | None = None, **more: Any) -> list[Effect]:
        """`gib`: the env's memory quota over all its GPUs."""
        quota = Quota(gpus, None if gib is None else gib * GIB, **more)
        return self.happens(events.SetQuota(env, quota, "root", self.wall_ns))

    def caller(
        self,
        env: str,
        pid: int,
        *,
        udp: bool = False,
        ancestors: tuple[int, ...] = (),
        job_id: str | None = None,
    ) -> events.Caller:
        return events.Caller(
            connection=pid,
            env=env,
            process=key(pid, udp=udp),
            transport=Transport.UDP if udp else Transport.UNIX,
            pid=None if udp else pid,
            user="ann",
            ancestors=ancestors,
            job_id=job_id,
        )

    def asks(
        self,
        env: str,
        pid: int,
        gpus: int | None = None,
        *,
        gib: int | None = None,
        token: str = "",
        world: int = 1,
        wait_ms: int | None = None,
        udp: bool = False,
        ancestors: tuple[int, ...] = (),
        job_id: str | None = None,
        rid: str = "",
        used_gib: Mapping[int, int] | None = None,
        task_class: TaskClass | None = None,
        percent: int | None = None,
        deadline_ms: int | None = None,
        gated: bool = False,
        most: int | None = None,
        elastic: bool = False,
        worker: int | None = None,
        most_gib: int | None = None,
        starts: bool = False,
        expected_ms: int | None = None,
    ) -> list[Effect]:
        """A process asks for GPUs; each has a token of its own unless one is named."""
        caller = self.caller(env, pid, udp=udp, ancestors=ancestors, job_id=job_id)
        self.beats[caller.process] = self.now_ns
        used = {
            f"GPU-{index}": self.unkept_bytes((env, f"GPU-{index}"), size * GIB)
            for index, size in (used_gib or {}).items()
        }
        return self.happens(
            events.Acquire(
                caller,
                rid or f"a{pid}",
                token or f"token{pid}",
                RunSpec(
                    "python train.py",
                    gpus or 0,
                    None if gib is None else gib * GIB,
                    None,
                    deadline_ms=deadline_ms,
                    expected_ms=expected_ms,
                    gpu_range=None if most is None else GpuRange(most, elastic),
                    memory_most_bytes=None if most_gib is None else most_gib * GIB,
                ),
                world,
                wait_ms,
                self.wall_ns,
                used,
                gpus is None,
                task_class,
                percent,
                gated,
                None if worker is None else f"GPU-{worker}",
                starts,
            )
        )

    def says(self, env: str, pid: int, word: Word, index: int) -> list[Effect]:
        """The leader of an elastic task speaks about a GPU."""
        caller = self.caller(env, pid)
        return self.happens(
            events.ElasticWord(caller, f"w{pid}", word, f"GPU-{index}", self.wall_ns)
        )

    def cancels(self, env: str, pid: int, *, rid: str = "") -> list[Effect]:
        return self.happens(events.Cancel(self.caller(env, pid), rid or f"a{pid}", self.wall_ns))

    def releases(
        self, env: str, pid: int, *, udp: bool = False, peak_bytes: int | None = 0
    ) -> list[Effect]:
        caller = self.caller(env, pid, udp=udp)
        return self.happens(events.Release(caller, f"l{pid}", self.wall_ns, peak_bytes))

    def rejoins(
        self, env: str, pid: int, task: str, slot: int | None, generation: int
    ) -> list[Effect]:
        return self.happens(
            events.Rejoin(
                self.caller(env, pid),
                f"j{pid}",
                f"token{pid}",
                task,
                slot,
                generation,
                self.wall_ns,
            )
        )

    def dies(
        self,
        pid: int,
        unreclaimed_gib: Mapping[int, int] | None = None,
        *,
        peak_bytes: int | None = 0,
    ) -> list[Effect]:
        unreclaimed = {
            f"GPU-{index}": size * GIB for index, size in (unreclaimed_gib or {}).items()
        }
        return self.happens(events.ProcessGone(key(pid), self.wall_ns, unreclaimed, peak_bytes))

    def disconnects(self, pid: int) -> list[Effect]:
        return self.happens(events.Disconnected(pid))

    def driver_shows(self, pid: int, index: int, gib: int) -> list[Effect]:
        """The driver shows this memory of a lost process."""
        return self.happens(
            events.UnreclaimedChanged(key(pid), f"GPU-{index}", gib * GIB, self.wall_ns)
        )

    def audit_sees(
        self, *seen: events.Seen, gpus: Iterable[int] | None = None, none_exported: bool = False
    ) -> list[Effect]:
        """One look at the driver, at all GPUs or at these."""
        read = self.state.gpus if gpus is None else [f"GPU-{index}" for index in gpus]
        ownerless = dict.fromkeys(read, 0) if none_exported else {}
        return self.happens(events.Audited(frozenset(read), seen, self.wall_ns, ownerless))

    def beats_again(self, env: str, pid: int) -> list[Effect]:
        self.beats[key(pid)] = self.now_ns
        return self.happens(events.Beat(self.caller(env, pid), None, self.wall_ns))

    def raises_its_word(self, pid: int) -> list[Effect]:
        self.beats[key(pid)] = self.now_ns
        return self.happens(events.Heard(key(pid), self.wall_ns))

    def passes(self, ms: int, *, silent: Iterable[int] = ()) -> list[Effect]:
        """Time passes, with a Tick whenever one is due; all processes but the silent beat."""
        end_ns = self.now_ns + ms * MS
        mute = {key(pid) for pid in silent} | {key(pid, udp=True) for pid in silent}
        every: list[Effect] = []
        at_once = self.wakes = 0
        while (wake_ns := self.state.wake_ns()) is not None and wake_ns <= end_ns:
            at_once = at_once + 1 if wake_ns <= self.now_ns else 0
            assert at_once < 20, "the manager does not sleep"
            self.now_ns = max(self.now_ns, wake_ns)
            self._beat_all_but(mute)
            every += self.ticks()
            self.wakes += 1
        self.now_ns = end_ns
        self._beat_all_but(mute)
        self.effects = every
        return every

    def _beat_all_but(self, mute: set[str]) -> None:
        for process, _ in self.state.watched():
            if process not in mute:
                self.beats[process] = self.now_ns

    def ticks(self) -> list[Effect]:
        grants = [(grant.env, grant.uuid) for grant in timers.watched_grants(self.state)]
        used = {grant: self.used[grant] for grant in grants}
        unkept = {key: self.unkept_bytes(key, used_bytes) for key, used_bytes in used.items()}
        return self.happens(events.Tick(self.wall_ns, *self.heard(), used, unkept))

    def heard(self) -> tuple[frozenset[str], int | None]:
        """Tick.silent and Tick.oldest_ns, of `beats`."""
        before_ns = self.now_ns - self.config.timeout_ms * MS
        watched = {
            process: self.beats.get(process, self.now_ns) for process, _ in self.state.watched()
        }
        silent = frozenset(process for process, last_ns in watched.items() if last_ns <= before_ns)
        return silent, min(
            (last_ns for last_ns in watched.values() if last_ns > before_ns), default=None
        )

    def uses(self, env: str, index: int, gib: int) -> None:
        """The figures of the env's ledger and the driver at the next Tick."""
        self.used[env, f"GPU-{index}"] = gib * GIB

    def admin_releases(self, task: str, *, env: str | None = None) -> list[Effect]:
        return self.happens(events.ReleaseTask(task, "root", self.wall_ns, env))

    def suspends(self, task: str, *, env: str | None = None) -> list[Effect]:
        return self.happens(events.SuspendTask(task, "root", self.wall_ns, env))

    def are_idle(self, **idle_ms: int) -> list[Effect]:
        """By task: the time without a use of a GPU."""
        return self.happens(events.IdleSeen(idle_ms, self.wall_ns))

    def keeps(self, task: str, ms: int, *, env: str | None = None) -> list[Effect]:
        return self.happens(events.KeepTask(task, "root", ms, self.wall_ns, env))

    def is_measured(self, task: str, memory_bytes: int) -> list[Effect]:
        return self.happens(events.SuspensionMeasured(task, memory_bytes, self.wall_ns))

    def is_out(self, task: str) -> list[Effect]:
        """The suspension process reports that no process of the task has device memory."""
        return self.happens(events.Suspended(task, self.wall_ns))

    def is_suspended(self, task: str) -> list[Effect]:
        """All of a suspension."""
        self.suspends(task)
        return self.is_out(task)

    def resumes(self, task: str, *, env: str | None = None) -> list[Effect]:
        return self.happens(events.ResumeTask(task, "root", self.wall_ns, env))

    def is_back(self, task: str) -> list[Effect]:
        return self.happens(events.Resumed(task, self.wall_ns))

    def suspension_fails(self, task: str, *, is_out: bool = False) -> list[Effect]:
        return self.happens(events.SuspendFailed(task, "busy", self.wall_ns, is_out))

    def resume_fails(self, task: str, *, is_out: bool = True, again: bool = False) -> list[Effect]:
        return self.happens(events.ResumeFailed(task, "no room", self.wall_ns, is_out, again))

    def removes(self, env: str) -> list[Effect]:
        return self.happens(events.RemoveQuota(env, "root", self.wall_ns))

    # -- jobs --

    def submits(self, env: str, **more: Any) -> str | None:
        """One submission (world.submission); the id of the job, or None: refused."""
        self.happens(events.SubmitJobs((submission(env, **more),), self.wall_ns))
        return self.of(SubmitAnswered)[0].job_id

    def assigns(self, env: str, key: str = "hq/1/c1/1", number: int = 1, **more: Any) -> str | None:
        """A head's assignment, or the same again; the id of the job here, or None: refused."""
        named = {name: more.pop(name) for name in ("waited_ns", "refusal") if name in more}
        return self.submits(env, assigned=events.Assigned(key, number, **named), **more)

    def acknowledges(self, *keys: str, head: str = "hq", below: int = 0) -> list[Effect]:
        return self.happens(events.AcknowledgeEnds(head, keys, below, self.wall_ns))

    def begins(self, job_id: str, attempt: int | None = None) -> list[Effect]:
        """Its process runs."""
        number = self.state.jobs[job_id].attempt if attempt is None else attempt
        return self.happens(events.JobStarted(job_id, number, 4_000 + number, self.wall_ns))

    def job_ends(self, job_id: str, exit_code: int | None = 0, **more: Any) -> list[Effect]:
        """The attempt under way, or the one that `more` names."""
        job = self.state.jobs.get(job_id)
        facts: dict[str, Any] = {
            "job_id": job_id,
            "attempt": 0 if job is None else job.attempt,
            "exit_code": exit_code,
            "signal": None,
            "why": "",
            "cause": Cause.OWN,
            "log_tail": "the last line\n",
            "started_wall_ns": None,
            "wall_ns": self.wall_ns,
        }
        return self.happens(events.JobEnded(**(facts | more)))

    def gives_back(self, *attempts: tuple[str, int], why: str = "nobody is there") -> list[Effect]:
        """No supervisor could begin these."""
        return self.happens(events.JobRequeuedBeforeStart(attempts, why, self.wall_ns))

    def job(self, job_id: str) -> Job:
        """The job as it is, or as it ended; also one in its array's row."""
        row = job_ids.array_of(job_id)
        found = self.state.jobs.get(job_id) or array_rows.within(
            self.state.jobs.get(row or ""), job_id
        )
        return found or self.history[job_id].job

    def withdraws(self, job_id: str) -> list[Effect]:
        return self.happens(events.WithdrawJob(job_id, "root (uid 0)", self.wall_ns))

    def holds(self, job_id: str) -> list[Effect]:
        return self.happens(events.HoldJob(job_id, "root (uid 0)", self.wall_ns))

    def frees(self, job_id: str) -> list[Effect]:
        return self.happens(events.UnholdJob(job_id, "root (uid 0)", self.wall_ns))

    def moves(self, job_id: str, queue: str | None = None, *, first: bool = False) -> list[Effect]:
        return self.happens(events.MoveJob(job_id, queue, first, "root (uid 0)", self.wall_ns))

    def requeues(self, job_id: str, *, by_admin: bool = False) -> list[Effect]:
        over, row = self.history.get(job_id), None
        if over is None and (array := job_ids.array_of(job_id)) in self.history:
            over = self.history[array]
            row = over.job
        job, spec = (None, None) if over is None else (over.job, over.spec)
        if row is not None:
            job = array_rows.element(row, job_id)
        return self.happens(
            events.RequeueJob(job_id, "root (uid 0)", self.wall_ns, job, spec, by_admin, row)
        )

    def queued_jobs(self) -> list[str]:
        """The queued jobs in the order of service."""
        return [
            name
            for request, _ in self.state.waiting()
            if request.job_id is not None
            for name in self.jobs_of(self.state.jobs[request.job_id])
        ]

    @staticmethod
    def jobs_of(row: Job) -> list[str]:
        """The job, or those that wait in an array's row."""
        if not row.indices:
            return [row.job_id]
        return [array_rows.name(row, index) for index in array_rows.numbers(row.indices)]

    # -- what there is to see --

    def of(self, kind: type[E]) -> list[E]:
        """The last event's effects of one kind."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def granted(self, pid: int) -> SendGrant | None:
        return next((effect for effect in self.of(SendGrant) if effect.connection == pid), None)

    def told(self, pid: int) -> Standing | None:
        sent = (effect for effect in self.of(SendWait) if effect.connection == pid)
        return next((effect.standing for effect in sent), None)

    def denied(self, pid: int) -> SendDeny | None:
        return next((effect for effect in self.of(SendDeny) if effect.connection == pid), None)

    def fenced(self, pid: int) -> SendFence | None:
        return next((effect for effect in self.of(SendFence) if effect.connection == pid), None)

    def published(self, name: str) -> list[dict[str, Any]]:
        return [dict(effect.fields) for effect in self.of(Publish) if effect.name == name]

    def task(self, pid: int, *, udp: bool = False) -> Task | None:
        """The task that the process is a member of."""
        process = self.state.processes.get(key(pid, udp=udp))
        return None if process is None or process.fenced else self.state.tasks[process.task_id]

    def gpus_of(self, pid: int, *, udp: bool = False) -> list[int] | None:
        task = self.task(pid, udp=udp)
        return None if task is None else [self.state.gpus[uuid].index for uuid in task.gpus]

    def grant(self, env: str, index: int) -> Grant | None:
        return self.state.grants.get((env, f"GPU-{index}"))

    def grant_gib(self, env: str, index: int) -> tuple[float, float] | None:
        """The memory of a grant, and the part of it that the ledger gives."""
        grant = self.grant(env, index)
        return None if grant is None else (grant.memory_bytes / GIB, grant.limit_bytes / GIB)

    def waiting(self) -> list[int]:
        """The PIDs of the first asker of each waiting request, in the order of service."""
        return [
            int(request.askers[0].process.split(":")[1])
            for request, _ in self.state.waiting()
            if request.askers
        ]

    def remaining_gib(self, index: int) -> float:
        return accounting.gpu_remaining(self.state, self.state.gpus[f"GPU-{index}"]) / GIB

    def used_gpus(self, env: str) -> list[str]:
        """`used` in docs/allocation.md."""
        return [gpu.uuid for gpu in accounting.used_gpus(self.state, env)]


def seen(
    pid: int, index: int, gib: float, env: str | None = None, *, charged_gib: float = 0
) -> events.Seen:
    """The driver's figure of a process on one GPU."""
    return events.Seen(
        key(pid),
        pid,
        f"GPU-{index}",
        int(gib * GIB),
        env,
        int(charged_gib * GIB),
        "python train.py",
    )


def _ranges(numbers: Iterable[int]) -> Ranges:
    """A number that is given twice stands there twice."""
    rows = [(number, number) for number in numbers]
    return array_rows.joined(rows) if len({*rows}) == len(rows) else tuple(rows)


def submission(env: str, ref: int = 1, **more: Any) -> events.Submission:
    """A user's `python train.py` as a job; `more` may name fields of its RunSpec, too."""
    spec = JobSpec("", "ann", 1000, 1000)
    payload = JobPayload(("python", "train.py"), "/home/ann", ("HOME=/home/ann",))
    defaults: dict[str, Any] = {
        "name": "train",
        "priority": None,
    }
    gpus, array = more.pop("gpus", None), _ranges(more.pop("array", ()))
    run = RunSpec(
        more.pop("command", "python train.py"),
        gpus or 0,
        more.pop("memory_bytes", None),
        more.pop("time_limit_ms", None),
        more.pop("place", ""),
        deadline_ms=more.pop("deadline_ms", None),
        expected_ms=more.pop("expected_ms", None),
        predicted=more.pop("predicted", ()),
        gpu_range=more.pop("gpu_range", None),
        memory_most_bytes=more.pop("memory_most_bytes", None),
        cpus=more.pop("cpus", None),
        host_memory_bytes=more.pop("host_memory_bytes", None),
        is_memory_filled=more.pop("is_memory_filled", False),
    )
    return events.Submission(
        ref=ref,
        by="ann (uid 1000)",
        env=env,
        run=run,
        is_default=gpus is None,
        array=array,
        **({"spec": spec, "payload": payload} | defaults | more),
    )


def key(pid: int, *, udp: bool = False) -> str:
    return f"udp:{pid}" if udp else f"unix:{pid}:1"
