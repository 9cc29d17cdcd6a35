"""The receiver of a job in a container: only the process that the kernel names, once.

It gets nothing that leads out of the container.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

    def code(self) -> int:
        """Waits until something else has ended it."""
        return self._program.wait(WAIT_LIMIT_S)


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
    assert len(first("claim", job, "1")["files"]) == 2
    again = Stranger(box)("claim", job, "1")
    assert (again["verb"], again["reason"]) == (
        "DENY",
        "another process has started this attempt, or it is over: the runner takes the next one",
    )
    assert first("fork-claim", job, "1")["verb"] == "DENY"
    assert len(first("claim", job, "1")["files"]) == 2
    node.kill()
    node.start()
    assert len(first("claim", job, "1")["files"]) == 2


def test_one_process_claims_one_job(node: Manager, box: Box) -> None:
    """Its end would end one of two, and the other would run for ever, also when it is withdrawn."""
    first, second = Stranger(box), Stranger(box)
    assert first("runner")["verb"] == "ACK"
    array = held_job(node, box, "--array", "0-1")
    one, other = (first("next")["job"] for _ in range(2))
    assert first("claim", one, "1")["verb"] == "CLAIMED"
    refused = first("claim", other, "1")
    assert (refused["verb"], refused["files"]) == ("DENY", [])
    assert "one process supervises one job" in refused["reason"]
    assert len(first("claim", one, "1")["files"]) == 2
    assert second("claim", other, "1")["verb"] == "CLAIMED"
    for stranger, job in ((first, one), (second, other)):
        stranger("report", "ENDED", job, "1", b"ended 1 7 - 0 well".hex())
        stranger.end()
    assert outcome(node, array)["exit"] == 7


def test_what_is_handed_out_is_memory(node: Manager, box: Box) -> None:
    """The order cannot be changed, not even for its reader; the sheet cannot grow."""
    first = Stranger(box)
    job = begun(node, box, first)
    first("claim", job, "1")
    order, sheet = first("files")
    assert order["path"].startswith("/memfd:nodemgr-order")
    assert sheet["path"].startswith("/memfd:nodemgr-sheet")
    assert first("order").startswith("nodemgr-order 1\0job=" + job + ":1\0")
    (attempt,) = (node.state_dir / "jobs" / job).iterdir()
    assert (attempt / "order").read_bytes().startswith(b"nodemgr-order 1\0")


def test_a_runner_of_an_older_client_is_sent_away_in_one_line(box: Box) -> None:
    told = Stranger(box)("runner", "1")
    assert (told["verb"], told["reason"]) == (
        "DENY",
        "the client of this container is older than the manager, and starts no jobs for it: start"
        " the container anew",
    )


HOSTILE = {
    "nothing": "",
    "noise": "\x01\x7f%\x1b[2J" * 20,
    "endless digits": "ended " + "9" * 490 + " 0 - 0",
    "numbers that are none": "ended ٣٣٣ ² - 0 why",
    "too large": "ended 99999999999999999999 0 - 0 x",
    "a beginning": "started 1 2 3 4",
}


def test_a_hostile_end_is_no_end(node: Manager, box: Box) -> None:
    """Of an array with a different end for each of its jobs."""
    first = Stranger(box)
    assert first("runner")["verb"] == "ACK"
    array = held_job(node, box, "--array", f"0-{len(HOSTILE) - 1}")
    for what, text in HOSTILE.items():
        told = first("next")
        assert first("forge", told["job"], "1", text.encode().hex() or "00")["verb"] == "CLAIMED", (
            what
        )
        cause, why = interruption(node, told["job"])
        assert cause == "container_stopped", what
        assert "its container was stopped, or its supervisor there was killed" in why
    assert outcome(node, array)["exit"] == 77
    assert "Traceback" not in node.log


def test_what_is_reported_is_bounded_by_what_can_be(node: Manager, box: Box) -> None:
    """It began after it was handed out and ended before now, for any reported time.

    It has no PID of the node.
    """
    first = Stranger(box)
    job = begun(node, box, first)
    first("claim", job, "1")
    assert first("report", "RUNNING", job, "1", b"started 1 1 1 1".hex())["verb"] == "ACK"
    end = b"ended 9000000000000000000 7 - 1 \x1b[2Jwell"
    assert first("report", "ENDED", job, "1", end.hex())["verb"] == "ACK"
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


def test_output_is_taken_once_and_in_its_place(node: Manager, box: Box) -> None:
    """A piece may be said again; a place far beyond the end costs no disk."""
    first = Stranger(box)
    job = begun(node, box, first)
    first("claim", job, "1")
    for at, text in ((0, b"one two"), (4, b"two three"), (0, b"one"), (2**21, b"last\n")):
        assert first("output", job, "1", str(at), str(len(text)), text.hex())["verb"] == "ACK"
    for at in (2**62, 2**63 - 1):
        assert first("output", job, "1", str(at), "4", b"lost".hex())["verb"] == "ACK"
    (log,) = (node.state_dir / "jobs" / job).glob("*/log")
    assert log.stat().st_blocks * 512 <= 2**17
    said = box.say("logs", job)
    assert said.stdout.strip("\0") == "one two three\nlast\n" or said.stdout.replace("\0", "") == (
        "one two three\nlast\n"
    )
    assert first("output", job, "1", "0", "999999", b"x".hex())["verb"] == "ACK"
    assert log.stat().st_size <= 2**21 + 2**17
    first.end()
    assert interruption(node, job)[0] == "container_stopped"


def test_who_cannot_begin_says_why(node: Manager, box: Box) -> None:
    """Like a supervisor in a container to which the kernel passes no files.

    It may have ended when the manager hears it.
    """
    first = Stranger(box)
    job = begun(node, box, first)
    first("claim", job, "1")
    os.kill(node.pid, signal.SIGSTOP)
    first("say", "FAILED", job, "1")
    first.end()
    os.kill(node.pid, signal.SIGCONT)
    told = outcome(node, job)
    assert (told["state"], told["why"]) == ("failed", "its own fault")


def test_a_connection_that_a_child_keeps_delays_an_end_and_does_not_prevent_it(
    node: Manager, box: Box
) -> None:
    first = Stranger(box)
    job = begun(node, box, first)
    first("claim", job, "1")
    first("leave")
    first.end()
    assert interruption(node, job)[0] == "container_stopped"


def test_a_runner_cannot_end_what_somebody_has_begun(
    node: Manager, make_box: Callable[..., Box]
) -> None:
    box = make_box()
    first, other = Stranger(box), Stranger(make_box())
    job = begun(node, box, first)
    first("claim", job, "1")
    other("claim", job, "1")
    other("say", "FAILED", job, "1")
    begin = b"started 1 1 1 1".hex()
    assert other("report", "RUNNING", job, "1", begin)["verb"] == "DENY"
    assert first("report", "RUNNING", job, "1", begin)["verb"] == "ACK"
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
    events.expect("job.unbegun", job=job)
    (row,) = (row for row in queue_rows(node.call) if row["id"] == job)
    assert row["restarts"] == 0
    assert "waits for its container" in row["reason"]
    assert late("claim", job, "1")["verb"] == "DENY"
    box.say("queue")
    told = outcome(node, job)
    assert told["exit"] == 3
