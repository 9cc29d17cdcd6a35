"""The turns of a pool in the head's loop, with Slurm stood in by a list."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nodemgr.core.cluster.pilots import ListedPilot, PoolConfig
from nodemgr.edge.links import keys
from nodemgr.head import pool_keeper
from nodemgr.head.pool_keeper import PoolKeeper
from tests.head.world import cluster
from tests.support.limits import WAIT_LIMIT_S


class Commands:
    def __init__(self) -> None:
        self.asked: list[int] = []

    def ask(self, number: int, _node: str, _word: str) -> None:
        self.asked.append(number)

    def listed(self) -> tuple[ListedPilot, ...]:
        return tuple(ListedPilot(number, runs=False) for number in self.asked)

    def cancel(self, numbers: tuple[int, ...]) -> None:
        pass


def test_a_job_that_no_node_has_room_for_needs_no_turns_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_keeper, "SOON_S", 0.01)
    with cluster(tmp_path, gn1=1) as world:
        slurm, config = Commands(), PoolConfig(max_nodes=1, gpus=1, rest_s=0)
        public = keys.load(world.directory / "key").public
        keeper = PoolKeeper(
            world.head.loop, world.clock, world.head.engine, lambda: world.links, public, config,
            slurm, turn_s=1e6,
        )  # fmt: skip

        async def until_asked() -> None:
            while not slurm.asked:
                await asyncio.sleep(0.01)

        try:
            world.turn()  # the first turn of the pool: nothing waits
            world.submit(array=[[0, 3]], gpus=1)
            world.turn()
            wait = asyncio.wait_for(until_asked(), WAIT_LIMIT_S)
            world.head.loop.run_until_complete(wait)
        finally:
            keeper.close()
        assert slurm.asked == [1]
