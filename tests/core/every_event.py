"""One node to which every event of the core may happen, with all features at once.

Knows: for each event, how a busy node comes by it. Must not know: what a decision should be. That
is checked in test_every_event.py, by conditions that hold whatever happened.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from nodemgr.core.lifecycle import exported
from nodemgr.core.manager import Transition
from nodemgr.core.model import array_rows, events
from nodemgr.core.model.entities import (
    UNDER_WAY,
    FailureKind,
    GpuRange,
    JobState,
    Offence,
    Process,
    QueueRow,
    Suspension,
    Task,
    TaskClass,
    TaskState,
    Transport,
    Word,
)
from tests.core.twin import TwinNode
from tests.core.world import GIB, gpu, key, seen

EXEMPT_MS = 3_000
SIZES_GIB = (80, 80, 80, 40)
ENVS = ("alice", "bob", "carol", "dora")
CLASSES = (None, *TaskClass, TaskClass.BEST_EFFORT, TaskClass.BEST_EFFORT)
CONTENDING = (TaskClass.LATENCY_SENSITIVE, TaskClass.BEST_EFFORT, TaskClass.BEST_EFFORT)
PERCENTS = (None, 30, 35, 60, 100)
PLACES = ("", "", "", "alice/1000/dev")
T = TypeVar("T")


class Recorded(TwinNode):
    """A node that remembers the events of its last steps."""

    def __init__(self, gpus: int, **config: int) -> None:
        self.kinds: set[type] = set()
        super().__init__(gpus, **config)

    def _step(self, event: events.Event) -> Transition:
        self.kinds = {*self.kinds, type(event)}
        return super()._step(event)


class Everything:
    """The events of the node; `dice` decides."""

    def __init__(self, dice: random.Random, *, contends: bool = False) -> None:
        """`contends`: two classes alone, so that best effort is preempted again and again."""
        self.dice = dice
        self.node = Recorded(
            0, max_tasks_per_gpu=4, requeue_pause_ms=2_000, max_env_cpu_jobs=2,
            preempt_exempt_ms=EXEMPT_MS, node_cpus=6, node_memory_bytes=64 * GIB,
        )  # fmt: skip
        self.pids = self.assigned = 0
        self.classes = CONTENDING if contends else CLASSES
        self.percents = (60, 100) if contends else PERCENTS
        self.silent: set[int] = set()
        self.lost: set[int] = set()
        self.exported: dict[str, int] = {}
        """Bytes of no process on each GPU."""
        self._inventory()
        for env in ENVS:
            self.node.quota(env, 2, 120, task_class=TaskClass.LATENCY_SENSITIVE)

    def one(self, options: Sequence[T]) -> T:
        return self.dice.choice(options)

    def chance(self, part: float) -> bool:
        return self.dice.random() < part

    # -- what there is --

    def members(self) -> list[Process]:
        rows = self.node.state.processes.values()
        return sorted((row for row in rows if not row.fenced), key=lambda row: row.key)

    def askers(self) -> list[tuple[str, int, bool]]:
        """Environment, number and transport (UDP?) of each process that waits."""
        rows = self.node.state.requests.values()
        found = [(row.env, asker) for row in rows for asker in row.askers]
        return sorted((env, number(a.process), a.transport is Transport.UDP) for env, a in found)

    def tasks(self, *suspensions: Suspension) -> list[Task]:
        rows = self.node.state.tasks.values()
        found = [row for row in rows if not suspensions or row.suspension in suspensions]
        return sorted(found, key=lambda row: row.task_id)

    def stalled(self) -> list[Process]:
        tasks = self.node.state.tasks
        stalled = TaskState.STALLED
        silent = self.node.state.silent_jobs
        return [
            row
            for row in self.members()
            if tasks[row.task_id].state is stalled or row.task_id in silent
        ]

    def leaders(self) -> list[str]:
        return sorted(row.task_id for row in self.node.state.elastics.values() if row.leader)

    def jobs(self, *states: JobState) -> list[str]:
        rows = self.node.state.jobs.values()
        return sorted(row.job_id for row in rows if not states or row.state in states)

    def names(self) -> list[str]:
        """The names of orders: jobs, arrays, and those of an array that wait as one row."""
        rows = self.node.state.jobs.values()
        return sorted(
            {row.job_id for row in rows}
            | {array_rows.waiting(row) for row in rows}
            | {name for row in rows for name in self.node.jobs_of(row)}
        )

    def _inventory(self) -> None:
        there = [(i, size) for i, size in enumerate(SIZES_GIB) if i not in self.lost]
        self.node.gpus_are([gpu(i, size) for i, size in there])

    # -- processes --

    def ask(self) -> None:
        """A new task, or one more process of a task or of a request."""
        self.pids += 1
        there = [*self.tasks(), *self.node.state.requests.values()]
        tokens = [(row.env, row.token) for row in there if row.token]
        env, token = self.one(tokens) if tokens and self.chance(0.25) else ("", "")
        udp, memory = not token and self.chance(0.1), self.dice.randrange(5)
        least = self.one((None, 1, 1, 1, 1, 2, 3)) if not udp else 1
        most = None if udp or least is None or self.chance(0.7) else self.one((least, least + 2))
        self.node.asks(
            env or self.one(ENVS), self.pids, least, token=token,
            gib=30 if memory == 1 else 10 if memory == 2 else None,
            most_gib=30 if memory == 2 and not udp else None,
            wait_ms=self.one((None, None, None, 0, 8_000)), udp=udp, world=self.one((1, 1, 1, 2)),
            task_class=self.one(self.classes), percent=self.one(self.percents),
            deadline_ms=self.one((None, 20_000, 90_000)), gated=self.chance(0.8),
            most=most, elastic=most is not None and self.chance(0.8),
        )  # fmt: skip

    def speak(self) -> None:
        """A word of an elastic task's leader: mostly one that fits."""
        lease = self.node.state.elastics[self.one(self.leaders())]
        recalled = [recall.uuid for recall in lease.recalls]
        word, uuid = self.one(tuple(Word)), f"GPU-{self.dice.randrange(len(SIZES_GIB))}"
        if recalled and self.chance(0.6):
            word, uuid = Word.LEFT, self.one(recalled)
        elif lease.offered and self.chance(0.8):
            word, uuid = self.one((Word.ACCEPTED, Word.DECLINED)), self.one(lease.offered)
        env = self.node.state.tasks[lease.task_id].env
        self.node.says(env, number(lease.leader), word, number(uuid, "-"))

    def answer_order(self) -> None:
        """The ledgers are held up, or go on; and one answers an old order once more."""
        self.node.holds_orders = self.chance(0.3)
        uuid = f"GPU-{self.dice.randrange(len(SIZES_GIB))}"
        self.node.happens(events.LimitLowered(self.one(ENVS), uuid, 0, None, self.node.wall_ns))

    def cancel(self) -> None:
        env, pid, _ = self.one([row for row in self.askers() if not row[2]])
        self.node.cancels(env, pid)

    def rejoin(self) -> None:
        process = self.one([row for row in self.members() if row.pid is not None])
        assert process.pid is not None
        named = process.env, process.pid, process.task_id, process.slot
        self.node.rejoins(*named, process.generation)

    def beat(self) -> None:
        process = self.one([row for row in self.members() if row.pid is not None])
        assert process.pid is not None
        self.silent.discard(process.pid)
        self.node.beats_again(process.env, process.pid)

    def raise_word(self) -> None:
        process = self.one(self.stalled())
        self.silent.discard(number(process.key))
        self.node.raises_its_word(number(process.key))

    def release(self) -> None:
        waiting = [(env, pid, udp) for env, pid, udp in self.askers() if self.chance(0.3)]
        holding = [(row.env, number(row.key), row.pid is None) for row in self.members()]
        env, pid, udp = self.one(holding + waiting)
        self.node.releases(env, pid, udp=udp)

    def disconnect(self) -> None:
        """It comes back later, or stays away."""
        env, pid, _ = self.one([row for row in self.askers() if not row[2]])
        (asker,) = [
            (row, each)
            for row in self.node.state.requests.values()
            for each in row.askers
            if each.process == key(pid)
        ]
        self.node.disconnects(pid)
        if self.chance(0.7):
            self.node.passes(self.one((100, 1_000)), silent=self.silent)
        if self.chance(0.6) and key(pid) in self.node.state.request_of:
            self.node.asks(env, pid, 1, token=asker[0].token or f"token{pid}", rid=asker[1].rid)

    def die(self) -> None:
        local = [number(row.key) for row in self.members() if row.pid is not None]
        waiting = [pid for _, pid, udp in self.askers() if not udp and self.chance(0.3)]
        pid = self.one(local + waiting)
        self.silent.discard(pid)
        self.node.dies(pid, self.one(({}, {}, {}, {self.dice.randrange(4): 5})))

    def left_by_processes(self) -> list[tuple[str, str]]:
        rows = self.node.state.unreclaimed
        return sorted(key for key, row in rows.items() if not row.is_exported)

    def exported_stays(self) -> None:
        """Processes have ended, and a part of what they had stays; or such memory was freed."""
        uuid = self.one(sorted(self.node.state.gpus))
        ended = tuple(
            events.EndedUse(uuid, self.one((*ENVS, None)), self.one((1, 5)) * GIB, word * GIB)
            for word in self.one(((), (0,), (1,), (5, 1)))
        )
        grown = self.one((0, 1, 3)) * GIB if ended else 0
        there = max(0, self.exported.get(uuid, 0) - self.one((0, 0, 2)) * GIB) + grown
        self.exported[uuid] = there
        shown, grew = {uuid: there if there > GIB else 0}, {uuid: grown}
        before = exported.claims(self.node.state, uuid)
        self.node.happens(
            events.Audited(frozenset(shown), (), self.node.wall_ns, shown, ended, grew)
        )
        now = exported.claims(self.node.state, uuid)
        assert sum(now.values()) <= shown[uuid]
        for env in now:
            had = sum(use.memory_bytes for use in ended if use.env == env)
            assert now[env] <= before.get(env, 0) + min(had, grown)

    def driver_reads(self) -> None:
        process, uuid = self.one(self.left_by_processes())
        gib = self.one((0, 0, 0, 3))
        reading = events.UnreclaimedChanged(process, uuid, gib * GIB, self.node.wall_ns)
        self.node.happens(reading)

    def pass_time(self) -> None:
        if self.members() and self.chance(0.3):
            task = self.node.state.tasks[self.one(self.members()).task_id]
            self.silent |= {number(member) for member in task.processes}
        self.node.passes(self.one((200, 1_000, 3_000, 6_000, 12_000)), silent=self.silent)
        self.node.ticks()

    def use(self) -> None:
        """Memory is allocated or freed; the next figures show it."""
        env, uuid = self.one(sorted(self.node.state.grants))
        limit = self.node.state.grants[env, uuid].limit_bytes
        self.node.used[env, uuid] = limit * self.dice.randint(0, 4) // 4
        self.match()

    # -- suspension, idle policy, audits --

    def suspend(self) -> None:
        self.node.suspends(self.one(self.tasks()).task_id)

    def resume(self) -> None:
        self.node.resumes(self.one(self.tasks()).task_id)

    def keep(self) -> None:
        self.node.keeps(self.one(self.tasks()).task_id, self.one((1_000, 60_000)))

    def idle(self) -> None:
        """Some tasks have been idle, and the next look finds the same."""
        idle = {row.task_id: self.one((0, 5_000, 90_000)) for row in self.tasks()}
        self.node.are_idle(**idle)
        if self.chance(0.5):
            self.node.passes(30_000, silent=self.silent)
            self.node.are_idle(**{task: ms + 30_000 for task, ms in idle.items() if ms})

    def measured(self) -> None:
        task = self.one(self.tasks(Suspension.SUSPENDING))
        self.node.is_measured(task.task_id, self.dice.randint(0, 3) << 30)

    def is_out(self) -> None:
        self.node.is_out(self.one(self.tasks(Suspension.SUSPENDING)).task_id)

    def suspension_fails(self) -> None:
        task = self.one(self.tasks(Suspension.SUSPENDING))
        self.node.suspension_fails(task.task_id, is_out=self.chance(0.3))

    def is_back(self) -> None:
        self.node.is_back(self.one(self.tasks(Suspension.RESUMING)).task_id)

    def resume_fails(self) -> None:
        task, is_out = self.one(self.tasks(Suspension.RESUMING)), self.chance(0.6)
        self.node.resume_fails(task.task_id, is_out=is_out, again=is_out and self.chance(0.5))

    def audit(self) -> None:
        """A look at the driver: a process without a lease, or one with too much."""
        index = self.dice.randrange(len(SIZES_GIB))
        found = [row for row in self.members() if row.pid is not None]
        pid, env = 100_000, None
        if found and self.chance(0.5):
            process = self.one(found)
            pid, env = number(process.key), process.env
        self.node.audit_sees(seen(pid, index, self.one((1, 20)), env), gpus=[index])

    def audit_compute(self) -> None:
        process = self.one(self.members())
        offence = self.one((Offence.OVER_SHARE, Offence.GARBLED_GATE))
        finding = events.ComputeFinding(offence, process.key, "GPU-0", 60, 30)
        findings = (finding,) if self.chance(0.5) else ()
        self.node.happens(events.ComputeAudited(findings, self.node.wall_ns))

    def miss_gate(self) -> None:
        process = self.one(self.members())
        self.node.happens(events.GateMissed(process.key, "no page", self.node.wall_ns))

    def progress(self) -> None:
        """Some reports of one process: the pace of a task in its time, or behind it."""
        process = self.one(self.members())
        before = self.node.state.progress.get(process.task_id)
        done = 0 if before is None else before.done
        for _ in range(self.dice.randint(1, 4)):
            done = min(100, done + self.one((1, 1, 10)))
            self.node.now_ns += 1_000_000_000
            report = events.Progressed(process.key, done, 100, self.node.wall_ns)
            self.node.happens(report)

    # -- jobs and queues --

    def submit(self) -> None:
        gpus, newest = self.one((None, 0, 1, 1, 1, 2, 3)), self.names()
        least = gpus or 1
        self.node.submits(
            self.one(ENVS), gpus=gpus, memory_bytes=self.one((None, None, 10 * GIB)),
            time_limit_ms=self.one((None, 20_000, 90_000)), task_class=self.one(self.classes),
            expected_ms=self.one((None, None, 30_000)), compute_percent=self.one(self.percents),
            gpu_range=self.one((None,) * 5 + (GpuRange(least + 1, True), GpuRange(least + 1))),
            after=(self.one(newest),) if newest and self.chance(0.2) else (),
            array=self.one(((), (), (), (0, 1, 2), (3, 4, 9))),
            max_restarts=self.one((None, 0, 2)),
            hold=self.chance(0.1), place=self.one(PLACES),
            priority=self.one((None, None, "low", "normal")),
            cpus=self.one((None,) * 4 + (1, 2, 4)),
            host_memory_bytes=self.one((None,) * 5 + (10 * GIB, 40 * GIB)),
        )  # fmt: skip

    def assign(self) -> None:
        """A head gives a job, or names an earlier one again."""
        known = sorted(self.node.state.assignments)
        if known and self.chance(0.4):
            key = self.one(known)
            row = self.node.state.assignments[key]
            self.node.assigns(row.env, key, row.number, gpus=1)
            return
        self.assigned += 1
        self.node.assigns(
            self.one(ENVS), f"hq/1/j{self.assigned}/1", self.assigned, gpus=self.one((0, 1, 1, 2)),
            time_limit_ms=self.one((None, 20_000)), task_class=self.one(self.classes),
            compute_percent=self.one(self.percents), refusal=self.one(("", "", "", "not here")),
            waited_ns=self.one((0, 5_000_000_000)), priority=self.one((None, "low")),
        )  # fmt: skip

    def acknowledge(self) -> None:
        rows = self.node.state.assignments
        keys = [key for key in sorted(rows) if self.chance(0.5)]
        self.node.acknowledges(*keys, below=self.assigned + self.one((0, 1)))

    def begin(self) -> None:
        self.node.begins(self.one(self.jobs(*UNDER_WAY)))

    def end_job(self) -> None:
        """It is reported, and once more by a supervisor that did not hear the answer."""
        job_id = self.one(self.jobs(*UNDER_WAY))
        attempt = self.node.state.jobs[job_id].attempt
        for _ in range(self.one((1, 1, 2))):
            self.node.job_ends(job_id, self.one((0, 0, 0, 1)), attempt=attempt)

    def give_back(self) -> None:
        """Its place goes down before the attempt could begin."""
        job_id = self.one(self.jobs(JobState.STARTING))
        job = self.node.state.jobs[job_id]
        self.node.place(job.run.place, up=False)
        self.node.gives_back((job_id, job.attempt))

    def place(self) -> None:
        self.node.place(self.one(PLACES), up=self.chance(0.85))

    def take_names(self) -> None:
        newest = self.node.state.jobs and max(
            number(each.split(".")[0], "j") for each in self.jobs()
        )
        self.node.happens(events.NamesTaken((newest or 0) + 1, self.node.wall_ns))

    def withdraw(self) -> None:
        self.node.withdraws(self.one(self.names()))

    def hold(self) -> None:
        self.node.holds(self.one(self.names()))

    def unhold(self) -> None:
        self.node.frees(self.one(self.names()))

    def requeue(self) -> None:
        ended = [name for row in self.node.history.values() for name in self.node.jobs_of(row.job)]
        known = self.names() + sorted({*self.node.history, *ended})
        self.node.requeues(self.one(known), by_admin=self.chance(0.5))

    def move(self) -> None:
        queue = self.one(("low", "normal", "high", None))
        self.node.moves(self.one(self.names()), queue, first=queue is None or self.chance(0.2))

    def order_all(self) -> None:
        """Several orders of one kind, as `nodemgr queue` gives for a filter."""
        kind = self.one((events.WithdrawJob, events.HoldJob, events.UnholdJob))
        known, wall_ns = self.names(), self.node.wall_ns
        named = [each for each in known if self.chance(0.3)] or known[:1]
        orders = tuple(kind(each, "root (uid 0)", wall_ns) for each in named)
        self.node.happens(events.OrderAll(orders, wall_ns))

    def set_queue(self) -> None:
        cap = self.one((None, None, 4))
        row = QueueRow(self.one(("night", "normal")), self.one((50, 200, 400)), cap)
        self.node.happens(events.SetQueue(row, "root", self.node.wall_ns))

    def remove_queue(self) -> None:
        self.node.happens(events.RemoveQueue("night", "root", self.node.wall_ns))

    # -- administrators and hardware --

    def set_quota(self) -> None:
        self.node.quota(
            self.one(ENVS), self.one((0, 1, 2, 2, 3, 4)), self.one((None, None, 80, 160)),
            task_class=self.one((*TaskClass, TaskClass.LATENCY_SENSITIVE)),
            compute_percent=self.one(self.percents), priority=self.one(("high", "normal", "low")),
            idle_ms=self.one((None, 10_000)), when_idle=self.one(("keep", "suspend", "release")),
            default_gpus=self.one((None, 1)), borrow=self.one((0, 0, 1)),
            placement=self.one((None, "pack", "spread")), enforce=self.one((None, "warn", "fence")),
            cpus=self.one((None, None, None, 2, 4)),
            host_memory_bytes=self.one((None, None, None, 20 * GIB)),
            forecast=self.one(("on", "off")),
        )  # fmt: skip

    def remove_quota(self) -> None:
        """The environment is removed with its processes, and made again."""
        env = self.one(ENVS)
        self.node.removes(env)
        for row in [row for row in self.node.state.processes.values() if row.env == env]:
            if row.pid is not None:
                self.node.dies(row.pid)
        self.node.quota(env, 2, 120, task_class=TaskClass.LATENCY_SENSITIVE)

    def lose_or_restore(self) -> None:
        self.lost ^= {self.one(sorted(self.lost) or range(len(SIZES_GIB)))}
        self._inventory()

    def hardware_fails(self) -> None:
        uuid, wall_ns = f"GPU-{self.dice.randrange(len(SIZES_GIB))}", self.node.wall_ns
        self.node.happens(events.GpuFault(uuid, FailureKind.XID, "XID 79", wall_ns))

    def report_failure(self) -> None:
        self.node.reports_failure(self.dice.randrange(len(SIZES_GIB)))

    def repair(self) -> None:
        self.node.repairs(self.dice.randrange(len(SIZES_GIB)))

    def drain(self) -> None:
        self.node.drains(self.dice.randrange(len(SIZES_GIB)))

    def undrain(self) -> None:
        self.node.undrains(self.dice.randrange(len(SIZES_GIB)))

    def serve_time(self) -> None:
        self.node.happens(events.ServiceTime(self.node.wall_ns))

    def release_task(self) -> None:
        self.node.admin_releases(self.one(self.tasks()).task_id)

    def restart(self) -> None:
        """kill -9 of the manager; the processes come back, some of them late."""
        askers = {
            asker.process: (row, asker)
            for row in self.node.state.requests.values()
            for asker in row.askers
        }
        self.node.restart()
        for row in self.members():
            if row.pid is not None and self.chance(0.9):
                named = row.env, row.pid, row.task_id, row.slot, row.generation
                self.node.rejoins(*named)
        for process, (request, asker) in sorted(askers.items()):
            if process in self.node.state.request_of and asker.pid is not None and self.chance(0.9):
                token = request.token or f"token{asker.pid}"
                self.node.asks(request.env, asker.pid, 1, token=token, rid=asker.rid)

    def match(self) -> None:
        self.node.happens(events.Match(self.node.wall_ns))

    # -- the end of a walk --

    def clear(self) -> None:
        """All hindrances go: GPUs, quotas, places and processes are as on a quiet day."""
        self.silent, self.lost, self.node.holds_orders = set(), set(), False
        self._inventory()
        for index in range(len(SIZES_GIB)):
            self.node.repairs(index)
            self.node.undrains(index)
        for place in PLACES:
            self.node.place(place)
        for env in ENVS:
            self.node.quota(env, len(SIZES_GIB), task_class=TaskClass.LATENCY_SENSITIVE)
        for row in list(self.node.state.assignments.values()):
            self.node.assigns(row.env, row.key, row.number)
        for job_id in self.jobs(JobState.HELD):
            self.node.frees(job_id)
        for _ in range(3):
            self.node.audit_sees(none_exported=True)
            self.node.passes(2_000)

    def finish(self) -> None:
        """End what is under way, and all tasks that do not wait for their memory."""
        for row in self.tasks(Suspension.SUSPENDING):
            self.node.is_out(row.task_id)
        for row in self.tasks(Suspension.RESUMING):
            self.node.is_back(row.task_id)
        waiting = {row.resumes for row in self.node.state.requests.values() if row.resumes}
        for row in [row for row in self.tasks() if row.task_id not in waiting]:
            if row.job_id is None:
                self.node.admin_releases(row.task_id)
        for job_id in self.jobs(*UNDER_WAY):
            if self.node.state.jobs[job_id].task_id not in waiting:
                self.node.job_ends(job_id)
        for process in [row for row in self.node.state.processes.values() if row.fenced]:
            if process.pid is not None:
                self.node.dies(process.pid)
        for process_key, uuid in sorted(self.node.state.unreclaimed):
            gone = events.UnreclaimedChanged(process_key, uuid, 0, self.node.wall_ns)
            self.node.happens(gone)
        self.node.passes(4_000)


def number(name: str, mark: str = ":") -> int:
    """The number in a process's key, a GPU's UUID, or the name of a job."""
    return int(name.split(mark)[1].split(":")[0])


class Rule(NamedTuple):
    event: type[events.Event]
    weight: int
    does: Callable[[Everything], object]
    can: Callable[[Everything], object] = lambda _: True


def local(walked: Everything) -> bool:
    return any(row.pid is not None for row in walked.members())


def waits_locally(walked: Everything) -> bool:
    return any(not udp for _, _, udp in walked.askers())


def of(suspension: Suspension) -> Callable[[Everything], object]:
    return lambda walked: walked.tasks(suspension)


def under_way(walked: Everything) -> list[str]:
    return walked.jobs(*UNDER_WAY)


RULES: tuple[Rule, ...] = (
    Rule(events.Acquire, 60, Everything.ask),
    Rule(events.ElasticWord, 20, Everything.speak, Everything.leaders),
    Rule(events.LimitLowered, 3, Everything.answer_order),
    Rule(events.Cancel, 3, Everything.cancel, waits_locally),
    Rule(events.Rejoin, 2, Everything.rejoin, local),
    Rule(events.Beat, 3, Everything.beat, local),
    Rule(events.Heard, 6, Everything.raise_word, Everything.stalled),
    Rule(events.Release, 5, Everything.release, Everything.members),
    Rule(events.Disconnected, 4, Everything.disconnect, waits_locally),
    Rule(events.ProcessGone, 22, Everything.die, local),
    Rule(
        events.UnreclaimedChanged,
        24,
        Everything.driver_reads,
        Everything.left_by_processes,
    ),
    Rule(events.Tick, 14, Everything.pass_time),
    Rule(events.Match, 3, Everything.use, lambda walked: walked.node.state.grants),
    Rule(events.SetQuota, 3, Everything.set_quota),
    Rule(events.RemoveQuota, 1, Everything.remove_quota),
    Rule(events.GpusChanged, 2, Everything.lose_or_restore),
    Rule(events.ReleaseTask, 2, Everything.release_task, Everything.tasks),
    Rule(events.SuspendTask, 10, Everything.suspend, Everything.tasks),
    Rule(events.ResumeTask, 12, Everything.resume, Everything.tasks),
    Rule(events.KeepTask, 1, Everything.keep, Everything.tasks),
    Rule(events.IdleSeen, 5, Everything.idle),
    Rule(events.SuspensionMeasured, 20, Everything.measured, of(Suspension.SUSPENDING)),
    Rule(events.Suspended, 40, Everything.is_out, of(Suspension.SUSPENDING)),
    Rule(events.SuspendFailed, 4, Everything.suspension_fails, of(Suspension.SUSPENDING)),
    Rule(events.Resumed, 40, Everything.is_back, of(Suspension.RESUMING)),
    Rule(events.ResumeFailed, 4, Everything.resume_fails, of(Suspension.RESUMING)),
    Rule(events.Match, 2, Everything.match),
    Rule(events.Audited, 1, Everything.audit),
    Rule(events.Audited, 3, Everything.exported_stays, lambda walked: walked.node.state.gpus),
    Rule(events.ComputeAudited, 1, Everything.audit_compute, Everything.members),
    Rule(events.GateMissed, 1, Everything.miss_gate, Everything.members),
    Rule(events.Progressed, 5, Everything.progress, Everything.members),
    Rule(events.SubmitJobs, 20, Everything.submit),
    Rule(events.SubmitJobs, 6, Everything.assign),
    Rule(events.AcknowledgeEnds, 2, Everything.acknowledge),
    Rule(events.JobStarted, 16, Everything.begin, under_way),
    Rule(events.JobEnded, 30, Everything.end_job, under_way),
    Rule(
        events.JobRequeuedBeforeStart,
        2,
        Everything.give_back,
        lambda walked: walked.jobs(JobState.STARTING),
    ),
    Rule(events.LaunchHostChanged, 3, Everything.place),
    Rule(events.NamesTaken, 1, Everything.take_names),
    Rule(events.WithdrawJob, 1, Everything.withdraw, Everything.jobs),
    Rule(events.HoldJob, 2, Everything.hold, Everything.jobs),
    Rule(events.UnholdJob, 3, Everything.unhold, Everything.jobs),
    Rule(events.RequeueJob, 3, Everything.requeue, Everything.jobs),
    Rule(events.MoveJob, 2, Everything.move, Everything.jobs),
    Rule(events.OrderAll, 1, Everything.order_all, Everything.jobs),
    Rule(events.SetQueue, 1, Everything.set_queue),
    Rule(events.RemoveQueue, 1, Everything.remove_queue),
    Rule(events.GpuFault, 1, Everything.hardware_fails),
    Rule(events.ReportFailure, 1, Everything.report_failure),
    Rule(events.RepairGpu, 3, Everything.repair),
    Rule(events.DrainGpu, 3, Everything.drain),
    Rule(events.ResumeGpu, 7, Everything.undrain),
    Rule(events.ServiceTime, 1, Everything.serve_time),
    Rule(events.GpusChanged, 2, Everything.restart),
)
"""The core's events, each with how often it happens. A restart takes the inventory anew."""
