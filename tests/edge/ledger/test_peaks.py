"""Peaks of jobs' tasks, from a ledger with its clients: at a process's end, and at the job's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from nodemgr._native import ffi, lib
from nodemgr.core.model import job_ids
from nodemgr.edge.ledger.native_ledger import SlotState
from nodemgr.edge.ledger.peaks import Peaks
from nodemgr.edge.ledger.registry import LedgerRow, Ledgers, Slot
from tests.core.world import GIB, Node, key


class World:
    """A job of alice with the processes 50 and 51 on two GPUs, and a task of bob without a job."""

    def __init__(self) -> None:
        self.node = node = Node(2)
        self.ledgers = Ledgers(lambda _env, _files: None)
        self.peaks = Peaks(node.state, self.ledgers)
        for env in ("alice", "bob"):
            node.quota(env, 2, 40)
        self.job_id = node.submits("alice", gpus=2) or ""
        node.begins(self.job_id)
        for pid in (50, 51):
            node.asks("alice", pid, token=job_ids.token(self.job_id, 1))
        node.asks("bob", 60, 1)
        self.clients: dict[int, Any] = {}
        for env in ("alice", "bob"):
            self.ledgers.open(env)
            for row in range(2):
                limit_bytes = 40 * GIB
                self.ledgers.set_limit(env, LedgerRow(row, f"GPU-{row}", 80 * GIB, limit_bytes))
        for pid in (50, 51, 60):
            self._begin(pid)

    def _begin(self, pid: int) -> None:
        process = self.node.state.processes[key(pid)]
        assert process.slot is not None
        slot = Slot(process.slot, process.generation, SlotState.LIVE)
        self.ledgers.begin_slot(process.env, slot)
        client = self.clients[pid] = ffi.new("struct nm_ledger *")
        ledger = self.ledgers.get(process.env)
        assert ledger is not None
        assert lib.nm_ledger_map_client(client, *map(os.dup, ledger.fds)) == lib.NM_LEDGER_OK

    def takes(self, pid: int, gib: int, *, row: int = 0) -> None:
        process = self.node.state.processes[key(pid)]
        mine = (self.clients[pid], row, process.slot, process.generation, gib * GIB)
        assert lib.nm_ledger_reserve(*mine) == lib.NM_OK
        lib.nm_ledger_release(*mine)

    @property
    def at_its_end(self) -> int | None:
        return self.peaks.of_task(self.node.job(self.job_id).task_id)

    def close(self) -> None:
        for client in self.clients.values():
            lib.nm_ledger_unmap(client)
        self.ledgers.forget_all()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_the_peak_of_a_task_is_the_sum_of_its_processes_on_one_gpu(world: World) -> None:
    assert world.at_its_end == 0
    world.takes(50, 3)
    world.takes(51, 4)
    world.takes(51, 5, row=1)
    assert world.at_its_end == 7 * GIB


def test_a_process_brings_the_peak_of_all_that_are_there_when_it_leaves(world: World) -> None:
    world.takes(51, 4)
    assert world.peaks.at_leaving(key(50)) == 0, "it had no memory: another one brings the sum"
    world.takes(50, 3)
    assert world.peaks.at_leaving(key(50)) == 7 * GIB
    world.node.dies(50)
    assert world.peaks.at_leaving(key(51)) == world.at_its_end == 4 * GIB


def test_a_process_that_left_before_brings_its_own(world: World) -> None:
    world.takes(50, 3)
    world.takes(51, 4)
    world.node.releases("alice", 50)
    assert world.peaks.at_leaving(key(50)) == 3 * GIB
    assert world.at_its_end == 4 * GIB


def test_a_process_without_a_job_brings_none(world: World) -> None:
    world.takes(60, 2)
    assert world.peaks.at_leaving(key(60)) == world.peaks.at_leaving(key(99)) == 0
    assert world.peaks.of_task(None) == world.peaks.of_task("t99") == 0


def test_over_udp_and_without_a_ledger_the_peak_is_not_known(world: World) -> None:
    token = job_ids.token(world.job_id, 1)
    world.node.asks("alice", 70, token=token, udp=True, used_gib={0: 0, 1: 0})
    assert world.node.task(70, udp=True) is not None
    assert world.peaks.at_leaving(key(70, udp=True)) is None
    assert world.at_its_end is None
    world.ledgers.close("alice")
    assert world.peaks.at_leaving(key(50)) is None


def test_a_refusal_is_noted_beside_the_peak_and_known_after_its_process(world: World) -> None:
    world.takes(50, 3)
    process = world.node.state.processes[key(50)]
    mine = (world.clients[50], 1, process.slot, process.generation)
    lib.nm_ledger_note_refusal(*mine[:3], process.generation + 1)
    task_id = world.node.job(world.job_id).task_id
    assert not world.peaks.take_refusal(task_id)
    for row in (0, 1):
        lib.nm_ledger_note_refusal(mine[0], row, *mine[2:])
    assert world.at_its_end == 3 * GIB
    world.takes(50, 2)
    assert world.at_its_end == 3 * GIB
    world.takes(50, 4)
    assert world.at_its_end == 4 * GIB
    assert world.peaks.take_refusal(task_id)
    world.peaks.at_leaving(key(50))
    world.node.dies(50)
    assert [world.peaks.take_refusal(task_id) for _ in range(2)] == [True, False]
