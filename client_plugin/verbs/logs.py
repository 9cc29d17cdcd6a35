"""`nodemgr logs` inside a container: what a job wrote, and what it writes until it has ended.

Knows: descriptors of logs, when the manager is asked whether there will be more. Must not know: how it is asked.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
from typing import Any, Dict, Optional

from client_plugin.verbs import asking, runner, tables

LOOK_S = 0.25
ASK_EVERY = 4
"""Looks in vain, after which the manager is asked whether the job still lives."""
PIECE_BYTES = 2**16
FINAL = ("done", "failed", "withdrawn")
Row = Dict[str, Any]


def run(options: argparse.Namespace) -> int:
    """Raises Refused."""
    if options.follow and options.attempt is not None:
        raise asking.Refused("--follow goes on with the present start: leave --attempt out", 2)
    if options.follow:
        runner.ensure()
        _follow(options.job)
        return 0
    told, descriptor = asking.order_file("job_log", job=options.job, attempt=options.attempt)
    if descriptor is None:
        _say("the log is gone, these are its last lines")
        _write(told.get("tail", "").encode("utf-8", "surrogateescape"))
    else:
        _copy(descriptor, 0)
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"nodemgr: {tables.printable(line)}\n")
    sys.stderr.flush()


def _write(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def _copy(descriptor: int, offset: int) -> int:
    """All that is there from `offset` on; where the next piece will be. The manager drops the middle of what is too long, while it grows
    and while it is read."""
    while True:
        piece = os.pread(descriptor, PIECE_BYTES, offset)
        size = os.fstat(descriptor).st_size
        if not piece and offset <= size:
            return offset
        there = 0 if offset > size else _seek(descriptor, offset, os.SEEK_DATA, size, offset)
        if there == offset:  # asked after it was read: what is a hole by now was perhaps read as one
            piece = piece[: _seek(descriptor, offset, os.SEEK_HOLE, size, size) - offset]
            _write(piece)
            offset += len(piece)
            continue
        _write(b"\n")
        dropped = f"{tables.size(there - offset)} of its output were dropped here, beyond the room that a log may take (job_log_bytes)"
        _say(dropped if there > offset else "its log begins anew here")
        offset = there


def _seek(descriptor: int, offset: int, whence: int, beyond: int, unknown: int) -> int:
    """`beyond`: nothing but a hole is there; `unknown`: the file system knows of none."""
    try:
        return os.lseek(descriptor, offset, whence)
    except OSError as error:
        return beyond if error.errno == errno.ENXIO else unknown


def _story(job: str) -> Row:
    row: Row = asking.order("job_show", job=job)["jobs"][0]
    if row["job"] != job:
        raise asking.Refused(f"{job} is an array: name one of its jobs ({row['job']}, say)", 2)
    return row


def _attempt(story: Row, number: int) -> Optional[Row]:
    return next((attempt for attempt in story["attempts"] if attempt["number"] == number), None)


def _follow(job: str) -> None:
    """Over all starts of the job from the present one on."""
    story = _until_started(job, 0)
    while story["attempts"]:
        told, descriptor = asking.order_file("job_log", job=job)
        number = told["attempt"]
        if descriptor is None:
            _write(told.get("tail", "").encode("utf-8", "surrogateescape"))
            story = _story(job)
        else:
            story = _follow_one(job, number, descriptor)
            os.close(descriptor)
        if story["state"] in FINAL:
            return
        _say(f"{job}: start {number} has ended; waiting for the next")
        story = _until_started(job, number)
        if _attempt(story, number + 1) is None:
            return


def _until_started(job: str, after: int) -> Row:
    """When it has begun a start beyond that number, or has ended without."""
    line = ""
    while True:
        story = _story(job)
        if story["state"] in FINAL or any(attempt["number"] > after for attempt in story["attempts"]):
            return story
        if tables.standing(story) != line:
            line = tables.standing(story)
            _say(f"{job}: {line}")
        time.sleep(ASK_EVERY * LOOK_S)


def _follow_one(job: str, number: int, descriptor: int) -> Row:
    """Until that start has ended and all that it wrote is copied."""
    offset, idle = 0, 0
    while True:
        before, offset = offset, _copy(descriptor, offset)
        idle = 0 if offset > before else idle + 1
        if idle and idle % ASK_EVERY == 0:
            story = _story(job)
            attempt = _attempt(story, number)
            if story["state"] in FINAL or attempt is None or attempt["ended"] is not None:
                _copy(descriptor, offset)  # what it wrote between our last look and its end
                return story
        time.sleep(LOOK_S)
