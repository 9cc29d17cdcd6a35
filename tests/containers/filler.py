"""Runs in a container: fills the node's disk with what a job's supervisor may report.

filler.py JOBS: says that it starts jobs here, and claims so many. For each it grows what it was
handed, reports a begin, much output, and output at places far behind it. For each line of input it
goes on: a line of JSON is printed when all is reported, and the next one after an end for each job
and output behind that end. It keeps what it was handed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections import Counter
from typing import IO, Any

from tests.inside.stranger import WORDS_FORM, ask, connect, receive

PIECE_BYTES = 65_536
PIECES = 128
FAR = [2**power for power in range(24, 63, 3)]

verbs: Counter[str] = Counter()


def say(claim: dict[str, Any], verb: str, **more: Any) -> None:
    told = ask(claim["socket"], verb, rid=3, job=claim["job"], attempt=1, **more)
    verbs[f"{verb} {told['verb']}"] += 1


def output(claim: dict[str, Any], at: int) -> None:
    os.pwrite(claim["files"][1], b"x" * PIECE_BYTES, 0)
    say(claim, "OUTPUT", at=at, size=PIECE_BYTES)


def grow(number: int) -> None:
    for step in (os.ftruncate, lambda descriptor, size: os.posix_fallocate(descriptor, 0, size)):
        for path in (number, os.open(f"/proc/self/fd/{number}", os.O_RDWR)):
            try:
                step(path, 2**30)
                verbs["grown"] += 1
            except OSError:
                verbs["not grown"] += 1


def fill(job: str) -> dict[str, Any]:
    claim: dict[str, Any] = {"socket": connect(), "job": job}
    claim |= ask(claim["socket"], "CLAIM", rid=2, job=job, attempt=1)
    for number in claim["files"]:
        grow(number)
    say(claim, "RUNNING", text="started 1 1 1 1")
    for at in (*range(0, PIECES * PIECE_BYTES, PIECE_BYTES), *FAR):
        output(claim, at)
    return claim


def supervise(job: str, parent: socket.socket) -> None:
    """One job, in a process of its own: another one is claimed by no such process."""
    with parent, parent.makefile("rw") as lines:
        claim = fill(job)
        print(json.dumps(verbs), file=lines, flush=True)
        lines.readline()
        say(claim, "ENDED", text="ended 1 0 - 0 " + "x" * 100)
        try:
            output(claim, 2**40)
        except OSError:
            verbs["closed"] += 1
        print(json.dumps(verbs), file=lines, flush=True)
        lines.readline()


def main() -> None:
    runner = connect()
    assert ask(runner, "RUNNER", rid=1, form=WORDS_FORM)["verb"] == "ACK"
    print("ready", flush=True)
    children: dict[str, IO[str]] = {}
    while len(children) < int(sys.argv[1]):
        job = receive(runner).get("job")
        if job and job not in children:
            ours, theirs = socket.socketpair()
            if os.fork() == 0:
                supervise(job, theirs)
                os._exit(0)
            theirs.close()
            children[job] = ours.makefile("rw")
    for _ in range(2):
        told: Counter[str] = Counter()
        for child in children.values():
            told.update(json.loads(child.readline()))
        print(json.dumps(told), flush=True)
        sys.stdin.readline()
        for child in children.values():
            print("go on", file=child, flush=True)


if __name__ == "__main__":
    main()
