"""The shortcuts of a pass change nothing.

The same seeded events go to the core as it is, and to one that visits every waiting entry. The
other core's queue skips no env and does not narrow its walks, and each placement result there is
one env's own. Both give the same effects and events, and the same lines of the whole listing after
each step.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nodemgr.core.requests import notify
from nodemgr.core.scheduler import passes
from nodemgr.core.state.work_queue import Walk, WorkQueue
from tests.core.world import GIB, Node, gpu
from tests.support.examples import examples

SEEDS = examples(8)
"""More of them for a longer search by hand."""
STEPS = 60
ENVS = ("alice", "bob", "carol", "dave")
GPUS = 3
INSIDE = "alice/1000/box"


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkQueue, "set_inadmissible", lambda queue, owner: None)
        patch.setattr(Walk, "narrow", lambda walk, owners: None)
        patch.setattr(passes, "_whose", lambda draft, env: env)
        yield


class Twins:
    """Two nodes to which the same happens."""

    def __init__(self) -> None:
        config = {"max_tasks_per_gpu": 2, "backfill_depth": 3}
        self.quick, self.plain = Node(GPUS, **config), Node(GPUS, **config)
        self.pids = 0
        self.steps_with_inadmissible = 0
        """The number of steps with an inadmissible env."""

    def both(self, what: Callable[[Node], Any]) -> None:
        what(self.quick)
        with plainly():
            what(self.plain)
            assert not self.plain.state.queue.inadmissible()
            plain = list(notify.listing(self.plain.state, self.plain.now_ns))
        assert self.quick.effects == self.plain.effects
        assert list(notify.listing(self.quick.state, self.quick.now_ns)) == plain
        assert self.quick.state.standings == self.plain.state.standings
        self.steps_with_inadmissible += bool(self.quick.state.queue.inadmissible())


def set_quota(twins: Twins, dice: random.Random) -> None:
    env, gpus, gib = (
        dice.choice(ENVS),
        dice.randint(1, GPUS),
        dice.choice([None, None, 60, 100, 160]),
    )
    priority = dice.choice(["high", "normal", "low"])
    twins.both(lambda node: node.quota(env, gpus, gib, priority=priority))


def submit(twins: Twins, dice: random.Random) -> None:
    gpus = dice.choice([0, 1, 1, 1, 1, 2, 2, 3])
    more = {
        "gpus": gpus,
        "memory_bytes": dice.choice([None, None, None, 10 * GIB, 30 * GIB]) if gpus else None,
        "time_limit_ms": dice.choice([None, None, 10_000, 50_000, 200_000]),
        "priority": dice.choice([None, "high", "normal", "low"]),
        "array": tuple(range(dice.choice([0, 0, 0, 3]))),
        "place": dice.choice(["", "", "", INSIDE]),
    }
    env = dice.choice(ENVS)
    twins.both(lambda node: node.submits(env, **more))


def ask(twins: Twins, dice: random.Random) -> None:
    twins.pids += 1
    pid, env, gpus, gib = (
        twins.pids,
        dice.choice(ENVS),
        dice.choice([None, 1, 2]),
        dice.choice([None, None, 10, 30]),
    )
    wait_ms = dice.choice([None, None, 0])
    twins.both(lambda node: node.asks(env, pid, gpus, gib=gib, wait_ms=wait_ms))


def end(twins: Twins, dice: random.Random) -> None:
    """The end of a task: its job's end, or its process's death."""
    task = dice.choice(sorted(twins.quick.state.tasks.values(), key=lambda task: task.task_id))
    if task.job_id is not None:
        name, code = task.job_id, dice.choice([0, 0, 1])
        twins.both(lambda node: node.job_ends(name, code))
    else:
        pid = int(task.processes[0].split(":")[1])
        twins.both(lambda node: node.dies(pid))


def order(twins: Twins, dice: random.Random) -> None:
    job = dice.choice(sorted(twins.quick.state.jobs))
    queue = dice.choice(["high", "low"])
    orders: list[Callable[[Node], Any]] = [
        lambda node: node.withdraws(job), lambda node: node.holds(job),
        lambda node: node.frees(job),
        lambda node: node.moves(job, first=True), lambda node: node.moves(job, queue),
        lambda node: node.requeues(job),
    ]  # fmt: skip
    twins.both(dice.choice(orders))


def lose(twins: Twins, dice: random.Random) -> None:
    left = [gpu(index) for index in range(GPUS) if dice.random() < 0.8]
    twins.both(lambda node: node.gpus_are(left))


def disconnect(twins: Twins, dice: random.Random) -> None:
    askers = sorted(
        asker.pid or 0
        for request in twins.quick.state.requests.values()
        for asker in request.askers
    )
    if askers:
        pid = dice.choice(askers)
        twins.both(lambda node: node.disconnects(pid))


def place(twins: Twins, dice: random.Random) -> None:
    name, up = dice.choice(["", INSIDE]), dice.random() < 0.6
    twins.both(lambda node: node.place(name, up=up))


def wait(twins: Twins, dice: random.Random) -> None:
    seconds = dice.randint(1, 30)
    twins.both(lambda node: node.passes(seconds * 1_000))


WEIGHTS: tuple[
    tuple[int, Callable[[Twins, random.Random], None], Callable[[Twins], object]], ...
] = (
    (40, submit, lambda twins: True),
    (10, ask, lambda twins: True),
    (25, end, lambda twins: twins.quick.state.tasks),
    (12, order, lambda twins: twins.quick.state.jobs),
    (6, set_quota, lambda twins: True),
    (3, wait, lambda twins: True),
    (3, place, lambda twins: True),
    (2, lose, lambda twins: True),
    (2, disconnect, lambda twins: True),
)


def walk(seed: int) -> int:
    twins, dice = Twins(), random.Random(seed)
    for env in ENVS:
        twins.both(lambda node, env=env: node.quota(env, 1))
    for _ in range(STEPS):
        rules = [(weight, rule) for weight, rule, may in WEIGHTS if may(twins)]
        dice.choices([rule for _, rule in rules], [weight for weight, _ in rules])[0](twins, dice)
    return twins.steps_with_inadmissible


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_a_look_leaves_out_changes_nothing(seed: int) -> None:
    walk(seed)


def test_somebody_sleeps_in_these_walks() -> None:
    assert walk(0) > STEPS // 4


def test_who_waits_for_his_own_tasks_is_woken_by_a_place_that_comes_up() -> None:
    """Before it stands a job with a launch host that was down; it comes first from now on."""
    node = Node(GPUS)
    node.quota("alice", 1)
    assert node.submits("alice", gpus=1) is not None
    assert node.submits("alice", gpus=1, place=INSIDE) is not None
    assert node.submits("alice", gpus=1) is not None
    assert node.state.queue.inadmissible() == {"alice"}
    assert (
        "waits for its own tasks"
        in [standing.why for _, standing in notify.listing(node.state, node.now_ns)][1]
    )
    node.place(INSIDE)
    assert [standing.why for _, standing in notify.listing(node.state, node.now_ns)][1].endswith(
        "j2 of its own environment comes first"
    )
    assert node.state.queue.inadmissible() == {"alice"}
    node.job_ends("j1")
    assert node.state.jobs["j2"].attempt == 1


def test_an_env_whose_quota_has_room_is_not_passed_by() -> None:
    """The needs of its first request beside its own tasks are reserved for it."""
    node = Node(GPUS)
    node.quota("alice", 2)
    assert node.submits("alice", gpus=1) is not None
    assert node.submits("alice", gpus=2) is not None
    assert not node.state.queue.inadmissible()
