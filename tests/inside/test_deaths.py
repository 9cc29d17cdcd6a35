"""The manager is killed at each commit of a container's job: it runs once, and its end is known."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from client_plugin.ways.faults import Fault
from tests.inside.boxes import WAIT_LIMIT_S, Box, outcome
from tests.inside.test_life import CPU
from tests.support.local import Died, DyingStore, LocalManager

COMMITS = 4
"""The commits of one job: submission, start, report of the start, end."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_whenever_the_manager_dies_it_runs_once(tmp_path: Path, when: str) -> None:
    store = DyingStore()
    managers = [LocalManager(factory=None, store=store)]
    directory = managers[0].directory
    managers[0].call("quota_set", env="alice", gpus=1)
    box = Box(managers[0], "alice")
    marks, gate = directory / "marks", directory / "gate"
    waits = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    gate.touch()
    try:
        for commit in range(1, COMMITS + 1):
            store.die(when, commit)
            if commit == COMMITS:
                gate.unlink()  # else its start and its end may be reported in one commit
            script = f"echo {commit} >> {marks}; {waits}"
            submitted = box.spawn("sh", str(box.verbs), "submit", *CPU, "--", "sh", "-c", script)
            if commit == COMMITS:
                _until_running(managers[-1], f"j{commit}")
                gate.touch()
            _revive(managers, directory, store, commit)
            job = submitted.communicate(timeout=WAIT_LIMIT_S)[0].split()[-1]
            box.say("queue")  # starts a runner, if that is what it waits for
            told = outcome(managers[-1], job)
            assert (told["state"], told["exit"]) == ("done", 0), (when, commit, told)
        assert marks.read_text().split() == [str(commit) for commit in range(1, COMMITS + 1)]
        assert store.deaths == COMMITS
    finally:
        box.stop()
        for manager in reversed(managers):  # the first one owns the directory
            manager.close()


def _until_running(manager: LocalManager, job: str) -> None:
    """Or until the manager is dead: now and then another commit comes in between."""
    deadline, state = time.monotonic() + WAIT_LIMIT_S, ""
    while state != "running" and manager.is_alive:
        assert time.monotonic() < deadline, f"{job} is {state or 'not there'}"
        time.sleep(0.01)
        with contextlib.suppress(Fault):  # it is not submitted yet
            state = manager.call("job_show", job=job)["jobs"][0]["state"]


def _revive(managers: list[LocalManager], directory: Path, store: DyingStore, deaths: int) -> None:
    """When the present one has died: the next."""
    deadline = time.monotonic() + WAIT_LIMIT_S
    while store.deaths < deaths or managers[-1].is_alive:
        assert time.monotonic() < deadline, "it does not die"
        time.sleep(0.01)
    while not managers[-1].is_alive:
        with contextlib.suppress(Died):
            managers.append(LocalManager(directory=directory, factory=None, store=store))
