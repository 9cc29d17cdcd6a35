"""Jobs from inside a container: through the shell wrapper, by any Python there.

A real manager runs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import clean_environment
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import ROOT, Manager
from tests.verbs.test_verbs import PYTHONS, run


def on_the_node(node: Manager, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The node's own command line."""
    return subprocess.run(
        [sys.executable, "-m", "nodemgr", *arguments],
        env=clean_environment(NODEMGR_RUN_DIR=str(node.run_dir)), capture_output=True,
        text=True, timeout=WAIT_LIMIT_S, check=False, stdin=subprocess.DEVNULL, cwd=node.directory,
    )  # fmt: skip


def submit(node: Manager, script: str, *options: str, env: str = "alice") -> str:
    said = on_the_node(
        node,
        "submit",
        "--env",
        env,
        "--gpus",
        "0",
        "--max-restarts",
        "0",
        *options,
        "--",
        "sh",
        "-c",
        script,
    )
    assert (said.returncode, said.stderr) == (0, "")
    return said.stdout.strip()


@pytest.fixture(scope="module")
def node() -> Iterator[Manager]:
    """j1 is done, j2 has failed, j3 is held; j4 is bob's."""
    manager = Manager(simulate="2x16GiB").start()
    for env in ("alice", "bob"):
        manager.quota(env, 1)
    submit(manager, "echo well done")
    submit(manager, "echo ill; exit 3", "--name", "ill")
    submit(manager, "true", "--hold")
    submit(manager, "true", "--hold", env="bob")
    manager.call("job_wait", jobs=["j1", "j2"])
    yield manager
    for job in ("j3", "j4"):
        manager.call("job_withdraw", job=job)
    manager.close()


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parent.parent.name)
def test_every_python_shows_and_waits(node: Manager, python: Path) -> None:
    queue = run(node, "queue", python=python)
    assert (queue.returncode, queue.stderr) == (0, "")
    assert [line.split()[0] for line in queue.stdout.splitlines()] == ["PLACE", "-"]
    assert queue.stdout.splitlines()[1].split()[1] == "j3"
    assert "nodemgr queue unhold j3" in queue.stdout
    assert run(node, "logs", "j1", python=python).stdout == "well done\n"
    waited = run(node, "wait", "j1", "j2", python=python)
    assert (waited.returncode, waited.stdout, waited.stderr) == (
        3,
        "",
        "nodemgr: j2: failed, exit code 3\n",
    )
    history = run(node, "history", python=python)
    assert [line.split()[:3] for line in history.stdout.splitlines()[1:]] == [
        ["j1", "alice", "done"],
        ["j2", "alice", "failed"],
    ]


def test_one_job_is_told_with_who_did_what_and_what_it_said(node: Manager) -> None:
    story = run(node, "history", "j2").stdout
    assert "submitted" in story
    assert "CHOSEN" not in story, "it had no GPU"
    assert story.endswith("\n  ill\n")
    assert run(node, "queue", "position", "j2").stdout == "j2: failed (exit code 3)\n"


def test_the_story_of_a_job_says_why_its_gpus_were_chosen(node: Manager) -> None:
    job = submit(node, "true", "--gpus", "1")
    assert run(node, "wait", job).returncode == 0
    lines = run(node, "history", job).stdout.splitlines()
    row = lines[lines.index("START  GPUS  CHOSEN") + 1]
    assert row.split(maxsplit=2)[2] == "spread: most remaining memory first"


def test_the_story_of_a_task_says_why_its_gpus_were_chosen(node: Manager) -> None:
    job = submit(node, "true", "--gpus", "1")
    assert run(node, "wait", job).returncode == 0
    task = node.call("allocations")["allocations"][-1]["task_id"]
    lines = run(node, "history", task).stdout.splitlines()
    row = lines[lines.index("GPUS  CHOSEN") + 1]
    assert row.split(maxsplit=1)[1] == "spread: most remaining memory first"
    unknown = run(node, "history", "t999")
    assert (unknown.returncode, len(unknown.stderr.splitlines())) == (1, 1)


def test_json_is_the_same_as_the_nodes(node: Manager) -> None:
    for verb, *more in (("queue", "--env", "alice"), ("history", "j2")):
        inside = json.loads(run(node, verb, *(more if verb == "history" else ()), "--json").stdout)
        assert inside == json.loads(on_the_node(node, verb, *more, "--json").stdout), verb
    assert json.loads(run(node, "report", "--json").stdout)["envs"][0]["jobs_failed"] == 1


def test_orders_are_taken_and_the_history_says_from_where(node: Manager) -> None:
    job = submit(node, "true", "--hold")
    assert (
        run(node, "queue", "move", job, "high").stderr
        == f"nodemgr: {job} is moved to the end of queue high\n"
    )
    assert run(node, "queue", "unhold", job).stderr == f"nodemgr: {job} is unheld\n"
    assert run(node, "wait", job).returncode == 0
    assert run(node, "queue", "requeue", job).stderr == f"nodemgr: {job} waits again\n"
    assert run(node, "wait", job).returncode == 0
    deeds = json.loads(run(node, "history", job, "--json").stdout)["jobs"][0]["deeds"]
    assert [entry["what"] for entry in deeds] == [
        "submitted, held",
        "moved to high",
        "unheld",
        "requeued",
    ]
    held = submit(node, "true", "--hold")
    assert run(node, "queue", "withdraw", held).stderr == f"nodemgr: {held} is withdrawn\n"
    assert run(node, "wait", held).returncode == 77


def test_follow_ends_with_the_job(node: Manager) -> None:
    job = submit(node, "echo one; sleep 0.5; echo two")
    followed = run(node, "logs", "--follow", job)
    assert (followed.returncode, followed.stdout) == (0, "one\ntwo\n")


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parent.parent.name)
def test_what_was_dropped_of_a_log_is_told_and_not_shown(node: Manager, python: Path) -> None:
    job = submit(node, "printf %65530s; echo first")
    assert run(node, "wait", job, python=python).returncode == 0
    with (node.state_dir / "jobs" / job / "1" / "log").open("r+b") as log:
        log.truncate(8 * 2**20)
        log.seek(0, os.SEEK_END)
        log.write(b"last\n")
    for follow in ((), ("--follow",)):
        said = run(node, "logs", *follow, job, python=python)
        assert (said.returncode, said.stdout.lstrip()) == (0, "first\n\nlast\n")
        (line,) = said.stderr.splitlines()
        assert line.startswith("nodemgr: 7.9 MiB of its output were dropped here")


def test_the_example_sweeps(node: Manager) -> None:
    folder = node.directory / "path"
    folder.mkdir()
    (folder / "nodemgr").write_text(f'#!/bin/sh\nexec {sys.executable} -m nodemgr "$@"\n')
    (folder / "nodemgr").chmod(0o755)
    around = clean_environment(
        NODEMGR_RUN_DIR=str(node.run_dir),
        PATH=f"{folder}:{os.environ['PATH']}",
        PYTHONPATH=str(ROOT),
    )
    said = subprocess.run(
        [ROOT / "examples" / "sweep.sh", "alice", "0-1", "sh", "-c", "test $1 = 0", "-"],
        env=around, capture_output=True, text=True,
        timeout=WAIT_LIMIT_S, check=False, stdin=subprocess.DEVNULL, cwd="/",
    )  # fmt: skip
    assert said.returncode == 1, said.stderr
    assert [line.split()[2] for line in said.stdout.splitlines()[1:]] == ["done", "failed"]


def refused(said: subprocess.CompletedProcess[str], code: int, text: str) -> None:
    assert (said.returncode, said.stdout) == (code, "")
    assert text in said.stderr.splitlines()[-1]


def test_what_is_refused_is_refused_in_one_clear_line(node: Manager) -> None:
    refused(run(node, "submit", "--", "true"), 1, "this verb is for containers")
    refused(run(node, "queue", "hold", "j4"), 1, "alice has no job 'j4'")
    refused(run(node, "logs", "j4"), 1, "alice has no job 'j4'")
    refused(run(node, "wait", "j4"), 1, "alice has no job 'j4'")
    refused(run(node, "queue", "hold", "j2"), 1, "j2 has ended (failed)")
    refused(run(node, "queue", "hold", "x"), 2, "'x' is no job")
    refused(run(node, "wait"), 2, "JOB")
    refused(run(node, "history", "--since", "soon"), 2, "is no time")
    refused(run(node, "logs", "-f", "j1", "--attempt", "1"), 2, "leave --attempt out")


def test_a_long_order_has_its_own_time(node: Manager) -> None:
    """It goes another way than a short one, and waits as long."""
    assert run(node, "wait", *["j1"] * 200).returncode == 0
    refused(run(node, "wait", *["j4"] * 200), 1, "alice has no job 'j4'")
