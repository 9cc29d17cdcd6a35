"""The plan of an elastic task whose script never says hello: restarts from its checkpoint."""

from __future__ import annotations

import signal

import pytest

from client_plugin.elastic.orders import (
    Accept,
    Checkpoint,
    Coming,
    Decline,
    Died,
    Finish,
    GpuOffered,
    GpuRecalled,
    Hello,
    Left,
    PlanOrder,
    Report,
    Signal,
    StartWorker,
    TimePassed,
)
from client_plugin.elastic.plan import ElasticPlan
from client_plugin.elastic.torchrun_rounds import (
    COMING_S,
    HOLD_S,
    LASTING_S,
    LOSS_S,
    RESTARTS_MOST,
    YOUNG_S,
)

TERM = int(signal.SIGTERM)
KILL = int(signal.SIGKILL)


def saved(number: int, written_s: float = 0.0) -> Checkpoint:
    return Checkpoint(number, number, written_s)


def begun(*gpus: str, checkpoints: bool = True) -> ElasticPlan:
    plan = ElasticPlan(gpus, 0.0, checkpoints=checkpoints, most_gpus=8)
    starts = [order for order in plan.begin(saved(5)) if isinstance(order, StartWorker)]
    assert [(start.rank, start.size) for start in starts] == [
        (rank, len(gpus)) for rank in range(len(gpus))
    ]
    return plan


def keys(orders: list[PlanOrder]) -> list[str]:
    return [order.key for order in orders if isinstance(order, Report)]


def test_an_offer_is_taken_with_a_newer_checkpoint_by_a_restart_of_all() -> None:
    plan = begun("a")
    assert plan.step(GpuOffered("b"), 60.0, saved(6, 59.0)) == [Signal(0, TERM)]
    orders = plan.step(Died(0, -TERM), 61.0, saved(7, 60.5))
    assert {(o.gpu, o.rank, o.size) for o in orders if isinstance(o, StartWorker)} == {
        ("a", 0, 2), ("b", 1, 2),
    }  # fmt: skip
    assert Accept("b") in orders


def test_an_offer_without_a_newer_checkpoint_is_declined() -> None:
    plan = begun("a")
    assert plan.step(GpuOffered("b"), 1.0, saved(5)) == []
    assert plan.wake_s() is not None
    assert plan.step(TimePassed(), YOUNG_S + 0.9, saved(5)) == []
    assert plan.step(TimePassed(), HOLD_S + 1.0, saved(5)) == [Decline("b")]


def test_a_task_grows_from_a_young_checkpoint_alone() -> None:
    """The work since an old one would be done again."""
    plan = begun("a")
    assert plan.step(GpuOffered("b"), 500.0, saved(6, 500.0 - LOSS_S)) == []
    assert plan.step(TimePassed(), 501.0, saved(7, 500.5)) == [Signal(0, TERM)]


def test_an_offer_to_a_script_without_checkpoints_is_declined_with_one_line() -> None:
    plan = begun("a", checkpoints=False)
    assert plan.step(GpuOffered("b"), 40.0) == [Report("KEEPS_SIZE", size=1), Decline("b")]
    assert plan.step(GpuOffered("b"), 140.0) == [Decline("b")]


def test_a_script_that_has_saved_nothing_yet_says_so_once() -> None:
    plan = ElasticPlan(("a",), 0.0, checkpoints=True, most_gpus=8)
    plan.begin()
    assert plan.step(GpuOffered("b"), 40.0) == []
    assert plan.step(TimePassed(), 40.0 + HOLD_S) == [Report("NOT_YET", size=1), Decline("b")]


def test_a_checkpoint_that_was_under_way_at_the_start_is_no_new_one() -> None:
    plan = ElasticPlan(("a",), 0.0, checkpoints=True, most_gpus=8)
    plan.begin(Checkpoint(2, 1, 0.0))
    assert plan.step(GpuOffered("b"), 2.0, saved(2, 0.0)) == []
    assert plan.step(TimePassed(), 3.0, saved(3, 2.5)) == [Signal(0, TERM)]


def test_a_recall_waits_for_a_checkpoint() -> None:
    plan = begun("a", "b")
    assert plan.step(GpuRecalled("b", 70.0), 60.0, saved(5)) == []
    assert plan.step(TimePassed(), 61.0, saved(6)) == [Signal(0, TERM), Signal(1, TERM)]
    assert plan.step(Died(1, -TERM), 62.0, saved(6)) == [Left("b")]
    orders = plan.step(Died(0, -TERM), 62.0, saved(6))
    assert [o.size for o in orders if isinstance(o, StartWorker)] == [1]


EARLY = [Report("EARLY", worker=1, gpu="b"), Signal(1, KILL)]


def recalled_early() -> ElasticPlan:
    plan = begun("a", "b", "c", checkpoints=False)
    assert plan.step(GpuRecalled("b", 12.0), 2.0) == EARLY
    return plan


def test_a_recall_before_the_first_hello_takes_its_worker_alone() -> None:
    plan = recalled_early()
    assert plan.step(Died(1, -KILL), 2.1) == [Left("b")]
    assert not [o for o in plan.step(Hello(0, 0), 20.0) if isinstance(o, (Signal, StartWorker))]
    assert plan.step(Hello(2, 0), YOUNG_S + 5.0)
    assert plan.inline
    assert [worker.doomed for worker in plan.roster.workers.values()] == [False, False]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_script_that_cannot_go_on_without_it_starts_anew(is_first: bool) -> None:
    """The one that waits for it fails before its own end is known, or behind it."""
    plan = recalled_early()
    ends = [Died(0, 1), Died(1, -KILL)] if is_first else [Died(1, -KILL), Died(0, 1)]
    orders = [order for end in ends for order in plan.step(end, 3.0)]
    assert keys(orders) == ["FEWER"]
    assert Signal(2, TERM) in orders
    starts = [o for o in plan.step(Died(2, -TERM), 3.5) if isinstance(o, StartWorker)]
    assert [(start.gpu, start.rank, start.size) for start in starts] == [("a", 0, 2), ("c", 1, 2)]
    assert keys(plan.step(Died(3, 1), 4.0)) == ["ENDED"], "its own fault"


def test_a_script_that_says_no_hello_starts_anew_in_the_end() -> None:
    plan = recalled_early()
    plan.step(Died(1, -KILL), 2.1)
    assert plan.step(TimePassed(), 3.0) == []
    wake_s = plan.wake_s()
    assert wake_s == YOUNG_S
    orders = plan.step(TimePassed(), wake_s)
    assert orders == [Report("FEWER"), Signal(0, TERM), Signal(2, TERM)]


def test_a_script_that_has_imported_elastic_may_take_long_to_reach_it() -> None:
    """With a checkpoint of its own, and in a later round, too."""
    plan = begun("a", "b", "c")
    assert plan.step(Coming(2), 1.0, saved(5)) == []
    assert plan.step(GpuOffered("d"), 50.0, saved(5)) == []
    assert plan.step(GpuRecalled("b", 70.0), 60.0, saved(5)) == EARLY
    assert plan.step(Died(1, -KILL), 60.1, saved(5)) == [Left("b")]
    assert plan.step(TimePassed(), COMING_S - 1.0, saved(5)) == []
    assert keys(plan.step(TimePassed(), COMING_S, saved(5))) == ["FEWER"]
    plan.step(Died(0, -TERM), COMING_S, saved(5))
    plan.step(Died(2, -TERM), COMING_S, saved(5))
    assert plan.wake_s() is None
    orders = plan.step(GpuRecalled("c", 900.0), COMING_S + 100.0, saved(5))
    assert keys(orders) == ["EARLY"]


def test_a_script_that_has_named_its_checkpoint_has_until_the_deadline() -> None:
    plan = begun("a", "b")
    assert plan.step(GpuRecalled("b", 12.0), 2.0, saved(5)) == []
    assert plan.step(TimePassed(), 11.9, saved(5))[0] == Report("TAKEN", worker=1, gpu="b")


def test_all_recalled_together_leave_no_one_early() -> None:
    plan = begun("a", checkpoints=False)
    assert plan.step(GpuRecalled("a", 12.0), 2.0) == []


def test_after_the_deadline_the_rest_starts_again_from_its_checkpoint() -> None:
    plan = begun("a", "b")
    plan.step(GpuRecalled("b", 70.0), 60.0, saved(5))
    orders = plan.step(TimePassed(), 69.9, saved(5))
    assert orders == [Report("TAKEN", worker=1, gpu="b"), Signal(1, KILL)]
    orders = plan.step(Died(1, -KILL), 70.0, saved(5))
    assert Signal(0, TERM) in orders
    assert Left("b") in orders
    orders = plan.step(Died(0, -TERM), 71.0, saved(5))
    assert [o.gpu for o in orders if isinstance(o, StartWorker)] == ["a"]


def test_a_failure_without_a_checkpoint_ends_the_task_with_its_code() -> None:
    plan = begun("a", "b", checkpoints=False)
    orders = plan.step(Died(1, 3), 60.0)
    assert Signal(0, TERM) in orders
    assert plan.step(Died(0, -TERM), 61.0) == [Finish(3)]


@pytest.mark.parametrize("victim", [0, 1])
def test_all_start_again_from_the_checkpoint_when_one_is_killed(victim: int) -> None:
    plan = begun("a", "b")
    other = 1 - victim
    orders = plan.step(Died(victim, -KILL), 60.0, saved(9))
    assert keys(orders) == ["ENDED", "RESTARTED"]
    assert orders[-1] == Signal(other, TERM)
    starts = plan.step(Died(other, -TERM), 60.1, saved(9))[1:]
    assert starts == [StartWorker(2, "a", 0, 2, 2), StartWorker(3, "b", 1, 2, 2)]


def failing(plan: ElasticPlan, every_s: float, times: int) -> list[list[PlanOrder]]:
    """The orders at each end of a worker that saves a checkpoint and then fails."""
    return [
        plan.step(Died(number, 1), every_s * (number + 1), saved(6 + number, every_s * number))
        for number in range(times)
    ]


def test_a_script_that_fails_in_each_start_is_given_up() -> None:
    """Though it saves a checkpoint before each failure."""
    *again, last = failing(begun("a"), 1.0, RESTARTS_MOST + 1)
    assert [keys(orders) for orders in again] == [["ENDED", "RESTARTED", "SIZE"]] * RESTARTS_MOST
    assert keys(last) == ["ENDED", "GAVE_UP"]
    assert last[-1] == Finish(1)


def test_a_round_that_lasts_and_saves_a_checkpoint_ends_a_row_of_failures() -> None:
    for orders in failing(begun("a"), LASTING_S + 1.0, 3 * RESTARTS_MOST):
        assert any(isinstance(order, StartWorker) for order in orders)


def test_a_script_that_succeeds_ends_the_task_with_0() -> None:
    plan = begun("a", "b")
    assert plan.step(Died(1, 0), 60.0, saved(9)) == []
    assert plan.step(Died(0, 0), 60.1, saved(9)) == [Finish(0)]
