"""A long array: its elements get their rows in several steps, whatever happens between them."""

from __future__ import annotations

import pytest

from nodemgr.core.model import events
from nodemgr.core.model.entities import QueueRow
from tests.core.world import Node

PART, COUNT = 3, 10


def node_of(gpus: int = 1) -> Node:
    node = Node(gpus)
    node.quota("alice", gpus)
    return node


def enter(node: Node, array: str) -> None:
    node.happens(events.EnterElements(array, PART, node.wall_ns))


def enter_all(node: Node, array: str) -> None:
    while array in node.state.entering:
        enter(node, array)


def submitted(node: Node, **more: object) -> str:
    array = node.submits("alice", array=tuple(range(COUNT)), part=PART, **more)
    assert array is not None
    assert len(node.state.elements[array]) == PART
    return array


def elements(node: Node, array: str) -> list[str]:
    return [job_id for job_id in node.state.jobs if job_id.startswith(f"{array}.")]


def test_all_get_their_rows_in_their_order_also_across_restarts() -> None:
    node = node_of()
    array = submitted(node, gpus=1, key="k")
    assert node.state.env_jobs["alice"] == COUNT, "those without rows count"
    bytes_then = node.state.job_bytes["alice"]
    for _ in range(COUNT // PART):
        node.restart()
        assert node.state.job_of_key["alice", "k"] == array
        enter(node, array)
    assert not node.state.entering
    assert elements(node, array) == [f"{array}.{index}" for index in range(COUNT)]
    assert node.queued_jobs() == [f"{array}.{index}" for index in range(1, COUNT)]
    assert (node.state.env_jobs["alice"], node.state.job_bytes["alice"]) == (COUNT, bytes_then)
    enter(node, array)
    assert len(elements(node, array)) == COUNT, "one step too many changes nothing"


def test_who_waits_for_the_array_waits_for_those_without_rows() -> None:
    node = node_of()
    array = submitted(node, gpus=1, key="k")
    last = node.submits("alice", gpus=1, after=(array,))
    for index in range(PART):
        node.job_ends(f"{array}.{index}")
    assert not elements(node, array)
    assert node.state.jobs[last or ""].after == (array,)
    assert node.state.job_of_key["alice", "k"] == array
    assert node.state.specs, "the others need it"
    node.restart()
    enter_all(node, array)
    for index in range(PART, COUNT):
        node.job_ends(f"{array}.{index}")
    assert node.state.jobs[last or ""].after == ()


@pytest.mark.parametrize("well", [True, False])
def test_what_the_array_waits_for_ends_before_all_have_their_rows(well: bool) -> None:
    node = node_of()
    first = node.submits("alice", gpus=1)
    assert first is not None
    array = submitted(node, gpus=1, after=(first,))
    node.restart()
    node.job_ends(first, 0 if well else 1)
    enter_all(node, array)
    assert len(elements(node, array)) == (COUNT if well else 0)
    assert not node.state.dependents
    states = {node.state.jobs[job_id].state.value for job_id in elements(node, array)}
    assert states == ({"queued", "starting"} if well else set())


def test_a_withdrawn_array_gets_no_more_rows() -> None:
    node = node_of()
    array = submitted(node, hold=True, gpus=1)
    node.withdraws(array)
    assert not node.state.entering
    assert not node.state.jobs
    assert not node.state.specs


def test_neither_does_one_of_a_removed_environment() -> None:
    node = node_of()
    array = submitted(node, hold=True, gpus=1)
    node.removes("alice")
    enter(node, array)
    assert not node.state.entering
    assert not node.state.jobs


def test_the_queue_of_those_without_rows_may_go_meanwhile() -> None:
    node = node_of()
    node.happens(events.SetQueue(QueueRow("own", 50), "root", node.wall_ns))
    array = submitted(node, hold=True, gpus=1, priority="own")
    node.withdraws(f"{array}.0")
    for index in (1, 2):
        node.moves(f"{array}.{index}", "low")
    node.happens(events.RemoveQueue("own", "root", node.wall_ns))
    enter_all(node, array)
    queues = {"high", "normal", "low", *node.state.queues}
    assert {job.priority for job in node.state.jobs.values()} <= queues
    assert len(node.state.jobs) == COUNT - 1
