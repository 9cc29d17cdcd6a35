"""Runs in a box: speaks the runner's and the supervisor's words itself, as any program there can.

Reads orders, answers with lines of JSON.

runner: says that it starts jobs here, and goes on.  next: the next packet.  claim JOB ATTEMPT: on a
new connection, kept with its files. files: those of the last claim.  write HEX: over the record,
from its beginning.  say VERB JOB ATTEMPT: on the last claim's connection.  fork-claim: as claim, by
a child; forge JOB ATTEMPT HEX: by one that writes so over the record, and ends.  lease: on each
file that it has open to write, so that a process that opens it has to wait.  reserve BYTES: of the
disk, behind the end of the log.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import json
import os
import signal
import socket
import stat
import sys
from typing import Any

from nodemgr.edge.rpc import wire

FALLOC_FL_KEEP_SIZE = 1
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


def _lease(number: int) -> bool:
    try:
        fcntl.fcntl(number, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    return True


def main() -> None:
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # by which the kernel asks for a lease back
    runner = claims = None
    files: list[int] = []
    for line in sys.stdin:
        word, *more = line.split()
        told: Any = {}
        if word == "runner":
            runner = connect()
            told = ask(runner, "RUNNER", rid=1)
        elif word == "next":
            assert runner is not None
            told = receive(runner)
        elif word == "claim":
            claims = connect()
            told = ask(claims, "CLAIM", rid=2, job=more[0], attempt=int(more[1]))
            files = told["files"] or files
        elif word in ("fork-claim", "forge"):
            if (child := os.fork()) == 0:
                claimed = ask(connect(), "CLAIM", rid=2, job=more[0], attempt=int(more[1]))
                if word == "forge":
                    os.pwrite(claimed["files"][1], bytes.fromhex(more[2]), 0)
                print(json.dumps(claimed), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            continue
        elif word == "say":
            assert claims is not None
            claims.send(
                wire.encode(
                    more[0],
                    job=more[1],
                    attempt=int(more[2]),
                    reason="its own fault" if more[0] == "FAILED" else None,
                )
            )
        elif word == "files":
            told = [describe(number) for number in files]
        elif word == "write":
            os.pwrite(files[1], bytes.fromhex(more[0]), 0)
        elif word == "lease":
            told = [_lease(number) for number in files[1:3]]
        elif word == "reserve":
            told = ctypes.CDLL(None).fallocate(
                files[2], FALLOC_FL_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(int(more[0]))
            )
        elif word == "order":
            told = os.pread(files[0], 100, 0).decode()
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
