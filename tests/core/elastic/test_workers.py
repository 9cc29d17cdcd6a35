"""Processes that join an elastic task: bound to a GPU of it, or refused with one line."""

from __future__ import annotations

from nodemgr.core.model.entities import WorkerBinding
from tests.core.world import Node, key


def led() -> Node:
    node = Node(3)
    node.quota("a", 3)
    node.asks("a", 1, 1, most=2, elastic=True, token="aa")
    assert node.gpus_of(1) == [0, 1]
    return node


def test_a_bound_worker_is_granted_its_gpu_alone() -> None:
    node = led()
    node.asks("a", 2, token="aa", worker=1)
    grant = node.granted(2)
    assert grant is not None
    assert (grant.task.gpus, grant.rows) == (("GPU-1",), (1,))
    assert node.state.elastics["t1"].workers == (WorkerBinding(key(2), "GPU-1"),)
    process = node.state.processes[key(2)]
    node.restart()
    node.rejoins("a", 2, "t1", process.slot, process.generation)
    again = node.granted(2)
    assert again is not None
    assert again.task.gpus == ("GPU-1",)
    node.dies(2)
    assert node.state.elastics["t1"].workers == ()


def test_a_process_without_a_binding_sees_all_gpus() -> None:
    node = led()
    node.asks("a", 2, token="aa")
    grant = node.granted(2)
    assert grant is not None
    assert grant.task.gpus == ("GPU-0", "GPU-1")


def test_wrong_workers_are_refused() -> None:
    node = led()
    node.asks("a", 9, 1, token="bb")
    for pid, more, line in (
        (2, {"token": "aa", "worker": 2}, "NODEMGR_WORKER_GPU names GPU-2, which is not in"),
        (3, {"token": "bb", "worker": 2}, "the process belongs to no elastic task"),
        (4, {"token": "cc", "worker": 0}, "the process belongs to no elastic task"),
        (5, {"token": "aa", "udp": True}, "cannot hold GPUs over UDP"),
        (6, {"token": "dd", "udp": True, "most": 3, "elastic": True}, "over UDP"),
    ):
        node.asks("a", pid, **({"gpus": 1} | more))  # type: ignore[arg-type]
        denied = node.denied(pid)
        assert denied is not None, more
        assert line in denied.reason
    assert node.state.elastics["t1"].workers == ()


def test_the_leaders_death_leaves_the_workers_and_ends_the_growth() -> None:
    node = led()
    node.asks("a", 2, token="aa", worker=1)
    node.dies(1)
    assert node.state.elastics["t1"].leader == ""
    assert node.gpus_of(2) == [0, 1]
    node.dies(2)
    assert not node.state.elastics
    assert not node.state.tasks


def test_an_elastic_task_is_not_suspended() -> None:
    node = led()
    before = node.rows()
    node.suspends("t1")
    assert node.rows() == before
