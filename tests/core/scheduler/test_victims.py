"""Which best-effort tasks must go for a latency-sensitive request: decided, not carried out."""

from __future__ import annotations

from nodemgr.core.model.entities import Suspension, Task, TaskClass
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler import placement, victims
from nodemgr.core.state.draft import Draft
from tests.core.world import Node

LS, NORMAL, BE = TaskClass


def all_can(_task: Task) -> bool:
    return True


def with_tasks(*envs: str, gib: int = 20, **sizes: int) -> Node:
    """Tasks of best effort on an 80 GiB GPU, the oldest first; `z` waits for 40 GiB.

    `sizes`: the GiB of an environment that has another quota than `gib`.

    None of them can be suspended, so that all stay as they are.
    """
    node = Node(1)
    for pid, env in enumerate(envs, 1):
        if env not in node.state.envs:
            node.quota(env, 1, sizes.get(env, gib), task_class=BE)
        node.asks(env, pid, percent=10)
        node.suspends(f"t{pid}")
        node.suspension_fails(f"t{pid}")
        node.passes(1_000)
    node.quota("z", 1, 40, task_class=LS)
    node.asks("z", 99, task_class=LS, percent=50)
    return node


def gone(draft: Draft) -> list[str]:
    (request,) = draft.requests.values()
    result = placement.judge(draft, request, {}, {})
    found = victims.victims(draft, result.ask, result.rows, all_can)
    return sorted(task.env for task in found)


def test_the_youngest_go_until_there_is_room() -> None:
    assert gone(with_tasks("a", "b", "c", "d").state) == ["c", "d"]


def test_a_grant_comes_back_with_the_last_task_of_its_env() -> None:
    """Two tasks of b share a grant: a and b's last would not do, nor would b alone suffice."""
    node = with_tasks("a", "b", "b", gib=35)
    assert gone(node.state) == ["b", "b"]


def test_no_task_goes_without_need() -> None:
    """The youngest one's grant is small, and its memory is not needed beside that of the next."""
    assert gone(with_tasks("a", "b", "c", a=30, b=40, c=5).state) == ["b"]


def test_a_task_that_is_going_counts_as_gone() -> None:
    draft = with_tasks("a", "b", "c", "d").state
    draft.put_task(replace(draft.tasks["t3"], suspension=Suspension.SUSPENDING))
    assert victims.is_going(draft, draft.tasks["t3"])
    assert gone(draft) == ["d"]
    draft.put_task(replace(draft.tasks["t4"], suspension=Suspension.SUSPENDING))
    assert gone(draft) == []


def test_no_task_goes_where_the_memory_quota_does_not_suffice() -> None:
    """The request needs two GPUs, one of which is free; its quota has memory for one alone."""
    node = Node(2)
    node.quota("a", 1, 60, task_class=BE)
    node.asks("a", 1, percent=10)
    node.suspends("t1")
    node.suspension_fails("t1")
    node.passes(1_000)
    node.quota("z", 2, 80, task_class=LS)
    node.asks("z", 99, 2, task_class=LS, percent=50)
    draft = node.state
    (request,) = draft.requests.values()
    result = placement.judge(draft, request, {}, {})
    for left_gib, gone in ((80, ["a"]), (79, [])):
        ask = result.ask._replace(quota_remaining_bytes=left_gib << 30)
        found = victims.victims(draft, ask, result.rows, all_can)
        assert [task.env for task in found] == gone
