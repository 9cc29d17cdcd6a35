"""A simulated node for each test, and clients on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodemgr import simulator
from tests.sim.built import built_libraries
from tests.sim.client import Client

__all__ = ["built_libraries"]

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture
def node(tmp_path: Path) -> Iterator[simulator.SimulatedNode]:
    """Two devices of 1 GiB.

    Contexts and modules cost nothing: sums are those of what a test allocates.
    """
    with simulator.create(tmp_path / "n", 2, GIB, context_bytes=0, module_bytes=0) as made:
        yield made


@pytest.fixture
def costly_node(tmp_path: Path) -> Iterator[simulator.SimulatedNode]:
    """Two devices of 1 GiB on which a context costs 32 MiB and a module 4 MiB."""
    with simulator.create(
        tmp_path / "n", 2, GIB, context_bytes=32 * MIB, module_bytes=4 * MIB
    ) as made:
        yield made


StartClient = Callable[..., Client]


@pytest.fixture
def start() -> Iterator[StartClient]:
    """start(node, group=None, **environment): a client that ends with the test."""
    with contextlib.ExitStack() as stack:

        def start_client(
            node: simulator.SimulatedNode, group: str | None = None, **environment: str
        ) -> Client:
            return stack.enter_context(Client(node.environment(group) | environment))

        yield start_client


@pytest.fixture
def ready(start: StartClient) -> StartClient:
    """As `start`: a client with the context of the first device."""

    def ready_client(node: simulator.SimulatedNode, group: str | None = None) -> Client:
        client = start(node, group)
        client.ready()
        return client

    return ready_client
