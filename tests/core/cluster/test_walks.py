"""Random walks of a cluster: nothing begins twice, nothing is lost, no total is exceeded.

The head is killed at any commit, before or after it; words are lost, doubled and late; nodes are
killed, cut off, drained, lose their stores and are given up. At the end of each walk all works
again, and each job that was submitted has ended once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from nodemgr.core.cluster import events
from nodemgr.core.cluster import state as cluster_state
from nodemgr.core.cluster.entities import STAGES, ClusterJob, ClusterStage, EndedJob, StageEvent
from nodemgr.core.model.entities import TaskClass
from nodemgr.core.model.transitions import checked
from tests.core.cluster.world import ENVS, Cluster, PlainNode, RealNode, SimNode, names
from tests.support.examples import seeds

STEPS = 400
IN_A_COPY = {
    (stage, StageEvent.FOUND, ClusterStage.ASSIGNED) for stage, event in STAGES
    if event is StageEvent.FOUND
}  # fmt: skip
"""Rare in a walk: test_restoring.py takes each."""
Copy = tuple[dict[tuple[str, str], object], dict[str, EndedJob], list[str]]


class Walk:
    def __init__(self, seed: int, node: Callable[[int], SimNode], gpus: int = 3) -> None:
        self.dice = random.Random(seed)
        self.cluster = Cluster(self.dice, {f"gn{n}": node(gpus) for n in range(3)})
        self.cluster.may_crash = True
        self.shared = self.dice.choice((0.0, 0.4, 1.0))
        """How many of the jobs share GPUs."""
        self.copies = False
        """Whether the head's store is copied, and a copy takes its place."""
        self.copy: Copy | None = None
        self.also: Callable[[], None] = lambda: None

    def node(self) -> str:
        return self.dice.choice(sorted(self.cluster.links))

    def submit(self) -> None:
        before = self.cluster.state.counters[""].job
        self.cluster.happens(
            events.Submit(tuple(self.job() for _ in range(self.dice.choice((1, 1, 2)))))
        )
        after = self.cluster.state.counters[""].job
        for number in range(before + 1, after + 1):
            self.cluster.submitted += self.cluster.names.pop(f"c{number}")

    def job(self) -> ClusterJob:
        dice = self.dice
        first = dice.choice((0, 7))
        array = ((first, first + 2), (first + 4, first + 4)) if dice.random() < 0.2 else ()
        living = sorted({job.array for job in self.cluster.state.jobs.values()})
        after = tuple(dice.sample(living, min(len(living), 2))) if dice.random() < 0.3 else ()
        percent, memory = None, None
        if dice.random() < self.shared:
            percent, memory = dice.choice(((None, 2), (30, 2), (50, 4), (50, None), (100, None)))
        return ClusterJob(
            "", dice.choice(ENVS), dice.choice(("ann", "bob")), dice.choice((0, 1, 1, 2, 3)),
            dice.choice((None, None, 60_000)), dice.choice((0, 1, 3)), indices=array, after=after,
            stage=dice.choice((ClusterStage.QUEUED, ClusterStage.QUEUED, ClusterStage.HELD)),
            task_class=dice.choice((TaskClass.NORMAL, *TaskClass)), compute_percent=percent,
            memory_bytes=memory,
        )  # fmt: skip

    def schedule(self) -> None:
        self.cluster.happens(events.Pass())

    def speak(self) -> None:
        for name, link in self.cluster.links.items():
            if len(link.down) < 20:
                self.cluster.head_speaks(name)
            if len(link.up) < 5 and self.dice.random() < 0.7:
                self.cluster.node_speaks(name)

    def deliver(self) -> None:
        for _ in range(6):
            self.cluster.deliver(self.node())

    def connect(self) -> None:
        for name, link in self.cluster.links.items():
            if link.session is None and self.dice.random() < 0.7:
                self.cluster.connect(name)

    def cut(self) -> None:
        self.cluster.cut(self.node())

    def goes_on(self) -> None:
        for link in self.cluster.links.values():
            link.node.goes_on(self.dice)

    def use_locally(self) -> None:
        self.cluster.links[self.node()].node.use_locally(self.dice)

    def kill_node(self) -> None:
        name = self.node()
        self.cluster.links[name].node.kill()
        self.cluster.cut(name)

    def lose_store(self) -> None:
        """Of a node that the head cannot hear."""
        name = self.node()
        link = self.cluster.links[name]
        if self.dice.random() < 0.3:
            self.cluster.cut(name)
            link.node.lose_store()
            link.down.clear()
            link.generation += 1

    def give_up(self) -> None:
        name = self.node()
        if self.cluster.links[name].session is None and self.dice.random() < 0.3:
            self.cluster.lose(name)

    def order(self, *kinds: Callable[[str], events.ClusterEvent]) -> None:
        """About a job, an array, or one that waits within an array's row."""
        jobs, dice = self.cluster.state.jobs, self.dice
        if jobs:
            job = jobs[dice.choice(sorted(jobs))]
            name = dice.choice((job.job_id, job.array))
            if job.indices:
                name = dice.choice((name, f"{name}.*", f"{name}.{job.indices[-1][1]}"))
            self.cluster.happens(dice.choice(kinds)(name))

    def withdraw(self) -> None:
        self.order(events.Withdraw)

    def hold(self) -> None:
        self.order(
            events.HoldWaiting, events.Unhold, events.Unhold, events.Unhold, events.Requeue,
            events.ToFront,
        )  # fmt: skip

    def drain(self) -> None:
        kind = self.dice.choice((events.DrainNode, events.ResumeNode, events.ResumeNode))
        self.cluster.happens(kind(self.node()))

    def set_total(self) -> None:
        self.cluster.set_env(self.dice.choice(ENVS), self.dice.choice((2, 5, 5)))

    def pass_time(self) -> None:
        self.cluster.now_ns += self.dice.choice((100_000_000, 3_000_000_000))
        self.cluster.happens(events.ClockMoved())

    def kill_head(self) -> None:
        self.cluster.restart()

    def restore(self) -> None:
        """Jobs that were submitted after the copy, and ends after it, are not in it."""
        cluster = self.cluster
        if not self.copies:
            return
        if self.copy is None or self.dice.random() < 0.5:
            self.copy = (dict(cluster.store), dict(cluster.ended), list(cluster.submitted))
            return
        generation = cluster.state.counters[""].generation
        cluster.store, cluster.ended, cluster.submitted = self.copy
        self.copy, cluster.may_crash = None, False
        for link in cluster.links.values():
            link.down.clear()  # a node takes no word of an earlier session
        cluster.restart()
        cluster.happens(events.Restored(generation))
        cluster.may_crash = True

    def steps(self, *left_out: Callable[[], None]) -> None:
        moves: dict[Callable[[], None], int] = {
            self.submit: 6, self.schedule: 12, self.speak: 20, self.deliver: 30, self.connect: 14,
            self.cut: 2, self.goes_on: 16, self.use_locally: 3, self.kill_node: 2,
            self.lose_store: 1, self.give_up: 1, self.withdraw: 2, self.drain: 2,
            self.set_total: 1, self.pass_time: 5, self.kill_head: 1,
            self.restore: 3, self.hold: 8,
        }  # fmt: skip
        for move in left_out:
            del moves[move]
        for _ in range(STEPS):
            self.dice.choices([*moves], [*moves.values()])[0]()
            self.cluster.check()
            self.also()


def walk(seed: int, node: Callable[[int], SimNode], *, copies: bool = False) -> Cluster:
    walked = Walk(seed, node)
    walked.copies = copies
    walked.steps()
    cluster = walked.cluster
    cluster.calm()
    over = [name for ended in cluster.ended.values() for name in names(ended.job)]
    assert sorted(over) == sorted(cluster.submitted)
    assert cluster.state.assignments == {}
    assert not cluster.state.counters[""].is_copy
    for ended in cluster.ended.values():
        assert ended.job.stage in (ClusterStage.DONE, ClusterStage.FAILED, ClusterStage.WITHDRAWN)
    return cluster


TAKE_ALL_ROWS = (164, 145, 140, 26, 33, 177, 31, 148, 52, 57)
"""Walks that take all rows together. After a change of the walks, look for them among all 200."""


def test_the_walks_take_each_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = set()

    def seen(table: Any, before: Any, event: Any, after: Any) -> Any:
        taken.add((before, event, after))
        return checked(table, before, event, after)

    monkeypatch.setattr(cluster_state, "checked", seen)
    rows = {(*row, after) for row, targets in STAGES.items() for after in targets.states}
    for seed in (*TAKE_ALL_ROWS, *range(200)):
        fails = partial(PlainNode, fails=0.15 if seed % 2 else 0.8)
        walk(seed, fails, copies=seed % 4 > 1)
        if rows - IN_A_COPY <= taken:
            break
    assert rows - IN_A_COPY == taken - IN_A_COPY


@pytest.mark.parametrize("seed", seeds(pytest.mark.slow))
def test_a_walk_with_plain_nodes(seed: int) -> None:
    walk(seed, PlainNode)


@pytest.mark.parametrize("seed", seeds(pytest.mark.slow))
def test_a_walk_of_a_head_that_is_restored_from_copies(seed: int) -> None:
    walk(seed, PlainNode, copies=True)


@pytest.mark.parametrize("seed", seeds(pytest.mark.long))
def test_a_walk_with_the_core_of_real_nodes(seed: int) -> None:
    walk(seed, RealNode)


@pytest.mark.parametrize("seed", seeds(pytest.mark.slow))
def test_the_gpus_that_nodes_give_an_environment_never_exceed_its_total(seed: int) -> None:
    """Counted on the nodes, where one GPU of many tasks of the environment is one.

    No node is given up, no total lowered, and no program of the nodes' own users runs.
    """
    walked = Walk(seed, PlainNode)
    walked.shared = 0.8
    cluster, totals = walked.cluster, {"a": walked.dice.choice((1, 3, 5)), "b": 2}
    for env, total in totals.items():
        cluster.may_crash = False
        cluster.set_env(env, total)
        cluster.may_crash = True

    def within() -> None:
        for env, total in totals.items():
            nodes = [link.node for link in cluster.links.values()]
            used = sum(node.used(env) for node in nodes if isinstance(node, PlainNode))
            assert used <= total, (env, used)

    walked.also = within
    walked.steps(walked.use_locally, walked.set_total, walked.lose_store, walked.give_up)
