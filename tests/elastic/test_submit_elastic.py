"""`nodemgr submit --gpus A-B` under a real manager on a simulated node, as a user types it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import WrongValue
from client_plugin.verbs.commands.submit_context import job_arguments
from client_plugin.ways.faults import Exit, Fault
from nodemgr.edge.executor.local import LIMITS
from tests.elastic.led import TRAINEE, gone
from tests.support.limits import WAIT_LIMIT_S, until
from tests.support.manager import Manager
from tests.support.udp_clients import FakeClient

OFFER_CALM_MS, RECALL_MS = 100, 60_000


@pytest.fixture
def manager(make_manager: Callable[..., Manager]) -> Manager:
    """Three GPUs; alice and bob may each use two."""
    environment = {
        "NODEMGR_OFFER_CALM_MS": str(OFFER_CALM_MS), "NODEMGR_RECALL_MS": str(RECALL_MS)
    }  # fmt: skip
    manager = make_manager(simulate="3x8GiB", environment=environment)
    manager.quota("alice", 2)
    manager.quota("bob", 2)
    return manager


def verb(
    manager: Manager, name: str, *words: str, text: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nodemgr", name, "--run-dir", str(manager.run_dir), *words],
        capture_output=True, text=True, timeout=WAIT_LIMIT_S, cwd=manager.directory, input=text,
    )  # fmt: skip


def submit(manager: Manager, *options: str, command: tuple[str, ...] = ()) -> str:
    words = command or (sys.executable, str(TRAINEE))
    ended = verb(manager, "submit", "--env", "alice", *options, "--", *words)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.strip()


def log(manager: Manager, job: str, text: str, times: int = 1) -> str:
    """The job's output, once it has this text so often."""
    end_s = time.monotonic() + WAIT_LIMIT_S
    while time.monotonic() < end_s:
        shown = verb(manager, "logs", job).stdout
        if shown.count(text) >= times:
            return shown
        time.sleep(0.1)
    raise AssertionError(f"{text!r} did not come in the log of {job}: {shown}")


def as_json(manager: Manager, *words: str) -> Any:
    return json.loads(verb(manager, *words, "--json").stdout)


def test_a_job_grows_shrinks_and_outlives_its_manager(
    manager: Manager, make_client: Callable[..., FakeClient]
) -> None:
    job = submit(manager, "--gpus", "1-2", "--elastic")
    log(manager, job, "the training runs on 2 GPUs")
    (task,) = manager.status()["tasks"]
    assert (task["job"], task["gpus_min"], task["gpus_max"]) == (job, 1, 2)
    (row,) = json.loads(verb(manager, "history", job, "--json").stdout)["jobs"]
    assert row["command"].startswith(sys.executable), "the leader's words are not the job's"
    assert row["command"].endswith("trainee.py")
    rival = make_client(manager.env_dir("bob"))
    rival.ask(2)
    rival.expect("WAIT")
    rival.expect("GRANT")
    log(manager, job, "the training runs on 1 GPU\n")
    manager.kill()
    manager.start()
    rival.close()
    text = log(manager, job, "the training runs on 2 GPUs", times=2)
    assert "\n[worker " in text, "the lines of the ranks are told apart"
    assert verb(manager, "queue", "withdraw", job).returncode == 0
    assert verb(manager, "wait", job).returncode == Exit.QUOTA_REFUSES
    assert manager.status()["tasks"] == []
    (row,) = as_json(manager, "history", job)["jobs"]
    resizes = row["attempts"][0]["resizes"]
    assert as_json(manager, "history", task["id"])["tasks"][0]["resizes"] == resizes
    assert [(resize["from"], resize["to"]) for resize in resizes[-2:]] == [(2, 1), (1, 2)]
    assert resizes[-2]["why"].endswith(" of bob")
    assert "it was idle" in verb(manager, "history", task["id"]).stdout


def processes_of(manager: Manager, job: str) -> list[int]:
    """Those of the job's first attempt."""
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/environ")
        if f"NODEMGR_JOB={job}:1".encode() in (environ := _bytes(path))
        and str(manager.run_dir).encode() in environ
    ]


def leader_of(manager: Manager, job: str) -> int:
    (leader,) = [
        pid
        for pid in processes_of(manager, job)
        if b"client_plugin/elastic" in _bytes(Path(f"/proc/{pid}/cmdline"))
    ]
    return leader


def pass_time_limit(manager: Manager, job: str, passed_s: float) -> None:
    """As if the hour had passed, and not so much."""
    attempt = manager.state_dir / "jobs" / job / "1"
    (attempt / "limit").write_text(f"{round(passed_s * 1_000)}\n".ljust(32))
    (claim,) = attempt.glob("claim.*")
    os.kill(int(claim.name.split(".")[1]), LIMITS)


def test_a_killed_leader_is_the_end_of_the_attempt(manager: Manager) -> None:
    job = submit(manager, "--gpus", "2-2", "--elastic")
    log(manager, job, "the training runs on 2 GPUs")
    leader = leader_of(manager, job)
    signal.pidfd_send_signal(os.pidfd_open(leader), signal.SIGKILL)
    assert verb(manager, "wait", job).returncode == 128 + signal.SIGKILL
    assert manager.status()["tasks"] == []


def test_a_time_limit_ends_all_workers(manager: Manager) -> None:
    """Their programs, too."""
    command = (sys.executable, str(TRAINEE), "--child")
    begin_s = time.monotonic()
    job = submit(manager, "--gpus", "2-2", "--elastic", "--time", "1h", command=command)
    log(manager, job, "the training runs on 2 GPUs")
    seen = processes_of(manager, job)
    assert len(seen) >= 5, "the leader, its workers, their programs"
    pass_time_limit(manager, job, time.monotonic() - begin_s)
    until(lambda: bool(as_json(manager, "history", job)["jobs"][0]["ended"]))
    gone(*seen)
    assert verb(manager, "wait", job).returncode == 128 + signal.SIGTERM
    (row,) = as_json(manager, "history", job)["jobs"]
    assert "time limit" in row["attempts"][0]["why"]
    assert manager.status()["tasks"] == []


def test_the_next_attempt_goes_on_from_the_checkpoint(manager: Manager) -> None:
    """The script is an unmodified one: it reads its checkpoint, and replaces it step by step."""
    script = (
        "step=$(cat saved 2>/dev/null || echo 0); echo $RANK of $WORLD_SIZE begins at $step\n"
        "while sleep 0.1; do step=$((step + 1)); [ $RANK = 1 ] && continue\n"
        "echo $step > new; mv new saved; done"
    )
    options = ("--gpus", "2-2", "--elastic", "--checkpoint", "saved", "--max-restarts", "1")
    job = submit(manager, *options, command=("sh", "-c", script))
    log(manager, job, "of 2 begins at 0\n", times=2)
    saved = manager.directory / "saved"
    until(lambda: _bytes(saved) not in (b"", b"1\n"))
    signal.pidfd_send_signal(os.pidfd_open(leader_of(manager, job)), signal.SIGKILL)
    until(lambda: re.search("of 2 begins at [1-9]", verb(manager, "logs", job).stdout) is not None)
    assert verb(manager, "queue", "withdraw", job).returncode == 0
    (row,) = as_json(manager, "history", job)["jobs"]
    assert row["attempts"][0]["signal"] == signal.SIGKILL


def test_a_range_without_elastic_is_decided_at_the_start(
    manager: Manager, make_client: Callable[..., FakeClient]
) -> None:
    rival = make_client(manager.env_dir("bob"))
    rival.ask(2)
    rival.expect("GRANT")
    script = "echo $NODEMGR_GPUS; read x < fifo"
    os.mkfifo(manager.directory / "fifo")
    job = submit(manager, "--gpus", "1-2", command=("sh", "-c", script))
    assert log(manager, job, "1-2\n") == "1-2\n"
    rival.close()
    time.sleep(3 * OFFER_CALM_MS / 1_000)
    (task,) = manager.status()["tasks"]
    assert (len(task["gpus"]), task["gpus_max"]) == (1, None)
    (manager.directory / "fifo").write_text("\n")
    assert verb(manager, "wait", job).returncode == 0


def test_a_job_has_a_range_of_memory(manager: Manager) -> None:
    script = "echo $NODEMGR_MEMORY $TF_FORCE_GPU_ALLOW_GROWTH; read x < fifo"
    os.mkfifo(manager.directory / "fifo")
    job = submit(
        manager, "--gpus", "1", "--memory", "1GiB-6GiB", command=("sh", "-c", script)
    )  # fmt: skip
    log(manager, job, f"{2**30}-{6 * 2**30} true\n")
    (task,) = manager.status()["tasks"]
    assert (task["memory_min_bytes"], task["memory_max_bytes"]) == (2**30, 6 * 2**30)
    granted = [gpu["memory_granted_bytes"] for gpu in manager.status()["gpus"]]
    assert sorted(granted) == [0, 0, 6 * 2**30]
    assert "shared, 1-6 GiB" in verb(manager, "status").stdout
    (manager.directory / "fifo").write_text("\n")
    assert verb(manager, "wait", job).returncode == 0
    (row,) = as_json(manager, "history", job)["jobs"]
    assert (row["memory_min_bytes"], row["memory_max_bytes"]) == (2**30, 6 * 2**30)


def test_ranges_of_memory_are_refused_as_those_of_run(manager: Manager) -> None:
    manager.quota("alice", 2, memory_bytes=4 * 2**30)
    lines = [
        {"command": ["true"], "memory": "1GiB-3GiB"},
        {"command": ["true"], "memory": "3GiB-1GiB"},
        {"command": ["true"], "memory": "1GiB-"},
        {"command": ["true"], "memory": "1GiB-5GiB"},
    ]
    text = "\n".join(map(json.dumps, lines))
    said = verb(
        manager, "submit", "--env", "alice", "--gpus", "1", "--hold", "--array", "0-1",
        "--from", "-", text=text,
    )  # fmt: skip
    first, *wrong = said.stdout.splitlines()
    assert first == "j1"
    for line, expected in zip(wrong, (
        "it ends before it begins", "an end is missing", "the range of memory ends at 5.0 GiB",
    ), strict=True):  # fmt: skip
        assert expected in line
    rows = as_json(manager, "queue")["queue"]
    assert [(row["memory_max_bytes"], row["jobs"]) for row in rows] == [(3 * 2**30, 2)]
    beyond = verb(
        manager, "submit", "--env", "bob", "--gpus", "1", "--memory", "1GiB-9GiB", "--", "true"
    )
    assert beyond.returncode == Exit.QUOTA_REFUSES
    assert "the largest GPU of the node has 8.0 GiB" in beyond.stderr


def test_lines_of_a_file_and_arrays_have_ranges_too(manager: Manager) -> None:
    lines = [
        {"command": ["true"], "gpus": "1-2", "elastic": True},
        {"command": ["true"], "gpus": "2-1"},
        {"command": ["true"], "gpus": 2, "elastic": True},
        {"command": ["true"], "gpus": "1-2", "checkpoint": "x"},
        {"command": ["true"], "gpus": "1-9"},
        {"command": ["true"]},
    ]
    text = "\n".join(map(json.dumps, lines))
    said = verb(
        manager, "submit", "--env", "alice", "--gpus", "1-2", "--hold", "--array", "0-1",
        "--from", "-", text=text,
    )  # fmt: skip
    assert said.returncode == 1
    first, *wrong, last = said.stdout.splitlines()
    assert (first, last) == ("j1", "j2")
    for line, expected in zip(wrong, (
        "ends before it begins", "--elastic needs a range", "--checkpoint is of elastic",
        "the range ends at 9 GPUs",
    ), strict=True):  # fmt: skip
        assert expected in line
    queue = json.loads(verb(manager, "queue", "--json").stdout)["queue"]
    assert [(row["gpus"], row["jobs"]) for row in queue] == [(1, 2), (1, 2)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4-1", "it ends before it begins; write 1-4"),
        ("0-2", "'0' is no whole number from 1 to 1024"),
        ("1-2000", "'2000' is no whole number from 1 to 1024"),
        *((text, "is neither a number of GPUs nor a range") for text in (
            "2-", "-3", "1-4-5", "a-b", "", "1.5", "1 - 2"
        )),
    ],
)  # fmt: skip
def test_a_text_that_is_no_range_is_refused(text: str, expected: str) -> None:
    with pytest.raises(WrongValue, match=re.escape(expected)):
        kinds.GPU_RANGE.parse(text)


@pytest.mark.parametrize("text", ["", "a\0b"])
def test_a_checkpoint_has_a_path(text: str) -> None:
    with pytest.raises(WrongValue, match="is no path"):
        kinds.FILE.parse(text)


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({"elastic": True}, "--elastic needs a range of GPUs"),
        ({"elastic": True, "gpus": (2, None)}, "--elastic needs a range of GPUs"),
        ({"checkpoint": "x", "gpus": (1, 2)}, "--checkpoint is of elastic tasks"),
    ],
)
def test_options_that_need_each_other_are_refused_alone(
    wishes: dict[str, object], expected: str
) -> None:
    with pytest.raises(Fault, match=expected):
        job_arguments(wishes)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
