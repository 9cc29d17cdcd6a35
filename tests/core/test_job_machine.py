"""Any events of jobs, in any order, beside asking processes and changing GPUs.

The core does what the plain model does. World.happens asserts after each step that invariants hold
and that the saved rows give the same state again.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodemgr.core.lifecycle import jobs
from nodemgr.core.model.effects import SendGrant, StartJob, StopJob
from nodemgr.core.model.entities import Cause
from tests.core import plain_jobs
from tests.core.test_machine import Choices, pick
from tests.core.twin import TwinNode
from tests.core.walks import Rule, walk
from tests.core.world import gpu
from tests.support.examples import examples, seeds

GPUS = 3
ENVS = ("alice", "bob")
PLACES = ("", "", "alice/1000/dev")
ENDS = ["well", "well", "badly", "badly", "hopeless", "interrupted", "interrupted"]
CAUSES = {"hopeless": Cause.TIME_LIMIT, "interrupted": Cause.SUPERVISOR_LOST}
QUEUES = st.sampled_from(["high", "normal", "normal", "low"])
RARELY = st.sampled_from([False, False, False, True])


class Jobs(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        most, most_of_env = plain_jobs.MOST_WITHOUT_GPU, plain_jobs.MOST_WITHOUT_GPU_OF_ENV
        pauses = {
            "requeue_pause_ms": plain_jobs.PAUSE_S * 1_000,
            "max_requeue_pause_ms": plain_jobs.LONGEST_PAUSE_S * 1_000,
        }
        self.node = TwinNode(
            GPUS,
            ageing_ms=0,
            max_cpu_jobs=most,
            max_env_cpu_jobs=most_of_env,
            **pauses,
        )
        self.plain = plain_jobs.PlainJobs(GPUS)
        self.lost: set[int] = set()
        self.pids = 0
        self.waiters: dict[int, str] = {}
        """Processes that asked, with their envs."""
        self.plain.up = {""}
        self.set_quota("alice", 2)
        self.set_quota("bob", 2)
        for env in (*ENVS, *ENVS):
            self.submit(env, 1, "normal", [], 0, 1, False, "")
        self.submit("alice", 2, "normal", [], 0, 1, False, "")

    def heard(self) -> None:
        """Report the core's actions since then to the model, in order."""
        self.plain.drained = {gpu.index for gpu in self.node.state.gpus.values() if gpu.drained}
        for effect in self.node.effects:
            if isinstance(effect, StartJob):
                self.plain.starts(
                    effect.job_id,
                    effect.attempt,
                    [self.node.state.gpus[uuid].index for uuid in effect.gpus],
                )
                assert effect == jobs.start_of(self.node.state, self.node.state.jobs[effect.job_id])
            elif isinstance(effect, SendGrant):
                self.plain.granted(
                    f"p{effect.connection}",
                    [self.node.state.gpus[uuid].index for uuid in effect.task.gpus],
                )

    def names(self) -> list[str]:
        """Jobs that live, arrays of which one does, and jobs that ended."""
        return sorted(
            {*self.plain.jobs, *(name.split(".")[0] for name in self.plain.jobs), *self.plain.over}
        )

    # -- jobs --

    @rule(
        env=st.sampled_from(ENVS),
        gpus=st.sampled_from([0, 1, 1, 1, 2, 2, 3]),
        queue=QUEUES,
        awaited=st.lists(st.integers(1, 8), max_size=2),
        array=st.sampled_from([0, 0, 0, 1, 3]),
        max_restarts=st.sampled_from([0, 1, 3]),
        hold=RARELY,
        place=st.sampled_from(PLACES),
    )
    def submit(
        self,
        env: str,
        gpus: int,
        queue: str,
        awaited: list[int],
        array: int,
        max_restarts: int,
        hold: bool,
        place: str,
    ) -> None:
        after = [f"j{self.plain.numbers + 1 - back}" for back in awaited]
        expected = self.plain.submit(env, gpus, queue, after, array, max_restarts, hold, place)
        given = {
            "gpus": gpus,
            "priority": queue,
            "after": tuple(after),
            "array": tuple(range(array)),
            "max_restarts": max_restarts,
        }
        assert self.node.submits(env, hold=hold, place=place, **given) == expected
        self.heard()

    @precondition(lambda self: self.plain.jobs)
    @rule(data=st.data(), back=st.sampled_from([0, 0, 0, 1]))
    def begin(self, data: Choices, back: int) -> None:
        """Told of this attempt, or once more of an older one."""
        name = pick(data, sorted(self.plain.jobs))
        attempt = self.plain.jobs[name].attempt - back
        self.plain.runs(name, attempt)
        self.node.begins(name, attempt)

    @precondition(lambda self: self.plain.jobs)
    @rule(data=st.data(), how=st.sampled_from(ENDS), back=st.sampled_from([0, 0, 0, 0, 1]))
    def end(self, data: Choices, how: str, back: int) -> None:
        under_way = [
            name
            for name, job in sorted(self.plain.jobs.items())
            if job.state in plain_jobs.UNDER_WAY
        ]
        name = pick(data, under_way or sorted(self.plain.jobs))
        attempt = self.plain.jobs[name].attempt - back
        self.plain.ended(name, attempt, how)
        self.node.job_ends(
            name, 0 if how == "well" else 1, attempt=attempt, cause=CAUSES.get(how, Cause.OWN)
        )
        self.heard()

    @precondition(lambda self: self.names())
    @rule(data=st.data())
    def withdraw(self, data: Choices) -> None:
        name = pick(data, self.names())
        before = {
            job.name: job.then
            for job in self.plain.living(name)
            if job.state in plain_jobs.UNDER_WAY
        }
        self.plain.withdraw(name)
        self.node.withdraws(name)
        assert {stop.job_id for stop in self.node.of(StopJob)} == {
            job for job, then in before.items() if then in ("", "queued", "paused")
        }
        self.heard()

    @precondition(lambda self: self.names())
    @rule(data=st.data())
    def hold(self, data: Choices) -> None:
        name = pick(data, self.names())
        self.plain.hold(name)
        self.node.holds(name)
        self.heard()

    def held(self) -> list[str]:
        return sorted(
            job.name for job in self.plain.jobs.values() if job.state in ("held", "paused")
        )

    @precondition(held)
    @rule(data=st.data())
    def free(self, data: Choices) -> None:
        name = pick(data, self.held())
        self.node.frees(name)
        self.plain.free_job(name, self.lines())
        self.heard()

    @precondition(lambda self: self.names())
    @rule(
        data=st.data(), queue=st.sampled_from([None, "high", "normal", "low"]), first=st.booleans()
    )
    def move(self, data: Choices, queue: str | None, first: bool) -> None:
        name = pick(data, self.names())
        if queue is None and not first:
            return
        self.plain.move(name, queue, first=first)
        self.node.moves(name, queue, first=first)
        self.heard()

    @precondition(lambda self: self.names())
    @rule(data=st.data(), by_admin=st.booleans())
    def requeue(self, data: Choices, by_admin: bool) -> None:
        name = pick(data, self.names())
        self.plain.requeue(name, by_admin=by_admin)
        self.node.requeues(name, by_admin=by_admin)
        self.heard()

    @rule(place=st.sampled_from(PLACES), up=st.booleans())
    def place(self, place: str, up: bool) -> None:
        """A runner comes or goes.

        Its attempts that have not begun may come back, or not.
        """
        self.plain.up = self.plain.up | {place} if up else self.plain.up - {place}
        self.node.place(place, up=up)
        self.heard()

    @precondition(lambda self: self.plain.jobs)
    @rule(data=st.data(), most=st.integers(1, 3), back=st.sampled_from([0, 0, 0, 1]))
    def give_back(self, data: Choices, most: int, back: int) -> None:
        """Attempts that could not begin, reported after their place went down.

        Or such a report of an older attempt, or of one that runs.
        """
        place = pick(data, sorted({job.place for job in self.plain.jobs.values()}))
        self.place(place, False)
        there = sorted(job.name for job in self.plain.jobs.values() if job.place == place)
        names = sorted({pick(data, there) for _ in range(most)})
        attempts = [(name, self.plain.jobs[name].attempt - back) for name in names]
        self.node.gives_back(*attempts)
        lines = self.lines()
        for name, attempt in attempts:
            if name in self.plain.jobs:
                self.plain.requeued_before_start(name, attempt, lines[self.plain.jobs[name].queue])
        self.heard()

    # -- the rest of the node --

    @rule(env=st.sampled_from(ENVS))
    def ask(self, env: str) -> None:
        self.pids += 1
        self.plain.asks(f"p{self.pids}", env)
        if self.plain.quota.get(env, 0) > 0:
            self.waiters[self.pids] = env
        self.node.asks(env, self.pids, 1)
        self.heard()

    @precondition(lambda self: self.waiters)
    @rule(data=st.data())
    def die(self, data: Choices) -> None:
        pid = pick(data, sorted(self.waiters))
        del self.waiters[pid]
        self.plain.dies(f"p{pid}")
        self.node.dies(pid)
        self.heard()

    @rule(env=st.sampled_from(ENVS), gpus=st.integers(0, 3))
    def set_quota(self, env: str, gpus: int) -> None:
        self.plain.set_quota(env, gpus)
        self.node.quota(env, gpus)
        self.heard()

    @rule(env=st.sampled_from(ENVS), sure=RARELY)
    def remove_quota(self, env: str, sure: bool) -> None:
        if not sure:
            return
        self.plain.remove_quota(env)
        self.node.removes(env)
        self.heard()
        for pid in [pid for pid, owner in self.waiters.items() if owner == env]:
            del self.waiters[pid]
            self.node.dies(pid)  # what it still has on a GPU goes with it
            self.heard()

    @rule(index=st.integers(0, GPUS - 1), sure=RARELY)
    def lose_or_restore(self, index: int, sure: bool) -> None:
        if not sure and index not in self.lost:
            return
        self.lost ^= {index}
        self.plain.gpu_is(index, healthy=index not in self.lost)
        self.node.gpus_are([gpu(i) for i in range(GPUS) if i not in self.lost])
        self.heard()

    @rule(index=st.integers(0, GPUS - 1), drained=st.booleans())
    def drain_or_resume(self, index: int, drained: bool) -> None:
        if drained:
            self.node.drains(index)
        else:
            self.node.undrains(index)
        self.heard()

    @rule(index=st.integers(0, GPUS - 1), sure=RARELY)
    def report_failure(self, index: int, sure: bool) -> None:
        if not sure:
            return
        self.plain.gpu_fails(index)
        self.node.reports_failure(index)
        self.heard()

    @rule(seconds=st.integers(1, 20))
    def time_passes(self, seconds: int) -> None:
        end_s = self.plain.now_s + seconds
        while (next_s := self.plain.next_end_of_pause()) is not None and next_s <= end_s:
            self._until(next_s)
            self.plain.resume(self.lines())
            self.heard()
        self._until(end_s)
        assert self.node.effects == [] or not self.node.of(StartJob)

    def _until(self, time_s: int) -> None:
        passed_s, self.plain.now_s = time_s - self.plain.now_s, time_s
        self.node.wall_ns += passed_s * 1_000_000_000
        self.node.passes(passed_s * 1_000)

    @rule()
    def restart(self) -> None:
        """kill -9 of the manager. The node's clock goes on, in another boot, too.

        Waiting processes come back at once, in the order of their places.
        """
        self.node.restart()  # what the core does when it is told of places again is seen below
        self.heard()
        for name in self.node.waiting():
            self.node.asks(self.waiters[name], name, 1)
            self.heard()

    # -- what is compared --

    def lines(self) -> dict[str, list[str]]:
        lines: dict[str, list[str]] = {rank: [] for rank in plain_jobs.RANKS}
        for request, _ in self.node.state.waiting():
            if request.job_id is None:
                lines[request.priority].append(f"p{request.askers[0].pid}")
            else:
                row = self.node.state.jobs[request.job_id]
                lines[request.priority] += self.node.jobs_of(row)
        return lines

    @invariant()
    def same(self) -> None:
        state = self.node.state
        assert {
            name: (
                job.state.value,
                job.attempt,
                job.restarts,
                job.interruptions,
                sorted(job.after),
            )
            for job in state.jobs.values()
            for name in self.node.jobs_of(job)
        } == {
            job.name: (job.state, job.attempt, job.restarts, job.interruptions, sorted(job.after))
            for job in self.plain.jobs.values()
        }
        assert {
            name: over.job.state.value
            for over in self.node.history.values()
            for name in self.node.jobs_of(over.job)
        } == self.plain.over
        assert self.lines() == self.plain.lines
        assert self.plain.idle() is None
        held = {job.task_id: job.job_id for job in state.jobs.values() if job.task_id is not None}
        for task in state.tasks.values():
            who = held.get(task.task_id) or f"p{task.processes[0].split(':')[1]}"
            assert all(who in self.plain.holders[state.gpus[uuid].index] for uuid in task.gpus)
        assert not self.node.history.keys() & state.jobs.keys()


TestJobs = Jobs.TestCase
TestJobs.settings = settings(
    max_examples=examples(12),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


def submit(core: Jobs, dice: random.Random) -> None:
    awaited = [dice.randint(1, 6) for _ in range(dice.choice([0, 0, 0, 1, 2]))]
    gpus, queue = (
        dice.choice([0, 1, 1, 1, 2, 2, 3]),
        dice.choice(["high", "normal", "normal", "low"]),
    )
    array, max_restarts, hold = (
        dice.choice([0, 0, 0, 1, 3]),
        dice.choice([0, 1, 3]),
        dice.random() < 0.2,
    )
    core.submit(
        dice.choice(ENVS), gpus, queue, awaited, array, max_restarts, hold, dice.choice(PLACES)
    )


def move(core: Jobs, dice: random.Random) -> None:
    core.move(dice, dice.choice([None, "high", "normal", "low"]), dice.random() < 0.5)


def end(core: Jobs, dice: random.Random) -> None:
    core.end(dice, dice.choice(["well", *ENDS]), dice.random() < 0.1)


RULES: tuple[Rule[Jobs], ...] = (
    (30, submit, lambda core: True),
    (12, lambda core, dice: core.begin(dice, dice.random() < 0.1), lambda core: core.plain.jobs),
    (15, end, lambda core: core.plain.jobs),
    (4, lambda core, dice: core.withdraw(dice), Jobs.names),
    (4, lambda core, dice: core.hold(dice), Jobs.names),
    (4, lambda core, dice: core.free(dice), Jobs.held),
    (6, move, Jobs.names),
    (6, lambda core, dice: core.requeue(dice, dice.random() < 0.3), Jobs.names),
    (6, lambda core, dice: core.place(dice.choice(PLACES), dice.random() < 0.7), lambda core: True),
    (
        5,
        lambda core, dice: core.give_back(dice, dice.randint(1, 3), int(dice.random() < 0.1)),
        lambda core: core.plain.jobs,
    ),
    (6, lambda core, dice: core.ask(dice.choice(ENVS)), lambda core: True),
    (5, lambda core, dice: core.die(dice), lambda core: core.waiters),
    (
        3,
        lambda core, dice: core.set_quota(dice.choice(ENVS), dice.choice([0, 1, 2, 2, 3, 3])),
        lambda core: True,
    ),
    (1, lambda core, dice: core.remove_quota(dice.choice(ENVS), True), lambda core: True),
    (
        2,
        lambda core, dice: core.lose_or_restore(dice.randint(0, GPUS - 1), True),
        lambda core: True,
    ),
    (
        3,
        lambda core, dice: core.drain_or_resume(dice.randint(0, GPUS - 1), dice.random() < 0.6),
        lambda core: True,
    ),
    (
        2,
        lambda core, dice: core.report_failure(dice.randint(0, GPUS - 1), True),
        lambda core: True,
    ),
    (2, lambda core, dice: core.time_passes(dice.randint(1, 20)), lambda core: True),
    (2, lambda core, dice: core.restart(), lambda core: True),
)


@pytest.mark.parametrize("seed", seeds(pytest.mark.slow))
def test_a_walk(seed: int) -> None:
    walk(Jobs(), RULES, Jobs.same, seed)
