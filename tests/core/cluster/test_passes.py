"""The choice of nodes: best fit, totals, kept nodes, jobs ahead of their time; a plain model."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from nodemgr.core.cluster import events
from nodemgr.core.cluster.entities import ClusterJob, ClusterStage, EndedJob, NodeGpu
from nodemgr.core.cluster.events import NodeAnswer
from nodemgr.core.cluster.head import step
from nodemgr.core.cluster.messages import GiveBack, to_say
from nodemgr.core.cluster.passes import MAX_GIVEN
from nodemgr.core.cluster.state import ClusterDraft, restore
from nodemgr.core.model.entities import Cause, Config, JobState, TaskClass
from tests.core.cluster import invariants
from tests.support.examples import seeds

S = 1_000_000_000
HOUR_MS = 3_600_000
EACH_CLASS = '{"task_class":"latency-sensitive"}'


class Head:
    """A head whose nodes say what the test says."""

    def __init__(self, total: int = 100, depth: int = 100, **nodes: int) -> None:
        self.state, self.now_ns = ClusterDraft("hq", Config(backfill_depth=depth)), 1_000 * S
        self.sizes, self.others = nodes, dict.fromkeys(nodes, ())
        self.answers: dict[str, list[NodeAnswer]] = {name: [] for name in nodes}
        self.numbers = dict.fromkeys(nodes, 0)
        self.said: dict[str, tuple[NodeGpu, ...]] = {}
        """By node that reports them, its GPUs."""
        self.ended: dict[str, EndedJob] = {}
        for env in ("a", "b"):
            self.happens(events.SetEnv(env, total, quota=EACH_CLASS))
        for name in nodes:
            self.happens(events.AddNode(name))
            self.syncs(name)

    def happens(self, event: events.ClusterEvent) -> list[events.Acknowledge]:
        made = step(self.state, event, self.now_ns)
        assert list(invariants.check_change(made.draft)) == []
        made.apply()
        self.ended |= made.draft.ended
        assert list(invariants.check(self.state)) == []
        return made.effects

    def syncs(
        self, name: str, session: int = 1, generation: str = "g1", below: int = 0
    ) -> list[events.Acknowledge]:
        self.numbers[name] = 0
        given = self.sizes[name], self.others[name], tuple(self.answers[name])
        return self.happens(
            events.Synced(
                name, session, generation, "boot", below, *given, shares=self.said.get(name)
            )
        )

    def reports(
        self, name: str, *answers: NodeAnswer, session: int = 1, number: int | None = None
    ) -> list[events.Acknowledge]:
        self.numbers[name] += 1
        number = self.numbers[name] if number is None else number
        given = self.sizes[name], self.others[name], answers
        return self.happens(
            events.NodeReport(name, session, number, *given, shares=self.said.get(name))
        )

    def submits(self, gpus: int = 1, env: str = "a", hours: int | None = None) -> str:
        limit = None if hours is None else hours * HOUR_MS
        self.happens(events.Submit((ClusterJob("", env, "ann", gpus, limit),)))
        return f"c{self.state.counters[''].job}"

    def passes(self) -> None:
        self.happens(events.Pass())

    def node_of(self, job_id: str) -> str | None:
        number = self.state.jobs[job_id].assigned
        return None if number is None else self.state.assignments[number].node

    def answer(self, job_id: str, **given: object) -> NodeAnswer:
        row = self.state.assignments[self.state.jobs[job_id].assigned or 0]
        facts: dict[str, object] = {
            "over": False, "began": False, "is_refusal": False, "confirmed": True,
            "state": JobState.QUEUED,
        } | given  # fmt: skip
        return NodeAnswer(row.key, row.number, **facts)  # type: ignore[arg-type]

    def begins(self, *jobs: str) -> None:
        for job_id in jobs:
            node = self.node_of(job_id)
            assert node is not None
            self.reports(node, self.answer(job_id, began=True))

    def ends(self, job_id: str, state: JobState = JobState.DONE, **given: object) -> None:
        node = self.node_of(job_id)
        assert node is not None
        facts: dict[str, object] = {"over": True, "began": True, "state": state} | given
        self.reports(node, self.answer(job_id, **facts))

    def stage(self, job_id: str) -> ClusterStage:
        return self.state.jobs[job_id].stage


def test_the_node_that_fits_best() -> None:
    head = Head(gn1=8, gn2=4, gn3=4)
    jobs = [head.submits(gpus) for gpus in (3, 1, 4, 5)]
    head.passes()
    assert [head.node_of(job) for job in jobs] == ["gn2", "gn2", "gn3", "gn1"]


def of_class(head: Head, task_class: TaskClass, gpus: int = 1) -> str:
    head.happens(events.Submit((ClusterJob("", "a", "ann", gpus, task_class=task_class),)))
    return f"c{head.state.counters[''].job}"


def test_an_earlier_class_is_served_first() -> None:
    head = Head(gn1=1)
    low = of_class(head, TaskClass.BEST_EFFORT)
    plain = [head.submits(), head.submits()]
    first = of_class(head, TaskClass.LATENCY_SENSITIVE)
    assert list(head.state.queue.walk()) == [first, *plain, low]
    head.happens(events.ToFront(plain[1]))
    assert list(head.state.queue.walk()) == [first, *reversed(plain), low]
    head.state = restore("hq", list(head.state.rows()), head.state.config)
    assert list(head.state.queue.walk()) == [first, *reversed(plain), low]


def test_best_effort_jobs_yield_to_a_latency_sensitive_one_that_fits_nowhere() -> None:
    head = Head(gn1=4, gn2=4, gn3=4)
    low = [of_class(head, TaskClass.BEST_EFFORT, gpus) for gpus in (4, 3)]
    plain = head.submits(4)
    head.passes()
    head.begins(*low, plain)
    fits = of_class(head, TaskClass.LATENCY_SENSITIVE, 1)
    first, second = (of_class(head, TaskClass.LATENCY_SENSITIVE, 4) for _ in range(2))
    head.passes()
    beside = head.node_of(low[1])
    assert head.node_of(fits) == beside, "where a GPU is free"
    assert head.node_of(first) == head.node_of(low[0])
    assert head.node_of(second) == head.node_of(plain), "ahead of its time"


def test_a_job_that_no_node_has_room_for_keeps_one_and_lets_others_pass() -> None:
    """5 + 5 GPUs of two nodes of 8 are taken; a job of 6 waits, and one of 1 behind it starts."""
    head = Head(gn1=8, gn2=8)
    busy = [head.submits(5), head.submits(5)]
    head.passes()
    head.begins(*busy)
    wide, small = head.submits(6), head.submits(1)
    head.passes()
    assert head.node_of(wide) == "gn1", "ahead of its time: the node begins it by itself"
    assert head.node_of(small) == "gn2"


def test_one_job_ahead_on_each_node() -> None:
    head = Head(gn1=2, gn2=2)
    busy = [head.submits(2), head.submits(2)]
    head.passes()
    head.begins(*busy)
    waiting = [head.submits(2) for _ in range(4)]
    for _ in range(3):
        head.passes()
    assert [head.node_of(job) for job in waiting] == ["gn1", "gn2", None, None]


def test_a_job_ahead_is_asked_back_when_another_node_has_room_and_the_room_is_kept() -> None:
    head = Head(gn1=2, gn2=2)
    busy = [head.submits(2), head.submits(2)]
    head.passes()
    head.begins(*busy)
    first = head.submits(2)
    head.passes()
    assert head.node_of(first) == "gn1"
    late = head.submits(2, "b")
    head.passes()
    assert head.node_of(late) == "gn2"
    third = head.submits(2, "b")
    head.reports("gn2", head.answer(late, over=True, state=JobState.WITHDRAWN))  # not there
    head.ends(busy[1])
    head.passes()
    assert head.stage(first) is ClusterStage.STOPPING
    assert [head.node_of(late), head.node_of(third)] == [None, None], "gn2 is kept for the first"
    head.passes()
    assert [head.node_of(late), head.node_of(third)] == [None, None]
    head.reports("gn1", head.answer(first))
    assert [type(word) for word in to_say(head.state, "gn1")] == [GiveBack]
    head.reports("gn1", head.answer(first, over=True, state=JobState.WITHDRAWN))
    head.passes()
    assert head.node_of(first) == "gn2"


def test_a_later_job_may_use_a_kept_node_until_its_time_comes() -> None:
    head = Head(gn1=4)
    busy = head.submits(3, hours=4)
    head.passes()
    head.begins(busy)
    wide = head.submits(4, hours=1)
    head.passes()
    assert head.node_of(wide) == "gn1"
    long, short = head.submits(1, hours=5), head.submits(1, hours=3)
    head.passes()
    assert [head.node_of(long), head.node_of(short)] == [None, "gn1"]


def test_an_overdue_job_may_end_at_any_time() -> None:
    head = Head(gn1=4)
    busy = head.submits(3, hours=1)
    head.passes()
    head.begins(busy)
    head.now_ns += 2 * 3_600 * S
    wide, short = head.submits(4, hours=1), head.submits(1, hours=1)
    head.passes()
    assert [head.node_of(wide), head.node_of(short)] == ["gn1", None], "its node is kept for it"


def test_the_earliest_node_by_time_limits_is_kept() -> None:
    head = Head(gn1=4, gn2=4)
    busy = [head.submits(4, hours=9), head.submits(4, hours=2)]
    head.passes()
    head.begins(*busy)
    waiting = [head.submits(4, hours=1), head.submits(4, hours=1)]
    head.passes()
    assert [head.node_of(job) for job in waiting] == ["gn2", None], "the second one is behind it"


def test_a_total_counts_assignments_and_interactive_use_of_all_nodes() -> None:
    head = Head(total=4, gn1=8, gn2=8)
    head.others["gn2"] = (("a", 2), ("", 1))
    head.reports("gn2")
    jobs = [head.submits(2), head.submits(1), head.submits(2, "b")]
    head.passes()
    assert [head.node_of(job) is not None for job in jobs] == [True, False, True]
    head.happens(events.Silent("gn2", 1))
    head.passes()
    assert head.node_of(jobs[1]) is None, "what a silent node had counts"
    head.happens(events.SetEnv("a", 5))
    head.passes()
    assert head.node_of(jobs[1]) == "gn1"


def test_a_total_below_what_is_assigned_takes_nothing_away() -> None:
    head = Head(gn1=8)
    jobs = [head.submits(2), head.submits(2)]
    head.passes()
    head.happens(events.SetEnv("a", 1))
    jobs.append(head.submits(0))
    head.passes()
    assert [head.node_of(job) for job in jobs] == ["gn1", "gn1", None]


def test_a_node_without_a_session_or_drained_gets_nothing() -> None:
    head = Head(gn1=8, gn2=8)
    head.happens(events.Silent("gn1", 1))
    head.happens(events.DrainNode("gn2"))
    job = head.submits(1)
    head.passes()
    assert head.node_of(job) is None
    head.happens(events.ResumeNode("gn2"))
    head.passes()
    assert head.node_of(job) == "gn2"


def test_jobs_that_have_not_begun_leave_a_drained_node() -> None:
    head = Head(gn1=4, gn2=4)
    running, waiting = head.submits(4), head.submits(2)
    head.passes()
    head.begins(running)
    head.happens(events.DrainNode("gn2"))
    head.happens(events.DrainNode("gn1"))
    assert head.stage(running) is ClusterStage.RUNNING
    assert head.stage(waiting) is ClusterStage.STOPPING
    head.reports("gn2", head.answer(waiting, over=True, state=JobState.WITHDRAWN))
    assert head.stage(waiting) is ClusterStage.QUEUED
    assert head.state.jobs[waiting].avoids == ()


def test_a_job_larger_than_any_node_waits_and_keeps_none() -> None:
    head = Head(gn1=4)
    huge, small = head.submits(5), head.submits(4)
    head.passes()
    assert [head.node_of(huge), head.node_of(small)] == [None, "gn1"]


def test_so_many_jobs_keep_nodes() -> None:
    head = Head(depth=1, gn1=2, gn2=2)
    busy = [head.submits(1), head.submits(1), head.submits(1), head.submits(1)]
    head.passes()
    head.begins(*busy)
    waiting = [head.submits(2), head.submits(2, "b")]
    head.passes()
    assert [head.node_of(job) for job in waiting] == ["gn1", None]


def test_a_job_keeps_its_place_when_it_comes_back() -> None:
    head = Head(gn1=1)
    first = head.submits(1)
    head.passes()
    later = head.submits(1)
    head.begins(first)
    head.ends(first, JobState.FAILED, cause=Cause.NODE_DOWN)
    assert [*head.state.queue] == [first, later]


# -- a plain model --


@dataclass
class PlainJob:
    name: str
    env: str
    gpus: int


def plain_pass(
    free: dict[str, int], size: dict[str, int], total: dict[str, int], queue: list[PlainJob]
) -> dict[str, str]:
    """Where each job goes, if no end is known: loops, and nothing else."""
    given: dict[str, str] = {}
    kept: set[str] = set()
    ahead: set[str] = set()
    for job in queue:
        if total[job.env] < job.gpus:
            continue
        fits = sorted((free[n], n) for n in free if n not in kept and free[n] >= job.gpus)
        large = sorted((-free[n], n) for n in free if n not in kept and size[n] >= job.gpus)
        if fits:
            node = fits[0][1]
            free[node] -= job.gpus
        elif large:
            node = large[0][1]
            kept.add(node)
            if node in ahead:
                continue
            ahead.add(node)
        else:
            continue
        total[job.env] -= job.gpus
        given[job.name] = node
    return given


@pytest.mark.parametrize("seed", seeds(pytest.mark.slow))
def test_a_pass_does_what_a_plain_one_does(seed: int) -> None:
    dice = random.Random(seed)
    sizes = {f"gn{n}": dice.choice((2, 4, 8)) for n in range(dice.randint(1, 6))}
    head = Head(**sizes)
    for name, size in sizes.items():
        head.others[name] = (("", dice.randint(0, size)),)
        head.reports(name)
    totals = {env: dice.choice((3, 8, 20)) for env in ("a", "b")}
    for env, total in totals.items():
        head.happens(events.SetEnv(env, total))
    queue = []
    for _ in range(dice.randint(1, 25)):
        env, gpus = dice.choice("ab"), dice.choice((0, 1, 1, 2, 3, 5, 8, 9))
        queue.append(PlainJob(head.submits(gpus, env), env, gpus))
    free = {name: size - head.others[name][0][1] for name, size in sizes.items()}
    head.passes()
    given = {job.name: node for job in queue if (node := head.node_of(job.name)) is not None}
    assert given == plain_pass(free, sizes, totals, queue)


def test_an_environment_gets_its_part_of_one_node_and_the_rest_elsewhere() -> None:
    head = Head(gn1=8, gn2=8)
    head.happens(events.SetEnv("a", 100, per_node=2))
    jobs = [head.submits() for _ in range(5)]
    other = head.submits(6, "b")
    head.passes()
    assert [head.node_of(job) for job in jobs] == ["gn1", "gn1", "gn2", "gn2", None]
    assert head.node_of(other) == "gn1", "a job that no node may take keeps none"
    head.others["gn2"] = (("b", 1),)
    head.reports("gn2")
    head.ends(jobs[0])
    head.passes()
    assert head.node_of(jobs[4]) == "gn1"


def test_a_pass_is_bounded_and_the_next_one_goes_on() -> None:
    """However many GPUs come free at once, in the order of the queue."""
    count = MAX_GIVEN + 5
    head = Head(total=2 * count, big=count)
    for _ in range(count):
        head.happens(events.Submit((ClusterJob("", "a", "ann", 1),)))
    head.happens(events.Pass())
    assert len(head.state.assignments) == MAX_GIVEN
    given = [row.job_id for row in head.state.assignments.values()]
    assert given == [f"c{number}" for number in range(1, MAX_GIVEN + 1)]
    head.happens(events.Pass())
    assert len(head.state.assignments) == count


def test_an_ordinary_users_node_gets_that_users_jobs_alone() -> None:
    head = Head(own=8, roots=1)
    head.happens(events.AddNode("own", user="ann"))
    for user in ("bob", "ann", "bob", "ann"):
        head.happens(events.Submit((ClusterJob("", "a", user, 1),)))
    head.happens(events.Pass())
    nodes = {row.job_id: row.node for row in head.state.assignments.values()}
    assert (nodes["c1"], nodes["c2"], nodes["c4"]) == ("roots", "own", "own")
    assert nodes.get("c3") in (None, "roots")


def test_jobs_that_wait_at_nodes_do_not_take_a_new_room_from_each_other_for_ever() -> None:
    head = Head(gn1=2, gn2=2)
    jobs = [head.submits(2) for _ in range(6)]
    head.passes()
    head.happens(events.AddNode("gn3"))
    head.sizes["gn3"], head.others["gn3"], head.answers["gn3"] = 2, (), []
    head.syncs("gn3")
    for _ in range(10):
        head.passes()
        for row in list(head.state.assignments.values()):
            if head.state.jobs[row.job_id].stage is ClusterStage.STOPPING:  # it is given back
                end = NodeAnswer(
                    row.key, row.number, True, False, False, True, JobState.WITHDRAWN
                )  # fmt: skip
                head.reports(row.node, end)
    assert head.node_of(jobs[2]) == "gn3"
    assert head.state.counters[""].number < 10
