"""Queries of the past run in a thread: sums that a plain count confirms, pages, failures."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodemgr.core.model.entities import HostFigures
from nodemgr.edge.store.database import CommitBatch, RecordRow, Store
from nodemgr.edge.store.reader import MAX_QUESTIONS, HistoryQuery, HistoryReader, PastFault
from tests.support.examples import examples

SECOND = 10**9
NOW = 10_000 * SECOND


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def ask(loop: asyncio.AbstractEventLoop, path: Path, question: Any) -> Any:
    past, answers = HistoryReader(loop, path), []

    def take(answer: Any) -> None:
        answers.append(answer)
        loop.stop()

    past.ask("alice", question, take)
    loop.run_forever()
    past.close()
    return answers[0]


def store_of(directory: Path, leases: list[dict[str, Any]]) -> Path:
    store = Store(directory)
    rows = [
        RecordRow(number, lease["env"], lease["granted_wall_ns"], json.dumps(lease))
        for number, lease in enumerate(leases, 1)
    ]
    store.commit(CommitBatch({}, rows, [], {}))
    path = store.path
    store.close()
    return path


def lease(
    env: str, gpus: list[str], granted_s: int, ended_s: int | None, waited_s: int = 0
) -> dict[str, Any]:
    half = len(gpus) // 2
    return {
        "env": env, "gpus_new": gpus[:half], "gpus_reused": gpus[half:],
        "granted_wall_ns": granted_s * SECOND,
        "ended_wall_ns": None if ended_s is None else ended_s * SECOND,
        "asked_ns": (granted_s - waited_s) * SECOND,
        "granted_ns": granted_s * SECOND,
        "ended_ns": None if ended_s is None else ended_s * SECOND,
    }  # fmt: skip


def plain_seconds(leases: list[dict[str, Any]], since_s: int, now_s: int) -> int:
    """Second by second."""
    return len(
        {
            (gpu, second)
            for row in leases
            for gpu in row["gpus_new"] + row["gpus_reused"]
            for second in range(
                max(since_s, row["granted_wall_ns"] // SECOND),
                min(
                    now_s, now_s if row["ended_wall_ns"] is None else row["ended_wall_ns"] // SECOND
                ),
            )
        }
    )


@pytest.mark.parametrize("seed", range(examples(8)))
def test_a_gpu_counts_once_however_many_tasks_share_it(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, seed: int
) -> None:
    dice = random.Random(seed)
    leases = []
    for _ in range(60):
        began = dice.randrange(9_000, 10_000)
        gpus = dice.sample(["A", "B", "C", "D"], dice.randint(1, 4))
        ended = None if dice.random() < 0.1 else began + dice.randrange(0, 200)
        leases.append(lease(dice.choice(["alice", "bob"]), gpus, began, ended))
    told = ask(
        loop,
        store_of(tmp_path, leases),
        lambda past: past.report(
            None, 9_300 * SECOND, (NOW, NOW), (), 4, ["alice", "bob", "carol"]
        ),
    )
    for row in told["envs"]:
        own = [one for one in leases if one["env"] == row["env"]]
        assert row["gpu_seconds"] == plain_seconds(own, 9_300, 10_000), row["env"]
    assert told["node"]["gpu_seconds"] == plain_seconds(leases, 9_300, 10_000)
    assert told["node"]["utilisation_ratio"] == round(told["node"]["gpu_seconds"] / (4 * 700), 4)
    assert [row["env"] for row in told["envs"]] == ["alice", "bob", "carol"]


def test_waits_are_ranked(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    leases = [
        lease("alice", ["A"], 9_000 + number, 9_001 + number, waited_s=number)
        for number in range(1, 21)
    ]
    (row,) = ask(
        loop,
        store_of(tmp_path, leases),
        lambda past: past.report("alice", 0, (NOW, NOW), (), 1, ["alice"]),
    )["envs"]
    assert (
        row["allocations"],
        row["wait_median_seconds"],
        row["wait_p90_seconds"],
        row["wait_max_seconds"],
    ) == (20, 10, 18, 20)


def test_the_jobs_use_of_the_host_is_summed(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    path = store_of(tmp_path, [])
    used = [HostFigures(1_500, 4_096, 10, 20), None, HostFigures(500, None, 1, 2)]
    attempts = [{"host": host and dataclasses.asdict(host)} for host in used]
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for number, (env, of) in enumerate([("alice", attempts), ("alice", []), ("bob", [])]):
            job = {"state": "done", "restarts": 0, "indices": "", "attempts": of}
            row = {"job_id": f"j{number}", "env": env, "ended_wall_ns": NOW, "state": "done"}
            row |= {"command": "", "key": "", "spec_id": "", "size_bytes": 0}
            row |= {"value": json.dumps({"job": job})}
            names = ", ".join(row)
            marks = ", ".join("?" * len(row))
            db.execute(f"INSERT INTO history ({names}) VALUES ({marks})", [*row.values()])
    told = ask(loop, path, lambda past: past.report(None, 0, (NOW, NOW), (), 4, []))
    kinds = ("cpu_seconds", "host_peak_bytes", "read_bytes", "written_bytes")
    rows = {row["env"]: [row[f"jobs_{kind}"] for kind in kinds] for row in told["envs"]}
    assert rows == {"alice": [2.0, 4_096, 11, 22], "bob": [None] * 4}


def test_nothing_happened_yet(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    told = ask(
        loop,
        store_of(tmp_path, []),
        lambda past: past.report(None, 0, (NOW, NOW), (), 4, ["alice"]),
    )
    (row,) = told["envs"]
    assert (
        row["gpu_seconds"],
        row["utilisation_ratio"],
        row["wait_median_seconds"],
        row["jobs_done"],
    ) == (0, 0.0, None, 0)
    assert ask(loop, tmp_path / "state.db", lambda past: past.history(None, 0, None, 10)) == []
    assert ask(loop, tmp_path / "state.db", lambda past: past.outcomes("j1")) == []


def test_what_cannot_be_read_is_a_fault_and_the_next_question_is_answered(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    fault = ask(loop, tmp_path / "nowhere.db", lambda past: past.outcomes("j1"))
    assert isinstance(fault, PastFault)
    assert "\n" not in str(fault)

    def wrong(_past: HistoryQuery) -> None:
        raise ZeroDivisionError("a mistake of ours")

    path = store_of(tmp_path, [])
    assert "a mistake of ours" in str(ask(loop, path, wrong))
    assert ask(loop, path, lambda past: past.outcomes("j1")) == []


def test_one_environment_cannot_fill_the_line(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    past, answers = HistoryReader(loop, store_of(tmp_path, [])), []

    def take(answer: Any) -> None:
        answers.append(answer)
        if len(answers) == MAX_QUESTIONS + 2:
            loop.stop()

    for _ in range(MAX_QUESTIONS + 1):
        past.ask("alice", lambda reading: reading.outcomes("j1"), take)
    assert isinstance(answers[0], PastFault)
    past.ask("bob", lambda reading: "bob's", take)
    loop.run_forever()
    past.close()
    assert answers[-1] == "bob's"
    assert answers.count([]) == MAX_QUESTIONS


@pytest.mark.parametrize(
    ("env", "before", "leases", "jobs"),
    [
        (None, None, "SCAN records", "SCAN history"),
        (
            None,
            9,
            "SEARCH records USING INTEGER PRIMARY KEY (rowid<?)",
            "SEARCH history USING INTEGER PRIMARY KEY (rowid<?)",
        ),
        (
            "alice",
            None,
            "SEARCH records USING INDEX records_of_env (env=?)",
            "SEARCH history USING INDEX history_of_env (env=?)",
        ),
        (
            "alice",
            9,
            "SEARCH records USING INDEX records_of_env (env=? AND record_id<?)",
            "SEARCH history USING INDEX history_of_env (env=? AND number<?)",
        ),
    ],
)
def test_a_page_begins_where_the_last_one_ended_and_sorts_nothing(
    tmp_path: Path, env: str | None, before: int | None, leases: str, jobs: str
) -> None:
    """A page of a long past costs what the first one does."""
    path = store_of(tmp_path, [lease("alice", ["a"], 0, 1)])
    queries: list[str] = []
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.set_trace_callback(queries.append)
        past = HistoryQuery(db)
        past.leases(env, 0, NOW, before, 1_000)
        past.history(env, 0, before, 200)
        db.set_trace_callback(None)
        plans = [[row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {text}")] for text in queries]
    assert plans[0] == [leases]
    assert plans[1][0] == jobs
    assert not any("TEMP B-TREE" in line for plan in plans for line in plan)


def test_leases_overlap_a_span_in_any_way(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    spans = [(0, 4), (0, 5), (3, 7), (5, 6), (6, 9), (8, 9), (9, 10), (2, None), (9, None)]
    path = store_of(tmp_path, [lease("alice", ["a"], *span) for span in spans])
    found = ask(loop, path, lambda past: past.leases("alice", 5 * SECOND, 9 * SECOND, None, 100))
    assert [number for number, _ in found] == [8, 6, 5, 4, 3, 2]
