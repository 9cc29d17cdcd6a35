"""Forecasts in plans: an expected time opens GPUs to a job and ends none; models of GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from nodemgr.core.model.causes import Standing, WaitCause
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
    assert task.run.expected_ms == 90_000
    request = node.state.requests[node.job(waiting).request_id or ""]
    assert (request.run.expected_ms, request.run.predicted) == (90_000, (row,))
    standing = Standing("normal", 1, 0, WaitCause.NEXT, "")
    shown = job_rows.waiting(node.state, request, standing, node.now_ns)["predicted"]
    assert shown == job_rows.unplaced(node.state, node.job(waiting))["predicted"] == [
        {
            "gpu_model": A100, "memory_bytes": 7, "utilization_percent": 50,
            "step_seconds": 9 / S, "run_seconds": 60, "expected_seconds": 90,
        }
    ]  # fmt: skip


LS = TaskClass.LATENCY_SENSITIVE
RULES: dict[str, tuple[dict[str, int], dict[str, int], TaskClass, tuple[str, int] | None]] = {
    # left of each GPU; need on each model; class; chosen GPU and share
    "the most left of those where the need on that model fits": (
        {A100: 60, T4: 80}, {A100: 50, T4: 90}, LS, (A100, 50)
    ),
    "a smaller need on the larger model": ({A100: 30, T4: 50}, {A100: 25, T4: 60}, LS, (A100, 25)),
    "the most left, both fit": ({A100: 60, T4: 80}, {A100: 30, T4: 70}, LS, (T4, 70)),
    "equal: by their order": ({A100: 80, T4: 80}, {A100: 30, T4: 70}, LS, (A100, 30)),
    "nothing fits: it waits": ({A100: 20, T4: 50}, {A100: 25, T4: 60}, LS, None),
    "best effort: the shortest time where its need fits": (
        {A100: 20, T4: 80}, {A100: 25, T4: 60}, TaskClass.BEST_EFFORT, (T4, 60)
    ),
    "best effort: the shortest time of both": (
        {A100: 30, T4: 80}, {A100: 25, T4: 60}, TaskClass.BEST_EFFORT, (A100, 25)
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_the_source_s_rules_of_choice_with_the_need_on_each_model(rule: str) -> None:
    """[31, 32, 83, 92, 93]: on a node with GPUs of two models, each partly taken."""
    left, need, task_class, chosen = RULES[rule]
    node = Node(0)
    node.gpus_are(two_models())
    for env in ("alice", "bob", "carol"):
        node.quota(env, 2, 20, task_class=LS)
    for env, model in (("alice", A100), ("bob", T4)):
        row = predicted(model, 60, share_percent=100 - left[model])
        other = predicted(T4 if model == A100 else A100, 60, share_percent=100)
        holder = node.submits(
            env, gpus=1, task_class=TaskClass.NORMAL, compute_percent=100, memory_bytes=1,
            predicted=(row, other),
        )  # fmt: skip
        assert holder is not None
    held = {task.gpus[0]: task.granted_percent for task in node.state.tasks.values()}
    if held != {"GPU-0": 100 - left[A100], "GPU-1": 100 - left[T4]}:
        pytest.fail(f"the holders stand elsewhere: {held}")
    rows = tuple(
        predicted(model, 50 if model == A100 else 90, share_percent=need[model]) for model in need
    )
    job_id = node.submits(
        "carol", gpus=1, task_class=task_class, compute_percent=max(need.values()),
        memory_bytes=1, predicted=rows,
    )  # fmt: skip
    assert job_id is not None
    task = node.state.tasks.get(node.job(job_id).task_id or "")
    found = None if task is None else (node.state.gpus[task.gpus[0]].name, task.granted_percent)
    assert found == chosen


def test_several_gpus_have_one_share_wherever_they_are() -> None:
    node = Node(0)
    node.gpus_are(two_models())
    node.quota("alice", 2, task_class=LS)
    rows = (predicted(A100, 50, share_percent=25), predicted(T4, 90, share_percent=60))
    job_id = node.submits("alice", gpus=2, task_class=LS, compute_percent=60, predicted=rows)
    task = node.state.tasks[node.job(job_id or "").task_id or ""]
    assert task.granted_percent == 60


def test_the_model_of_the_gpu_gives_the_expected_time_and_the_steps() -> None:
    node = Node(0)
    node.gpus_are(two_models()[1:])
    node.quota("alice", 1)
    rows = (predicted(A100, 50, step_ns=10**8), predicted(T4, 90, step_ns=10**9))
    job_id = node.submits("alice", gpus=1, expected_ms=999_000, predicted=rows)
    task = node.state.tasks[node.job(job_id or "").task_id or ""]
    assert (task.run.expected_ms, task.expected_steps) == (135_000, 90)


def test_an_interactive_task_is_planned_with_the_time_that_its_request_had() -> None:
    busy = node()
    busy.asks("alice", 1, 3, expected_ms=100_000)
    (task,) = busy.state.tasks.values()
    assert (task.run.expected_ms, task.run.time_limit_ms) == (100_000, None)
    gang = submit(busy, "bob", 4, 50)
    assert runs(busy, submit(busy, "carol", 1, 101)) is None
    assert runs(busy, submit(busy, "carol", 1, 100)) == [3]
    busy.passes(150_000)
    assert task.task_id in busy.state.tasks, "nothing ends it"
    assert runs(busy, gang) is None
