"""A long order whose client or manager is killed in the middle, and the same order again.

Each job is changed once: its own history counts the changes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from client_plugin.ways.conversation import Conversation
from nodemgr.edge.rpc.cost import Units
from tests.cli.conftest import clean_environment
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager

JOBS = 120
"""Some steps of an order."""
ONE_STEP = Units.CHANGE.within()
"""So many more jobs may the manager change for a client that was killed."""
ENTRIES = {"unhold": "unheld", "withdraw": "withdrawn"}
"""The word of each order in a job's history."""


@pytest.fixture
def manager() -> Iterator[Manager]:
    manager = Manager(simulate="1xA100-40GiB")
    try:
        manager.start()
        manager.quota("alice", 1)
        manager.call("gpu_drain", index=0)  # nothing starts
        with talk(manager) as alice:
            for _ in range(2):
                jobs = [
                    {"argv": ["true"], "key": os.urandom(16).hex(), "hold": True}
                    for _ in range(JOBS // 2)
                ]
                alice.order("job_submit_many", {"cwd": "/", "environ": [], "jobs": jobs})
        yield manager
    finally:
        manager.close()


def talk(manager: Manager) -> Conversation:
    return Conversation(manager.env_dir("alice") / "socket", WAIT_LIMIT_S)


def begin(manager: Manager, verb: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "nodemgr", "queue", verb, "--name", "true", "--all-of", "alice"],
        env=clean_environment(NODEMGR_RUN_DIR=str(manager.run_dir)), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def in_the_middle(manager: Manager, verb: str) -> subprocess.Popen[str]:
    """The order's process, once a part of the jobs is changed."""
    events = manager.events(None)
    client = begin(manager, verb)
    events.expect("job.freed" if verb == "unhold" else "job.withdrawn")
    return client


def changes(manager: Manager, word: str) -> list[int]:
    """How often each job was changed by an order of this word."""
    with talk(manager) as alice:
        shown: list[dict[str, Any]] = [
            alice.order("job_show", {"job": f"j{number}"})[0]["jobs"][0]
            for number in range(1, JOBS + 1)
        ]
    return [sum(word in row["what"] for row in job["deeds"]) for job in shown]


@pytest.mark.parametrize("verb", list(ENTRIES))
def test_a_client_that_is_killed_leaves_whole_steps_and_the_repetition_does_the_rest(
    manager: Manager, verb: str
) -> None:
    client = in_the_middle(manager, verb)
    client.kill()
    client.communicate()
    before = changes(manager, ENTRIES[verb])
    assert set(before) <= {0, 1}
    again = begin(manager, verb)
    _, said = again.communicate(timeout=WAIT_LIMIT_S)
    left = before.count(0)
    if left > 20 + ONE_STEP:
        assert again.returncode == 0
        told = re.fullmatch(r"nodemgr: and (\d+) more of (\d+)", said.splitlines()[-1])
        assert told is not None, said
        more, done = map(int, told.groups())
        assert more == done - 20
        assert left - ONE_STEP <= done <= left
    assert changes(manager, ENTRIES[verb]) == [1] * JOBS


@pytest.mark.parametrize("verb", list(ENTRIES))
def test_a_manager_that_is_killed_changes_each_job_once_and_the_last_line_counts_all(
    manager: Manager, verb: str
) -> None:
    client = in_the_middle(manager, verb)
    manager.restart()
    _, said = client.communicate(timeout=WAIT_LIMIT_S)
    assert client.returncode == 0, said
    assert said.splitlines()[-1] == f"nodemgr: and {JOBS - 20} more of {JOBS}"
    assert changes(manager, ENTRIES[verb]) == [1] * JOBS
