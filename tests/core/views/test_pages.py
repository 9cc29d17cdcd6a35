"""The whole list of waiting and running entries, asked for in pages while things happen.

An entry that waits all the while is on exactly one of them.
"""

from __future__ import annotations

import random

import pytest

from nodemgr.core.model.entities import JobState
from nodemgr.core.views import job_rows
from nodemgr.core.views.job_rows import BEGINNING, JobRow
from tests.core.world import Node
from tests.support.examples import examples

ENVS = ("alice", "bob", "carol")


def node(jobs: int, dice: random.Random) -> Node:
    """Some run, some are held, some wait for them, most wait in three queues."""
    busy = Node(2, max_env_cpu_jobs=2)
    for env in ENVS:
        busy.quota(env, 1)
    for number in range(jobs):
        hold = dice.random() < 0.2
        after = ("j1",) if number and dice.random() < 0.1 else ()
        queue = dice.choice(["high", "normal", "normal", "low"])
        array = tuple(range(dice.choice([0, 0, 2])))
        env = "alice" if after else dice.choice(ENVS) if number else "alice"
        busy.submits(
            env,
            gpus=dice.choice([0, 1, 1]) if number else 1,
            hold=hold and number > 0,
            after=after,
            priority=queue,
            array=array,
        )
    busy.asks("bob", 10, 1)
    return busy


def whole(busy: Node, env: str | None = None) -> list[JobRow]:
    rows, end = job_rows.page(busy.state, busy.now_ns, env=env, limit=10_000, enough=lambda: False)
    assert end is None
    return rows


def something(busy: Node, dice: random.Random) -> None:
    """Also: the last entry of a page is gone, or another entry comes before it."""
    job_id = dice.choice(sorted(busy.state.jobs))
    match dice.choice(["end", "withdraw", "submit", "ask", "hold"]):
        case "end" if busy.state.jobs[job_id].state is JobState.STARTING:
            busy.job_ends(job_id)
        case "withdraw":
            busy.withdraws(job_id)
        case "submit":
            busy.submits(dice.choice(ENVS), gpus=1, priority=dice.choice(["high", "low"]))
        case "ask":
            busy.asks(dice.choice(ENVS), 100 + len(busy.state.requests) + len(busy.state.tasks), 1)
        case "hold" if busy.state.jobs[job_id].state is JobState.QUEUED:
            busy.holds(job_id)


@pytest.mark.parametrize("env", [None, "alice"])
@pytest.mark.parametrize("seed", range(examples(3)))
def test_pages_put_together_are_the_whole(seed: int, env: str | None) -> None:
    dice = random.Random(seed)
    busy = node(20, dice)
    rows, end = [], BEGINNING
    while end is not None:
        page, end = job_rows.page(
            busy.state,
            busy.now_ns,
            env=env,
            after=end,
            limit=dice.randint(1, 7),
            enough=lambda: dice.random() < 0.2,
        )
        rows += page
    assert rows == whole(busy, env)
    assert {row["env"] for row in rows} <= ({env} if env else set(ENVS))
    assert len(rows) == len({row["id"] for row in rows})


def test_these_nodes_have_jobs_of_every_env_in_every_stage() -> None:
    """An event that chance leaves out of one of them is in another."""
    rows = [row for seed in range(3) for row in whole(node(20, random.Random(seed)))]
    assert {row["env"] for row in rows} == set(ENVS)
    assert {row["state"] for row in rows} >= {"queued", "held", "starting"}


@pytest.mark.parametrize("seed", range(examples(5)))
def test_who_waits_all_the_while_is_listed_once_and_in_order(seed: int) -> None:
    dice = random.Random(seed)
    busy = node(24, dice)
    stayed = [(row["request"] or row["id"], row["state"]) for row in whole(busy)]
    rows: list[JobRow] = []
    end: job_rows.Cursor | None = BEGINNING
    while end is not None:
        page, end = job_rows.page(
            busy.state, busy.now_ns, env=None, after=end, limit=4, enough=lambda: False
        )
        rows += page
        for _ in range(dice.randint(0, 3)):
            something(busy, dice)
        there = {(row["request"] or row["id"], row["state"]) for row in whole(busy)}
        stayed = [key for key in stayed if key in there]
    listed = [(row["request"] or row["id"], row["state"]) for row in rows]
    assert [key for key in listed if key in stayed] == stayed


def test_a_page_has_somebody_on_it_however_long_it_takes() -> None:
    busy = node(3, random.Random(0))
    rows, end = job_rows.page(busy.state, busy.now_ns, env=None, limit=10, enough=lambda: True)
    assert len(rows) == 1
    assert end is not None


@pytest.mark.parametrize("limit", [1, 10])
def test_the_last_row_ends_the_list_however_long_it_takes(limit: int) -> None:
    """The end of a page is given only where a row follows: else the next page is empty."""
    busy = node(20, random.Random(0))
    end: job_rows.Cursor | None = BEGINNING
    while end is not None:
        page, end = job_rows.page(
            busy.state, busy.now_ns, env=None, after=end, limit=limit, enough=lambda: True
        )
        assert len(page) == 1
