"""GPUs that disappear, come back, are exchanged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from nodemgr.core.manager import Draft, step
from nodemgr.core.model.effects import SendNote
from nodemgr.core.model.entities import Config, Gpu
from nodemgr.core.model.events import GpusChanged
from nodemgr.core.model.values import replace
from tests.core.world import GIB, WALL, Node, S, gpu


def test_tasks_on_a_lost_gpu_are_told_and_keep_their_lease_until_they_end() -> None:
    node = Node(2)
    node.quota("alice", 1)
    node.asks("alice", 10)
    node.loses(0)
    assert [note.connection for note in node.of(SendNote)] == [10]
    assert "GPU 0 (simulated) is lost" in node.of(SendNote)[0].text
    assert node.published("gpu.lost")[0]["gpu_indices"] == [0]
    assert node.gpus_of(10) == [0]
    node.dies(10)
    assert node.state.grants == {}


def test_a_lost_gpu_is_nobodys_until_it_is_back() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.loses(0)
    node.asks("alice", 10)
    assert node.waiting() == [10]
    node.gpus_are([gpu(0)])
    assert node.published("gpu.restored")[0]["gpu_indices"] == [0]
    assert node.gpus_of(10) == [0]


def test_an_ill_gpu_is_like_a_missing_one() -> None:
    node = Node(1)
    node.gpus_are([gpu(0, healthy=False)])
    assert node.published("gpu.lost") != []
    assert node.gpus_are([gpu(0, healthy=False)]) == []


def test_the_env_of_a_lost_gpu_gets_another_one() -> None:
    node = Node(2)
    node.quota("alice", 1)
    node.asks("alice", 10)
    node.loses(0)
    node.asks("alice", 11)
    assert node.gpus_of(11) == [1]
    node.gpus_are([gpu(0), gpu(1)])  # it holds two now, above its quota, and nothing is taken away
    assert node.used_gpus("alice") == ["GPU-0", "GPU-1"]
    node.asks("alice", 12)
    assert node.gpus_of(12) == [0]


def test_the_same_inventory_changes_nothing() -> None:
    node = Node(2)
    assert node.gpus_are([gpu(0), gpu(1)]) == []


def test_a_gpu_keeps_its_index_whatever_the_driver_counts_now() -> None:
    node = Node(3)
    node.quota("alice", 1)
    node.asks("alice", 10)
    node.gpus_are([Gpu("GPU-1", 0, "simulated", 80 * GIB), Gpu("GPU-2", 1, "simulated", 80 * GIB)])
    assert [(known.uuid, known.index) for known in node.state.gpus.values()] == [
        ("GPU-0", 0),
        ("GPU-1", 1),
        ("GPU-2", 2),
    ]


def test_a_new_gpu_in_the_place_of_one_that_nobody_holds_takes_its_index() -> None:
    node = Node(2)
    new = Gpu("GPU-new", 0, "simulated", 40 * GIB)
    node.gpus_are([new, gpu(1)])
    assert node.state.gpus["GPU-new"].index == 0
    assert "GPU-0" not in node.state.gpus


def test_a_new_gpu_in_the_place_of_one_that_is_held_takes_the_next_index() -> None:
    node = Node(2)
    node.quota("alice", 1)
    node.asks("alice", 10)
    node.gpus_are([Gpu("GPU-new", 0, "simulated", 40 * GIB), gpu(1)])
    assert node.state.gpus["GPU-new"].index == 2
    assert node.gpus_of(10) == [0]


def test_new_gpus_at_taken_indices_get_the_lowest_free_ones() -> None:
    node = Node(3)
    node.gpus_are([gpu(0), gpu(1), gpu(2), *(replace(gpu(0), uuid=f"new-{n}") for n in range(3))])
    assert [node.state.gpus[f"new-{n}"].index for n in range(3)] == [3, 4, 5]


def test_gpus_that_vanish_together_have_failed_each_for_itself() -> None:
    node = Node(4)
    node.gpus_are([gpu(3)])
    assert sorted(row.uuid for row in node.state.failures.values()) == ["GPU-0", "GPU-1", "GPU-2"]
    rates = {uuid: outlook.rate_per_hour for uuid, outlook in node.state.outlook.items()}
    assert rates["GPU-0"] == rates["GPU-1"] == rates["GPU-2"] > rates["GPU-3"]


Inventory = Callable[[list[Gpu]], list[Gpu]]
INVENTORIES: dict[str, Inventory] = {
    "new": lambda gpus: gpus,
    "half of them gone": lambda gpus: gpus[::2],
    "half of them exchanged": lambda gpus: [
        replace(each, uuid=f"new-{each.index}") if each.index % 2 else each for each in gpus
    ],
    "all back, at taken indices": lambda gpus: gpus,
}


def calls(state: Draft, gpus: list[Gpu], now_ns: int) -> int:
    """The calls of functions, and the steps of generators, that the inventory costs."""
    count = 0

    def see(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(see)
    try:
        step(state, GpusChanged(tuple(gpus), WALL + now_ns), now_ns).apply()
    finally:
        sys.setprofile(None)
    return count


def costs(gpus: int) -> dict[str, int]:
    state = Draft(Config())
    every = [gpu(index) for index in range(gpus)]
    return {
        name: calls(state, inventory(every), number * S)
        for number, (name, inventory) in enumerate(INVENTORIES.items(), 1)
    }


@pytest.mark.parametrize("name", INVENTORIES)
def test_an_inventory_costs_as_much_for_each_of_many_gpus_as_for_each_of_few(name: str) -> None:
    costs(8)  # the bounds of a rate are computed once for all
    few, many = costs(50)[name], costs(400)[name]
    assert few > 0
    assert many < 12 * few  # 64 times by the square
