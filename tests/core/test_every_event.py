"""Long walks in which every event of the core meets every other: what always holds.

Node.happens asserts after each step that the promises hold, that no decision raised and set its
entry aside, that a restart finds the same state, and at times that the twin that restarted decides
the same.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import get_args
from unittest import mock

import pytest

from nodemgr.core.manager import RULES as CORE_RULES
from nodemgr.core.model import events
from nodemgr.core.model.entities import MS, Request, Suspension, Task, TaskClass
from nodemgr.core.requests import notify
from nodemgr.core.scheduler import passes, placement, victims
from nodemgr.core.scheduler.allocator import Choice, Shortage
from nodemgr.core.sharing import preemption as made_to_go
from nodemgr.core.state import accounting, compute, host_use
from nodemgr.core.state.draft import Draft
from tests.core.every_event import EXEMPT_MS, RULES, Everything, Rule
from tests.support.examples import examples, seeds

STEPS = 120
HINDRANCES = (
    r" failed under an earlier attempt",
    r" kept for ", r" comes first", r" holds GPU", r" lost", r"drained", r" too small",
    r" not yet free of", r" in use by programs", r"waits for ", r"no job can be started",
    r" is disconnected", r" is resumed when its suspension has ended",
    r" gave their room to others", r" left their tasks still", r"waits until ",
)  # fmt: skip
"""The names that a line can have: an entry, a task, GPUs, an environment, a place, a limit."""
ROUNDS = 60
PREEMPTED: Counter[str] = Counter()


def test_the_machine_has_a_rule_for_each_event_of_the_core() -> None:
    known = set(get_args(events.Event))
    assert known == set(CORE_RULES)
    assert {rule.event for rule in RULES} == known


def walk(seed: int, rules: tuple[Rule, ...] = RULES) -> Everything:
    dice = random.Random(seed)
    walked = Everything(dice, contends=rules is not RULES)
    with mock.patch.object(made_to_go, "_make_go", Preempted().go):
        for _ in range(STEPS):
            possible = [rule for rule in rules if rule.can(walked)]
            (rule,) = dice.choices(possible, [each.weight for each in possible])
            walked.node.kinds = set()
            rule.does(walked)
            assert rule.event in walked.node.kinds, rule
            walked.node.passes(0, silent=walked.silent)
            check(walked)
    return walked


CONTENTION = (
    events.Acquire, events.ProcessGone, events.Tick, events.Suspended, events.Resumed,
    events.SubmitJobs, events.JobStarted, events.JobEnded, events.UnreclaimedChanged,
)  # fmt: skip


class Preempted:
    """The last preempted tasks, and for which request: in place of the function that does it."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, str, int]] = {}
        self._make_go = made_to_go._make_go

    def go(self, draft: Draft, task: Task, request: Request) -> None:
        """Not twice within the exempt time, nor twice for one request: it was served before."""
        now = (draft.now_ns, request.request_id, request.size)
        last = self._last.get(task.job_id or task.task_id)
        PREEMPTED["first" if last is None else "again"] += last != now
        if last is not None and last != now:  # the twin does the same once more
            assert draft.now_ns - last[0] >= EXEMPT_MS * MS, f"{task} goes again"
            there = draft.requests.get(last[1])
            is_served = there is None or there.resumes or there.size < last[2]
            assert is_served, f"{task} goes again for {last[1]}"
        self._last[task.job_id or task.task_id] = now
        self._make_go(draft, task, request)


def check(walked: Everything) -> None:
    state = walked.node.state
    draft = state.at(walked.node.now_ns)
    first_waits_rightly(draft)
    best_effort_cannot_grow(draft)
    for request, standing in notify.listing(state, draft.now_ns):
        said = Line(draft, request, standing.why)
        said.is_true()
        assert said.names_a_hindrance(), f"{request}: {standing}"
        may_wait = said.entries or waits_for_host(draft, request, standing.why)
        assert may_wait or not has_free_gpus(draft, request), f"{request}: {standing}"


def first_waits_rightly(draft: Draft) -> None:
    """It could not be served, and best effort that could go out of its way is going."""
    waiting = (request for request, _ in draft.waiting())
    request = next((each for each in waiting if passes.takes_part(draft, each)), None)
    if (
        request is None or not request.run.gpus or passes.away(draft, request)
    ):  # one that is away keeps its GPUs
        return
    if waits_for_host(draft, request):
        return
    result = placement.judge(draft, request, {}, {})
    assert not isinstance(result.answer, Choice), f"{request} could be served"
    if request.run.task_class is TaskClass.LATENCY_SENSITIVE and result.answer is Shortage.NODE:
        left = victims.victims(
            draft, result.ask, result.rows, lambda task: made_to_go.can_go(draft, task)
        )
        assert left == [], f"{request} waits behind best effort that could go"


def waits_for_host(draft: Draft, request: Request, line: str = "") -> bool:
    """It lacks CPUs or host memory, or another job does that comes first."""
    if not host_use.needs(request.run):
        return False
    is_short = host_use.short_of(draft, request.env, request.run) is not None
    return is_short or "waits for CPUs or host memory" in line


def best_effort_cannot_grow(draft: Draft) -> None:
    """Unless a request of an earlier class waits for its GPU."""
    earlier = [
        row
        for row in draft.requests.values()
        if row.run.task_class is not TaskClass.BEST_EFFORT and row.run.gpus
    ]
    for task in [draft.tasks[task_id] for task_id in draft.shrunk]:
        free = min(compute.free_percent(draft, uuid, plain=False) for uuid in task.gpus)
        assert free == 0 or earlier or not compute.computes(task), f"{task} could grow"


def has_free_gpus(draft: Draft, request: Request) -> bool:
    """Whether so many GPUs are free and usable, within the quota of its environment."""
    if request.resumes or not request.run.gpus or not passes.takes_part(draft, request):
        return False
    avoided = placement.avoided(draft, request)
    quota, room_bytes = draft.envs[request.env].quota, accounting.quota_room(draft, request.env)
    free = [
        accounting.full_grant(quota, gpu)
        for gpu in draft.gpus.values()
        if gpu.usable
        and gpu.uuid not in avoided
        and not draft.gpu_tasks.members(gpu.uuid)
        and not draft.charged.get(gpu.uuid)
        and not draft.unbooked.get(gpu.uuid)
        and (request.run.memory_bytes or 0) <= accounting.full_grant(quota, gpu)
    ]
    left = quota.gpus - len(accounting.used_gpus(draft, request.env))
    least_bytes = sum(sorted(free)[: request.run.gpus])
    within = room_bytes is None or least_bytes <= room_bytes
    return within and request.run.gpus <= min(left, len(free)) and not passes.away(draft, request)


class Line:
    """The line of a waiting entry, beside the state that it was made of."""

    def __init__(self, draft: Draft, request: Request, line: str) -> None:
        self.draft, self.request, self.line = draft, request, line
        self.entries = [self._entry(name) for name in self._named()]

    def _named(self) -> Iterator[str]:
        """The entries that it names as those that come first."""
        yield from re.findall(r" kept for \w+/([rj][\d.]+)", self.line)
        yield from re.findall(r"([rj][\d.]+) of its own environment comes first", self.line)

    def _entry(self, name: str) -> Request:
        """It waits, takes part in passes, and comes before this one."""
        (found,) = [
            row for row in self.draft.requests.values() if name in (row.request_id, row.job_id)
        ]
        assert self.draft.order(found) < self.draft.order(self.request), self.line
        assert passes.takes_part(self.draft, found), self.line
        return found

    def names_a_hindrance(self) -> bool:
        """At rest nothing has its turn at once, and no entry waits for nothing."""
        return any(re.search(words, self.line) for words in HINDRANCES)

    def is_true(self) -> None:
        for env, name, gpus in re.findall(r"(\w+)/(\S+) holds (GPUs? [\d, and]+) since", self.line):
            (task,) = [
                row for row in self.draft.tasks.values() if name in (row.task_id, row.job_id)
            ]
            assert task.env == env, self.line
            assert set(task.gpus) >= set(uuids(gpus)), self.line
            assert task.suspension is not Suspension.SUSPENDED, self.line
        for gpus in re.findall(r"(GPUs? [\d, and]+) too small", self.line):
            for uuid in uuids(gpus):
                assert self._is_too_small(uuid), f"{self.request}: {self.line}"
        if "waits for its own tasks to free memory" in self.line:
            assert self._may_free_memory(), self.line

    def _may_free_memory(self) -> bool:
        """Whether a task of its environment has memory, or would have room to come back."""
        grants = [row for row in self.draft.grants.values() if row.env == self.request.env]
        return any(
            not accounting.is_parked(grant)
            or accounting.return_bytes(self.draft, grant)
            <= accounting.gpu_room(self.draft, self.draft.gpus[grant.uuid])
            for grant in grants
        )

    def _is_too_small(self, uuid: str) -> bool:
        """An idle GPU of which the request can have no grant."""
        gpu, quota = self.draft.gpus[uuid], self.draft.envs[self.request.env].quota
        need_bytes = max(accounting.full_grant(quota, gpu), self.request.run.memory_bytes or 0)
        return need_bytes > accounting.gpu_room(self.draft, gpu)


def uuids(gpus: str) -> list[str]:
    return [f"GPU-{index}" for index in re.findall(r"\d+", gpus)]


def test_the_end_of_a_walk_ends_jobs_without_a_gpu_while_another_waits() -> None:
    walked = Everything(random.Random(0))
    walked.node.submits("alice", gpus=0, array=(0, 1, 2))
    assert walked.node.state.requests, "one more waits for the limit of the environment"
    walked.finish()
    assert not walked.node.state.requests


CONTENDING = tuple(
    rule for rule in RULES if rule.event in CONTENTION and rule.does is not Everything.assign
)
"""Without assigned jobs: their heads preempt them anew, this node does not."""


def test_walks_in_which_two_classes_contend() -> None:
    PREEMPTED.clear()
    for seed in range(4, 4 + examples(4)):
        walk(seed, CONTENDING)
    assert PREEMPTED["first"] > 2, "walks that preempt nothing show nothing"


@pytest.mark.parametrize("seed", seeds(pytest.mark.slow))
def test_a_walk(seed: int) -> None:
    """At its end all hindrances go: each entry is served, each task taken is given back."""
    walked = walk(seed)
    walked.clear()
    for _ in range(ROUNDS):
        walked.finish()
    assert not walked.node.state.requests
    assert not walked.tasks(Suspension.SUSPENDING, Suspension.SUSPENDED)
