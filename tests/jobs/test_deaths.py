"""The manager dies before or after each commit, while jobs are submitted, start and end.

Each job exists once, runs once, in its order, and its end is known.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemgr.core.model.effects import SubmitAnswered
from nodemgr.core.model.entities import JobState
from tests.jobs.world import KINDS, WAIT_LIMIT_S, World
from tests.session import TMP
from tests.support.local import DyingStore, FakeGpus

COMMITS = range(1, 9)
"""Three submissions, three starts and what follows from them are at least so many."""


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as name:
        world = World(Path(name), KINDS[0], gpus=FakeGpus(1), store=DyingStore())
        yield world
        world.close()


def submit(world: World, key: str) -> str:
    """As a client that submits again under the same key when its manager dies unanswered."""
    submission = world.submission("true", key=key, max_restarts=0)
    while True:
        world.revive()
        answered, found = threading.Event(), []

        def answer(
            effect: SubmitAnswered,
            found: list[SubmitAnswered] = found,
            answered: threading.Event = answered,
        ) -> None:
            found.append(effect)
            answered.set()

        with contextlib.suppress(RuntimeError):  # its loop is closed
            world.manager.service.loop.call_soon_threadsafe(
                world.manager.daemon.submissions.submit, submission, answer
            )
        while world.manager.is_alive and not answered.wait(0.02):
            pass
        if found:
            assert found[0].job_id is not None, found[0].reason
            return found[0].job_id


def until_nothing_is_left(world: World) -> None:
    deadline = time.monotonic() + WAIT_LIMIT_S
    while True:
        world.revive()
        if not world.manager.daemon.state.jobs and world.manager.is_alive:
            return
        assert time.monotonic() < deadline, f"left: {world.manager.daemon.state.jobs}"
        time.sleep(0.01)


def jobs_begun(world: World) -> list[str]:
    """The starts of jobs, once for each attempt that ran.

    A start at a manager's death may be repeated under the next number.
    """
    return [name.split(":")[0] for name in world.begun()]


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_at_any_commit_loses_and_repeats_nothing(
    world: World, when: str, commit: int
) -> None:
    store = world.manager.store
    assert isinstance(store, DyingStore)
    store.die(when, commit)
    job_ids = [submit(world, key) for key in ("first", "second", "third")]
    until_nothing_is_left(world)
    while store.deaths == 0:  # on a busy machine, commits come together
        job_ids.append(submit(world, f"{len(job_ids)} before"))
        until_nothing_is_left(world)
    assert store.deaths == 1
    assert len(set(job_ids)) == len(job_ids)
    assert jobs_begun(world) == job_ids
    for job_id in job_ids:
        job = world.ended(job_id).job
        assert (job.state, len(job.attempts), job.restarts, job.attempts[-1].exit_code) == (
            JobState.DONE,
            1,
            0,
            0,
        )


def test_deaths_one_after_another(world: World) -> None:
    """Each manager dies after a few commits, at any point of its work, also while it starts."""
    store = world.manager.store
    assert isinstance(store, DyingStore)
    job_ids: list[str] = []
    while len(job_ids) < 12 or store.deaths < 5:  # on a busy machine, commits come together
        number = len(job_ids)
        store.die("after" if number % 2 else "before", 1 + number % 5)
        job_ids.append(submit(world, str(number)))
    until_nothing_is_left(world)
    store.live()
    world.revive()
    assert jobs_begun(world) == job_ids
    assert {world.ended(job_id).job.state for job_id in job_ids} == {JobState.DONE}
