"""The last line of a job's log."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from client_plugin.messages import attempts
from nodemgr.core.model.entities import Cause
from nodemgr.edge.executor.attempt_directory import AttemptFiles
from nodemgr.edge.executor.interface import Status
from nodemgr.edge.executor.last_line import last_line

LIMIT = "the job was ended at its time limit of 2 h: submit it with a longer --time"


@pytest.mark.parametrize(
    ("why", "cause", "line"),
    [
        ("", Cause.OWN, None),
        (
            "time limit", Cause.TIME_LIMIT,
            LIMIT,
        ),
        (
            "withdrawn by bob", Cause.OWN,
            "the job was ended: withdrawn by bob; `nodemgr history j1` has its end",
        ),
        (
            "the node went down while it ran", Cause.NODE_DOWN,
            "the job was ended: the node went down while it ran; no fault of its own"
            " (`nodemgr history j1` shows whether it runs again)",
        ),
        (
            attempts.OVER_ENV_MEMORY(), Cause.HOST_MEMORY,
            "the job was ended: host memory, the limit of all jobs of its environment together;"
            " run fewer at once, or ask an admin (nodemgr quota set alice --host-memory)",
        ),
        (attempts.OTHERS_GO_ON(), Cause.OWN, None),
    ],
)  # fmt: skip
def test_the_line_of_each_end(why: str, cause: Cause, line: str | None) -> None:
    status = Status("ended", started_wall_ns=1, why=why, cause=cause)
    assert last_line("j1", "alice", 7_200_000, status) == line


@pytest.mark.parametrize(
    ("by", "early", "line"),
    [
        (
            signal.SIGUSR1, signal.SIGUSR1,
            "the job was ended by its --signal USR1, before its time limit of 2 h: handle that"
            " signal, or submit it with a longer --time",
        ),
        (signal.SIGTERM, signal.SIGTERM, LIMIT),
        (signal.SIGKILL, signal.SIGUSR1, LIMIT),
        (None, signal.SIGUSR1, LIMIT),
    ],
)  # fmt: skip
def test_an_end_by_its_early_signal_is_not_said_to_be_at_the_limit(
    by: int | None, early: int, line: str
) -> None:
    ended = Status("ended", signal=by, started_wall_ns=1, why="time limit", cause=Cause.TIME_LIMIT)
    assert last_line("j1", "alice", 7_200_000, ended, early) == line


def test_a_job_that_never_began_has_no_line() -> None:
    status = Status("ended", why="python: not found", cause=Cause.CANNOT_RUN)
    assert last_line("j1", "alice", None, status) is None


@pytest.mark.parametrize(
    ("output", "log"),
    [("", "nodemgr: why\n"), ("a\n", "a\nnodemgr: why\n"), ("a", "a\nnodemgr: why\n")],
)
def test_the_line_is_added_once_and_begins_a_line(tmp_path: Path, output: str, log: str) -> None:
    files = AttemptFiles(tmp_path, "j1", 1)
    files.end_log("no log is no fault")
    files.directory.mkdir(parents=True)
    files.log.write_text(output)
    for _ in range(2):
        files.end_log("why")
    assert files.log.read_text() == log
