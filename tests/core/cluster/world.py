"""A head, its nodes and a network between them, in one process and without a clock.

The network loses, doubles and reorders what is said; the head is killed at any commit; nodes are
killed, cut off, and lose their stores. Knows: what a node promises. Two kinds of node can be had: a
plain one (a dictionary of keys and answers), and the real core of a node.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import NamedTuple, Protocol

from nodemgr.core.cluster import events
from nodemgr.core.cluster.entities import ClusterJob, EndedJob, GivenJob, NodeGpu
from nodemgr.core.cluster.events import Acknowledge, NodeAnswer
from nodemgr.core.cluster.head import step
from nodemgr.core.cluster.messages import Assign, GiveBack, HeadWord, to_say
from nodemgr.core.cluster.state import ClusterDraft, StoredRow, restore
from nodemgr.core.model import array_rows
from nodemgr.core.model.entities import UNDER_WAY, Cause, Config, JobState
from nodemgr.core.model.values import replace
from nodemgr.edge.member import node_summary
from nodemgr.head import node_words
from tests.core.cluster import invariants
from tests.core.world import Node

ENVS = ("a", "b")
S = 1_000_000_000
CAUSES = (Cause.OWN, Cause.OWN, Cause.SUPERVISOR_LOST, Cause.NODE_DOWN, Cause.TIME_LIMIT)
Word = HeadWord | Acknowledge


def names(job: ClusterJob) -> list[str]:
    """A job's, or those of an array's elements in this row."""
    numbers = array_rows.numbers(job.indices)
    return [array_rows.name(job, number) for number in numbers] or [job.job_id]


class SimNode(Protocol):
    """A node as the head's words reach it."""

    begun: Counter[str]
    """By key, how often a process of it began."""

    def hear(self, word: Word) -> None: ...
    def answers(self, *, all_kept: bool = False) -> list[NodeAnswer]:
        """Those that are not acknowledged, or all that it keeps."""
        ...

    def below(self) -> int: ...
    def gpus(self) -> int: ...
    def others(self) -> tuple[tuple[str, int], ...]: ...
    def shares(self) -> tuple[NodeGpu, ...] | None: ...
    def alive(self) -> set[str]:
        """Keys under which a process may run."""
        ...

    def goes_on(self, dice: random.Random) -> None:
        """Something begins or ends there."""
        ...

    def finish(self) -> None:
        """All that has begun ends well."""
        ...

    def use_locally(self, dice: random.Random) -> None: ...
    def kill(self) -> None:
        """kill -9 of its manager, and a new one."""
        ...

    def lose_store(self) -> None: ...


GPU_BYTES, MAX_TASKS = 8, 8
ENV_BYTES = {"a": 12, "b": 24}
"""By environment, its memory on one node."""


def quota_of(env: str) -> str:
    """With each class."""
    return json.dumps({"memory_bytes": ENV_BYTES[env], "task_class": "latency-sensitive"})


class Held(NamedTuple):
    """A task on some GPUs."""

    env: str
    gpus: tuple[int, ...]
    percent: int | None
    memory_bytes: int | None
    shares: bool
    is_best_effort: bool = False


class PlainNode:
    """Keys and answers; begins what fits, in the order in which it came."""

    def __init__(self, gpus: int, fails: float = 0.15) -> None:
        """`fails`: how often it cannot begin a job."""
        self._fails = fails
        self._gpus, self._below = gpus, 0
        self._local: dict[str, Held] = {}
        self.quotas: dict[str, tuple[int, int | None]] = {}
        """By environment: its GPUs on one node, and its memory there."""
        self.reports_shares = True
        self.rows: dict[str, NodeAnswer] = {}
        self.acknowledged: set[str] = set()
        self.wanted: dict[str, GivenJob] = {}
        self.held: dict[str, Held] = {}
        self.under_way: dict[str, bool] = {}
        """Keys that hold GPUs, and whether a process of them has begun."""
        self.begun: Counter[str] = Counter()

    def gpus(self) -> int:
        return self._gpus

    def others(self) -> tuple[tuple[str, int], ...]:
        return tuple((env, len(held.gpus)) for env, held in self._local.items() if held.gpus)

    def below(self) -> int:
        return self._below

    def alive(self) -> set[str]:
        return {key for key, began in self.under_way.items() if began}

    # -- GPUs --

    def _on(self, gpu: int) -> list[Held]:
        return [one for one in (*self.held.values(), *self._local.values()) if gpu in one.gpus]

    def used(self, env: str) -> int:
        return sum(any(one.env == env for one in self._on(gpu)) for gpu in range(self._gpus))

    def _part(self, env: str) -> int:
        return min(self._gpus, self.quotas.get(env, (self._gpus, None))[0])

    def _grant(self, env: str) -> int:
        memory = self.quotas.get(env, (0, None))[1]
        part = self._part(env)
        return GPU_BYTES if memory is None or not part else min(GPU_BYTES, memory // part)

    def _room(self, gpu: int) -> int:
        there = self._on(gpu)
        if any(not one.shares for one in there):
            return 0
        return GPU_BYTES - sum(self._grant(env) for env in {one.env for one in there})

    def _left(self, gpu: int, env: str) -> int:
        """The memory that one more task of an environment on the GPU may name."""
        named = [one.memory_bytes for one in self._on(gpu) if one.env == env]
        return max(0, self._grant(env) - sum(named)) if None not in named else 0  # type: ignore[arg-type]

    def _fits(self, gpu: int, row: GivenJob) -> bool:
        there = self._on(gpu)
        if len(there) >= MAX_TASKS or any(not one.shares for one in there):
            return False
        if row.compute_percent is None:
            return all(one.percent is None for one in there)
        taken = [100 if one.percent is None else one.percent for one in there]
        return sum(taken) + row.compute_percent <= 100

    def place(self, row: GivenJob) -> tuple[int, ...] | None:
        """The GPUs that it gets now; fresh ones of its environment before others."""
        every = range(self._gpus)
        if not row.shares:
            idle = [gpu for gpu in every if not self._on(gpu)]
            has_room = self.used(row.env) + row.gpus <= self._part(row.env) or not row.gpus
            return tuple(idle[: row.gpus]) if has_room and len(idle) >= row.gpus else None
        named = row.memory_bytes or 0
        mine = [gpu for gpu in every if any(one.env == row.env for one in self._on(gpu))]
        grant, slots = self._grant(row.env), max(0, self._part(row.env) - len(mine))
        fresh = [
            gpu
            for gpu in every
            if gpu not in mine and named <= grant <= self._room(gpu) and self._fits(gpu, row)
        ]
        again = [
            gpu
            for gpu in mine
            if row.memory_bytes is not None
            and named <= self._left(gpu, row.env)
            and self._fits(gpu, row)
        ]
        found = [*fresh[: min(slots, row.gpus)], *again][: row.gpus]
        return tuple(found) if len(found) == row.gpus else None

    def _takes(self, key: str) -> bool:
        row = self.wanted[key]
        gpus = self.place(row)
        if gpus is None:
            return False
        self.held[key] = Held(row.env, gpus, row.compute_percent, row.memory_bytes, row.shares)
        self.under_way[key] = False
        return True

    def _lets_go(self, key: str) -> bool:
        self.held.pop(key, None)
        return self.under_way.pop(key, False)

    def shares(self) -> tuple[NodeGpu, ...] | None:
        if not self.reports_shares:
            return None
        found = []
        for gpu in range(self._gpus):
            there = self._on(gpu)
            envs = sorted({one.env for one in there})
            found.append(
                NodeGpu(
                    GPU_BYTES, self._room(gpu), sum(one.percent or 0 for one in there),
                    any(one.percent is None for one in there), 0, len(there),
                    tuple((env, self._left(gpu, env)) for env in envs),
                    tuple(
                        int(self.rows[key].number)
                        for key, one in self.held.items()
                        if gpu in one.gpus
                    ),
                )
            )  # fmt: skip
        return tuple(found)

    # -- words --

    def hear(self, word: Word) -> None:
        if isinstance(word, Acknowledge):
            self._below = max(self._below, word.below)
            self.acknowledged |= {
                key for key in word.keys if key in self.rows and self.rows[key].over
            }
            for key in [key for key in self.acknowledged if self.rows[key].number < self._below]:
                del self.rows[key]
                self.acknowledged.discard(key)
        elif isinstance(word, GiveBack):
            if not (word.if_waiting and word.key in self.under_way):
                self._withdraw(word.key)
        elif not isinstance(word, Assign):
            return  # about pilots
        elif word.row.key in self.rows:
            row = self.rows[word.row.key]
            self.rows[row.key] = replace(row, confirmed=True)
        elif word.row.number >= self._below:
            state = JobState.WITHDRAWN if word.refuse else JobState.QUEUED
            self.rows[word.row.key] = NodeAnswer(
                word.row.key, word.row.number, word.refuse, False, word.refuse, True, state
            )
            self.wanted[word.row.key] = word.row

    def _withdraw(self, key: str) -> None:
        row = self.rows.get(key)
        if row is not None and not row.over:
            began = self._lets_go(key)
            self.rows[key] = replace(row, over=True, began=began, state=JobState.WITHDRAWN)

    def answers(self, *, all_kept: bool = False) -> list[NodeAnswer]:
        """One that has its GPUs may begin at any moment: it is told as begun."""
        return [
            replace(row, began=row.began or key in self.under_way)
            for key, row in self.rows.items()
            if all_kept or key not in self.acknowledged
        ]

    def goes_on(self, dice: random.Random) -> None:
        for key, row in list(self.rows.items()):
            if row.over or dice.random() < 0.4:
                continue
            if key not in self.under_way:
                if row.confirmed:
                    self._takes(key)
            elif not self.under_way[key]:
                if dice.random() < 0.1:
                    self._lets_go(key)  # no launcher could begin it
                else:
                    self._begin(key, dice)
            elif dice.random() < 0.05:
                self._withdraw(key)  # by a person, on this node
            elif dice.random() < 0.5:
                good = dice.random() < 0.6
                self.end(key, JobState.DONE if good else JobState.FAILED, dice.choice(CAUSES))

    def _begin(self, key: str, dice: random.Random) -> None:
        if dice.random() < self._fails:
            self._lets_go(key)
            failed = replace(self.rows[key], over=True, state=JobState.FAILED)
            self.rows[key] = replace(failed, cause=Cause.CANNOT_RUN)
            return
        self.under_way[key] = True
        self.begun[key] += 1
        self.rows[key] = replace(self.rows[key], began=True)

    def end(self, key: str, state: JobState, cause: Cause) -> None:
        self._lets_go(key)
        self.rows[key] = replace(self.rows[key], over=True, state=state, cause=cause)

    def finish(self) -> None:
        self._local.clear()
        for key, row in list(self.rows.items()):
            if row.over or not row.confirmed:
                continue
            if key in self.under_way or self._takes(key):
                if not self.under_way[key]:
                    self.under_way[key] = True
                    self.begun[key] += 1
                    self.rows[key] = replace(row, began=True)
                self.end(key, JobState.DONE, Cause.OWN)

    def use_locally(self, dice: random.Random) -> None:
        env = dice.choice(ENVS)
        self._local.pop(env, None)
        idle = [gpu for gpu in range(self._gpus) if not self._on(gpu)]
        self._local[env] = Held(env, tuple(idle[: dice.randint(0, len(idle))]), None, None, False)

    def kill(self) -> None:
        for key, row in self.rows.items():
            if not row.over and not self.under_way.get(key, False):
                self._lets_go(key)
                self.rows[key] = replace(row, confirmed=False)

    def lose_store(self) -> None:
        """And what ran is gone: the machine has died with its disk."""
        begun, quotas = self.begun, self.quotas
        self.__init__(self._gpus, self._fails)  # type: ignore[misc]
        self.begun, self.quotas = begun, quotas


class RealNode:
    """The core of a node, with its store."""

    def __init__(self, gpus: int) -> None:
        self._size, self.begun = gpus, Counter[str]()
        self._fresh()

    def _fresh(self) -> None:
        self.node = Node(self._size)
        self.pids = 100
        for env in ENVS:
            self.node.quota(env, self._size)

    def gpus(self) -> int:
        return sum(gpu.usable for gpu in self.node.state.gpus.values())

    def others(self) -> tuple[tuple[str, int], ...]:
        used: Counter[str] = Counter()
        for task in self.node.state.tasks.values():
            job = self.node.state.jobs.get(task.job_id or "")
            if job is None or not job.assigned:
                used[task.env] += len(task.gpus)
        return tuple(sorted(used.items()))

    def shares(self) -> tuple[NodeGpu, ...] | None:
        said = node_summary.shares(self.node.state, ENVS, "hq")
        return node_words.shares(json.loads(json.dumps(said)))

    def below(self) -> int:
        return self.node.state.counters.get("assigned/hq", 0)

    def alive(self) -> set[str]:
        return {
            job.assigned
            for job in self.node.state.jobs.values()
            if job.state in UNDER_WAY and job.attempts[-1].started_wall_ns is not None
        }

    def hear(self, word: Word) -> None:
        if isinstance(word, Acknowledge):
            self.node.acknowledges(*word.keys, below=word.below)
        elif isinstance(word, GiveBack):
            row = self.node.state.assignments.get(word.key)
            job = None if row is None else self.node.state.jobs.get(row.job_id)
            begun = job is not None and job.state in UNDER_WAY
            if job is not None and not (begun and word.if_waiting):
                self.node.withdraws(job.job_id)
        elif isinstance(word, Assign):
            row_here = word.row
            self.node.assigns(
                row_here.env, row_here.key, row_here.number, gpus=row_here.gpus,
                time_limit_ms=row_here.time_limit_ms, refusal="gone" if word.refuse else "",
                memory_bytes=row_here.memory_bytes, compute_percent=row_here.compute_percent,
            )  # fmt: skip

    def answers(self, *, all_kept: bool = False) -> list[NodeAnswer]:
        state = self.node.state
        found = []
        for row in state.assignments.values():
            if row.is_acknowledged and not all_kept:
                continue
            job = state.jobs.get(row.job_id)
            began = row.began or (job is not None and job.state in UNDER_WAY)
            found.append(
                NodeAnswer(
                    row.key, row.number, row.is_over, began, not row.job_id,
                    row.job_id not in state.unconfirmed, row.state,
                    None if row.attempt is None else row.attempt.cause,
                )
            )  # fmt: skip
        return found

    def goes_on(self, dice: random.Random) -> None:
        for job in list(self.node.state.jobs.values()):
            if job.state not in UNDER_WAY or dice.random() < 0.4:
                continue
            if job.attempts[-1].started_wall_ns is None:
                if dice.random() < 0.2:
                    self.node.gives_back((job.job_id, job.attempt))
                else:
                    self.begun[job.assigned] += 1
                    self.node.begins(job.job_id)
            elif dice.random() < 0.5:
                cause = dice.choice(CAUSES)
                why = "" if cause is Cause.OWN else cause.value
                self.node.job_ends(job.job_id, dice.choice((0, 0, 1)), why=why, cause=cause)

    def finish(self) -> None:
        for process in list(self.node.state.processes.values()):
            if process.pid is not None:
                self.node.dies(process.pid)
        for asker in [a for r in self.node.state.requests.values() for a in r.askers]:
            self.node.cancels("a", int(asker.process.split(":")[1]), rid=asker.rid)
        for job in list(self.node.state.jobs.values()):
            if job.state in UNDER_WAY:
                if job.attempts[-1].started_wall_ns is None:
                    self.begun[job.assigned] += 1
                    self.node.begins(job.job_id)
                self.node.job_ends(job.job_id)

    def use_locally(self, dice: random.Random) -> None:
        local = [row for row in self.node.state.processes.values() if row.pid is not None]
        if local:
            process = dice.choice(local)
            assert process.pid is not None
            self.node.dies(process.pid)
        else:
            self.pids += 1
            self.node.asks(dice.choice(ENVS), self.pids, 1, wait_ms=0)

    def kill(self) -> None:
        self.node.restart()

    def lose_store(self) -> None:
        self._fresh()


class Link:
    """A node's connection and the words on their way."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.generation, self.boots = 1, 1
        self.session: int | None = None
        self.reports = 0
        self.down: list[Word] = []
        self.up: list[events.NodeReport] = []


class Cluster:
    def __init__(self, dice: random.Random, nodes: dict[str, SimNode], total: int = 5) -> None:
        self.dice, self.config = dice, Config(requeue_pause_ms=1_000, max_requeue_pause_ms=4_000)
        self.state = ClusterDraft("hq", self.config)
        self.store: dict[tuple[str, str], object] = {}
        self.now_ns, self.sessions = 1_000 * S, 0
        self.links = {name: Link(node) for name, node in nodes.items()}
        self.ended: dict[str, EndedJob] = {}
        self.submitted: list[str] = []
        self.names: dict[str, list[str]] = {}
        """By submission, of all that were stored: the names of its jobs."""
        self.given_up: set[str] = set()
        """Keys at nodes that a person called lost."""
        self.may_crash = False
        for row in self.state.rows():
            self._save(row)
        for name in nodes:
            self.happens(events.AddNode(name))
        for env in ENVS:
            self.set_env(env, total)

    # -- the head --

    def set_env(self, env: str, total: int) -> None:
        """Each node has the quota at once."""
        self.happens(events.SetEnv(env, total, quota=quota_of(env)))
        row = self.state.envs.get(env)
        for link in self.links.values():
            if isinstance(link.node, PlainNode) and row is not None:
                link.node.quotas[env] = (row.part, row.memory_bytes)

    def happens(self, event: events.ClusterEvent) -> None:
        """One step: decided, stored, applied, carried out; or killed in between."""
        self.now_ns += 1_000
        made = step(self.state, event, self.now_ns)
        assert list(invariants.check_change(made.draft)) == []
        dies = self.dice.choice(("before", "after")) if self._dies() else ""
        if dies != "before":
            for row in made.saved:
                self._save(row)
        if dies:
            self.restart()
            return
        made.apply()
        assert list(invariants.check(self.state)) == []
        assert {(kind, key): row for kind, key, row in self.state.rows()} == self.store
        for effect in made.effects:
            self.links[effect.node].down.append(effect)

    def _dies(self) -> bool:
        return self.may_crash and self.dice.random() < 0.08

    def _save(self, row: StoredRow) -> None:
        kind, key, value = row
        if isinstance(value, ClusterJob) and value.array == key:
            self.names.setdefault(key, names(value))
        if kind == "ended":
            assert key not in self.ended, f"{key} ends twice"
            assert isinstance(value, EndedJob)
            self.ended[key] = value
        elif value is None:
            self.store.pop((kind, key), None)
        else:
            self.store[kind, key] = value

    def restart(self) -> None:
        rows = [(kind, key, row) for (kind, key), row in self.store.items()]
        self.state = restore("hq", rows, self.config)
        assert list(invariants.check(self.state)) == []
        for link in self.links.values():
            link.session = None  # its old reports may still come

    # -- the network --

    def connect(self, name: str) -> None:
        link = self.links[name]
        self.sessions += 1
        link.session, link.reports = self.sessions, 0
        node = link.node
        self.happens(
            events.Synced(
                name, self.sessions, str(link.generation), str(link.boots), node.below(),
                node.gpus(), node.others(), tuple(node.answers(all_kept=True)),
                shares=node.shares(),
            )
        )  # fmt: skip
        if self.state.sessions.get(name, (0, 0))[0] != self.sessions:
            link.session = None  # the head died meanwhile

    def cut(self, name: str) -> None:
        link = self.links[name]
        if link.session is not None:
            session, link.session = link.session, None
            self.happens(events.Silent(name, session))

    def head_speaks(self, name: str) -> None:
        self.links[name].down += to_say(self.state, name)

    def node_speaks(self, name: str) -> None:
        link = self.links[name]
        if link.session is None:
            return
        link.reports += 1
        node = link.node
        link.up.append(
            events.NodeReport(
                name,
                link.session,
                link.reports,
                node.gpus(),
                node.others(),
                tuple(node.answers()),
                shares=node.shares(),
            )
        )

    def deliver(self, name: str) -> None:
        """One word of those on their way, in any order; it may come again, or never."""
        link, dice = self.links[name], self.dice
        if link.down and dice.random() < 0.5:
            word = link.down.pop(dice.randrange(len(link.down)))
            if dice.random() < 0.2:
                return
            if dice.random() < 0.2:
                link.down.append(word)
            link.node.hear(word)
        elif link.up:
            report = link.up.pop(dice.randrange(len(link.up)))
            if dice.random() < 0.2:
                return
            if dice.random() < 0.2:
                link.up.append(report)
            self.happens(report)

    # -- what always holds --

    def check(self) -> None:
        """No key begins twice, and no job runs twice at a time, where nobody gave a node up."""
        alive: Counter[str] = Counter()
        for link in self.links.values():
            assert all(count == 1 for key, count in link.node.begun.items() if key), link.node.begun
            for key in link.node.alive() - self.given_up:
                if key:
                    alive[key.split("/")[2]] += 1
        assert all(count == 1 for count in alive.values()), alive

    # -- the calm --

    def calm(self) -> None:
        """Everything works: what is left ends, and the books agree."""
        self.may_crash = False
        for name, link in self.links.items():
            self.happens(events.ResumeNode(name))
            for row in [r for r in self.state.assignments.values() if r.node == name]:
                if row.node_generation != str(link.generation):
                    self.lose(name)
        for env in ENVS:
            self.set_env(env, 100)
        for job_id in list(self.state.jobs):
            self.happens(events.Unhold(job_id))
        for _ in range(60):
            self.now_ns += 5 * S
            self.happens(events.ClockMoved())
            for name, link in self.links.items():
                link.down.clear()
                link.up.clear()
                self.connect(name)
                self._talk(name)
            for key, name in list(self.state.unknown.items()):
                self.links[name].node.hear(GiveBack(key))  # by a person, on that node
            self.happens(events.Pass())
            for name, link in self.links.items():
                self._talk(name)
                link.node.finish()
                self.node_speaks(name)
                self._talk(name)
            self.check()
            if not self.state.jobs and not any(link.node.answers() for link in self.links.values()):
                self._check_starts()
                return
        raise AssertionError(f"left: {self.state.jobs}")

    def _check_starts(self) -> None:
        """As many are counted of a job as nodes began, where none was given up for lost."""
        begun = Counter(
            key.split("/")[2] for link in self.links.values() for key in link.node.begun if key
        )
        given_up = {key.split("/")[2] for key in self.given_up}
        if self.state.head.generation == 1:
            for name in self.ended.keys() - given_up:
                assert self.ended[name].job.starts == begun[name], name

    def _talk(self, name: str) -> None:
        link = self.links[name]
        for _ in range(3):
            self.head_speaks(name)
            for word in link.down:
                link.node.hear(word)
            link.down.clear()
            self.node_speaks(name)
            for report in link.up:
                self.happens(report)
            link.up.clear()

    def lose(self, name: str) -> None:
        link = self.links[name]
        present = str(link.generation) if name in self.state.sessions else None
        self.given_up |= {
            row.key
            for row in self.state.assignments.values()
            if row.node == name and row.node_generation != present
        }
        self.happens(events.NodeLost(name))
