"""Long walks with random classes and shares.

Node.happens asserts the invariants after each step, among them that no shares add up to more than
100 % and that a restart finds the same sums. Here, whenever nothing is left to do, three more: the
first request in the order of service could not be served, no best-effort task could grow unless an
earlier class waits for its GPU, and all best-effort tasks that a waiting latency-sensitive request
needs out of its way are going.
"""

from __future__ import annotations

import random

import pytest

from nodemgr.core.model.entities import (
    UNDER_WAY,
    JobState,
    Request,
    Suspension,
    TaskClass,
    TaskState,
)
from nodemgr.core.scheduler import passes, placement, preemption
from nodemgr.core.scheduler.allocator import Choice, Shortage
from nodemgr.core.sharing import preemption as made_to_go
from nodemgr.core.state import compute
from nodemgr.core.state.draft import Draft
from tests.core.twin import TwinNode
from tests.core.walks import Rule, walk
from tests.core.world import Node, key
from tests.support.examples import examples

ENVS = ("alice", "bob", "carol", "dora")
CLASSES = (*TaskClass, None)
PERCENTS = (None, None, 10, 30, 35, 60, 100)


class Shared:
    """A node with three GPUs, and what happens to it."""

    def __init__(self) -> None:
        self.node = TwinNode(3, max_tasks_per_gpu=4)
        self.pids = 0
        self.silent: set[int] = set()
        self.lost: set[int] = set()
        for env in ENVS:
            self.node.quota(env, 2, 60, task_class=TaskClass.LATENCY_SENSITIVE)

    def pids_of(self, *, waiting: bool) -> list[tuple[str, int]]:
        state = self.node.state
        found = (
            [(r.env, a.pid) for r in state.requests.values() for a in r.askers]
            if waiting
            else [(p.env, p.pid) for p in state.processes.values() if not p.fenced]
        )
        return sorted((env, pid) for env, pid in found if pid is not None)

    def with_a_time(self) -> list[tuple[str, int]]:
        """The processes of tasks that may get more compute to keep their time."""
        tasks = self.node.state.tasks.values()
        served = [task for task in tasks if task.task_class is TaskClass.LATENCY_SENSITIVE]
        keys = {member for task in served if task.deadline_ms for member in task.processes}
        return [(env, pid) for env, pid in self.pids_of(waiting=False) if key(pid) in keys]

    def living_jobs(self) -> list[str]:
        jobs = self.node.state.jobs.values()
        return sorted(job.job_id for job in jobs if job.state in UNDER_WAY)

    # -- rules --

    def ask(self, dice: random.Random) -> None:
        self.pids += 1
        self.node.asks(
            dice.choice(ENVS), self.pids, dice.choice((None, 1, 1, 2)),
            gib=dice.choice((None, None, 10, 25)), wait_ms=dice.choice((None, None, None, 0)),
            task_class=dice.choice(CLASSES), percent=dice.choice(PERCENTS),
            deadline_ms=dice.choice((20_000, 90_000)),
        )  # fmt: skip

    def submit(self, dice: random.Random) -> None:
        self.node.submits(
            dice.choice(ENVS), gpus=dice.choice((1, 1, 2)),
            memory_bytes=dice.choice((None, 10 << 30)),
            time_limit_ms=dice.choice((None, 20_000, 90_000)),
            task_class=dice.choice(CLASSES), compute_percent=dice.choice(PERCENTS),
        )  # fmt: skip

    def leave(self, dice: random.Random) -> None:
        env, pid = dice.choice(self.pids_of(waiting=dice.random() < 0.3) or [("", 0)])
        if pid:
            self.silent.discard(pid)
            if dice.random() < 0.7:
                self.node.dies(pid)
            else:
                self.node.releases(env, pid)

    def end_job(self, dice: random.Random) -> None:
        job_id = dice.choice(self.living_jobs())
        if self.node.state.jobs[job_id].state is JobState.STARTING:
            self.node.begins(job_id)
        if dice.random() < 0.7:
            self.node.job_ends(job_id, dice.choice((0, 0, 1)))

    def fall_silent(self, dice: random.Random) -> None:
        _, pid = dice.choice(self.pids_of(waiting=False))
        task = self.node.state.tasks[self.node.state.processes[key(pid)].task_id]
        self.silent |= {int(member.split(":")[1]) for member in task.processes}

    def beat_again(self, dice: random.Random) -> None:
        pid = dice.choice(sorted(self.silent))
        self.silent.discard(pid)
        process = self.node.state.processes.get(key(pid))
        task = None if process is None else self.node.state.tasks.get(process.task_id)
        if process is not None and task is not None and task.state is TaskState.STALLED:
            self.node.beats_again(process.env, pid)

    def pass_time(self, dice: random.Random) -> None:
        self.node.passes(dice.choice((1_000, 3_000, 6_000, 12_000)), silent=self.silent)

    def report_progress(self, dice: random.Random) -> None:
        """Some reports of one process: the pace is that of a task in or behind its time."""
        env, pid = dice.choice(self.with_a_time())
        task_id = self.node.state.processes[key(pid)].task_id
        before = self.node.state.progress.get(task_id)
        done = 0 if before is None else before.done
        for _ in range(dice.randint(2, 6)):
            done = min(100, done + dice.choice((1, 1, 10)))
            self.node.progresses(pid, done, 100, env=env)

    def set_quota(self, dice: random.Random) -> None:
        self.node.quota(
            dice.choice(ENVS), dice.randint(1, 3), dice.choice((None, 30, 60, 120)),
            task_class=dice.choice(tuple(TaskClass)), compute_percent=dice.choice(PERCENTS),
        )  # fmt: skip

    def lose_or_restore(self, dice: random.Random) -> None:
        self.lost ^= {dice.randrange(3)}
        node = Node(3)
        healthy = [gpu for gpu in node.state.gpus.values() if gpu.index not in self.lost]
        self.node.gpus_are(healthy)

    def drain_or_resume(self, dice: random.Random) -> None:
        index = dice.randrange(3)
        if self.node.state.gpus[f"GPU-{index}"].drained:
            self.node.undrains(index)
        else:
            self.node.drains(index)

    def hold_or_free(self, dice: random.Random) -> None:
        job_id = dice.choice(self.outside_queue() + self.node.queued_jobs())
        if job_id in self.outside_queue():
            self.node.frees(job_id)
        else:
            self.node.holds(job_id)

    def outside_queue(self) -> list[str]:
        jobs = self.node.state.jobs.values()
        return sorted(job.job_id for job in jobs if job.state in (JobState.HELD, JobState.PAUSED))

    def release_task(self, dice: random.Random) -> None:
        self.node.admin_releases(dice.choice(sorted(self.node.state.tasks)))

    def suspend_or_resume(self, dice: random.Random) -> None:
        """An order, or the report of the suspension process about one."""
        task = self.node.state.tasks[dice.choice(sorted(self.node.state.tasks))]
        match task.suspension:
            case Suspension.NONE:
                self.node.suspends(task.task_id)
            case Suspension.SUSPENDING if dice.random() < 0.8:
                self.node.is_out(task.task_id)
            case Suspension.SUSPENDING:
                self.node.suspension_fails(task.task_id)
            case Suspension.SUSPENDED:
                self.node.resumes(task.task_id)
            case Suspension.RESUMING if dice.random() < 0.8:
                self.node.is_back(task.task_id)
            case Suspension.RESUMING:
                self.node.resume_fails(task.task_id, is_out=dice.random() < 0.5)

    # -- what holds when nothing is left to do --

    def check(self) -> None:
        self.node.passes(0, silent=self.silent)
        draft = Draft(self.node.state)
        draft.now_ns = self.node.now_ns
        waiting = (request for request, _ in self.node.state.waiting())
        first = next((each for each in waiting if passes.takes_part(draft, each)), None)
        if first is not None and not passes.away(draft, first):  # one that is away keeps its GPUs
            self._waits_rightly(draft, first)
        self._best_effort_cannot_grow(draft)

    def _waits_rightly(self, draft: Draft, request: Request) -> None:
        result = placement.judge(draft, request, {}, {})
        assert not isinstance(result.answer, Choice), f"{request} could be served"
        is_first_class = request.task_class is TaskClass.LATENCY_SENSITIVE
        if is_first_class and result.answer is Shortage.NODE:
            left = preemption.victims(
                draft, result.ask, result.rows, lambda task: made_to_go.can_go(draft, task)
            )
            assert left == [], f"{request} waits behind best effort that could go"

    def _best_effort_cannot_grow(self, draft: Draft) -> None:
        state = self.node.state
        earlier = [
            request
            for request in state.requests.values()
            if request.task_class is not TaskClass.BEST_EFFORT and request.gpus
        ]
        for task_id in state.shrunk:
            task = state.tasks[task_id]
            free = min(compute.free_percent(draft, uuid, plain=False) for uuid in task.gpus)
            assert free == 0 or earlier or not compute.computes(task), f"{task} could grow"


RULES: tuple[Rule[Shared], ...] = (
    (20, Shared.ask, lambda _: True),
    (10, Shared.submit, lambda _: True),
    (12, Shared.leave, lambda _: True),
    (10, Shared.end_job, lambda walked: walked.living_jobs()),
    (8, Shared.pass_time, lambda _: True),
    (4, Shared.fall_silent, lambda walked: walked.pids_of(waiting=False)),
    (4, Shared.beat_again, lambda walked: walked.silent),
    (10, Shared.report_progress, lambda walked: walked.with_a_time()),
    (3, Shared.set_quota, lambda _: True),
    (9, Shared.suspend_or_resume, lambda walked: walked.node.state.tasks),
    (2, Shared.lose_or_restore, lambda _: True),
    (4, Shared.drain_or_resume, lambda _: True),
    (3, Shared.hold_or_free, lambda each: each.outside_queue() + each.node.queued_jobs()),
    (2, Shared.release_task, lambda walked: walked.node.state.tasks),
    (2, lambda walked, _: walked.node.restart(), lambda _: True),
)


@pytest.mark.parametrize("seed", range(examples(25)))
def test_a_walk(seed: int) -> None:
    walk(Shared(), RULES, Shared.check, seed)
