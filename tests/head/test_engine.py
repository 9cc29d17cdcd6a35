"""A head that is killed at any commit, or whose store fails: nothing begins twice or is lost."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from nodemgr.core.model.entities import Cause, JobState
from nodemgr.core.model.values import replace
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.edge.store.database import CommitHook
from nodemgr.head.service import HeadFault, HeadService
from tests.head.world import ADMIN, ANN, BOB, World, cluster


class Killed(BaseException):
    """The process is gone at this instant."""


class KillAt(CommitHook):
    def __init__(self, commit: int, where: str) -> None:
        self.commit, self.where, self.count = commit, where, 0

    def before(self, commit: int) -> None:
        self.count += 1
        if (self.count, self.where) == (self.commit, "before"):
            raise Killed

    def after(self, commit: int) -> None:
        if (self.count, self.where) == (self.commit, "after"):
            raise Killed


def work(world: World) -> list[str]:
    """Three jobs from submission to their ends; the submitter asks again after each death."""
    jobs = []
    for number in (1, 2, 3):
        while True:
            try:
                jobs.append(world.submit(ANN if number < 3 else BOB, number, gpus=1))
                break
            except Killed:
                rises(world)
    for _ in range(30):
        try:
            world.turn(3)
            world.finish()
            world.turn(3)
            if not world.head.engine.state.jobs:
                return jobs
        except Killed:
            rises(world)
    raise AssertionError(world.head.engine.state.jobs)


def rises(world: World) -> None:
    world.restart()
    world.sync()


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("commit", range(1, 16))
def test_a_head_killed_at_each_commit(tmp_path: Path, commit: int, where: str) -> None:
    with cluster(tmp_path, gn1=1, gn2=1) as world:
        world.hook = KillAt(commit, where)
        rises(world)
        jobs = work(world)
        assert jobs == ["c1", "c2", "c3"]
        assert [world.ended(job) for job in jobs] == ["done"] * 3
        begun = [count for node in world.nodes.values() for count in node.begun.values()]
        assert begun == [1, 1, 1]
        assert [node.answers() for node in world.nodes.values()] == [[], []]
        world.restart()
        assert world.head.engine.state.jobs == world.head.engine.state.assignments == {}


class Full(CommitHook):
    is_full = False

    def before(self, _commit: int) -> None:
        if self.is_full:
            raise sqlite3.OperationalError("disk full")


def test_a_store_that_fails_changes_nothing_and_lets_nodes_say_all_again(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1) as world:
        hook = world.hook = Full()
        rises(world)
        job = world.submit()
        world.turn()
        hook.is_full = True
        with pytest.raises(OperationError, match="cannot be written") as refused:
            world.submit(number=2)
        assert refused.value.code == "store"
        world.finish()
        assert world.links.open == {}, "its report could not be stored: it says hello again"
        hook.is_full = False
        world.sync()
        world.turn()
        assert world.ended(job) == "done"


def test_a_word_is_said_again_until_the_node_has_answered(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1) as world:
        world.submit()
        for _ in range(3):
            world.head.loop.run_until_complete(_rest())
        assigned = [said for _, kind, said in world.links.said if kind == "assign"]
        assert len(assigned) == 1
        assert (assigned[0]["argv"], assigned[0]["user"], assigned[0]["uid"]) == (
            ["true"], "ann", 1000,
        )  # fmt: skip
        world.links.said.clear()
        world.clock.advance(10**10)
        world.head.engine.speak("gn1")
        assert [kind for _, kind, _ in world.links.said] == ["assign"]
        world.turn()
        world.clock.advance(10**10)
        world.head.engine.speak("gn1")
        assert [kind for _, kind, _ in world.links.said if kind == "assign"] == []


async def _rest() -> None:
    await asyncio.sleep(0.001)


def test_a_pause_ends_by_the_clock(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1) as world:
        job = world.submit()
        world.turn()
        world.nodes["gn1"].finish()
        (key,) = world.nodes["gn1"].rows
        row = world.nodes["gn1"].rows[key]
        world.nodes["gn1"].rows[key] = replace(
            row, state=JobState.FAILED, cause=Cause.SUPERVISOR_LOST
        )
        world.report("gn1")
        (row,) = world.ask(ANN, "cluster_show", job=job)["jobs"]
        assert (row["state"], row["reason"]) == ("paused", "interrupted: waits again after a pause")
        world.clock.advance(3_600 * 10**9)
        world.head.engine._time_passes()
        world.turn()
        world.finish()
        world.turn()
        assert world.ended(job) == "done"


def test_two_heads_on_one_directory(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1) as world:
        second = HeadService(world.directory, tmp_path / "other")
        with pytest.raises(HeadFault, match="keeps its state"):
            second.open()
        third = HeadService(tmp_path / "nothing", world.run_dir)
        with pytest.raises(HeadFault, match="no head's directory"):
            third.open()
        assert world.ask(ADMIN, "node_list")["nodes"][0]["state"] == "up"


def test_a_head_with_yesterdays_clock(tmp_path: Path) -> None:
    """No decision reads the wall clock."""
    with cluster(tmp_path, gn1=1) as world:
        first = world.submit()
        world.turn()
        before_ns = world.clock.wall_ns()
        world.clock._wall_ns -= 86_400 * 10**9
        second = world.submit(number=2)
        world.restart()
        world.sync()
        world.turn()
        world.finish()
        world.turn()
        world.finish()
        world.turn()
        assert [world.ended(job) for job in (first, second)] == ["done", "done"]
        assert world.clock.wall_ns() < before_ns
