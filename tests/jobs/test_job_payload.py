"""The payload of a job: kept in the store alone, read at the start, dropped after its end."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodemgr.core.model import events
from nodemgr.core.model.entities import JobState
from tests.jobs.world import KINDS, Refused, World
from tests.session import TMP
from tests.support.local import FakeGpus

LONG = f"LONG={'x' * 100_000}"
Make = Callable[..., World]


@pytest.fixture
def make() -> Iterator[Make]:
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as name:
        worlds: list[World] = []

        def start(**settings: Any) -> World:
            worlds.append(World(Path(name), KINDS[0], gpus=FakeGpus(1), **settings))
            return worlds[-1]

        yield start
        for world in worlds:
            world.close()


def spoil(world: World, statement: str) -> None:
    """While no manager runs."""
    with sqlite3.connect(world.directory / "state" / "state.db") as db:
        db.execute(statement)
    db.close()


def test_a_manager_starts_without_reading_what_jobs_run_and_a_job_whose_command_is_gone_fails(
    make: Make,
) -> None:
    world = make()
    jobs = [world.submit("true", hold=True, environ=(LONG,)) for _ in range(3)]
    world.manager.close()
    spoil(
        world, "UPDATE payloads SET value = CAST('no payload at all' AS BLOB) WHERE spec_id = 's2'"
    )
    spoil(world, "DELETE FROM payloads WHERE spec_id = 's3'")
    world.start()
    for job in jobs:
        world.order(events.UnholdJob, job)
    whys = [(ended := world.until_ended(job).job).state for job in jobs]
    assert whys == [JobState.DONE, JobState.FAILED, JobState.FAILED]
    assert (
        "its command cannot be read from the store: a payload begins with"
        in world.ended(jobs[1]).job.why
    )
    assert (
        world.ended(jobs[2]).job.why == "its command is not in the store any more: submit it again"
    )
    assert ended.job_id == jobs[2]
    assert world.begun() == ["j1:1"], "nothing else was started"


def test_a_job_that_ended_long_ago_is_to_be_submitted_again(make: Make) -> None:
    world = make(max_env_history_bytes=2**20)
    old, *_, new = [
        world.submit("true", environ=tuple(f"{name}{LONG}" for name in "ABC")) for _ in range(4)
    ]
    for job in (old, new):
        world.until_ended(job)
    call = world.manager.call
    with pytest.raises(
        Exception,
        match=(
            f"{old} ended so long ago that its command and variables are not kept: submit it again"
        ),
    ):
        call("job_requeue", job=old)
    with pytest.raises(Exception, match="to run it again, submit it again"):
        call("job_hold", job=old)
    with pytest.raises(Exception, match=f"nodemgr queue requeue {new}"):
        call("job_hold", job=new)
    shown = {row["job"]: row["cwd"] for row in call("history")["history"]}
    assert (shown[old], shown[new]) == (None, str(world.directory))
    call("job_requeue", job=new)
    world.until("job.ended", job=new)


def test_what_waits_is_bounded_in_bytes_and_says_so_in_one_line(make: Make) -> None:
    world = make(max_env_job_bytes=2**20)
    jobs = [world.submit("true", hold=True, environ=(LONG,)) for _ in range(10)]
    with pytest.raises(Refused) as refusal:
        world.submit("true", hold=True, environ=(LONG,))
    line = str(refusal.value.args[1])
    assert "the jobs of alice that wait or run take" in line
    assert "1.0 MiB are the most (max_env_job_bytes)" in line
    assert "\n" not in line
    world.submit("true", env="bob", hold=True, environ=(LONG,))
    world.order(events.WithdrawJob, jobs[0])
    world.submit("true", hold=True, environ=(LONG,))
