"""The pool's decisions: growth with the queue, return, what lists and silence mean; its table."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from nodemgr.core.cluster import events, messages, pool
from nodemgr.core.cluster.entities import ClusterJob, ClusterStage, GivenJob, NodeGpu
from nodemgr.core.cluster.events import NodeAnswer
from nodemgr.core.cluster.head import step
from nodemgr.core.cluster.pilots import (
    PILOTS,
    AskSlurm,
    CancelPilots,
    ListedPilot,
    PilotStage,
    PoolConfig,
    PoolEffect,
    ReturnNode,
)
from nodemgr.core.cluster.state import ClusterDraft, restore
from nodemgr.core.model.entities import JobState
from nodemgr.core.model.transitions import checked
from nodemgr.core.model.values import replace
from tests.core.cluster import invariants
from tests.support.examples import seeds

S = 1_000_000_000
CONFIG = PoolConfig(
    max_nodes=4, gpus=8, time_limit_s=7_200, notice_s=300, idle_return_s=600, rest_s=0
)


class Pool:
    """A head with a pool; Slurm and the nodes say what the test says."""

    def __init__(self, config: PoolConfig = CONFIG, **own: int) -> None:
        self.state, self.now_ns, self.config = ClusterDraft("hq"), 1_000 * S, config
        self.facts: dict[str, events.LentNode] = {}
        self.sessions = Counter[str]()
        self.happens(events.SetEnv("a", 100))
        for name, gpus in own.items():
            self.happens(events.AddNode(name))
            self.happens(events.Synced(name, 1, "g", "b", 0, gpus, (), ()))

    def happens(self, event: events.ClusterEvent) -> list[PoolEffect]:
        made = step(self.state, event, self.now_ns)
        assert list(invariants.check_change(made.draft)) == []
        made.apply()
        assert list(invariants.check(self.state)) == []
        return made.draft.pool_effects

    def submits(self, count: int, gpus: int = 8, limit_ms: int | None = None) -> None:
        for _ in range(count):
            self.happens(events.Submit((ClusterJob("", "a", "ann", gpus, limit_ms),)))
        self.happens(events.Pass())

    def looks(self, *listed: ListedPilot, away: bool = False, after_s: int = 1) -> list[PoolEffect]:
        self.now_ns += after_s * S
        return self.happens(events.PoolTick(self.config, None if away else listed))

    def opens(self, name: str, pilot: int, left_s: int = 7_200, *, waits: bool = False) -> None:
        """A node of the pool is connected and holds the pilot (0: none)."""
        if name not in self.state.nodes:
            self.happens(events.AddNode(name))
        self.sessions[name] += 1
        self.facts[name] = events.LentNode(pilot, left_s * 1_000 if pilot else None, waits)
        gpus = 8 if pilot else 0
        self.happens(
            events.Synced(
                name, self.sessions[name], "g", "b", 0, gpus, (), (), (), self.facts[name]
            )
        )
        self.happens(events.Pass())
        self.give_back()

    def give_back(self) -> None:
        """Nodes that speak give back what they are asked for."""
        for row in list(self.state.assignments.values()):
            job = self.state.jobs[row.job_id]
            if job.stage is ClusterStage.STOPPING and row.node in self.state.sessions:
                self.answers(row, JobState.WITHDRAWN, began=False)
        self.happens(events.Pass())

    def answers(self, row: GivenJob, state: JobState, *, began: bool) -> None:
        end = NodeAnswer(row.key, row.number, True, began, False, True, state)
        node, (session, last) = self.state.nodes[row.node], self.state.sessions[row.node]
        self.happens(
            events.NodeReport(
                row.node, session, last + 1, node.gpus, (), (end,), self.facts.get(row.node)
            )
        )

    def silences(self, name: str) -> None:
        self.happens(events.Silent(name, self.sessions[name]))

    def ends(self, name: str) -> None:
        """All that the node has ends well."""
        for number in list(self.state.of_node.get(name, ())):
            self.answers(self.state.assignments[number], JobState.DONE, began=True)

    def stages(self) -> dict[int, str]:
        return {number: row.stage.value for number, row in self.state.pilots.items()}


def asked(*numbers: int) -> list[AskSlurm]:
    return [AskSlurm(number, "") for number in numbers]


def pending(number: int) -> ListedPilot:
    return ListedPilot(number, runs=False)


def runs(number: int, node: str = "") -> ListedPilot:
    return ListedPilot(number, runs=True, node=node)


def test_the_pool_grows_with_the_queue_and_returns_nodes() -> None:
    made = Pool()
    assert made.looks() == []
    made.submits(3)
    assert made.looks() == asked(1)
    made.happens(events.PilotAnswered(1))
    assert made.looks(pending(1)) == asked(2)
    assert made.looks(pending(1), pending(2)) == []  # two are on their way
    assert made.looks(runs(1, "gn1"), pending(2)) == []
    made.opens("gn1", 1)
    assert made.state.jobs["c1"].stage is ClusterStage.ASSIGNED
    assert made.looks(runs(1), pending(2)) == asked(3)
    made.opens("gn2", 2)
    made.opens("gn3", 3)
    listed = runs(1), runs(2), runs(3)
    assert made.looks(*listed, after_s=1_000) == []  # all three are in use
    made.ends("gn2")
    assert made.looks(*listed) == []
    assert made.looks(*listed, after_s=599) == []
    assert made.looks(*listed, after_s=2) == [ReturnNode("gn2", 2)]
    assert made.state.nodes["gn2"].why == pool.BACK_WHY
    made.opens("gn2", 0)
    assert made.looks(*listed) == [CancelPilots((2,))]
    for _ in range(3):
        made.looks(runs(1), runs(3))
    assert made.stages() == {1: "held", 3: "held"}


def test_a_node_that_comes_again_gets_jobs_again() -> None:
    made = Pool(pool.replace(CONFIG, idle_return_s=0))
    made.submits(1)
    made.looks()
    made.opens("gn1", 1)
    made.ends("gn1")
    made.looks(runs(1, "gn1"))
    assert made.looks(runs(1, "gn1")) == [ReturnNode("gn1", 1)]
    made.opens("gn1", 0)
    made.submits(1)
    made.looks(runs(1))
    made.opens("gn1", 2)
    assert not made.state.nodes["gn1"].drained
    assert made.state.jobs["c2"].stage is ClusterStage.ASSIGNED


def test_own_nodes_come_first_and_a_closed_node_gets_nothing() -> None:
    made = Pool(own=8)
    made.opens("a-pool-node", 1)
    made.submits(1, gpus=2)
    assert made.state.assignments[1].node == "own"
    made.opens("a-pool-node", 0)
    made.submits(5, gpus=0)
    assert {row.node for row in made.state.assignments.values()} == {"own"}


@pytest.mark.parametrize(
    ("limit_s", "node"), [(1_000, ClusterStage.ASSIGNED), (5_000, ClusterStage.QUEUED)]
)
def test_a_job_with_a_limit_ends_before_the_node_goes_back(
    limit_s: int, node: ClusterStage
) -> None:
    made = Pool()
    made.opens("gn1", 1, left_s=2_000)
    made.submits(1, limit_ms=limit_s * 1_000)
    assert made.state.jobs["c1"].stage is node


def test_jobs_that_no_node_of_the_pool_can_run_ask_for_none() -> None:
    made = Pool()
    made.submits(1, gpus=9)
    made.submits(1, limit_ms=7_000_000)  # longer than a pilot without its notice
    made.happens(events.SetEnv("a", 4))
    made.submits(1, gpus=5)
    assert made.looks() == []


def test_jobs_that_share_gpus_ask_for_the_nodes_that_they_fill_together() -> None:
    made = Pool(pool.replace(CONFIG, gpus=2), own=1)
    made.happens(events.Submit((ClusterJob("", "a", "ann", 1),)))
    made.happens(events.Pass())  # the own node is full
    half = ClusterJob("", "a", "ann", 1, compute_percent=50, memory_bytes=4)
    made.happens(events.Submit((half,) * 6))
    assert pool.needed(made.state, made.config) == 3, "the memory of no GPU is known"
    made.happens(events.AddNode("gn1"))
    gpus = (NodeGpu(8, 0, is_plain=True, tasks=1, envs=(("", 0),)),) * 2
    said = 0, 2, (("", 2),), (), (), events.LentNode(1, 7_200_000, waits=False)
    made.happens(events.Synced("gn1", 1, "g", "b", *said, shares=gpus))
    made.happens(events.Pass())
    assert pool.needed(made.state, made.config) == 2, "four of six on one node"


def test_a_pilot_near_its_end_goes_back_and_another_is_asked_for() -> None:
    made = Pool()
    made.submits(1)
    made.looks()
    made.opens("gn1", 1, left_s=1_000)
    made.submits(1)
    assert made.looks(runs(1), after_s=600) == asked(2)
    assert made.looks(runs(1), pending(2), after_s=200) == [AskSlurm(3, ""), ReturnNode("gn1", 1)]
    assert made.state.jobs["c1"].stage is ClusterStage.STOPPING  # not begun: it comes back


def test_sbatch_is_run_once_whatever_becomes_of_its_answer() -> None:
    made = Pool(pool.replace(CONFIG, max_nodes=1))
    made.submits(1)
    assert made.looks() == asked(1)
    made.state = restore("hq", made.state.rows(), made.state.config)  # killed before the answer
    made.opens("gn9", 0)
    assert made.looks(away=True, after_s=30) == []
    assert made.looks(pending(1)) == []  # it had been taken
    assert made.stages() == {1: "queued"}
    for _ in range(3):
        effects = made.looks()
    assert effects == asked(2)  # it is gone: another number
    for _ in range(4):
        assert made.looks(after_s=1) == []  # sbatch may be on its way
    assert made.looks(after_s=200) == asked(3)


def test_a_refusal_of_sbatch_is_kept_and_asking_rests() -> None:
    made = Pool()
    made.submits(2)
    for number, pause_s in ((1, 10), (2, 20), (3, 40)):
        assert made.looks() == asked(number)
        made.happens(events.PilotAnswered(number, "no such partition"))
        assert made.state.pool.fault == "no such partition"
        assert made.looks(after_s=pause_s - 1) == []


def test_a_closed_node_hears_the_pilots_that_may_come_to_it() -> None:
    made = Pool(replace(CONFIG, always=("gn1",)))
    for name in ("gn1", "gn2"):
        made.opens(name, 0)
    made.submits(2)
    made.looks()
    made.looks(after_s=60)  # one change at a time
    assert {number: row.node for number, row in made.state.pilots.items()} == {1: "gn1", 2: ""}

    def named(node: str) -> list[tuple[int, ...]]:
        said = messages.to_say(made.state, node)
        return [word.numbers for word in said if isinstance(word, messages.ExpectPilots)]

    assert (named("gn1"), named("gn2")) == ([(1, 2)], [(2,)])
    made.opens("gn1", 1)
    assert (named("gn1"), named("gn2")) == ([], [(2,)])


def test_a_pilot_that_does_not_register_is_cancelled() -> None:
    made = Pool(pool.replace(CONFIG, max_nodes=1))
    made.submits(1)
    made.looks()
    made.looks(runs(1, "gn1"))
    assert made.looks(runs(1, "gn1"), after_s=100) == []
    assert made.looks(runs(1, "gn1"), after_s=30) == [CancelPilots((1,))]
    assert "gn1" in made.state.pool.fault
    made.opens("gn1", 1)  # late: it is emptied in order
    assert made.looks(runs(1, "gn1")) == [ReturnNode("gn1", 1)]


def test_a_slurm_that_lost_its_state_changes_nothing_on_nodes_that_speak() -> None:
    made = Pool()
    made.submits(2)
    made.looks()
    made.opens("gn1", 1)
    assert made.looks(runs(1)) == asked(2)
    made.opens("gn2", 2)
    for _ in range(9):
        assert made.looks(after_s=60) == []
    made.silences("gn2")
    assert made.looks() == [AskSlurm(3, "gn2")]  # its job is unknown until the node speaks
    assert made.stages() == {1: "held", 3: "asked"}
    assert made.state.jobs["c2"].assigned is not None


def test_a_waiting_program_and_kept_nodes_are_asked_for_by_name() -> None:
    made = Pool(pool.replace(CONFIG, always=("gn7",)))
    assert made.looks() == [AskSlurm(1, "gn7")]
    made.opens("gn3", 0, waits=True)
    assert made.looks(pending(1)) == [AskSlurm(2, "gn3")]
    made.opens("gn7", 1)
    assert made.looks(runs(1), pending(2), after_s=6_000) == []  # kept
    made.happens(events.DrainNode("gn7", "a fan"))
    assert made.looks(runs(1), pending(2)) == [ReturnNode("gn7", 1)]
    assert made.state.nodes["gn7"].why == "a fan"


def test_pilots_that_nobody_waits_for_any_more_are_cancelled() -> None:
    made = Pool()
    made.submits(1)
    made.looks()
    made.looks(pending(1))
    made.happens(events.Withdraw("c1"))
    assert made.looks(pending(1)) == [CancelPilots((1,))]
    for _ in range(3):
        made.looks()
    assert made.stages() == {}


def test_a_head_restored_from_a_copy_takes_over_pilots_of_after_it() -> None:
    made = Pool()
    made.happens(events.Restored())
    made.opens("gn1", 3)
    assert made.stages() == {3: "held"}
    made.submits(2)
    assert made.looks(runs(3)) == asked(made.state.counters[""].pilot)
    assert made.state.counters[""].pilot > 10_000


# -- a walk --


class PoolWalk:
    """Slurm as it may be: it forgets, it is away, it starts late; nodes come and fall silent."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.pool = Pool(pool.replace(CONFIG, min_nodes=self.dice.choice((0, 1)), idle_return_s=5))
        self.listed: dict[int, ListedPilot] = {}
        self.asked: set[int] = set()
        self.effects: list[PoolEffect] = []

    def look(self) -> None:
        away = self.dice.random() < 0.2
        effects = self.pool.looks(
            *self.listed.values(), away=away, after_s=self.dice.choice((1, 7, 60))
        )
        for effect in effects:
            if isinstance(effect, AskSlurm):
                assert effect.number not in self.asked, "asked for twice"
                self.asked.add(effect.number)
                assert len(self.pool.state.pilots) <= self.pool.config.max_nodes
                self.sbatch(effect)
            elif isinstance(effect, CancelPilots):
                for number in effect.numbers:
                    if self.dice.random() < 0.7:
                        self.listed.pop(number, None)
                        self.close(number)
            elif self.dice.random() < 0.4:
                self.close(effect.pilot)

    def sbatch(self, effect: AskSlurm) -> None:
        luck = self.dice.random()
        if luck < 0.8:
            self.listed[effect.number] = pending(effect.number)
        if luck < 0.6:
            self.pool.happens(events.PilotAnswered(effect.number))
        elif luck > 0.9:
            self.pool.happens(events.PilotAnswered(effect.number, "no"))

    def close(self, number: int) -> None:
        for name, node in list(self.pool.state.nodes.items()):
            if node.pool is not None and node.pool.pilot == number:
                self.pool.ends(name) if name in self.pool.state.sessions else None
                self.pool.opens(name, 0)

    def start(self) -> None:
        for number, row in list(self.listed.items()):
            if not row.runs and self.dice.random() < 0.5:
                self.listed[number] = runs(number, f"gn{number % 5}")

    def register(self) -> None:
        for number, row in list(self.listed.items()):
            if row.runs and self.dice.random() < 0.5:
                self.pool.opens(row.node, number)

    def forget(self) -> None:
        if self.dice.random() < 0.2:
            self.listed.clear()

    def silence(self) -> None:
        names = sorted(self.pool.state.sessions)
        if names and self.dice.random() < 0.5:
            self.pool.silences(self.dice.choice(names))

    def submit(self) -> None:
        self.pool.submits(1, self.dice.choice((1, 2, 8)))

    def end(self) -> None:
        for name in sorted(self.pool.state.sessions):
            if self.dice.random() < 0.5:
                self.pool.ends(name)

    def withdraw(self) -> None:
        for name in sorted(self.pool.state.jobs)[:2]:
            self.pool.happens(events.Withdraw(name))

    def kill_head(self) -> None:
        rows = list(self.pool.state.rows())
        if self.dice.random() < 0.2:
            self.pool.state = restore("hq", rows)

    def restore(self) -> None:
        if self.dice.random() < 0.1:
            self.pool.state.pilots.clear()  # as in an older copy
            self.pool.happens(events.Restored())

    def steps(self, count: int = 150) -> None:
        moves = (
            self.look, self.look, self.look, self.start, self.register, self.start, self.register,
            self.forget, self.silence, self.submit, self.end, self.withdraw, self.kill_head,
            self.restore,
        )  # fmt: skip
        for _ in range(count):
            self.dice.choice(moves)()

    def calm(self) -> None:
        """Slurm works, and no job is left: all nodes but the least go back."""
        self.forget = self.silence = lambda: None  # type: ignore[method-assign]
        for _ in range(40):
            self.pool.now_ns += 700 * S
            self.start()
            self.register()
            for name in list(self.pool.state.nodes):
                if name not in self.pool.state.sessions:
                    node = self.pool.state.nodes[name]
                    self.pool.opens(name, 0 if node.pool is None else node.pool.pilot)
            self.end()
            for name in list(self.pool.state.jobs):
                self.pool.happens(events.Withdraw(name))
            self.look()


@pytest.mark.parametrize("seed", seeds(pytest.mark.slow))
def test_a_walk_ends_with_the_least_nodes(seed: int) -> None:
    walk = PoolWalk(seed)
    walk.steps()
    walk.calm()
    left = [row for row in walk.pool.state.pilots.values() if row.stage is PilotStage.HELD]
    assert len(left) <= max(1, walk.pool.config.min_nodes), walk.pool.stages()


def test_the_walks_take_each_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = set()

    def seen(table: Any, before: Any, event: Any, after: Any) -> Any:
        taken.add((before, event, after))
        return checked(table, before, event, after)

    monkeypatch.setattr(pool, "checked", seen)
    rows = {(*row, after) for row, targets in PILOTS.items() for after in targets.states}
    for seed in range(60):
        PoolWalk(seed).steps(400)
        if rows <= taken:
            break
    assert rows - taken == set()
