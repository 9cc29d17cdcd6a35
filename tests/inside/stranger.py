"""Runs in a box: speaks the runner's and the supervisor's words itself, as any program there can.

Reads orders, answers with lines of JSON.

runner: says that it starts jobs here, and goes on.  next: the next packet.  claim JOB ATTEMPT: on a
new connection, kept with its files. files: those of the last claim.  say VERB JOB ATTEMPT: on the
last claim's connection; report VERB JOB ATTEMPT HEX: with that text, and the answer.  fork-claim:
as claim, by a child; forge JOB ATTEMPT HEX: by one that reports this end, and ends.  leave: the
connections to a child that stays.  output JOB ATTEMPT AT SIZE HEX: on the sheet, and the answer.
deaf: ignores every signal that can be ignored.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import stat
import sys
from typing import Any

from nodemgr.edge.rpc import wire

WORDS_FORM = 2
PATH = os.path.join(os.environ["NODEMGR_ENV_DIR"], "socket")


def connect() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(300)
    sock.connect(PATH)
    return sock


def ask(sock: socket.socket, verb: str, **fields: Any) -> dict[str, Any]:
    sock.send(wire.encode(verb, **fields))
    return receive(sock)


def receive(sock: socket.socket) -> dict[str, Any]:
    packet, ancillary, _, _ = sock.recvmsg(wire.PACKET_BYTES, 1_000)
    numbers = array.array("i")
    for _, _, data in ancillary:
        numbers.frombytes(data)
    if not packet:
        return {"verb": "", "files": []}
    verb, fields = wire.decode(packet, wire.Direction.DOWN)
    return {"verb": verb, **fields, "files": list(numbers)}


def describe(number: int) -> dict[str, Any]:
    found = os.stat(number)
    with open(f"/proc/self/fdinfo/{number}") as file:
        flags = int(next(line for line in file if line.startswith("flags")).split()[1], 8)
    return {
        "regular": stat.S_ISREG(found.st_mode),
        "mode": flags & os.O_ACCMODE,
        "path": os.readlink(f"/proc/self/fd/{number}"),
    }


def main() -> None:
    runner = claims = None
    files: list[int] = []
    for line in sys.stdin:
        word, *more = line.split()
        told: Any = {}
        if word == "runner":
            runner = connect()
            told = ask(runner, "RUNNER", rid=1, form=WORDS_FORM if not more else int(more[0]))
        elif word == "next":
            assert runner is not None
            told = receive(runner)
        elif word == "claim":
            claims = connect()
            told = ask(claims, "CLAIM", rid=2, job=more[0], attempt=int(more[1]))
            files = told["files"] or files
        elif word in ("fork-claim", "forge"):
            if (child := os.fork()) == 0:
                claim = connect()
                claimed = ask(claim, "CLAIM", rid=2, job=more[0], attempt=int(more[1]))
                if word == "forge":
                    text = bytes.fromhex(more[2]).decode()
                    ask(claim, "ENDED", rid=3, job=more[0], attempt=int(more[1]), text=text)
                print(json.dumps(claimed), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            continue
        elif word == "leave":
            if os.fork() == 0:
                os.closerange(0, 3)
                signal.pause()
        elif word == "say":
            assert claims is not None
            claims.send(
                wire.encode(
                    more[0],
                    job=more[1],
                    attempt=int(more[2]),
                    reason="its own fault",
                )
            )
        elif word == "files":
            told = [describe(number) for number in files]
        elif word == "report":
            assert claims is not None
            text = bytes.fromhex(more[3]).decode()
            told = ask(claims, more[0], rid=3, job=more[1], attempt=int(more[2]), text=text)
        elif word == "output":
            assert claims is not None
            os.pwrite(files[1], bytes.fromhex(more[4]), 0)
            at, size = int(more[2]), int(more[3])
            told = ask(claims, "OUTPUT", rid=4, job=more[0], attempt=int(more[1]), at=at, size=size)
        elif word == "deaf":
            for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(each, signal.SIG_IGN)
        elif word == "order":
            told = os.pread(files[0], 100, 0).decode()
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
