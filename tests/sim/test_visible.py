"""CUDA_VISIBLE_DEVICES, as drivers read it; NVML, which does not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemgr import simulator
from tests.sim.client import refused
from tests.sim.conftest import GIB, StartClient


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[simulator.SimulatedNode]:
    with simulator.create(tmp_path_factory.mktemp("four"), 4, GIB) as made:
        yield made


BY_NUMBER = {
    "0,1,2,3": [0, 1, 2, 3],
    "3,1": [3, 1],
    "2": [2],
    " 1 , 2": [1, 2],
    "1gpu,2": [1, 2],
    "+1": [1],
    "0,-1,2": [0],
    "1,4,2": [1],
    "1,,2": [1],
    "1,x,2": [1],
    "1,99999999999999999999,2": [1],
    "": [],
    " ": [],
    "-1": [],
    "4": [],
    "none": [],
    "NoDevFiles": [],
    "1,2,1": [],
    ",1": [],
}


@pytest.mark.parametrize(
    ("value", "expected"), BY_NUMBER.items(), ids=[repr(value) for value in BY_NUMBER]
)
def test_numbers(
    four: simulator.SimulatedNode, start: StartClient, value: str, expected: list[int]
) -> None:
    uuids = [books.uuid for books in four.books()]
    client = start(four, CUDA_VISIBLE_DEVICES=value)
    if not expected:
        with refused("NO_DEVICE"):
            client.init()
        return
    client.init()
    assert [client.uuid(ordinal) for ordinal in range(client.count())] == [
        uuids[index] for index in expected
    ]


def test_not_set_shows_all(four: simulator.SimulatedNode, start: StartClient) -> None:
    client = start(four)
    client.init()
    assert client.count() == 4


def test_uuids(four: simulator.SimulatedNode, start: StartClient) -> None:
    uuids = [books.uuid for books in four.books()]
    assert len({uuid[:8] for uuid in uuids}) == 4, (
        "the first digits tell the devices of this node apart"
    )
    cases = {
        uuids[2]: [2],
        uuids[3].upper().replace("GPU-", "gpu-"): [3],
        f"{uuids[1]},{uuids[0]}": [1, 0],
        uuids[1][:8]: [1],
        f"{uuids[1][:10]},{uuids[0][:10]}": [1, 0],
        f"{uuids[1]},0": [1],
        f"{uuids[1]},GPU-ffffffff-0000,{uuids[0]}": [1],
        "GPU-": [],
        f"{uuids[1]}0": [],
        f"0,{uuids[1]}": [0],
        f"{uuids[1]},{uuids[1]}": [],
        f"MIG-{uuids[1]}": [],
    }
    for value, expected in cases.items():
        client = start(four, CUDA_VISIBLE_DEVICES=value)
        with contextlib.nullcontext() if expected else refused("NO_DEVICE"):
            client.init()
            assert [
                uuids.index(client.uuid(ordinal)) for ordinal in range(client.count())
            ] == expected, value


def test_ordinals_are_the_programs_and_memory_is_the_devices(
    four: simulator.SimulatedNode, start: StartClient
) -> None:
    client = start(four, CUDA_VISIBLE_DEVICES="3,1")
    client.ready(1)
    client.alloc(1000)
    client.create_physical(2 << 20, 0)

    held = [books.of(client.pid) for books in four.books()]
    assert [process and process.kind_bytes.get("linear") for process in held] == [
        None,
        1000,
        None,
        None,
    ]
    assert [process and process.kind_bytes.get("vmm") for process in held] == [
        None,
        None,
        None,
        2 << 20,
    ]
    assert client.pci(0) == "0000:30:00.0"
    with refused("INVALID_DEVICE"):
        client.retain(2)


def test_an_init_that_found_nothing_can_be_repeated(tmp_path: Path, start: StartClient) -> None:
    """The variable is read at each cuInit until one succeeds."""
    with simulator.create(tmp_path / "n", 2, GIB) as node:
        client = start(node, CUDA_VISIBLE_DEVICES="")
        with refused("NO_DEVICE"):
            client.init()
        client.set_environment("CUDA_VISIBLE_DEVICES", "1")
        client.init()
        assert client.count() == 1
        client.set_environment("CUDA_VISIBLE_DEVICES", "0,1")
        client.init()
        assert client.count() == 1
