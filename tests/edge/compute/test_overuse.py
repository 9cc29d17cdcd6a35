"""Suspects, tests and findings, reading by reading. No figure of a client accuses another."""

from __future__ import annotations

import pytest

from nodemgr.core.model.entities import Offence
from nodemgr.core.model.events import ComputeFinding
from nodemgr.edge.compute.overuse import (
    DRAIN_READINGS,
    LONG_READINGS,
    OVERDUE_NS,
    Member,
    Overuse,
)
from nodemgr.edge.compute.registry import Reading

SECOND_NS = 1_000_000_000
GPU = "GPU-0"
GREEDY, WAITER = "unix:10:1", "unix:20:1"
MEMBERS = {GREEDY: Member("t1", 40), WAITER: Member("t2", 60)}


def reading(
    key: str, percent: int, *, waited_ns: int = 0, in_flight: bool = False, uuid: str = GPU
) -> Reading:
    return Reading(key, uuid, percent * SECOND_NS // 100, SECOND_NS, in_flight, waited_ns)


def overdue(percent: int = 0) -> Reading:
    return reading(WAITER, percent, waited_ns=OVERDUE_NS)


class Judge:
    """One second a call."""

    def __init__(self) -> None:
        self.overuse = Overuse()

    def sees(self, *readings: Reading, **sampled: int) -> tuple[ComputeFinding, ...]:
        driver = {({"greedy": GREEDY, "waiter": WAITER}[name], GPU): percent
                  for name, percent in sampled.items()}  # fmt: skip
        return self.overuse.judge(readings, MEMBERS, driver)

    @property
    def is_paused(self) -> bool:
        return ("t1", GPU) in self.overuse.paused


@pytest.mark.parametrize(
    ("used", "waits", "is_suspect"),
    [
        (90, True, True),
        (50, True, True),
        (49, True, False),
        (40, True, False),
        (90, False, False),
    ],
)
def test_a_task_beyond_its_share_is_suspect_while_another_one_waits_too_long(
    used: int, waits: bool, is_suspect: bool
) -> None:
    judge = Judge()
    for _ in range(4):  # 10 points beyond 40 are a whole share after four readings
        assert not judge.is_paused
        assert judge.sees(reading(GREEDY, used), overdue() if waits else reading(WAITER, 0)) == ()
        if used == 90:
            break
    assert judge.is_paused is is_suspect


def test_a_short_wait_is_no_complaint() -> None:
    judge = Judge()
    judge.sees(reading(GREEDY, 90), reading(WAITER, 10, waited_ns=OVERDUE_NS - 1))
    assert not judge.is_paused


def test_a_suspended_task_waits_for_its_memory_and_not_for_compute() -> None:
    overuse, members = Overuse(), {**MEMBERS, WAITER: Member("t2", 0, wants_compute=False)}
    readings = [reading(GREEDY, 90), reading(WAITER, 0, waited_ns=OVERDUE_NS, in_flight=True)]
    for _ in range(4):
        assert not overuse.needs_driver(readings, members)
        assert overuse.judge(readings, members, {}, [GPU]) == ()
        assert not overuse.paused


def test_a_wait_on_another_gpu_is_no_complaint() -> None:
    judge = Judge()
    judge.sees(reading(GREEDY, 90), reading(WAITER, 0, waited_ns=OVERDUE_NS, uuid="GPU-1"))
    assert not judge.is_paused


def test_where_envs_have_a_page_each_the_work_of_another_one_is_enough() -> None:
    """They take no turns, so nothing else keeps their shares there."""
    for separated, is_suspect in (((), False), ((GPU,), True)):
        judge = Judge()
        readings = [reading(GREEDY, 70), reading(WAITER, 30)]
        assert judge.overuse.judge(readings, MEMBERS, {}, separated) == ()
        assert judge.overuse.judge(readings, MEMBERS, {}, separated) == ()
        assert judge.is_paused is is_suspect
    for little in (0, 14):  # less than a fourth of its 60 %
        alone = Judge()
        for _ in range(4):
            readings = [reading(GREEDY, 85), reading(WAITER, little)]
            alone.overuse.judge(readings, MEMBERS, {}, (GPU,))
        assert not alone.is_paused


def test_the_source_s_example_of_a_task_above_its_prediction() -> None:
    """[42, 100]: its time is kept, its use is above the prediction (here the share of 40 %).

    It is paused until its use is at the prediction, while another task wants the GPU.
    """
    judge = Judge()
    judge.sees(reading(GREEDY, 55), overdue())
    assert not judge.is_paused, "15 points of a second are less than a reading pays back"
    judge.sees(reading(GREEDY, 70), overdue())
    assert judge.is_paused
    judge.sees(reading(GREEDY, 0), overdue())
    assert not judge.is_paused, "its use is at its share: 125 % in three seconds"


def test_an_honest_suspect_pays_its_excess_back_and_is_not_accused() -> None:
    judge = Judge()
    judge.sees(reading(GREEDY, 100), overdue())
    paused = 0
    while judge.is_paused:
        paused += 1
        assert judge.sees(reading(GREEDY, 0), overdue()) == ()
    assert paused == 1, "60 points of a second beyond it, 40 back in each"


@pytest.mark.parametrize("others", [(), (reading(WAITER, 0),)], ids=["ended", "idle"])
def test_a_suspect_goes_on_at_once_where_no_other_task_wants_the_gpu(
    others: tuple[Reading, ...],
) -> None:
    judge = Judge()
    long = Reading(GREEDY, GPU, 3 * SECOND_NS, 3 * SECOND_NS, False, 0)
    judge.sees(long, overdue())
    assert judge.is_paused
    judge.sees(reading(GREEDY, 0), *others)
    assert not judge.is_paused


def test_a_pretended_wait_never_takes_an_honest_task_below_its_share() -> None:
    judge = Judge()
    used = 0
    for _ in range(100):
        percent = 0 if judge.is_paused else 100
        used += percent
        assert judge.sees(reading(GREEDY, percent), overdue()) == ()
    assert 40 * 100 <= used <= 41 * 100


def test_work_that_goes_on_behind_the_closed_gate_is_an_offence() -> None:
    judge = Judge()
    judge.sees(reading(GREEDY, 90), overdue())
    for _ in range(DRAIN_READINGS):
        assert judge.sees(reading(GREEDY, 90), overdue()) == ()
    found = ComputeFinding(Offence.OVER_SHARE, GREEDY, GPU, 90, 40)
    assert judge.sees(reading(GREEDY, 90), overdue()) == (found,)
    assert judge.sees(reading(GREEDY, 90), overdue()) == (found,), "as long as it goes on"
    assert judge.is_paused


def test_the_driver_shows_the_use_that_a_client_hides() -> None:
    judge = Judge()
    honest = reading(WAITER, 30)
    judge.sees(reading(GREEDY, 0), honest, greedy=80, waiter=30)
    assert judge.is_paused
    judge.sees(reading(GREEDY, 0), honest, greedy=80, waiter=30)
    (found,) = judge.sees(reading(GREEDY, 0), honest, greedy=80, waiter=30)
    assert (found.process, found.used_percent) == (GREEDY, 80)


def test_samples_a_little_above_the_told_figure_are_no_lie() -> None:
    judge = Judge()
    judge.sees(reading(GREEDY, 40), overdue(), greedy=59)
    assert not judge.is_paused


def test_a_long_kernel_is_waited_for() -> None:
    judge = Judge()
    judge.sees(reading(GREEDY, 90), overdue())
    for _ in range(LONG_READINGS):
        assert judge.sees(reading(GREEDY, 0, in_flight=True), overdue(), greedy=100) == ()
    assert judge.sees(reading(GREEDY, 0, in_flight=True), overdue(), greedy=100) != ()


def test_a_task_without_any_share_may_not_work_at_all() -> None:
    judge = Judge()
    closed = {GREEDY: Member("t1", 0)}
    for _ in range(1 + DRAIN_READINGS):
        assert judge.overuse.judge([reading(GREEDY, 30)], closed, {}) == ()
    assert judge.overuse.judge([reading(GREEDY, 30)], closed, {}) != ()
    judge.overuse.judge([reading(GREEDY, 5)], closed, {})
    assert not judge.is_paused


def test_a_plain_task_is_never_suspect() -> None:
    judge = Judge()
    plain = {GREEDY: Member("t1", None), WAITER: MEMBERS[WAITER]}
    judge.overuse.judge([reading(GREEDY, 100), overdue()], plain, {})
    assert not judge.is_paused


def test_processes_of_one_task_count_together() -> None:
    judge = Judge()
    both = {GREEDY: Member("t1", 40), "unix:11:1": Member("t1", 40), WAITER: MEMBERS[WAITER]}
    readings = [reading(GREEDY, 40), reading("unix:11:1", 41), overdue()]
    for _ in range(1 + DRAIN_READINGS):
        judge.overuse.judge(readings, both, {})
    (found,) = judge.overuse.judge(readings, both, {})
    assert (found.process, found.used_percent) == ("unix:11:1", 81)


def test_a_suspect_that_is_gone_is_forgotten() -> None:
    judge = Judge()
    judge.sees(reading(GREEDY, 90), overdue())
    judge.sees(overdue())
    assert not judge.is_paused


@pytest.mark.parametrize(
    ("readings", "needs"),
    [
        ([reading(GREEDY, 50)], False),
        ([reading(GREEDY, 0), reading(WAITER, 0)], False),
        ([reading(GREEDY, 0), reading(WAITER, 1)], True),
        ([reading(GREEDY, 0), overdue()], True),
        ([reading(GREEDY, 50), reading(WAITER, 0, uuid="GPU-1")], False),
    ],
)
def test_the_driver_is_asked_only_where_tasks_meet(readings: list[Reading], needs: bool) -> None:
    assert Overuse().needs_driver(readings, MEMBERS) is needs


def test_the_driver_is_asked_while_a_suspect_is_tested() -> None:
    judge = Judge()
    judge.sees(reading(GREEDY, 90), overdue())
    assert judge.overuse.needs_driver([], MEMBERS)
