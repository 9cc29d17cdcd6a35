"""The largest input of each verb, in calls of functions for each turn of the manager's loop.

Calls are the same in every run, so their count is a test and a measured time is none. The work of
one call in C (JSON, SQL, a sort) is not counted; bench/jobs/denial.py measures it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from client_plugin.ways.conversation import Conversation
from client_plugin.ways.faults import Fault
from nodemgr.core.lifecycle.assignments import MAX_ASSIGNMENTS
from nodemgr.core.model.entities import Assignment, JobState
from nodemgr.edge.api.assignment_operations import MAX_KEYS
from nodemgr.edge.api.forecast_operations import MAX_KEYS as MAX_PROGRAM_KEYS
from nodemgr.edge.api.job_arguments import MAX_JOBS_NAMED, MAX_ROWS, MAX_SUBMITTED
from nodemgr.edge.api.verb_table import VerbRow
from nodemgr.edge.host.loop import SwallowingSelector
from nodemgr.edge.rpc.cost import STEP_UNITS
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import LocalManager

CALLS = 6 * STEP_UNITS
"""The most calls in one turn."""
MANY = 300
"""Elements of an array, and jobs: some steps of each."""


KEYS = [f"hq/1/c{number}/1" for number in range(10_000, 10_000 + MAX_ASSIGNMENTS)]


class Turns:
    """Counts the calls in each turn of a thread's loop."""

    def __init__(self) -> None:
        self.largest = 0
        self._calls = 0
        self._thread: int | None = None

    def begin(self) -> None:
        self._thread = threading.get_ident()
        sys.setprofile(self._seen)

    def _seen(self, _frame: object, event: str, _argument: object) -> None:
        self._calls += event in ("call", "c_call")

    def counted(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            if threading.get_ident() != self._thread:
                return work(*arguments)
            before = self._calls
            try:
                return work(*arguments)
            finally:
                self.largest = max(self.largest, self._calls - before)

        return run


@pytest.fixture(scope="module")
def turns() -> Iterator[Turns]:
    turns, swallow = Turns(), SwallowingSelector.swallow
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", turns.counted(asyncio.Handle._run))
        patch.setattr(
            SwallowingSelector,
            "swallow",
            lambda self, fd, reader: swallow(self, fd, turns.counted(reader)),
        )
        yield turns


class Alice:
    """A tenant, whose jobs all wait."""

    def __init__(self, manager: LocalManager, talk: Conversation) -> None:
        self.manager, self._talk = manager, talk
        self.verbs: Mapping[str, VerbRow] = manager.service.daemon.verbs.rows
        self.array = ""

    def order(self, verb: str, **given: object) -> dict[str, Any]:
        return self._talk.order(verb, given)[0]

    def parts(self, **given: object) -> list[dict[str, Any]]:
        answers = [self.order("job_orders", **given)]
        while answers[-1]["after"] is not None:
            answers.append(self.order("job_orders", **given, after=answers[-1]["after"]))
        return answers

    def submit(self, **more: object) -> str:
        words = {"argv": ["true"], "cwd": "/", "environ": [], "key": os.urandom(16).hex()}
        return str(self.order("job_submit", **words, hold=True, **more)["job"])

    def of_head(self, verb: str, **given: object) -> dict[str, Any]:
        """An order of a cluster's head, while the node keeps as many answers as it ever does."""
        rows = {
            key: Assignment(key, number, "alice", "", JobState.WITHDRAWN, "not here")
            for number, key in enumerate(KEYS, 1)
        }
        self.manager.do(lambda: self.manager.daemon.state.assignments.update(rows))
        return self.manager.call(verb, head="hq", **given)

    def many(self) -> None:
        for first in range(0, MANY, MAX_SUBMITTED):
            count = min(MAX_SUBMITTED, MANY - first)
            jobs = [
                {"argv": ["true"], "key": os.urandom(16).hex(), "hold": True} for _ in range(count)
            ]
            self.order("job_submit_many", cwd="/", environ=[], jobs=jobs)


@pytest.fixture(scope="module")
def alice(turns: Turns) -> Iterator[Alice]:
    with LocalManager() as manager:
        manager.call("quota_set", env="alice", gpus=2)
        for index in range(4):
            manager.call("gpu_drain", index=index)  # nothing starts
        with Conversation(manager.env_dir("alice") / "socket", WAIT_LIMIT_S) as talk:
            alice = Alice(manager, talk)
            alice.array = alice.submit(array=list(range(MANY)))
            alice.many()
            manager.do(turns.begin)
            yield alice
            manager.do(lambda: sys.setprofile(None))


UNKNOWN = [f"j{10**9 + number}" for number in range(MAX_JOBS_NAMED)]


def ids(alice: Alice) -> list[str]:
    pages = alice.parts(order="hold", name="*")
    return [job for page in pages for job in page["matched"]][:MAX_JOBS_NAMED]


def to_filtered(alice: Alice) -> None:
    for order in ("free", "hold"):
        alice.parts(order=order, jobs=ids(alice), skip=True)
    for order in ("free", "hold", "requeue", "withdraw"):
        with contextlib.suppress(Fault):
            alice.parts(order=order, jobs=UNKNOWN)


def to_array(verb: str, **more: object) -> Callable[[Alice], object]:
    return lambda alice: alice.order(verb, job=alice.array, **more)


PROGRAM_KEYS = [f"{number:064x}" for number in range(MAX_PROGRAM_KEYS)]
LARGEST: dict[str, Callable[[Alice], object]] = {
    "programs": lambda alice: alice.order("programs", keys=PROGRAM_KEYS),
    "job_submit": lambda alice: alice.submit(array=list(range(MANY))),
    "job_submit_many": Alice.many,
    "job_show": to_array("job_show"),
    "job_free": to_array("job_free"),
    "job_move": to_array("job_move", queue="low"),
    "job_hold": to_array("job_hold"),
    "job_requeue": lambda alice: alice.parts(order="requeue", jobs=ids(alice)),
    "job_orders": to_filtered,
    "job_wait": lambda alice: alice.order("job_wait", jobs=UNKNOWN),
    "queue": lambda alice: alice.order("queue", limit=MAX_ROWS),
    "history": lambda alice: alice.order("history", limit=MAX_ROWS),
    "leases": lambda alice: alice.order("leases", limit=MAX_ROWS),
    "report": lambda alice: alice.order("report"),
    "job_withdraw": to_array("job_withdraw"),
    "job_assigned": lambda alice: alice.of_head("job_assigned", limit=MAX_ROWS),
    "job_acknowledge": lambda alice: alice.of_head(
        "job_acknowledge", keys=KEYS[:MAX_KEYS], below=MAX_ASSIGNMENTS + 1
    ),
}


@pytest.mark.parametrize("verb", list(LARGEST))
def test_no_turn_of_the_largest_input_is_long(alice: Alice, turns: Turns, verb: str) -> None:
    turns.largest = 0
    with contextlib.suppress(Fault):
        LARGEST[verb](alice)
    assert 0 < turns.largest <= CALLS


def test_the_table_has_every_verb_and_each_fits_a_step(alice: Alice) -> None:
    assert set(LARGEST) <= set(alice.verbs)
    for verb, row in alice.verbs.items():
        assert sum(units * count for units, count in row.steps) <= STEP_UNITS, verb
        assert verb in LARGEST or row.steps[0][1] == 1, "its largest input is tried, or has a row"
