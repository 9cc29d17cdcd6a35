"""Elastic grants: they grow into what nothing was promised, and give way to requests."""

from __future__ import annotations

import random

import pytest

from nodemgr.core.elastic import grants
from nodemgr.core.model.effects import LowerLimit, ResumeProcesses
from nodemgr.core.model.entities import MS, UNDER_WAY, DenyCode, JobState, Process, Word
from nodemgr.core.model.events import LimitLowered, Match
from nodemgr.core.state import accounting, elastic_grants
from tests.core.twin import TwinNode
from tests.core.walks import Rule, walk
from tests.core.world import GIB, Node, key
from tests.support.examples import seeds


def test_the_first_task_gets_all_and_gives_way_to_the_next() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.quota("bob", 1, 40)
    node.asks("alice", 10, gib=8, most_gib=80)
    assert node.grant_gib("alice", 0) == (80, 80)
    node.uses("alice", 0, 20)
    node.asks("bob", 20)
    assert node.gpus_of(20) == [0]
    assert (node.grant_gib("alice", 0), node.grant_gib("bob", 0)) == ((40, 40), (40, 40))
    changed = node.published("grant.changed")[-1]
    assert (changed["memory_bytes"], changed["least_bytes"]) == (40 * GIB, 8 * GIB)


def test_what_is_allocated_stays_and_the_next_one_waits_for_it() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.quota("bob", 1, 40)
    node.asks("alice", 10, gib=8, most_gib=80)
    node.uses("alice", 0, 70)
    node.asks("bob", 20)
    assert node.waiting() == [20]
    assert node.grant_gib("alice", 0) == (70, 70)
    node.uses("alice", 0, 30)
    node.passes(1_000)
    assert node.gpus_of(20) == [0]
    assert node.grant_gib("alice", 0) == (40, 40)


def test_a_suspended_task_comes_back_to_exactly_what_a_range_can_spare() -> None:
    node = Node(1)
    node.quota("alice", 1, 40)
    node.quota("bob", 1)
    node.asks("alice", 10)
    node.is_suspended("t1")
    node.asks("bob", 20, gib=40, most_gib=80)
    assert node.grant_gib("bob", 0) == (80, 80)
    node.resumes("t1")
    assert node.of(ResumeProcesses) == [ResumeProcesses("t1", (key(10),))]
    assert node.grant_gib("bob", 0) == (40, 40)


def test_a_surplus_that_was_found_in_use_is_not_hoped_for_at_once() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.quota("bob", 1, 40)
    node.asks("alice", 10, gib=8, most_gib=80)
    alice = ("alice", "GPU-0")
    assert elastic_grants.hoped(node.state, node.state.grants[alice]) == 72 * GIB
    node.uses("alice", 0, 70)
    node.asks("bob", 20)
    grant = node.state.grants[alice]
    assert elastic_grants.surplus(node.state, grant) == 62 * GIB
    assert elastic_grants.hoped(node.state, grant) == 0
    beats_ns = elastic_grants.IN_USE_BEATS * node.state.config.beat_ms * MS
    at_ns = node.state.lowerings[alice].at_ns
    for later_ns, is_in_use in ((beats_ns - 1, True), (beats_ns, False)):
        node.state.now_ns = at_ns + later_ns
        assert elastic_grants.is_in_use(node.state, alice) is is_in_use


def test_another_gpu_is_taken_before_memory_is_lowered() -> None:
    node = Node(2)
    node.quota("alice", 1)
    node.quota("bob", 1, 80)
    node.asks("alice", 10, gib=8, most_gib=80)
    node.asks("bob", 20)
    assert node.gpus_of(20) == [1]
    assert node.grant_gib("alice", 0) == (80, 80)


def test_a_grant_grows_after_a_calm() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.quota("bob", 1, 40)
    node.asks("bob", 20)
    node.asks("alice", 10, gib=8, most_gib=60)
    assert node.grant_gib("alice", 0) == (40, 40)
    node.dies(20)
    assert node.grant_gib("alice", 0) == (40, 40)
    node.passes(2_000)
    assert node.grant_gib("alice", 0) == (60, 60)


def test_two_ranges_divide_the_room() -> None:
    node = Node(1)
    for env in ("alice", "bob", "carol"):
        node.quota(env, 1)
    node.asks("alice", 10, gib=70)
    node.dies(10)
    node.asks("alice", 11, gib=8, most_gib=80)
    node.asks("bob", 20, gib=8, most_gib=80)
    assert node.grant_gib("bob", 0) == (8, 8)
    assert node.grant_gib("alice", 0) == (72, 72)
    node.asks("carol", 30, gib=16, most_gib=16)
    assert node.gpus_of(30) == [0]
    assert node.grant_gib("carol", 0) == (16, 16)


def test_the_envs_own_quota_is_given_back_to_its_next_task() -> None:
    node = Node(2)
    node.quota("alice", 2, 40)
    node.asks("alice", 10, 1, gib=8, most_gib=40)
    assert node.grant_gib("alice", 0) == (40, 40)
    job_id = node.submits("alice", gpus=1)
    assert job_id is not None
    assert node.state.tasks["t2"].gpus == ("GPU-1",)
    assert node.grant_gib("alice", 0) == (20, 20)


@pytest.mark.parametrize(("least", "most"), [(8, 50), (8, 90)])
def test_a_range_above_quota_or_gpu_is_refused(least: int, most: int) -> None:
    node = Node(1)
    node.quota("alice", 1, 40 if most == 50 else None)
    node.asks("alice", 10, gib=least, most_gib=most)
    denied = node.denied(10)
    assert denied is not None
    assert denied.code == DenyCode.MEMORY_ABOVE_LIMIT


def test_a_range_over_udp_is_refused() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.asks("alice", 10, gib=8, most_gib=20, udp=True)
    denied = node.denied(10)
    assert denied is not None
    assert denied.code == DenyCode.BAD_REQUEST


def test_a_late_answer_of_the_ledger_changes_nothing() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.quota("bob", 1, 40)
    node.asks("alice", 10, gib=8, most_gib=80)
    node.holds_orders = True
    node.asks("bob", 20)
    (order,) = node.of(LowerLimit)
    assert (order.least_bytes, node.waiting()) == (40 * GIB, [20])
    assert node.grant_gib("alice", 0) == (80, 80)
    node.dies(10)
    node.asks("alice", 11, gib=8, most_gib=80)
    before = node.grant_gib("alice", 0)
    node.happens(LimitLowered("alice", "GPU-0", order.number, GIB, node.wall_ns))
    assert node.grant_gib("alice", 0) == before


def test_a_restart_between_order_and_answer_orders_again() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.quota("bob", 1, 40)
    node.asks("alice", 10, gib=8, most_gib=80)
    node.holds_orders = True
    node.asks("bob", 20)
    node.restart()
    assert node.grant_gib("alice", 0) == (80, 80)
    assert len(node.orders) == 1


def test_without_a_ledger_now_the_order_is_given_again_after_a_beat() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.quota("bob", 1, 40)
    node.asks("alice", 10, gib=8, most_gib=80)
    node.holds_orders = True
    node.asks("bob", 20)
    number = node.orders.pop().number
    node.happens(LimitLowered("alice", "GPU-0", number, None, node.wall_ns))
    assert (node.waiting(), node.orders) == ([20], [])
    node.holds_orders = False
    node.passes(1_000)
    assert node.gpus_of(20) == [0]


def mixed() -> Node:
    """A task with a range and a plain one share a grant of 70 GiB; 40 are promised, 60 in use."""
    node = Node(1)
    node.quota("alice", 2, 80)
    node.quota("bob", 1, 40)
    node.asks("alice", 10, gib=8, most_gib=70)
    node.asks("alice", 11)
    assert (node.gpus_of(11), node.grant_gib("alice", 0)) == ([0], (70, 70))
    node.uses("alice", 0, 60)
    return node


def test_the_last_range_of_a_shared_grant_ends_and_no_used_memory_is_cut() -> None:
    node = mixed()
    node.dies(10)
    assert node.grant_gib("alice", 0) == (60, 60), "cut to 40: below the use"
    for used, left in ((45, 45), (50, 45), (30, 40)):
        node.uses("alice", 0, min(used, 45))
        node.passes(1_000)
        assert node.grant_gib("alice", 0) == (left, left)
    assert not node.state.elastic_grants
    node.passes(60_000)
    assert node.wakes == 60_000 // node.config.timeout_ms, "nothing is asked for any more"


def test_what_a_grant_keeps_after_its_last_range_goes_to_requests_first() -> None:
    node = mixed()
    node.dies(10)
    node.asks("bob", 20)
    assert node.waiting() == [20]
    node.uses("alice", 0, 5)
    node.passes(1_000)
    assert (node.gpus_of(20), node.grant_gib("alice", 0)) == ([0], (40, 40))


def test_the_next_range_of_such_a_grant_is_its_only_one() -> None:
    node = mixed()
    node.uses("alice", 0, 20)
    node.holds_orders = True
    node.dies(10)
    assert node.grant_gib("alice", 0) == (70, 70)
    node.asks("alice", 12, gib=8, most_gib=50, used_gib={0: 20})
    grant = node.grant("alice", 0)
    assert grant is not None
    assert (grant.tasks, grant.elastic_tasks, grant.most_bytes) == (2, 1, 50 * GIB)
    node.holds_orders = False
    node.happens(Match(node.wall_ns))
    assert node.grant_gib("alice", 0) == (40, 40)
    node.passes(2_000)
    assert node.grant_gib("alice", 0) == (50, 50)


@pytest.mark.parametrize("answers", [True, False])
def test_a_restart_after_the_last_range_cuts_nothing_either(answers: bool) -> None:
    node = mixed()
    node.holds_orders = not answers
    node.dies(10)
    node.restart()
    node.holds_orders = False
    node.happens(Match(node.wall_ns))
    assert node.grant_gib("alice", 0) == (60, 60)
    node.uses("alice", 0, 0)
    node.passes(1_000)
    assert node.grant_gib("alice", 0) == (40, 40)


def test_a_task_that_leaves_a_shared_gpu_takes_no_used_memory_with_its_range() -> None:
    """An elastic task with a range of memory leaves a GPU that a plain task shares with it."""
    node = Node(2)
    node.quota("alice", 3, 120)
    node.asks("alice", 10, 1, gib=8, most_gib=60, most=2, elastic=True)
    node.asks("alice", 11, 2)
    assert (node.gpus_of(10), node.gpus_of(11)) == ([0, 1], [0, 1])
    assert node.grant_gib("alice", 1) == (60, 60)
    node.uses("alice", 1, 55)
    node.says("alice", 10, Word.LEFT, 1)
    assert node.gpus_of(10) == [0]
    assert node.grant_gib("alice", 1) == (55, 55)
    node.driver_shows(10, 1, 0)
    node.uses("alice", 1, 10)
    node.passes(1_000)
    assert node.grant_gib("alice", 1) == (40, 40)


ENVS = ("alice", "bob", "carol")
GPUS = 3


class Memory:
    """A node whose grants grow and shrink; with one GPU, tasks with and without ranges share it."""

    def __init__(self, gpus: int = GPUS) -> None:
        self.node = TwinNode(gpus)
        self.pids = 0
        self.cut: set[tuple[str, str]] = set()
        """Grants with more in use than a quota that was lowered lets them have."""
        quotas = (("carol", 3, 120), ("bob", 2, 100), ("alice", 3, None))
        self.envs = ENVS[-gpus:]
        for env, quota_gpus, gib in quotas[:gpus]:
            self.node.quota(env, quota_gpus, gib)

    def processes(self) -> list[Process]:
        rows = self.node.state.processes.values()
        return sorted((row for row in rows if not row.fenced), key=lambda row: row.key)

    def living_jobs(self) -> list[str]:
        jobs = self.node.state.jobs.values()
        return sorted(job.job_id for job in jobs if job.state in UNDER_WAY)

    def ask(self, dice: random.Random) -> None:
        self.pids += 1
        least = dice.choice((None, 4, 10, 30))
        most = None if least is None else dice.choice((None, least, 2 * least, 70))
        self.node.asks(
            dice.choice(self.envs), self.pids, dice.choice((1, 1, 2)), gib=least, most_gib=most,
            wait_ms=dice.choice((None, None, 0)),
        )  # fmt: skip

    def submit(self, dice: random.Random) -> None:
        least = dice.choice((4, 10)) * GIB
        self.node.submits(
            dice.choice(self.envs), gpus=1, memory_bytes=least, memory_most_bytes=4 * least
        )

    def end_job(self, dice: random.Random) -> None:
        job_id = dice.choice(self.living_jobs())
        if self.node.state.jobs[job_id].state is JobState.STARTING:
            self.node.begins(job_id)
        self.node.job_ends(job_id)

    def usable(self) -> list[tuple[str, str]]:
        state = self.node.state
        return sorted((env, uuid) for env, uuid in state.grants if env in state.members)

    def use(self, dice: random.Random) -> None:
        """Memory is allocated within the limit, or freed: by processes, which a job may lack."""
        env, uuid = dice.choice(self.usable())
        limit_bytes = self.node.state.grants[env, uuid].limit_bytes
        self.node.used[env, uuid] = dice.randint(0, limit_bytes // GIB) * GIB

    def leave(self, dice: random.Random) -> None:
        process = dice.choice(self.processes())
        if process.pid is not None:
            self.node.dies(process.pid)
        for env, uuid in self.node.used.keys() - self.usable():
            self.node.used[env, uuid] = 0

    def pass_time(self, dice: random.Random) -> None:
        self.node.passes(dice.choice((500, 1_000, 2_500)))

    def set_quota(self, dice: random.Random) -> None:
        self.node.quota(dice.choice(self.envs), dice.randint(1, 3), dice.choice((None, 60, 120)))
        self.cut |= self.below_use()

    def below_use(self) -> set[tuple[str, str]]:
        grants, used = self.node.state.grants, self.node.used
        return {key for key in self.usable() if grants[key].limit_bytes < used[key]}

    def hold_up(self, dice: random.Random) -> None:
        self.node.holds_orders = not self.node.holds_orders
        self.node.happens(Match(self.node.wall_ns))

    def restart(self, dice: random.Random) -> None:
        self.node.restart()

    def check(self) -> None:
        """No limit falls below the use, but by a lowered quota.

        No memory that is neither promised nor in use keeps a request waiting.
        """
        self.cut &= self.below_use()
        assert self.cut == self.below_use()
        if self.node.holds_orders:
            return
        state = self.node.state
        for grant in state.grants.values():
            if grant.elastic_tasks and accounting.active_tasks(grant):
                assert grant.memory_bytes >= accounting.least(state, grant) or (
                    (grant.env, grant.uuid) in state.unsettled
                )
        draft = state.at(self.node.now_ns)
        spare = elastic_grants.spare(draft)
        if spare and not self.node.orders:
            before = len(draft.effects)
            grants._lower_for_requests(draft, {})
            assert len(draft.effects) == before, "a request waits for memory that could be lowered"


RULES: tuple[Rule[Memory], ...] = (
    (14, Memory.ask, lambda _: True),
    (4, Memory.submit, lambda _: True),
    (6, Memory.end_job, lambda walked: walked.living_jobs()),
    (12, Memory.use, lambda walked: walked.usable()),
    (10, Memory.leave, lambda walked: walked.processes()),
    (12, Memory.pass_time, lambda _: True),
    (2, Memory.set_quota, lambda _: True),
    (4, Memory.hold_up, lambda _: True),
    (2, Memory.restart, lambda _: True),
)


@pytest.mark.parametrize("seed", seeds(pytest.mark.slow))
def test_a_walk(seed: int) -> None:
    walk(Memory(1 if seed % 2 else GPUS), RULES, Memory.check, seed)
