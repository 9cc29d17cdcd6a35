"""Long walks over the rules of test_machine.py.

Waits behind waits, stalls among caps, restarts in between.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.core.test_machine import ENVS, Core
from tests.core.walks import Rule, walk
from tests.support.examples import seeds


def ask(core: Core, dice: random.Random) -> None:
    gpus = dice.choice([None, None, 1, 1, 2, 3, 4, 0])
    gib = dice.choice([None, None, None, 10, 30, 50])
    wait = dice.choice([None, None, None, 0, 3, 8])
    core.ask(dice.choice(ENVS), gpus, gib, wait, dice.random() < 0.2)


def set_quota(core: Core, dice: random.Random) -> None:
    rank = dice.choice(["high", "normal", "normal", "low"])
    core.set_quota(
        dice.choice(ENVS), dice.randint(0, 3), dice.choice([None, 20, 40, 60, 120]), rank
    )


def die(core: Core, dice: random.Random) -> None:
    core.die(dice, dice.choice([{}, {}, {dice.randint(0, 2): dice.randint(1, 10)}]))


def some(core: Core) -> bool:
    return bool(core.holders() or core.waiters())


def waiting(core: Core) -> bool:
    return bool(core.on_unix(core.waiters()))


def any_row(core: Core) -> bool:
    return bool(core.plain.tasks or core.plain.queue)


RULES: tuple[Rule[Core], ...] = (
    (29, ask, lambda core: True),
    (10, lambda core, dice: core.time_passes(dice.randint(1, 6)), lambda core: True),
    (7, lambda core, dice: core.join(dice, dice.random() < 0.2), any_row),
    (7, lambda core, dice: core.stop(dice), Core.may_stop),
    (7, die, Core.known_on_unix),
    (5, lambda core, dice: core.go_on(dice, dice.random() < 0.5), lambda core: core.stopped),
    (5, lambda core, dice: core.release(dice), some),
    (
        5,
        lambda core, dice: core.use(dice, *dice.choices(range(5), k=2)),
        lambda core: core.plain.memory,
    ),
    (
        4,
        lambda core, dice: core.driver_reads(dice, dice.randint(0, 3)),
        lambda core: core.plain.lost,
    ),
    (4, set_quota, lambda core: True),
    (3, lambda core, dice: core.ask_anew(dice), lambda core: core.plain.left),
    (2, lambda core, dice: core.cancel(dice), waiting),
    (2, lambda core, dice: core.disconnect(dice, dice.random() < 0.5), waiting),
    (
        2,
        lambda core, dice: core.reconnect(dice),
        lambda core: any(request.away for request in core.plain.queue),
    ),
    (2, lambda core, dice: core.remove_quota(dice.choice(ENVS), True), lambda core: True),
    (2, lambda core, dice: core.lose_or_restore(dice.randint(0, 2), True), lambda core: True),
    (
        3,
        lambda core, dice: core.drain_or_resume(dice.randint(0, 2), dice.random() < 0.6),
        lambda core: True,
    ),
    (2, lambda core, dice: core.report_failure(dice.randint(0, 2), True), lambda core: True),
    (2, lambda core, dice: core.admin_releases(dice, True), any_row),
    (2, lambda core, dice: core.restart(), lambda core: True),
)


KEPT = 168812254
"""A request found room in a stalled grant by a step without figures.

The stalled task uses nothing of its named memory, and a process that gave up its lease uses all of
the grant.
"""


@pytest.mark.parametrize("seed", seeds(pytest.mark.slow, KEPT))
def test_a_walk(seed: int) -> None:
    walk(Core(), RULES, Core.settled, seed)


def test_no_figure_of_an_ended_grant_counts_for_the_next_one() -> None:
    """bob's first process gives up its lease, lives on, and may use all of its old grant.

    bob's next grant there begins in the middle of a `time_passes`. A figure of the old grant (0
    bytes) would make room for the UDP process that waits for memory in it.
    """
    core = Core()
    core.plain.leaves(1)
    core.node.releases("bob", 1)
    core.settled()
    core._ask(10, "bob", 1, None, "first", None, udp=True)
    core._ask(11, "bob", 1, None, "second", None, udp=True)
    core._ask(12, "bob", 1, None, "first", None, udp=False)
    core.stopped.add(10)
    core.time_passes(6)
    core.settled()
    assert core.holders() == [2, 12]
    assert core.waiters() == [11]


def test_room_that_a_process_frees_when_it_asks_anew_raises_the_grants_that_wait_for_it() -> None:
    """alice has room for 40 GiB on two GPUs.

    Two of her processes lost a lease on GPU 2 and may hold 27 GiB there. When one of them has a
    lease again, its memory is inside the new grant of 20 GiB, and the grant on GPU 0 may grow to 20
    GiB.
    """
    core = Core()
    core.plain.dies(1, {})
    core.node.dies(1)
    core.set_quota("alice", 3, 40, "normal")
    core.settled()
    core._ask(10, "alice", 1, None, "token2", None, udp=False)
    core.plain.admin_releases(2)
    core.node.admin_releases("t2")
    core.settled()
    core._ask(11, "alice", 1, None, "token11", None, udp=False)
    core.settled()
    core.set_quota("alice", 2, 40, "normal")
    core.settled()
    assert core.node.grant_gib("alice", 0) == pytest.approx((40 / 3, 40 / 3))
    core._ask(10, "alice", 2, None, "anew", None, udp=False)
    core.settled()
    assert core.node.gpus_of(10) == [0, 2]
    assert core.node.grant_gib("alice", 0) == (20, 20)


def test_a_process_that_asks_anew_still_uses_its_memory_in_the_next_grant() -> None:
    """bob's process left its lease and holds 80 GiB of GPU 0.

    It is granted GPU 0 again in the middle of a `time_passes`, when the request before it gives up.
    The request for 50 GiB behind it cannot share that grant: nothing in it is free.
    """
    core = Core()
    core.release(_Always(1))
    core.ask("bob", None, 10, 8, udp=False)
    core.ask_anew(_Always(1))
    core.ask("bob", None, 50, None, udp=False)
    core.lose_or_restore(1, True)
    core.time_passes(9)
    core.settled()
    assert core.holders() == [1, 2]
    assert core.waiters() == [4]


@pytest.mark.parametrize("away", ["restart", "disconnect"])
@pytest.mark.parametrize("part", [0, 2, 4])
def test_memory_that_is_free_in_its_grant_keeps_no_gpu_for_a_waiter_that_is_away(
    away: str, part: int
) -> None:
    """bob's request for 30 GiB waits for GPU 0, which his task holds; then it is away.

    GPU 2 is alice's again whatever part of GPU 0 is in use: the request waits for its own env. Only
    some events bring figures of that use, so the answer may not depend on them.
    """
    core = Core()
    core.plain.admin_releases(1)
    core.node.admin_releases("t1")
    core.settled()
    core.ask_anew(_Always(1))
    core.ask("bob", 1, 30, None, udp=False)
    core.settled()
    assert (core.node.gpus_of(1), core.waiters()) == ([0], [3])
    core.restart() if away == "restart" else core.disconnect(_Always(3), comes_back=False)
    core.settled()
    core.release(_Always(2))
    core.use(_Always(("bob", 0)), part, 0)
    core.ask_anew(_Always(2))
    core.settled()
    assert (core.node.gpus_of(2), core.waiters()) == ([2], [3])
    core.reconnect(_Always(3))
    core.settled()
    assert core.waiters() == ([] if part * 20 <= 50 else [3])


class _Always(random.Random):
    """Chooses one option, for any other options beside it."""

    def __init__(self, option: object) -> None:
        super().__init__()
        self._option = option

    def choice(self, options: Any) -> Any:
        assert self._option in options
        return self._option
