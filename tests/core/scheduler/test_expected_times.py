"""Forecasts in plans: an expected time opens GPUs to a job and ends none; models of GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from nodemgr.core.model.entities import Gpu, JobState, PredictedRun, TaskClass
from nodemgr.core.model.values import replace
from nodemgr.core.views import job_rows
from tests.core.scheduler.test_backfill import node, runs, submit
from tests.core.world import Node, S, gpu

A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"


def predicted(model: str, run_s: int, **more: Any) -> PredictedRun:
    row = PredictedRun(model, None, None, None, run_s * 1_000, run_s * 1_500)
    return replace(row, **more)


def test_an_expected_time_lets_a_job_overtake_as_a_time_limit_does() -> None:
    busy = node()
    submit(busy, "alice", 3, 100)
    gang = submit(busy, "bob", 4, 50)
    long = submit(busy, "carol", 1, expected_ms=101_000)
    short = submit(busy, "carol", 1, expected_ms=100_000)
    assert (runs(busy, gang), runs(busy, long), runs(busy, short)) == (None, None, [3])


def test_a_time_limit_of_the_user_s_comes_before_the_forecast() -> None:
    busy = node()
    submit(busy, "alice", 3, 100)
    submit(busy, "bob", 4, 50)
    assert runs(busy, submit(busy, "carol", 1, 101, expected_ms=1_000)) is None
    assert runs(busy, submit(busy, "carol", 1, 100, expected_ms=999_000)) == [3]


def test_a_gang_is_planned_behind_an_expected_end() -> None:
    busy = node()
    submit(busy, "alice", 3, expected_ms=100_000)
    gang = submit(busy, "bob", 4, 50)
    assert runs(busy, submit(busy, "carol", 1, 101)) is None
    assert runs(busy, submit(busy, "carol", 1, 100)) == [3]
    assert runs(busy, gang) is None


def test_a_forecast_that_was_too_short_ends_no_job_and_its_end_is_unknown_from_then_on() -> None:
    busy = node()
    first = submit(busy, "alice", 3, expected_ms=100_000)
    gang = submit(busy, "bob", 4, 50)
    busy.passes(150_000)
    assert busy.job(first).state is JobState.STARTING
    assert busy.job(first).run.time_limit_ms is None
    assert runs(busy, submit(busy, "carol", 1, 1)) is None, "the gang may start at any moment"
    busy.job_ends(first)
    assert runs(busy, gang) == [0, 1, 2, 3]


def test_equal_jobs_with_other_forecasts_do_not_answer_for_one_another() -> None:
    """Of equal requests the first one that waits answers for all."""
    busy = node()
    submit(busy, "alice", 3, 100)
    submit(busy, "bob", 4, 50)
    late = submit(busy, "carol", 1, expected_ms=101_000, predicted=(predicted(A100, 67),))
    in_time = submit(busy, "carol", 1, expected_ms=99_000, predicted=(predicted(A100, 66),))
    assert (runs(busy, late), runs(busy, in_time)) == (None, [3])


def two_models() -> list[Gpu]:
    return [replace(gpu(0), name=A100), replace(gpu(1), name=T4)]


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({A100: 100, T4: 60}, 1),
        ({A100: 60, T4: 100}, 0),
        ({T4: 1_000}, 1),
        ({A100: 60}, 0),
        ({}, 0),
    ],
)
def test_best_effort_starts_on_the_model_with_the_shortest_predicted_time(
    times: dict[str, int], chosen: int
) -> None:
    """[93]; a model without a forecast comes last."""
    node = Node(0)
    node.gpus_are(two_models())
    node.quota("alice", 2)
    job_id = node.submits(
        "alice", gpus=1, task_class=TaskClass.BEST_EFFORT, compute_percent=50,
        predicted=tuple(predicted(model, run_s) for model, run_s in times.items()),
    )  # fmt: skip
    assert job_id is not None
    assert runs(node, job_id) == [chosen]


def test_a_restart_keeps_the_forecast() -> None:
    node = Node(1)
    node.quota("alice", 1)
    row = predicted(A100, 60, memory_bytes=7, percent=50, step_ns=9)
    running = node.submits("alice", gpus=1, expected_ms=90_000, predicted=(row,))
    waiting = node.submits("alice", gpus=1, expected_ms=90_000, predicted=(row,))
    assert running is not None
    assert waiting is not None
    node.restart()
    task = node.state.tasks[node.job(running).task_id or ""]
    assert task.expected_ms == 90_000
    request = node.state.requests[node.job(waiting).request_id or ""]
    assert (request.expected_ms, request.predicted) == (90_000, (row,))
    shown = job_rows.waiting(node.state, request, 1, "", node.now_ns)["predicted"]
    assert shown == job_rows.unplaced(node.job(waiting))["predicted"] == [
        {
            "gpu_model": A100, "memory_bytes": 7, "utilization_percent": 50,
            "step_seconds": 9 / S, "run_seconds": 60, "expected_seconds": 90,
        }
    ]  # fmt: skip
