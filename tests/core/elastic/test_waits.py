"""How long GPUs and memory above the promised part keep requests waiting, in the node's own time.

A request counts as kept waiting while it would start in a scheduling pass on a state in which every
elastic task has its least number of GPUs, or every elastic grant its promised part and what is in
use. That state is made without the code that plans recalls and lowers grants.

The time counts anew after a change by an administrator or of the hardware, after a restart, which
gives each recall a new deadline, and when a task stalls or comes back: its GPUs are recalled anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from nodemgr.core.elastic import grants, resizes
from nodemgr.core.lifecycle import resizing
from nodemgr.core.model.entities import MS
from nodemgr.core.model.values import replace
from nodemgr.core.requests import matching
from nodemgr.core.state import accounting, elastic_grants, elastic_leases
from nodemgr.core.state.draft import Draft
from tests.core.elastic import test_grants, test_resizes
from tests.core.elastic.test_grants import Memory
from tests.core.elastic.test_resizes import RECALL_MS, Elastic
from tests.core.walks import Rule, walk
from tests.core.world import Node
from tests.support.examples import seeds

STRIDE_MS = 500


class Waits:
    """Since when each request has been kept waiting without a break."""

    def __init__(self, bound_ms: int, gives: Callable[[Draft, Node], None]) -> None:
        self.bound_ms = bound_ms
        self._gives = gives
        self._since_ns: dict[str, int] = {}
        self.longest_ns = 0

    def forget(self) -> None:
        self._since_ns = {}

    def measure(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        kept = self._kept_waiting(node, monkeypatch)
        self._since_ns = {each: self._since_ns.get(each, node.now_ns) for each in kept}
        for request_id, since_ns in self._since_ns.items():
            waits_ns = node.now_ns - since_ns
            self.longest_ns = max(self.longest_ns, waits_ns)
            assert waits_ns <= self.bound_ms * MS, f"{request_id} waits for {waits_ns / 1e9} s"

    def _kept_waiting(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The requests that would start if everything above the promised part were given back."""
        draft, before = node.state, list(node.state.requests)
        draft.begin(node.now_ns, node.wall_ns)
        self._gives(draft, node)
        with monkeypatch.context() as patch:
            patch.setattr(resizes, "settle", lambda *_: None)
            patch.setattr(grants, "settle", lambda *_: None)
            matching.match(draft, dict(node.used))
        would_start = [each for each in before if each not in draft.requests]
        draft.undo()
        return would_start


def leave_above_least(draft: Draft, _node: Node) -> None:
    """Each elastic task that runs leaves its GPUs above the least number, with all its memory."""
    for lease in list(draft.elastics.values()):
        for uuid in elastic_leases.above_least(lease):
            if elastic_leases.is_active(draft.tasks[lease.task_id]):
                task = draft.tasks[lease.task_id]
                resizing.shrink(draft, task, uuid, "")
    for unreclaimed in list(draft.unreclaimed.values()):
        if draft.unreclaimed.before((unreclaimed.process, unreclaimed.uuid)) is None:
            draft.drop_unreclaimed(unreclaimed)


def keep_what_is_used(draft: Draft, node: Node) -> None:
    """Each elastic grant has its promised part, or what its processes use if that is more."""
    for grant in elastic_grants.there(draft):
        if elastic_grants.surplus(draft, grant):
            used_bytes = node.used[grant.env, grant.uuid] + grant.caps_bytes
            least_bytes = max(accounting.least(draft, grant), used_bytes)
            draft.put_grant(replace(grant, memory_bytes=min(grant.memory_bytes, least_bytes)))


class Recalled(Elastic):
    """Memory of what left a GPU is gone within a stride; leaders mostly ignore recalls."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = Waits(RECALL_MS + resizing.GRACE_MS, leave_above_least)
        self.patch = pytest.MonkeyPatch()

    def pass_time(self, dice: random.Random) -> None:
        for _ in range(dice.choice((1, 4, 8, 26))):
            self.node.passes(STRIDE_MS, silent=self.silent)
            if self.node.published("task.stalled"):
                self.waits.forget()
            self.clear_memory()
            self.waits.measure(self.node, self.patch)

    def clear_memory(self) -> None:
        for process, uuid in sorted(self.node.state.unreclaimed):
            self.node.driver_shows(int(process.split(":")[1]), int(uuid.partition("-")[2]), 0)

    def check(self) -> None:
        self.waits.measure(self.node, self.patch)


class Lowered(Memory):
    """Requests that wait for memory which elastic grants have and do not use."""

    def __init__(self, gpus: int) -> None:
        super().__init__(gpus)
        self.waits = Waits(self.node.config.beat_ms + STRIDE_MS, keep_what_is_used)
        self.patch = pytest.MonkeyPatch()

        self.envs = test_grants.ENVS
        for env, gib in (("alice", None), ("bob", 40 * gpus), ("carol", 30 * gpus)):
            self.node.quota(env, gpus, gib)

    def ask(self, dice: random.Random) -> None:
        self.pids += 1
        least, most = dice.choice(((None, None), (8, 80), (10, 60), (20, 30)))
        env = dice.choice(self.envs)
        if most is not None and env != "alice":
            most = min(most, 30)
        self.node.asks(env, self.pids, 1, gib=least, most_gib=most)

    def use(self, dice: random.Random) -> None:
        """All of the limits while a request comes, and then nothing: the request waits for it."""
        for key in self.usable():
            self.node.used[key] = self.node.state.grants[key].limit_bytes
        self.check()
        self.ask(dice)
        self.node.passes(dice.choice((100, 300, 900)))
        self.node.used |= dict.fromkeys(self.usable(), 0)

    def pass_time(self, dice: random.Random) -> None:
        for _ in range(dice.choice((1, 2, 5))):
            self.node.passes(STRIDE_MS)
            self.check()

    def check(self) -> None:
        super().check()
        if self.node.holds_orders:
            self.waits.forget()
        else:
            self.waits.measure(self.node, self.patch)


def disturbs(
    rule: Callable[[Any, random.Random], object],
) -> Callable[[Any, random.Random], object]:
    """The rule, after which all waiting times count anew."""

    def disturbing(walked: Any, dice: random.Random) -> None:
        rule(walked, dice)
        walked.waits.forget()

    return disturbing


DISTURBING = (
    Elastic.beat_again, Elastic.set_quota, Elastic.lose_or_restore, Elastic.drain_or_resume,
    Elastic.restart, Memory.set_quota, Memory.hold_up, Memory.restart,
)  # fmt: skip
OVERRIDDEN: dict[Any, Callable[[Any, random.Random], object]] = {
    Elastic.pass_time: Recalled.pass_time,
    Memory.pass_time: Lowered.pass_time,
    Memory.ask: Lowered.ask,
    Memory.use: Lowered.use,
}


def timed(rules: tuple[Rule[Any], ...]) -> tuple[Rule[Any], ...]:
    """The rules of another walk, with time in strides, and few ends and disturbances."""
    return tuple(
        (
            1 if rule in DISTURBING else weight // 3 if rule is Elastic.leave else weight,
            disturbs(rule) if rule in DISTURBING else OVERRIDDEN.get(rule, rule),
            can,
        )
        for weight, rule, can in rules
        if rule is not Elastic.read_driver
    )


@pytest.mark.parametrize("seed", seeds(pytest.mark.long))
def test_no_request_waits_for_gpus_above_a_least_number_beyond_the_deadline(seed: int) -> None:
    walk(Recalled(), timed(test_resizes.RULES), Recalled.check, seed)


@pytest.mark.parametrize("seed", seeds(pytest.mark.long))
def test_no_request_waits_for_unused_memory_beyond_a_beat(seed: int) -> None:
    walk(Lowered(1 if seed % 2 else 3), timed(test_grants.RULES), Lowered.check, seed)
