"""An ACQUIRE of a client as an event: its class and share, and figures that are refused."""

from __future__ import annotations

import os
from typing import Any

import pytest

from nodemgr.core.model.entities import TaskClass, Transport
from nodemgr.edge.clients import client_sessions
from nodemgr.edge.clients.client_sessions import Session

SESSION = Session(1, "alice", "unix:7:1", Transport.UNIX, None, "ann")
FIELDS = {"rid": 5, "task": "a"}


def test_class_and_share_reach_the_event() -> None:
    event = client_sessions.acquire(
        SESSION,
        {**FIELDS, "class": "best-effort", "compute": 30, "deadline_ms": 60_000, "gated": 1},
        1,
        {},
    )
    assert (event.task_class, event.compute_percent) == (TaskClass.BEST_EFFORT, 30)
    assert (event.run.deadline_ms, event.gated) == (60_000, True)


def test_an_acquire_that_names_neither_leaves_them_to_the_quota() -> None:
    event = client_sessions.acquire(SESSION, FIELDS, 1, {})
    assert (event.task_class, event.compute_percent) == (None, None)
    assert (event.run.deadline_ms, event.gated) == (None, False)


def test_an_acquire_without_a_command_reads_none_from_the_process() -> None:
    """Its memory may be a file system's of its own: each read would stop the loop for 100 ms."""
    session = Session(1, "alice", "unix:7:1", Transport.UNIX, os.getpid(), "ann")
    assert client_sessions.acquire(session, FIELDS, 1, {}).run.command == ""


@pytest.mark.parametrize(
    "named",
    [{"compute": 1}, {"compute": 100}, {"gated": 0}, {"class": "latency-sensitive"}, {}],
)
def test_possible_figures_pass(named: dict[str, Any]) -> None:
    assert client_sessions.absurd({**FIELDS, **named}) is None


@pytest.mark.parametrize(
    ("named", "line"),
    [
        ({"compute": 0}, "compute=0 cannot be meant: at least 1"),
        ({"compute": 101}, "compute=101 cannot be meant: at most 100"),
        ({"deadline_ms": 0}, "deadline_ms=0 cannot be meant: at least 1"),
        ({"gated": 2}, "gated=2 cannot be meant: at most 1"),
        (
            {"class": "urgent"},
            "class=urgent is none of latency-sensitive, normal, best-effort",
        ),
    ],
)
def test_impossible_figures_are_refused_in_one_line(named: dict[str, Any], line: str) -> None:
    assert client_sessions.absurd({**FIELDS, **named}) == line
