"""Reports of progress: what is kept, and the share of a task that will miss its time."""

from __future__ import annotations

from typing import Any

import pytest

from nodemgr.core.model import events
from nodemgr.core.model.effects import Save, SharesChanged
from nodemgr.core.model.entities import PredictedRun, TaskClass
from nodemgr.core.sharing.progress import is_due
from nodemgr.core.views import snapshot
from tests.core.world import MS, Node, S

LS, NORMAL, BE = TaskClass


def reported(node: Node) -> dict[str, Any]:
    shown = snapshot.status(node.state, node.now_ns, used_bytes={}, last_beat_ns=node.beats)
    return {task["id"]: task["progress"] for task in shown["tasks"]}


def one_task(**asked: Any) -> Node:
    node = Node(1)
    for env in "abc":
        node.quota(env, 1, 8, task_class=LS)
    node.asks("a", 1, **asked)
    return node


def test_a_report_is_kept_in_memory_and_shown() -> None:
    node = one_task()
    assert reported(node) == {"t1": None}
    node.progresses(1, 3, None)
    assert reported(node) == {"t1": {"done": 3, "total": None}}
    node.progresses(1, 4, 10)
    assert reported(node) == {"t1": {"done": 4, "total": 10}}
    assert node.of(Save) == []
    node.dies(1)
    assert node.state.progress == {}


@pytest.mark.parametrize(("done", "total"), [(11, 10), (1, 0), (0, 0), (-1, 0)])
def test_a_report_that_cannot_be_is_dropped(done: int, total: int) -> None:
    node = one_task()
    node.progresses(1, 1, 10)
    node.progresses(1, done, total)
    assert reported(node) == {"t1": {"done": 1, "total": 10}}


def test_a_process_without_a_lease_reports_nothing() -> None:
    node = one_task()
    node.progresses(99, 1, 10)
    assert node.state.progress == {}


def test_a_flood_of_reports_is_heard_twice_a_second() -> None:
    node = one_task()
    node.progresses(1, 1, 10)
    key = node.caller("a", 1).process
    for done in range(2, 9):
        node.now_ns += 100 * MS
        if is_due(node.state, "t1", node.now_ns):
            node.happens(events.Progressed(key, done, 10, node.wall_ns))
        elif done < 6:
            node.happens(events.Progressed(key, 9, 10, node.wall_ns))
    assert reported(node) == {"t1": {"done": 6, "total": 10}}


def test_a_process_that_knows_the_whole_counts_before_one_that_does_not() -> None:
    node = one_task()
    node.progresses(1, 5, 10)
    node.asks("a", 2, token="token1")
    node.progresses(2, 700, None)
    assert reported(node) == {"t1": {"done": 5, "total": 10}}


def shares(node: Node) -> dict[str, int | None]:
    return {task.env: task.granted_percent for task in node.state.tasks.values()}


def served_node() -> Node:
    """a: latency-sensitive, 30 % and 100 s; b and c: best effort, 40 % and 20 %; 10 % are free."""
    node = one_task(task_class=LS, percent=30, deadline_ms=100_000)
    node.asks("b", 2, task_class=BE, percent=40)
    node.now_ns += 1
    node.asks("c", 3, task_class=BE, percent=20)
    return node


def test_a_task_that_will_miss_its_time_gets_steps_of_10_percent() -> None:
    """At 1 part of 200 a second: first the free share, then the youngest best-effort task's."""
    node = served_node()
    seen = []
    for done in range(1, 13):
        node.progresses(1, done, 200)
        seen.append(shares(node)["a"])
    assert seen == [30, 30, 40, 40, 50, 50, 60, 60, 70, 70, 80, 80]
    assert shares(node) == {"a": 80, "b": 20, "c": 0}
    for done in range(13, 30):
        node.progresses(1, done, 200)
    assert shares(node) == {"a": 100, "b": 0, "c": 0}


def test_a_step_is_one_change_of_all_shares() -> None:
    node = served_node()
    for done in range(1, 6):
        effects = node.progresses(1, done, 200)
    changed = {row.env: row.granted_percent for row in effects if isinstance(row, SharesChanged)}
    assert changed == {"a": 50, "c": 10}


def test_it_gives_back_what_another_task_wants_and_it_does_not_need() -> None:
    node = served_node()
    for done in range(1, 6):
        node.progresses(1, done, 200)
    assert shares(node) == {"a": 50, "b": 40, "c": 10}
    done = 5
    while (shares(node)["a"] or 0) > 30 and done < 190:
        done += 10
        node.progresses(1, done, 200)
    assert shares(node) == {"a": 40, "b": 40, "c": 20}, "no other task wants the rest"


@pytest.mark.parametrize(
    "asked",
    [
        {"task_class": LS, "percent": 30},
        {"task_class": NORMAL, "percent": 30, "deadline_ms": 1_000},
        {"task_class": BE, "percent": 30, "deadline_ms": 1_000},
        {"task_class": NORMAL, "deadline_ms": 1_000},
    ],
)
def test_no_other_task_gets_more(asked: dict[str, Any]) -> None:
    node = one_task(**asked)
    for done in range(1, 6):
        node.progresses(1, done, 200)
    assert shares(node) == {"a": asked.get("percent")}


def test_a_task_without_a_known_whole_or_without_progress_keeps_its_share() -> None:
    node = served_node()
    for done in range(1, 6):
        node.progresses(1, done, None)
    for _ in range(5):
        node.progresses(1, 1, 200)
    assert shares(node)["a"] == 30


def test_a_restart_forgets_reports_and_keeps_shares() -> None:
    node = served_node()
    for done in range(1, 4):
        node.progresses(1, done, 200)
    node.restart()
    assert node.state.progress == {}
    assert shares(node)["a"] == 40
    assert node.now_ns > S


# -- a forecast --


def predicted_node() -> Node:
    """A latency-sensitive job that is predicted to take 100 s for 200 steps, with 30 % of a GPU."""
    node = Node(1)
    node.quota("a", 1, 8, task_class=LS)
    run = PredictedRun("simulated", None, 30, 500 * MS, 100_000, 100_000)
    job_id = node.submits("a", gpus=1, task_class=LS, compute_percent=30, predicted=(run,))
    assert job_id is not None
    node.begins(job_id)
    (task,) = node.state.tasks.values()
    node.asks("a", 1, token=task.token)
    assert (task.run.expected_ms, task.expected_steps) == (100_000, 200)
    return node


def test_a_task_behind_its_forecast_gets_more_before_its_pace_is_measured() -> None:
    """[97, 99]: 90 s have passed, and 150 of 200 steps are predicted to take 75 s more."""
    node = predicted_node()
    node.passes(89_000)
    node.progresses(1, 50, None)
    assert shares(node) == {"a": 40}


@pytest.mark.parametrize(("elapsed_ms", "percent"), [(60_000, 30), (60_001, 40)])
def test_the_forecast_is_made_again_for_the_iterations_that_are_left(
    elapsed_ms: int, percent: int
) -> None:
    """[97]: 60 of each 100 iterations are done, so the forecast is that of the other 40: 40 s."""
    node = predicted_node()
    node.passes(elapsed_ms - 1_000)
    node.progresses(1, 120, None)
    assert shares(node) == {"a": percent}


def test_a_task_ahead_of_its_forecast_keeps_its_share() -> None:
    node = predicted_node()
    node.passes(9_000)
    node.progresses(1, 50, None)
    assert shares(node) == {"a": 30}


def test_the_measured_pace_comes_before_the_forecast() -> None:
    node = predicted_node()
    node.passes(9_000)
    for done in (50, 51, 52, 53):
        node.progresses(1, done, None)
    assert shares(node) == {"a": 40}, "148 s for 148 steps: 13 s + 148 s are more than 100 s"


def test_more_steps_than_were_predicted_change_no_share() -> None:
    node = predicted_node()
    node.passes(120_000)
    for done in (300, 301, 302, 303):
        node.progresses(1, done, None)
    assert shares(node) == {"a": 30}


def test_a_user_s_deadline_comes_before_the_forecast() -> None:
    node = Node(1)
    node.quota("a", 1, 8, task_class=LS)
    run = PredictedRun("simulated", None, 30, 500 * MS, 100_000, 100_000)
    job_id = node.submits(
        "a", gpus=1, task_class=LS, compute_percent=30, predicted=(run,), deadline_ms=1_000_000
    )
    node.begins(job_id or "")
    (task,) = node.state.tasks.values()
    node.asks("a", 1, token=task.token)
    node.passes(89_000)
    node.progresses(1, 50, None)
    assert shares(node) == {"a": 30}


@pytest.mark.parametrize(
    ("most_ms", "deadline_ms", "others", "percents"),
    [
        (100_000, 200_000, 70, {"a": 50, "b": 50}),
        (100_000, 200_001, 40, {"a": 50, "b": 40}),
        (100_000, 500_000, 70, {"a": 30, "b": 70}),
        (200_000, 100_000, 70, {"a": 100, "b": 0}),
        (None, 200_000, 70, {"a": 30, "b": 70}),
    ],
)
def test_a_deadline_that_runs_have_shown_to_need_more_gets_it_at_once(
    most_ms: int | None, deadline_ms: int, others: int, percents: dict[str, int]
) -> None:
    """By the upper end of a measured time; an estimate without one waits for steps of 10 %."""
    node = Node(1)
    node.quota("b", 1, 8, task_class=BE)
    node.asks("b", 2, 1, percent=others)
    node.quota("a", 1, 8, task_class=LS)
    run = PredictedRun("simulated", None, 30, 500 * MS, 90_000, 90_000, most_ms=most_ms)
    job_id = node.submits(
        "a", gpus=1, task_class=LS, compute_percent=30, predicted=(run,), deadline_ms=deadline_ms
    )
    assert node.job(job_id or "").task_id is not None
    assert shares(node) == percents
    (task,) = [task for task in node.state.tasks.values() if task.env == "a"]
    assert task.run.compute_percent == 30, "the rest may be given back"


def test_what_other_shares_hold_is_not_taken_at_once() -> None:
    node = Node(1)
    node.quota("n", 1, 8, compute_percent=60)
    node.asks("n", 2, 1)
    node.quota("a", 1, 8, task_class=LS)
    run = PredictedRun("simulated", None, 30, 500 * MS, 90_000, 90_000, most_ms=100_000)
    node.submits("a", gpus=1, task_class=LS, compute_percent=30, predicted=(run,),
                 deadline_ms=100_000)  # fmt: skip
    assert shares(node) == {"n": 60, "a": 40}
