"""Batch jobs on a simulated node: the command line, CUDA programs, killed managers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_plugin.ways.faults import Exit
from tests.shim.world import LINKED_WITH_DRIVER, compiled
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import HOLD, ROOT, Manager

GIB = 2**30
Make = Callable[..., Manager]


def nodemgr(manager: Manager, *words: str) -> str:
    """The output of a command of ours.

    While there is no manager, the command did nothing, and it is repeated.
    """
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("NODEMGR_", "CUDA_", "LD_"))
    }
    command = [
        sys.executable,
        "-m",
        "nodemgr",
        *words[:1],
        "--run-dir",
        str(manager.run_dir),
        *words[1:],
    ]
    while True:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=WAIT_LIMIT_S
        )
        if ended.returncode != Exit.UNREACHABLE:
            assert ended.returncode == 0, ended.stderr
            return ended.stdout


def submit(manager: Manager, env: str, *options: str, script: str) -> str:
    """A shell script as a job; its id."""
    return nodemgr(manager, "submit", "--env", env, *options, "--", "/bin/sh", "-c", script).strip()


def gate(manager: Manager, name: str) -> Path:
    path = manager.directory / name
    os.mkfifo(path)
    return path


def test_a_gang_of_eight_behind_a_stream_of_small_jobs_is_not_starved(make_manager: Make) -> None:
    """Two run when it comes, two come after it and start after it, though six GPUs are free."""
    manager = make_manager(simulate="8x8GiB")
    manager.quota("alice", 8)
    manager.quota("bob", 8)
    events = manager.events()
    gates, last = [gate(manager, f"gate{number}") for number in range(2)], gate(manager, "last")
    small = [submit(manager, "bob", "--gpus", "1", script=f"read line < {path}") for path in gates]
    for job_id in small:
        events.expect("job.started", job=job_id)
    gang = submit(
        manager, "alice", "--gpus", "8", script=f"read line < {last}; exec {HOLD} -b {GIB} -d 7"
    )
    late = [submit(manager, "bob", "--gpus", "1", script="true") for _ in range(2)]
    for path in gates:
        path.write_text("go\n")
    events.expect("job.started", job=gang)
    last.write_text("go\n")
    nodemgr(manager, "wait", gang)
    assert json.loads(nodemgr(manager, "logs", gang))["devices"] == 8, (
        "its CUDA program joined the job's lease"
    )
    for job_id in late:
        nodemgr(manager, "wait", job_id)
    started = [
        event["job"]
        for event in manager.call("events", since=0, limit=1_000)["events"]
        if event["name"] == "job.starting"
    ]
    assert started.index(gang) == len(small)


def test_a_program_that_lost_its_environment_is_part_of_its_job(make_manager: Make) -> None:
    """No other process of the whole job asks; every grant of alice is the job's."""
    manager = make_manager(simulate="2x8GiB")
    manager.quota("alice", 2)
    left = " ".join(
        f'{name}="${name}"' for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "NODEMGR_ENV_DIR")
    )
    script = f"exec env -i {left} {HOLD} -b {GIB} -d 1"
    job_id = submit(manager, "alice", "--gpus", "2", script=script)
    nodemgr(manager, "wait", job_id)
    assert json.loads(nodemgr(manager, "logs", job_id))["devices"] == 2
    told = manager.call("events", since=0, limit=1_000)["events"]
    (granted,), (joined,) = (
        [event for event in told if event["name"] == name]
        for name in ("task.granted", "task.joined")
    )
    assert (granted["job"], granted["task"]) == (job_id, joined["task"])


@pytest.mark.slow
def test_jobs_survive_managers_that_are_killed_again_and_again(make_manager: Make) -> None:
    """kill -9 as soon as a submission is answered, a start is stored, a job runs, and it ends.

    (tests/jobs/test_deaths.py dies at each commit.)
    """
    manager = make_manager(simulate="1x8GiB")
    manager.quota("alice", 1)
    marks, first = manager.directory / "marks", gate(manager, "first")
    job_ids = [
        submit(
            manager,
            "alice",
            script=f"echo $NODEMGR_JOB >> {marks}; read line < {first}; exec {HOLD} -b {GIB}",
        )
    ]
    manager.restart()
    manager.events().expect("job.starting", job=job_ids[0])
    manager.restart()
    manager.events().expect("job.started", job=job_ids[0])
    job_ids += [
        submit(manager, "alice", script=f"echo $NODEMGR_JOB >> {marks}; exec {HOLD} -b {GIB}")
        for _ in range(2)
    ]
    manager.restart()
    first.write_text("go\n")
    manager.restart()
    for job_id in job_ids:
        nodemgr(manager, "wait", job_id)
        (row,) = manager.call("job_show", job=job_id)["jobs"]
        assert (row["state"], row["restarts"], len(row["attempts"])) == ("done", 0, 1)
    told = manager.call("events", since=0, limit=1_000)["events"]
    # A kill between the stored start and its order to the launcher leaves an attempt that never
    # began; its number is not used again.
    requeued_before_start = Counter(
        event["job"] for event in told if event["name"] == "job.unbegun"
    )
    assert marks.read_text().split() == [
        f"{job_id}:{1 + requeued_before_start[job_id]}" for job_id in job_ids
    ], "each ran once, in order"


def test_a_job_ends_whose_program_left_its_main_thread(make_manager: Make) -> None:
    """Its main thread calls pthread_exit; its last thread's end ends process, job and lease."""
    manager = make_manager(simulate="1x8GiB")
    manager.quota("alice", 1)
    events = manager.events()
    program = compiled("last_thread.c", *LINKED_WITH_DRIVER)
    job_id = submit(manager, "alice", "--gpus", "1", script=f"exec {program} worker")
    nodemgr(manager, "wait", job_id)
    assert nodemgr(manager, "logs", job_id) == "cuInit 0\nworker\nhandler\n"
    events.expect("job.ended", job=job_id)
    assert manager.status()["tasks"] == []


def test_a_requeued_job_sees_the_gpus_of_its_new_attempt(make_manager: Make) -> None:
    manager = make_manager(simulate="2x8GiB")
    manager.quota("alice", 2)
    events, drained = manager.events(), gate(manager, "drained")
    script = (
        f"echo $CUDA_VISIBLE_DEVICES; {HOLD} -s 0; [ $NODEMGR_JOB != ${{NODEMGR_JOB%:1}}:1 ] ||"
        f" {{ read line < {drained}; exit 9; }}"
    )
    job_id = submit(manager, "alice", "--gpus", "1", "--max-restarts", "1", script=script)
    first = events.expect("task.granted")["gpus"]
    manager.call("gpu_drain", index=0)
    drained.write_text("go\n")
    nodemgr(manager, "wait", job_id)
    lines = nodemgr(manager, "logs", job_id, "--attempt", "1").splitlines()
    lines += nodemgr(manager, "logs", job_id).splitlines()
    (second,) = {gpu["uuid"] for gpu in manager.status()["gpus"]} - set(first)
    assert lines[0::2] == [first[0], second]
    assert [json.loads(line)["uuid"] for line in lines[1::2]] == [first[0], second]


def told_peaks(manager: Manager, job_id: str) -> list[int | None]:
    """Of each job of that name, in whole GiB."""
    rows = json.loads(nodemgr(manager, "history", job_id, "--json"))["jobs"]
    return [None if row["peak_bytes"] is None else row["peak_bytes"] // GIB for row in rows]


def test_the_history_has_the_peak_of_a_jobs_memory_on_one_gpu(make_manager: Make) -> None:
    """Of programs one after the other, also of one that ended before the manager was killed."""
    manager = make_manager(simulate="2x8GiB")
    manager.quota("alice", 2)
    events, last = manager.events(), gate(manager, "last")
    hold = f"{HOLD} -b {{}} -d 1 < /dev/null"
    script = f"{hold.format(5 * GIB)}; read line < {last}; {hold.format(2 * GIB)}; exit 3"
    job_id = submit(manager, "alice", "--gpus", "2", script=script)
    events.expect("task.left")
    manager.restart()
    assert under_way(manager)["peak_bytes"] // GIB == 5
    last.write_text("go\n")
    manager.events().expect("job.ended", job=job_id)
    assert told_peaks(manager, job_id) == [5]
    (row,) = json.loads(nodemgr(manager, "history", job_id, "--json"))["jobs"]
    assert (row["state"], row["attempts"][0]["peak_bytes"]) == ("failed", row["peak_bytes"])
    assert "5.1 GiB" in nodemgr(manager, "history"), "with the context"


def test_a_failure_after_a_refusal_of_memory_has_that_cause(make_manager: Make) -> None:
    """Another failure has its own, and so has a program that goes on without the memory."""
    manager = make_manager(simulate="1x8GiB")
    manager.quota("alice", 1, memory_bytes=4 * GIB)
    events = manager.events()
    hold = f"{HOLD} -b {{}} < /dev/null"
    causes = []
    for script in (hold.format(6 * GIB), f"{hold.format(GIB)}; exit 3",
                   f"{hold.format(6 * GIB)}; true"):  # fmt: skip
        job_id = submit(manager, "alice", "--gpus", "1", script=script)
        events.expect("job.ended", job=job_id)
        (row,) = json.loads(nodemgr(manager, "history", job_id, "--json"))["jobs"]
        causes.append((row["state"], row["attempts"][0]["cause"]))
    assert causes == [("failed", "gpu_memory"), ("failed", "own"), ("done", "own")]


def under_way(manager: Manager) -> dict[str, Any]:
    """The row of the job that runs."""
    found: dict[str, Any] = json.loads(nodemgr(manager, "queue", "--json"))["running"][0]
    return found


def test_the_peaks_of_jobs_that_do_not_end_by_themselves(make_manager: Make) -> None:
    manager = make_manager(simulate="2x8GiB")
    manager.quota("alice", 1)
    events = manager.events()
    held = submit(manager, "alice", script=f"sleep 600 | {HOLD} -b {3 * GIB}")
    events.expect("task.joined")
    beside = ("peak_bytes", "utilization_percent", "duration_seconds")
    while None in (figures := [under_way(manager)[key] for key in beside]):
        pass  # it allocates after it joined, and is younger than the first reading
    assert (figures[0] // GIB, figures[1]) == (3, 0)
    nodemgr(manager, "queue", "withdraw", held)
    array = submit(manager, "alice", "--array", "0-1", script=f"{HOLD} -b {GIB} < /dev/null")
    none = submit(manager, "alice", script="true")
    for job_id in (array, none):
        nodemgr(manager, "wait", job_id)
    assert told_peaks(manager, held) == [3]
    assert told_peaks(manager, array) == [1, 1]
    assert told_peaks(manager, none) == [None]
