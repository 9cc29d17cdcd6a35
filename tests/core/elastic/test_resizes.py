"""Long walks of a node with elastic, plain and waiting tasks.

Node.happens asserts the invariants after each step, and that a restart finds the same rows. Here,
whenever nothing is left to do: every request that GPUs above the least numbers keep waiting has its
recalls, no recall stands without a request or a lowered quota, and none is older than its deadline.
Some tasks have ranges of memory too, and GPUs are drained.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from nodemgr.core.elastic import recalls
from nodemgr.core.model.entities import (
    MS,
    UNDER_WAY,
    GpuRange,
    JobState,
    Process,
    TaskState,
    Word,
)
from nodemgr.core.model.events import Match
from nodemgr.core.model.schema import RECALL, recall_key
from nodemgr.core.scheduler import passes, placement
from nodemgr.core.scheduler.allocator import Choice
from nodemgr.core.state import elastic_leases
from tests.core.twin import TwinNode
from tests.core.walks import Rule, walk
from tests.core.world import Node, key
from tests.support.examples import seeds

ENVS = ("alice", "bob", "carol")
GPUS = 5
RECALL_MS = 10_000


class Elastic:
    """A node with five GPUs, and what happens to it."""

    def __init__(self) -> None:
        self.node = TwinNode(GPUS)
        self.pids = 0
        self.silent: set[int] = set()
        self.lost: set[int] = set()
        self.seen: Counter[str] = Counter()
        """How often each thing happened: a walk that never recalls shows nothing."""
        for env, gpus, borrow in (("alice", 3, 2), ("bob", 5, 0), ("carol", 4, 1)):
            self.node.quota(env, gpus, borrow=borrow)
        for env in ENVS[:2]:
            self.pids += 1
            self.node.asks(env, self.pids, 1, most=4, elastic=True)

    def processes(self) -> list[Process]:
        rows = self.node.state.processes.values()
        return sorted((row for row in rows if not row.fenced), key=lambda row: row.key)

    def leaders(self) -> list[str]:
        leases = self.node.state.elastics.values()
        return sorted(lease.task_id for lease in leases if lease.leader)

    def living_jobs(self) -> list[str]:
        jobs = self.node.state.jobs.values()
        return sorted(job.job_id for job in jobs if job.state in UNDER_WAY)

    # -- rules --

    def ask(self, dice: random.Random) -> None:
        self.pids += 1
        least = dice.choice((1, 1, 2))
        most, memory = dice.choice((None, None, least + 1, 3, 4)), dice.randrange(4)
        self.node.asks(
            dice.choice(ENVS), self.pids, least,
            most=most, elastic=most is not None and dice.random() < 0.9,
            wait_ms=dice.choice((None, 0, 8_000)),
            gib=30 if memory == 1 else 20 if memory == 2 else None,
            most_gib=60 if memory == 2 else None,
        )  # fmt: skip

    def submit(self, dice: random.Random) -> None:
        least = dice.choice((1, 1, 2))
        gpu_range = dice.choice((None, GpuRange(least + 2, True), GpuRange(least + 1)))
        limit_ms = dice.choice((None, 20_000, 90_000))
        self.node.submits(
            dice.choice(ENVS), gpus=least, gpu_range=gpu_range, time_limit_ms=limit_ms
        )

    def join(self, dice: random.Random) -> None:
        """A worker of an elastic task, on one of its GPUs or on a wrong one; or a job's leader."""
        task = self.node.state.tasks[dice.choice(sorted(self.node.state.elastics))]
        lease = self.node.state.elastics[task.task_id]
        self.pids += 1
        gpu = self.node.state.gpus[dice.choice(task.gpus)].index
        is_leader = task.job_id is not None and not lease.leader
        self.node.asks(
            task.env, self.pids, None if not is_leader else lease.least, token=task.token,
            worker=None if is_leader else dice.choice((gpu, gpu, gpu, dice.randrange(GPUS))),
            most=lease.most if is_leader else None, elastic=is_leader,
            udp=dice.random() < 0.05,
        )  # fmt: skip

    def speak(self, dice: random.Random) -> None:
        """A word of a leader: mostly one that fits."""
        lease = self.node.state.elastics[dice.choice(self.leaders())]
        task = self.node.state.tasks[lease.task_id]
        recalled = [recall.uuid for recall in lease.recalls]
        if recalled and dice.random() < 0.4:
            word, uuid = Word.LEFT, dice.choice(recalled)
        elif lease.offered and dice.random() < 0.8:
            word = dice.choice((Word.ACCEPTED, Word.ACCEPTED, Word.DECLINED))
            uuid = dice.choice(lease.offered)
        else:
            word, uuid = dice.choice(tuple(Word)), f"GPU-{dice.randrange(GPUS)}"
        self.node.says(task.env, int(lease.leader.split(":")[1]), word, int(uuid.partition("-")[2]))
        self.seen[word] += 1

    def leave(self, dice: random.Random) -> None:
        process = dice.choice(self.processes())
        leads = any(lease.leader == process.key for lease in self.node.state.elastics.values())
        if process.pid is not None and (not leads or dice.random() < 0.1):
            self.silent.discard(process.pid)
            if dice.random() < 0.7:
                self.node.dies(process.pid, dice.choice(({}, {}, {dice.randrange(GPUS): 2})))
            else:
                self.node.releases(process.env, process.pid)

    def read_driver(self, dice: random.Random) -> None:
        """Memory of lost processes is gone, or not yet."""
        for process, uuid in sorted(self.node.state.unreclaimed):
            gib = dice.choice((0, 0, 0, 0, 3))
            self.node.driver_shows(int(process.split(":")[1]), int(uuid.partition("-")[2]), gib)

    def end_job(self, dice: random.Random) -> None:
        job_id = dice.choice(self.living_jobs())
        if self.node.state.jobs[job_id].state is JobState.STARTING:
            self.node.begins(job_id)
        if dice.random() < 0.5:
            self.node.job_ends(job_id, dice.choice((0, 0, 1)))

    def fall_silent(self, dice: random.Random) -> None:
        process = dice.choice(self.processes())
        members = self.node.state.tasks[process.task_id].processes
        self.silent |= {int(member.split(":")[1]) for member in members}

    def beat_again(self, dice: random.Random) -> None:
        pid = dice.choice(sorted(self.silent))
        self.silent.discard(pid)
        process = self.node.state.processes.get(key(pid))
        task = None if process is None else self.node.state.tasks.get(process.task_id)
        if process is not None and task is not None and task.state is TaskState.STALLED:
            self.node.beats_again(process.env, pid)

    def pass_time(self, dice: random.Random) -> None:
        self.node.passes(dice.choice((500, 2_000, 3_000, 6_000, 12_000)), silent=self.silent)
        self.seen["expired"] += len(self.node.published("task.shrunk"))
        self.seen["grown"] += len(self.node.published("task.grown"))

    def set_quota(self, dice: random.Random) -> None:
        self.node.quota(
            dice.choice(ENVS), dice.randint(1, 5), dice.choice((None, None, 400)),
            borrow=dice.choice((0, 1, 3)),
        )  # fmt: skip

    def lose_or_restore(self, dice: random.Random) -> None:
        self.lost ^= {dice.randrange(GPUS)}
        known = [gpu for gpu in Node(GPUS).state.gpus.values() if gpu.index not in self.lost]
        self.node.gpus_are(known)

    def drain_or_resume(self, dice: random.Random) -> None:
        dice.choice((self.node.drains, self.node.undrains))(dice.randrange(GPUS))

    def restart(self, dice: random.Random) -> None:
        self.node.restart()
        for process in self.processes():
            if process.pid is not None and process.pid not in self.silent and dice.random() < 0.9:
                self.node.rejoins(
                    process.env, process.pid, process.task_id, process.slot, process.generation
                )

    def disconnect(self, dice: random.Random) -> None:
        process = dice.choice(self.processes())
        if process.pid is not None:
            self.node.disconnects(process.pid)

    # -- what holds when nothing is left to do --

    def check(self) -> None:
        self.node.passes(0, silent=self.silent)
        self.node.happens(Match(self.node.wall_ns))
        state, now_ns = self.node.state, self.node.now_ns
        draft = state.at(now_ns)
        needed = recalls.plan(draft).receivers
        stand = {
            elastic_leases.HeldGpu(lease.task_id, recall.uuid): recall.receiver
            for lease in state.elastics.values()
            for recall in lease.recalls
        }
        assert stand == needed
        for held in stand:
            due_ns = state.agenda[RECALL, recall_key(*held)]
            assert now_ns < due_ns <= now_ns + RECALL_MS * MS
        self.seen["recalled"] += len(stand)
        self.beyond_quotas()
        waiting = (request for request, _ in state.waiting())
        first = next((each for each in waiting if passes.takes_part(draft, each)), None)
        if first is not None and not passes.away(draft, first):
            answer = placement.judge(draft, first, {}, {}).answer
            assert not isinstance(answer, Choice), f"{first} could be served"

    def beyond_quotas(self) -> None:
        """GPUs beyond a quota and its borrowing are being left, down to the least numbers."""
        state = self.node.state
        for env, row in state.envs.items():
            used = {
                uuid
                for (owner, uuid), grant in state.grants.items()
                if owner == env and state.gpus[uuid].healthy and grant.tasks > grant.stalled_tasks
            }
            leases = [
                lease
                for lease in state.elastics.values()
                if state.tasks[lease.task_id].env == env
                and state.tasks[lease.task_id].state is TaskState.RUNNING
            ]
            above = [uuid for lease in leases for uuid in lease.arrivals[lease.least :]]
            left = [recall for lease in leases for recall in lease.recalls]
            beyond = len(used) - row.quota.gpus - row.quota.borrow
            assert len(left) >= min(beyond, len(used.intersection(above))), env


RULES: tuple[Rule[Elastic], ...] = (
    (12, Elastic.ask, lambda _: True),
    (5, Elastic.submit, lambda _: True),
    (14, Elastic.join, lambda walked: walked.node.state.elastics),
    (16, Elastic.speak, lambda walked: walked.leaders()),
    (18, Elastic.leave, lambda walked: walked.processes()),
    (12, Elastic.read_driver, lambda walked: walked.node.state.unreclaimed),
    (7, Elastic.end_job, lambda walked: walked.living_jobs()),
    (16, Elastic.pass_time, lambda _: True),
    (2, Elastic.fall_silent, lambda walked: walked.processes()),
    (3, Elastic.beat_again, lambda walked: walked.silent),
    (5, Elastic.set_quota, lambda _: True),
    (2, Elastic.drain_or_resume, lambda _: True),
    (2, Elastic.lose_or_restore, lambda _: True),
    (3, Elastic.restart, lambda _: True),
    (2, Elastic.disconnect, lambda walked: walked.processes()),
)


@pytest.mark.parametrize("seed", seeds(pytest.mark.long))
def test_a_walk(seed: int) -> None:
    walk(Elastic(), RULES, Elastic.check, seed)


def test_the_walks_show_what_they_are_for() -> None:
    walked = Elastic()
    for seed in range(4):
        walked.node = Elastic().node
        walk(walked, RULES, Elastic.check, seed)
    rare = {name: walked.seen[name] for name in (*Word, "recalled", "grown", "expired")}
    assert all(rare.values()), rare
