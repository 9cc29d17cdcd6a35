"""The plan of an elastic task whose script never says hello: restarts from its checkpoint."""

from __future__ import annotations

import signal

from client_plugin.elastic.orders import (
    Accept,
    Decline,
    Died,
    Finish,
    GpuOffered,
    GpuRecalled,
    Left,
    Signal,
    StartWorker,
    TimePassed,
)
from client_plugin.elastic.plan import ElasticPlan
from client_plugin.elastic.rounds import YOUNG_S

TERM = int(signal.SIGTERM)
KILL = int(signal.SIGKILL)


def begun(*gpus: str, checkpoints: bool = True) -> ElasticPlan:
    plan = ElasticPlan(gpus, 0.0, checkpoints=checkpoints)
    starts = [order for order in plan.begin(5) if isinstance(order, StartWorker)]
    assert [(start.rank, start.size) for start in starts] == [
        (rank, len(gpus)) for rank in range(len(gpus))
    ]
    return plan


def test_an_offer_is_taken_with_a_newer_checkpoint_by_a_restart_of_all() -> None:
    plan = begun("a")
    assert plan.step(GpuOffered("b"), 60.0, 6) == [Signal(0, TERM)]
    orders = plan.step(Died(0, -TERM), 61.0, 7)
    assert {(o.gpu, o.rank, o.size) for o in orders if isinstance(o, StartWorker)} == {
        ("a", 0, 2), ("b", 1, 2),
    }  # fmt: skip
    assert Accept("b") in orders


def test_an_offer_without_a_newer_checkpoint_is_declined() -> None:
    plan = begun("a")
    assert plan.step(GpuOffered("b"), 1.0, 5) == []
    assert plan.wake_s() is not None
    assert plan.step(TimePassed(), YOUNG_S + 1.0, 5) == [Decline("b")]


def test_a_recall_waits_for_a_checkpoint() -> None:
    plan = begun("a", "b")
    assert plan.step(GpuRecalled("b", 70.0), 60.0, 5) == []
    assert plan.step(TimePassed(), 61.0, 6) == [Signal(0, TERM), Signal(1, TERM)]
    assert plan.step(Died(1, -TERM), 62.0, 6) == [Left("b")]
    orders = plan.step(Died(0, -TERM), 62.0, 6)
    assert [o.size for o in orders if isinstance(o, StartWorker)] == [1]


def test_after_the_deadline_the_rest_starts_again_from_its_checkpoint() -> None:
    plan = begun("a", "b")
    plan.step(GpuRecalled("b", 70.0), 60.0, 5)
    assert Signal(1, KILL) in plan.step(TimePassed(), 69.9, 5)
    orders = plan.step(Died(1, -KILL), 70.0, 5)
    assert Signal(0, TERM) in orders
    assert Left("b") in orders
    orders = plan.step(Died(0, -TERM), 71.0, 5)
    assert [o.gpu for o in orders if isinstance(o, StartWorker)] == ["a"]


def test_a_failure_without_a_checkpoint_ends_the_task_with_its_code() -> None:
    plan = begun("a", "b", checkpoints=False)
    orders = plan.step(Died(1, 3), 60.0)
    assert Signal(0, TERM) in orders
    assert plan.step(Died(0, -TERM), 61.0) == [Finish(3)]


def test_failures_in_a_row_without_a_new_checkpoint_end_the_task() -> None:
    plan = begun("a")
    for worker in range(3):
        orders = plan.step(Died(worker, 1), 60.0 + worker, 5)
        assert any(isinstance(order, StartWorker) for order in orders)
    assert Finish(1) in plan.step(Died(3, 1), 70.0, 5)


def test_a_script_that_succeeds_ends_the_task_with_0() -> None:
    plan = begun("a", "b")
    assert plan.step(Died(1, 0), 60.0, 9) == []
    assert plan.step(Died(0, 0), 60.1, 9) == [Finish(0)]
