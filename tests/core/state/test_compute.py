"""The compute of a GPU: free for a plain request, free for a share, held by best effort."""

from __future__ import annotations

import pytest

from nodemgr.core.model.entities import Suspension, TaskClass
from nodemgr.core.model.values import replace
from nodemgr.core.state import compute
from tests.core.invariants import promises
from tests.core.world import Node

LS, NORMAL, BE = TaskClass


def node_with(*shares: tuple[TaskClass, int | None], **config: bool) -> Node:
    """A GPU with a task of each class and share, each of an env of its own."""
    node = Node(1, **config)
    for pid, (task_class, percent) in enumerate(shares, 1):
        node.quota(f"env{pid}", 1, 4, task_class=LS)
        node.asks(f"env{pid}", pid, task_class=task_class, percent=percent)
    return node


def sums(node: Node) -> tuple[int, int, int, int]:
    """Free for a plain request and for a share, of best effort, granted."""
    draft = node.state
    return (
        compute.free_percent(draft, "GPU-0", plain=True),
        compute.free_percent(draft, "GPU-0", plain=False),
        compute.best_effort_percent(draft, "GPU-0"),
        compute.granted_percent(node.state, "GPU-0"),
    )


def test_an_idle_gpu_is_free_for_each() -> None:
    assert sums(node_with()) == (100, 100, 0, 0)


def test_shares_leave_the_rest_to_shares() -> None:
    assert sums(node_with((BE, 30), (LS, 20), (BE, 5))) == (0, 45, 35, 55)


def test_a_plain_task_leaves_nothing_to_shares() -> None:
    assert sums(node_with((NORMAL, None))) == (100, 0, 0, 100)


def test_a_setting_lets_plain_tasks_and_shares_run_together() -> None:
    node = node_with((NORMAL, None), (NORMAL, 30), plain_tasks_share=True)
    assert sums(node) == (100, 70, 0, 100)


@pytest.mark.parametrize(
    ("task_class", "percent", "granted_percent", "is_possible"),
    [
        (LS, 20, 20, True),
        (LS, 20, 30, True),  # it needs more to keep its time
        (LS, 20, 10, False),
        (LS, 20, 110, False),
        (BE, 20, 0, True),
        (BE, 20, 30, False),
        (BE, 20, -10, False),
        (NORMAL, 20, 30, False),
    ],
)
def test_the_invariants_know_which_share_a_task_may_have(
    task_class: TaskClass, percent: int, granted_percent: int, is_possible: bool
) -> None:
    node = node_with((task_class, percent))
    task = replace(node.state.tasks["t1"], granted_percent=granted_percent)
    node.state.tasks["t1"] = task
    wrong = [line for line in promises.check(node.state) if line.startswith("t1 ")]
    assert bool(wrong) is not is_possible


def test_a_suspended_task_has_no_compute() -> None:
    node = node_with((BE, 30), (LS, 20))
    draft = node.state
    draft.put_task(replace(draft.tasks["t1"], suspension=Suspension.SUSPENDED))
    assert compute.best_effort_percent(draft, "GPU-0") == 0
    assert compute.free_percent(draft, "GPU-0", plain=False) == 80
    draft.put_task(replace(draft.tasks["t1"], suspension=Suspension.RESUMING))
    assert compute.free_percent(draft, "GPU-0", plain=False) == 50


def test_best_effort_tasks_come_youngest_first() -> None:
    draft = node_with((BE, 30), (NORMAL, 20), (BE, 5)).state
    assert [task.task_id for task in compute.best_effort(draft, "GPU-0")] == ["t3", "t1"]


def test_plain_tasks_need_no_sums() -> None:
    """The tables of compute are not even made for a step without a share."""
    node = node_with((NORMAL, None), (NORMAL, None))
    assert not compute.in_use(node.state)
    assert (node.state.compute, node.state.shrunk) == ({}, {})
