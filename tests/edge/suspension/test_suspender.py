"""The suspension process on the simulator: orders carried out, and processes of it killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodemgr import simulator
from nodemgr.edge.kernel.processes import start_ticks
from nodemgr.edge.suspension import host_memory
from nodemgr.edge.suspension.order_lines import Order, OrderEnd, Target
from nodemgr.edge.suspension.suspender import MAX_TRIES, Suspender
from nodemgr.simulator import SimulatedNode
from tests.sim.built import built_libraries
from tests.sim.client import Client
from tests.support.examples import examples
from tests.support.limits import WAIT_LIMIT_S

__all__ = ["built_libraries"]
MIB = 1 << 20


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    with simulator.create(tmp_path / "n", 1, 1 << 30, context_bytes=0, module_bytes=0) as made:
        yield made


@pytest.fixture
def targets(node: SimulatedNode) -> Iterator[list[Client]]:
    with Client(node.environment()) as first, Client(node.environment()) as second:
        for client in (first, second):
            client.ready()
        yield [first, second]


class Orders:
    """Gives orders to one suspender after the other, and waits for their answers."""

    def __init__(self, directory: Path, node: SimulatedNode) -> None:
        self.loop = asyncio.new_event_loop()
        self._directory, self._simulator = directory, node.directory
        self._answers: list[OrderEnd] = []
        self.begin()

    def begin(self) -> None:
        """A new manager's."""
        self.suspender = Suspender(
            self.loop, self._directory, self._simulator, lambda _, answer: self._take(answer)
        )

    def _take(self, answer: OrderEnd) -> None:
        self._answers.append(answer)
        self.loop.stop()

    def give(
        self, verb: str, clients: list[Client], memory_bytes: int = 0, lock_ms: int = 10_000
    ) -> None:
        rows = [Target(each.pid, start_ticks(each.pid) or 0, memory_bytes) for each in clients]
        self.suspender.order(Order(verb, "t1", lock_ms, tuple(rows)))

    def answer(self) -> OrderEnd:
        timeout = self.loop.call_later(WAIT_LIMIT_S, self.loop.stop)
        self.loop.run_forever()
        timeout.cancel()
        return self._answers.pop()

    def __call__(
        self, verb: str, clients: list[Client], memory_bytes: int = 0, lock_ms: int = 10_000
    ) -> OrderEnd:
        self.give(verb, clients, memory_bytes, lock_ms)
        return self.answer()

    def close(self) -> None:
        self.suspender.close()
        self.loop.close()


@pytest.fixture
def orders(tmp_path: Path, node: SimulatedNode) -> Iterator[Orders]:
    made = Orders(tmp_path, node)
    yield made
    made.close()


def test_no_process_runs_before_the_first_order(orders: Orders) -> None:
    assert orders.suspender.pid is None


def test_the_memory_of_all_processes_goes_and_comes_back(
    orders: Orders, node: SimulatedNode, targets: list[Client]
) -> None:
    addresses = [client.alloc(100 * MIB) for client in targets]
    for client, address in zip(targets, addresses, strict=True):
        client.put(address, f"bytes of {client.pid}")
    assert orders("suspend", targets) == OrderEnd("t1")
    assert node.books()[0].used_bytes == 0
    assert orders("suspend", targets) == OrderEnd("t1")
    assert orders("resume", targets) == OrderEnd("t1")
    assert node.books()[0].used_bytes == 200 * MIB
    assert orders("resume", targets) == OrderEnd("t1")
    for client, address in zip(targets, addresses, strict=True):
        text = f"bytes of {client.pid}"
        assert client.get(address, len(text)) == text


def test_managed_memory_is_named_and_all_go_on(
    orders: Orders, node: SimulatedNode, targets: list[Client]
) -> None:
    targets[0].alloc(MIB)
    targets[1].alloc_managed(MIB)
    answer = orders("suspend", targets)
    fields = (str(targets[1].pid), "cuCheckpointProcessCheckpoint", "CUDA_ERROR_NOT_SUPPORTED")
    assert answer == OrderEnd("t1", False, "call", fields)
    assert node.books()[0].used_bytes == 2 * MIB
    targets[0].alloc(MIB)


def test_work_that_does_not_end_in_time_is_named(orders: Orders, targets: list[Client]) -> None:
    stream = targets[0].create_stream()
    gate = targets[0].gate(stream)
    answer = orders("suspend", targets, lock_ms=50)
    assert (answer.kind, answer.fields[2]) == ("call", "CUDA_ERROR_NOT_READY")
    targets[0].open_gate(gate)


def test_host_memory_that_does_not_suffice_is_seen_before(
    orders: Orders, node: SimulatedNode, targets: list[Client]
) -> None:
    targets[0].alloc(MIB)
    answer = orders("suspend", targets, memory_bytes=1 << 50)
    assert answer.kind == "node"
    assert int(answer.fields[1]) == 2 << 50
    assert not answer.is_out
    assert node.books()[0].used_bytes == MIB
    assert host_memory.free_of_node() is not None


def test_a_process_that_has_ended_is_left_out(
    orders: Orders, node: SimulatedNode, targets: list[Client]
) -> None:
    ended = Target(targets[0].pid, 1, 0)
    rest = Target(targets[1].pid, start_ticks(targets[1].pid) or 0, 0)
    targets[1].alloc(MIB)
    orders.suspender.order(Order("suspend", "t1", 10_000, (ended, rest)))
    assert orders.answer() == OrderEnd("t1")
    assert node.books()[0].used_bytes == 0


def test_a_restore_without_room_leaves_all_out(
    orders: Orders, node: SimulatedNode, targets: list[Client]
) -> None:
    for client in targets:
        client.alloc(300 * MIB)
    assert orders("suspend", targets) == OrderEnd("t1")
    with Client(node.environment()) as other:
        other.ready()
        other.alloc(600 * MIB)
        answer = orders("resume", targets)
        assert (answer.kind, answer.is_out) == ("call", True)
        assert answer.fields[2] == "CUDA_ERROR_OUT_OF_MEMORY"
        assert node.books()[0].used_bytes == 600 * MIB


def test_an_old_driver_is_named(tmp_path: Path) -> None:
    with (
        simulator.create(tmp_path / "old", 1, 1 << 30, driver_version=12_040) as old,
        Client(old.environment()) as client,
    ):
        client.ready()
        orders = Orders(tmp_path, old)
        assert orders("suspend", [client]) == OrderEnd("t1", False, "driver", ("old",))
        orders.close()


def kill(pid: int | None) -> None:
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


def test_a_process_that_was_killed_between_two_orders_is_replaced(
    orders: Orders, targets: list[Client]
) -> None:
    assert orders("suspend", targets) == OrderEnd("t1")
    first = orders.suspender.pid
    kill(first)
    assert orders("resume", targets) == OrderEnd("t1")
    assert orders.suspender.pid not in (None, first)


def test_an_order_that_kills_each_process_fails(orders: Orders, targets: list[Client]) -> None:
    stream = targets[0].create_stream()
    gate = targets[0].gate(stream)
    killed: set[int] = set()

    def again() -> None:
        pid = orders.suspender.pid
        if pid is not None and pid not in killed:
            killed.add(pid)
            kill(pid)
        orders.loop.call_later(0.01, again)

    orders.loop.call_soon(again)
    assert orders("suspend", targets) == OrderEnd("t1", False, "process")
    assert len(killed) == MAX_TRIES
    targets[0].open_gate(gate)


def rounds(orders: Orders, node: SimulatedNode, targets: list[Client], count: int) -> None:
    """Random rounds in which the process, or the manager's end of it, is lost at any moment."""
    dice = random.Random(13)
    texts = {}
    for client in targets:
        address = client.alloc(4 * MIB)
        texts[client] = (address, "".join(dice.choices("abcdef", k=64)))
        client.put(*texts[client])

    def later(what: Callable[[], None]) -> None:
        orders.loop.call_later(dice.random() * 0.02, what)

    def manager_ends(verb: str) -> None:
        orders.suspender.close()
        orders.begin()
        orders.give(verb, targets)

    for number in range(count):
        for verb, used in (("suspend", 0), ("resume", 8 * MIB)):
            lost = dice.randrange(4)
            if lost == 0:
                later(lambda: kill(orders.suspender.pid))
            if lost == 1:
                later(lambda verb=verb: manager_ends(verb))  # type: ignore[misc]
            assert orders(verb, targets) == OrderEnd("t1"), number
            if lost == 1:
                orders.loop.call_later(0.03, orders.loop.stop)
                orders.loop.run_forever()
                assert all(answer == OrderEnd("t1") for answer in orders._answers)
                orders._answers.clear()
                while orders.suspender._orders:
                    assert orders.answer() == OrderEnd("t1")
            assert node.books()[0].used_bytes == used, number
    for client, (address, text) in texts.items():
        assert client.get(address, len(text)) == text


def test_no_byte_is_lost_while_processes_are_killed(
    orders: Orders, node: SimulatedNode, targets: list[Client]
) -> None:
    rounds(orders, node, targets, examples(12))
