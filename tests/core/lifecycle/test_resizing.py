"""A GPU joins and leaves the lease of an elastic task: grants, processes, records, memory."""

from __future__ import annotations

from nodemgr.core.model.effects import GpusHeld, SendGrant, WatchUnreclaimed
from nodemgr.core.model.entities import Word
from tests.core.world import GIB, Node


def grown() -> Node:
    """`a` leads an elastic task on GPUs 0 and 1, with 40 GiB on each."""
    node = Node(2)
    node.quota("a", 2, 80)
    node.quota("b", 2)
    node.asks("b", 9, 1)
    node.asks("a", 1, 1, most=2, elastic=True, gib=10)
    node.dies(9)
    node.passes(1_999)
    assert node.gpus_of(1) == [1]
    node.passes(1)
    return node


def test_a_gpu_joins_with_its_grant_and_the_device_gate_follows() -> None:
    node = grown()
    assert node.gpus_of(1) == [0, 1]
    grant = node.grant("a", 0)
    assert grant is not None
    assert (grant.memory_bytes, grant.kept_bytes) == (40 * GIB, 10 * GIB)
    assert [effect.env for effect in node.of(GpusHeld)] == ["a"]
    (answer,) = node.of(SendGrant)
    assert (answer.task.gpus, answer.rows) == (("GPU-0", "GPU-1"), (0, 1))


def test_a_gpu_leaves_with_its_grant_and_memory_stays_charged_until_it_is_gone() -> None:
    node = grown()
    node.says("a", 1, Word.LEFT, 0)
    assert node.grant("a", 0) is None
    assert [effect.uuid for effect in node.of(WatchUnreclaimed)] == ["GPU-0"]
    assert node.remaining_gib(0) == 40
    node.driver_shows(1, 0, 3)
    assert node.remaining_gib(0) == 77
    node.driver_shows(1, 0, 0)
    assert node.remaining_gib(0) == 80


def test_a_gpu_that_comes_back_is_charged_once() -> None:
    node = grown()
    node.says("a", 1, Word.LEFT, 0)
    node.driver_shows(1, 0, 0)
    node.passes(62_000)
    assert node.gpus_of(1) == [0, 1]
    assert node.remaining_gib(0) == 40


def test_the_end_of_the_task_ends_its_elastic_lease() -> None:
    node = grown()
    node.dies(1)
    assert not node.state.elastics
    assert not node.state.grants
    assert node.state.wake_ns() is None
