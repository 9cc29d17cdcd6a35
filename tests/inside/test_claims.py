"""The receiver of a job in a container: only the process that the kernel names, once.

It gets nothing that leads out of the container.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.inside.boxes import NOBODY, WAIT_LIMIT_S, Box, interruption, outcome
from tests.support.manager import Manager
from tests.support.queue_pages import queue_rows

STRANGER = Path(__file__).with_name("stranger.py")


class Stranger:
    """A program in a box that says what it is told to."""

    def __init__(self, box: Box, uid: int = 0) -> None:
        self._program: subprocess.Popen[str] = box.python(STRANGER, uid=uid)

    def __call__(self, *words: str) -> Any:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(" ".join(words) + "\n")
        self._program.stdin.flush()
        said = self._program.stdout.readline()
        assert said, self._program.communicate(timeout=WAIT_LIMIT_S)
        return json.loads(said)

    def end(self) -> None:
        self._program.communicate(timeout=WAIT_LIMIT_S)


def held_job(node: Manager, box: Box, *options: str, uid: int = 0) -> str:
    """Submitted, and left to a stranger: the runner that submit starts is refused its place."""
    return box.submit(
        "--gpus", "0", "--max-restarts", "0", *options, "--", "sh", "-c", "exit 3", uid=uid
    )


def begun(node: Manager, box: Box, stranger: Stranger) -> str:
    """A job of which the stranger, as this place's runner, was told."""
    assert stranger("runner")["verb"] == "ACK"
    job = held_job(node, box)
    assert stranger("next") | {"files": []} == {
        "verb": "START",
        "job": job,
        "attempt": 1,
        "files": [],
    }
    return job


def test_nobody_else_is_handed_a_job(node: Manager, make_box: Callable[..., Box]) -> None:
    """Another container of the env, another user of this one, another env's container."""
    box = make_box()
    first = Stranger(box)
    job = begun(node, box, first)
    others = {
        "another container": Stranger(make_box()),
        "another user": Stranger(box, uid=NOBODY),
        "another env": Stranger(make_box("bob")),
    }
    for who, other in others.items():
        refused = other("claim", job, "1")
        assert (refused["verb"], refused["reason"], refused["files"]) == (
            "DENY",
            "no such attempt is to start here: the runner takes the next one",
            [],
        ), who
    assert first("claim", "j9", "1")["verb"] == "DENY"
    assert first("claim", job, "2")["verb"] == "DENY"
    told = first("claim", job, "1")
    assert told["verb"] == "CLAIMED", told


def test_it_is_handed_out_once_and_to_one_process(node: Manager, box: Box) -> None:
    """Its owner may ask again: the connection may have broken before the answer came."""
    first = Stranger(box)
    job = begun(node, box, first)
    assert len(first("claim", job, "1")["files"]) == 4
    again = Stranger(box)("claim", job, "1")
    assert (again["verb"], again["reason"]) == (
        "DENY",
        "another process has started this attempt, or it is over: the runner takes the next one",
    )
    assert first("fork-claim", job, "1")["verb"] == "DENY"
    assert len(first("claim", job, "1")["files"]) == 4
    node.kill()
    node.start()
    assert len(first("claim", job, "1")["files"]) == 4


def test_what_is_handed_out_leads_nowhere(node: Manager, box: Box) -> None:
    """No directory, because its parent would be the node's.

    The order cannot be changed, not even for its reader.
    """
    first = Stranger(box)
    job = begun(node, box, first)
    first("claim", job, "1")
    order, record, log, limit = first("files")
    assert all(each["regular"] for each in (order, record, log, limit))
    assert "memfd:nodemgr-order" in order["path"]
    assert [each["mode"] for each in (record, log, limit)] == [
        os.O_WRONLY,
        os.O_WRONLY,
        os.O_RDONLY,
    ]
    assert first("order").startswith("nodemgr-order 1\0job=" + job + ":1\0")
    (attempt,) = (node.state_dir / "jobs" / job).iterdir()
    assert (attempt / "order").read_bytes().startswith(b"nodemgr-order 1\0")


LINE = 512
ENDED = b"ended 1 0 - 0 well".ljust(LINE - 2) + b".\n"
HOSTILE = {
    "nothing": b"",
    "noise": bytes(range(256)) * 8,
    "endless digits": (
        (b"started " + b"9" * 490).ljust(LINE - 2)
        + b".\n"
        + (b"ended " + b"9" * 490 + b" 0 - 0").ljust(LINE - 2)
        + b".\n"
    ),
    "numbers that are none": "ended ٣٣٣ ² - 0 why".encode().ljust(LINE - 2) + b".\n",
    "too large": b" " * LINE + b"ended 99999999999999999999 0 - 0 x".ljust(LINE - 2) + b".\n",
    "a megabyte": b"ended " * 200_000,
}


def test_a_hostile_record_is_no_record(node: Manager, box: Box) -> None:
    """Of an array with a different end for each of its jobs."""
    first = Stranger(box)
    assert first("runner")["verb"] == "ACK"
    array = held_job(node, box, "--array", f"0-{len(HOSTILE) - 1}")
    for what, content in HOSTILE.items():
        told = first("next")
        assert (
            first("forge", told["job"], "1", content[:60_000].hex() or "00")["verb"] == "CLAIMED"
        ), what
        cause, why = interruption(node, told["job"])
        assert cause == "container_stopped", what
        assert "its container was stopped, or its supervisor there was killed" in why
    assert outcome(node, array)["exit"] == 77
    assert "Traceback" not in node.log


def test_what_a_record_says_is_bounded_by_what_can_be(node: Manager, box: Box) -> None:
    """It began after it was handed out and ended before now, for any written time.

    It has no PID of the node.
    """
    first = Stranger(box)
    job = begun(node, box, first)
    first("claim", job, "1")
    started = b"started 1 1 1 1".ljust(LINE - 2) + b".\n"
    first(
        "write",
        (started + b"ended 9000000000000000000 7 - 1 \x1b[2Jwell".ljust(LINE - 2) + b".\n").hex(),
    )
    first.end()
    told = outcome(node, job)
    assert told["exit"] == 7
    (story,) = node.call("job_show", job=job)["jobs"]
    assert (
        story["submitted"]
        <= story["attempts"][0]["started"]
        <= story["attempts"][0]["ended"]
        <= story["submitted"] + WAIT_LIMIT_S
    )
    assert "\x1b" not in told["why"]


def test_a_lease_on_its_files_holds_nobody_up(node: Manager, box: Box) -> None:
    """The kernel would let an opener of such a file wait for 45 s; the manager does not wait."""
    first = Stranger(box)
    job = begun(node, box, first)
    first("claim", job, "1")
    if first("lease") != [True, True]:
        pytest.skip("this file system gives no leases")
    first("say", "RUNNING", job, "1")
    node.events().expect("job.started", job=job)
    said = box.say("logs", job)
    assert (said.returncode, "Traceback" in said.stderr) == (0, False), said
    assert node.call("job_show", job=job)["jobs"][0]["state"] == "running"
    first.end()
    assert interruption(node, job)[0] == "container_stopped"


def test_blocks_that_a_false_supervisor_reserved_in_the_log_go_with_the_end(
    node: Manager, box: Box
) -> None:
    first = Stranger(box)
    job = begun(node, box, first)
    first("claim", job, "1")
    assert first("reserve", str(600 * 2**20)) == 0, (
        "256 MiB are allowed, and twice that is borne with"
    )
    (log,) = (node.state_dir / "jobs" / job).glob("*/log")
    assert log.stat().st_blocks * 512 >= 600 * 2**20
    first.end()
    assert interruption(node, job)[0] == "container_stopped"
    assert log.stat().st_blocks * 512 <= 65536
    assert box.say("logs", job).stdout.startswith(
        "nodemgr: the output was dropped: it took more than twice the 268435456 bytes"
    )


def test_who_cannot_begin_says_why(node: Manager, box: Box) -> None:
    """Like a supervisor in a container to which the kernel passes no files."""
    first = Stranger(box)
    job = begun(node, box, first)
    first("claim", job, "1")
    first("say", "FAILED", job, "1")
    first.end()
    told = outcome(node, job)
    assert (told["state"], told["why"]) == ("failed", "its own fault")


def test_a_runner_cannot_end_what_somebody_has_begun(
    node: Manager, make_box: Callable[..., Box]
) -> None:
    box = make_box()
    first, other = Stranger(box), Stranger(make_box())
    job = begun(node, box, first)
    first("claim", job, "1")
    other("claim", job, "1")
    other("say", "FAILED", job, "1")
    other("say", "RUNNING", job, "1")
    first("say", "RUNNING", job, "1")
    node.events().expect("job.started", job=job)
    (story,) = node.call("job_show", job=job)["jobs"]
    assert story["state"] == "running"


def test_there_is_one_runner_and_it_speaks_for_its_place_alone(node: Manager, box: Box) -> None:
    first = Stranger(box)
    assert first("runner")["verb"] == "ACK"
    second = Stranger(box)("runner")
    assert (second["verb"], second["reason"]) == (
        "DENY",
        "jobs are started here by another runner already: start no second one",
    )
    assert Stranger(box, uid=NOBODY)("runner")["verb"] == "ACK"


def test_a_runner_that_goes_gives_back_what_it_was_told(node: Manager, box: Box) -> None:
    """It had not begun: no try is counted, and a process that still asks for it is refused."""
    first = Stranger(box)
    job = begun(node, box, first)
    late, events = Stranger(box), node.events(since=None)
    first.end()
    events.expect("place.down")
    (row,) = (row for row in queue_rows(node.call) if row["id"] == job)
    assert row["restarts"] == 0
    assert "waits for its container" in row["reason"]
    assert late("claim", job, "1")["verb"] == "DENY"
    box.say("queue")
    told = outcome(node, job)
    assert told["exit"] == 3
