"""Shares of compute over a task's life: taken from best effort, given back, never above 100 %."""

from __future__ import annotations

from typing import Any

import pytest

from nodemgr.core.model.effects import SharesChanged
from nodemgr.core.model.entities import Suspension, TaskClass
from tests.core.world import Node

LS, NORMAL, BE = TaskClass


def shared_node(gpus: int = 1, envs: str = "abcdef", **config: Any) -> Node:
    """Envs that may use each class, with room for many grants on a GPU."""
    node = Node(gpus, **config)
    for env in envs:
        node.quota(env, gpus, 8 * gpus, task_class=LS)
    return node


def shares(node: Node) -> dict[str, int | None]:
    """By env: the share of its task, None for a plain one."""
    return {task.env: task.granted_percent for task in node.state.tasks.values()}


def waiting(node: Node) -> list[str]:
    return [request.env for request, _ in node.state.waiting()]


def reason(node: Node) -> str:
    """The line of the first that waits."""
    return next(node.state.standings[request.request_id].why for request, _ in node.state.waiting())


def test_shares_on_a_gpu_end_at_100_percent() -> None:
    node = shared_node()
    node.asks("a", 1, task_class=NORMAL, percent=60)
    node.asks("b", 2, task_class=BE, percent=40)
    node.asks("c", 3, task_class=NORMAL, percent=1)
    assert shares(node) == {"a": 60, "b": 40}
    assert waiting(node) == ["c"]
    assert "needs 1 GPU with 1 % of the compute free, at most 0 % free" in reason(node)
    node.dies(1)
    assert shares(node) == {"b": 40, "c": 1}


def test_a_request_for_several_gpus_names_how_many_have_the_compute() -> None:
    node = shared_node(2)
    node.asks("a", 1, 1, task_class=NORMAL, percent=60)
    node.asks("b", 2, gpus=2, task_class=BE, percent=60)
    expected = "needs 2 GPUs with 60 % of the compute free on each, and finds 1 GPU"
    assert expected in reason(node)


def test_the_free_compute_of_a_gpu_without_room_is_not_named() -> None:
    node = shared_node(2)
    node.quota("a", 1, task_class=LS)  # whole GPUs
    node.asks("a", 1, task_class=NORMAL, percent=30)
    node.asks("b", 2, 1, task_class=NORMAL, percent=60)
    node.asks("c", 3, 1, task_class=NORMAL, percent=60)
    assert "needs 1 GPU with 60 % of the compute free, at most 40 % free" in reason(node)


def test_a_plain_task_counts_as_the_whole_gpu_beside_shares() -> None:
    node = shared_node()
    node.asks("a", 1, task_class=NORMAL)
    node.asks("b", 2, task_class=NORMAL)
    node.asks("c", 3, task_class=BE, percent=10)
    assert (shares(node), waiting(node)) == ({"a": None, "b": None}, ["c"])
    node.dies(1)
    assert waiting(node) == ["c"]
    node.dies(2)
    assert shares(node) == {"c": 10}
    node.asks("a", 4, task_class=NORMAL)
    assert waiting(node) == ["a"]


def test_plain_tasks_run_beside_shares_where_the_setting_allows() -> None:
    node = shared_node(plain_tasks_share=True)
    node.asks("a", 1, task_class=NORMAL)
    node.asks("b", 2, task_class=BE, percent=100)
    node.asks("c", 3, task_class=NORMAL)
    assert shares(node) == {"a": None, "b": 100, "c": None}


def test_latency_sensitive_takes_from_the_youngest_best_effort_first() -> None:
    node = shared_node()
    node.asks("a", 1, task_class=BE, percent=40)
    node.passes(1_000)
    node.asks("b", 2, task_class=BE, percent=40)
    node.asks("c", 3, task_class=LS, percent=35)
    assert shares(node) == {"a": 40, "b": 25, "c": 35}
    assert set(node.of(SharesChanged)) == {
        SharesChanged("t2", "b", ("GPU-0",), 25), SharesChanged("t3", "c", ("GPU-0",), 35),
    }  # fmt: skip
    node.asks("d", 4, task_class=LS, percent=65)
    assert shares(node) == {"a": 0, "b": 0, "c": 35, "d": 65}
    node.dies(3)
    assert shares(node) == {"a": 35, "b": 0, "d": 65}
    node.dies(4)
    assert shares(node) == {"a": 40, "b": 40}


def test_latency_sensitive_takes_nothing_from_normal() -> None:
    node = shared_node()
    node.asks("a", 1, task_class=NORMAL, percent=70)
    node.asks("b", 2, task_class=BE, percent=20)
    node.asks("c", 3, task_class=LS, percent=35)
    assert (shares(node), waiting(node)) == ({"a": 70, "b": 20}, ["c"])
    node.asks("d", 4, task_class=LS, percent=30)
    assert "needs 1 GPU with 35 % of the compute free" in reason(node)


def test_best_effort_grows_before_new_best_effort_starts() -> None:
    node = shared_node()
    node.asks("a", 1, task_class=BE, percent=80)
    node.asks("b", 2, task_class=LS, percent=90)
    node.asks("c", 3, task_class=BE, percent=30)
    assert (shares(node), waiting(node)) == ({"a": 10, "b": 90}, ["c"])
    node.dies(2)
    assert (shares(node), waiting(node)) == ({"a": 80}, ["c"])


def test_best_effort_does_not_grow_into_what_an_earlier_class_waits_for() -> None:
    node = shared_node()
    node.asks("a", 1, task_class=BE, percent=80)
    node.asks("b", 2, task_class=LS, percent=50)
    node.asks("d", 3, task_class=LS, percent=50)
    node.asks("c", 4, task_class=NORMAL, percent=100)
    assert shares(node) == {"a": 0, "b": 50, "d": 50}
    node.dies(2)
    assert (shares(node), waiting(node)) == ({"a": 0, "d": 50}, ["c"])
    node.dies(3)
    assert shares(node) == {"a": 0, "c": 100}


def test_the_first_class_is_served_first() -> None:
    node = shared_node()
    node.asks("a", 1, task_class=NORMAL, percent=100)
    node.asks("b", 2, task_class=BE, percent=50)
    node.asks("c", 3, task_class=NORMAL, percent=50)
    node.asks("d", 4, task_class=LS, percent=50)
    assert waiting(node) == ["d", "c", "b"]
    node.dies(1)
    assert (shares(node), waiting(node)) == ({"d": 50, "c": 50}, ["b"])


def test_a_share_is_of_each_of_a_tasks_gpus() -> None:
    node = shared_node(2)
    node.asks("a", 1, 2, task_class=BE, percent=60)
    node.asks("b", 2, 1, task_class=LS, percent=80)
    assert shares(node) == {"a": 20, "b": 80}
    node.asks("c", 3, 1, task_class=LS, percent=80)
    assert shares(node) == {"a": 20, "b": 80, "c": 80}
    node.dies(2)
    assert shares(node) == {"a": 20, "c": 80}
    node.dies(3)
    assert shares(node) == {"a": 60}


def test_an_env_reuses_its_gpu_only_with_the_compute_for_it() -> None:
    node = shared_node(1, "ab")
    node.asks("a", 1, task_class=NORMAL, percent=60)
    node.asks("a", 2, task_class=NORMAL, percent=60)
    assert waiting(node) == ["a"]
    assert "needs 60 % of the compute of GPUs that a holds, 40 % free" in reason(node)
    node.asks("b", 3, task_class=NORMAL, percent=40)
    assert waiting(node) == ["a", "b"]  # else a stream of small ones keeps it waiting for ever
    node.dies(1)
    assert sorted(shares(node).items()) == [("a", 60), ("b", 40)]


def test_a_stalled_task_gives_its_compute_away_and_needs_it_to_come_back() -> None:
    node = shared_node()
    node.asks("a", 1, task_class=BE, percent=80)
    node.passes(6_000, silent=[1])
    node.asks("b", 2, task_class=NORMAL, percent=70)
    assert shares(node) == {"a": 80, "b": 70}
    node.beats_again("a", 1)
    assert shares(node) == {"a": 30, "b": 70}
    node.passes(6_000, silent=[2])
    assert shares(node) == {"a": 80, "b": 70}
    node.beats_again("b", 2)
    assert "b" not in shares(node)  # fenced: what it had is taken


def test_a_plain_task_that_stalled_comes_back_only_beside_plain_ones() -> None:
    node = shared_node()
    node.asks("a", 1, task_class=NORMAL)
    node.passes(6_000, silent=[1])
    node.asks("b", 2, task_class=NORMAL, percent=1)
    assert shares(node) == {"a": None, "b": 1}
    node.beats_again("a", 1)
    assert shares(node) == {"b": 1}


def test_a_restart_keeps_shares() -> None:
    node = shared_node()
    node.asks("a", 1, task_class=BE, percent=80)
    node.asks("b", 2, task_class=LS, percent=50)
    node.restart()
    assert shares(node) == {"a": 50, "b": 50}
    node.dies(2)
    assert shares(node) == {"a": 80}


def test_a_suspended_task_gives_its_compute_away_and_takes_it_from_best_effort() -> None:
    node = shared_node()
    node.asks("a", 1, task_class=LS, percent=60)
    node.is_suspended("t1")
    node.asks("b", 2, task_class=BE, percent=100)
    assert shares(node) == {"a": 60, "b": 100}
    node.resumes("t1")
    assert node.state.tasks["t1"].suspension is Suspension.RESUMING
    node.is_back("t1")
    assert shares(node) == {"a": 60, "b": 40}
    node.is_suspended("t2")
    node.asks("c", 3, task_class=NORMAL, percent=40)
    node.resumes("t2")
    node.is_back("t2")
    assert shares(node) == {"a": 60, "b": 0, "c": 40}
    node.dies(3)
    assert shares(node) == {"a": 60, "b": 40}


def test_a_resume_waits_in_the_line_of_its_class() -> None:
    node = shared_node()
    node.asks("a", 1, task_class=LS, percent=60)
    node.is_suspended("t1")
    node.asks("b", 2, task_class=NORMAL, percent=100)
    node.asks("c", 3, task_class=NORMAL, percent=100)
    node.resumes("t1")
    assert waiting(node) == ["a", "c"]
    node.dies(2)
    assert node.state.tasks["t1"].suspension is Suspension.RESUMING


def test_a_request_above_a_lowered_quota_waits_for_the_quota_alone() -> None:
    node = shared_node()
    node.asks("a", 1, task_class=NORMAL, percent=100)
    node.asks("b", 2, task_class=LS, percent=60)
    node.asks("c", 3, task_class=NORMAL, percent=60)
    node.quota("b", 1, 8, task_class=NORMAL)
    node.quota("c", 1, 8, compute_percent=50)
    assert "class latency-sensitive asked, but the highest class of b is normal" in reason(node)
    node.dies(1)
    assert (shares(node), waiting(node)) == ({}, ["b", "c"])
    node.quota("c", 1, 8, compute_percent=60)
    assert (shares(node), waiting(node)) == ({"c": 60}, ["b"])


@pytest.mark.parametrize(("percent", "running"), [(None, ["a", "c"]), (50, ["a"])])
def test_no_request_is_served_for_a_while_where_a_share_is_waited_for(
    percent: int | None, running: list[str]
) -> None:
    """A short job could end in time beside a plain job; beside a waiting share that is unknown."""
    node = Node(2)
    for env in "abc":
        node.quota(env, 2, task_class=LS)
    node.submits("a", gpus=1, task_class=NORMAL, time_limit_ms=600_000)
    node.submits("b", gpus=2, task_class=NORMAL, compute_percent=percent)
    node.submits("c", gpus=1, task_class=NORMAL, time_limit_ms=1_000)
    assert [task.env for task in node.state.tasks.values()] == running
