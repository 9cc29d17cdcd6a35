"""Runs in a container as its root: makes each descriptor and file that it gets a setuid program.

handed_out.py JOB UID STATE PATH: claims attempt 1 of JOB, asks for a sheet and a lease, writes a
program into each descriptor and into PATH, with mode 04755. STATE gets the mode alone: another
content ends the simulated node. Then it becomes UID, which may look into it from the node, prints
its descriptors as a line of JSON, and waits for the end of its input.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys

from nodemgr.edge.rpc import wire
from tests.inside.stranger import ask, connect, receive

PROGRAM = "/usr/bin/id"
PR_SET_DUMPABLE = 4


def arm(path: str, program: bytes) -> dict[str, str]:
    """Every step on its own: a step that fails does not spare the next."""
    said = {}
    steps = {
        "write": lambda: write(path, program),
        "chmod": lambda: os.chmod(path, 0o4755),
    }
    for name, step in steps.items():
        try:
            step()
            said[name] = "done"
        except OSError as error:
            said[name] = str(error.strerror)
    return said


def write(path: str, program: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR)
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, len(program))
    os.pwrite(descriptor, program, 0)
    os.close(descriptor)


def main() -> None:
    job, uid, state, path = sys.argv[1:]
    runner = connect()
    assert ask(runner, "RUNNER", rid=1, form=2)["verb"] == "ACK"
    while receive(runner).get("job") != job:
        pass
    claims, client = connect(), connect()
    files = ask(claims, "CLAIM", rid=2, job=job, attempt=1)["files"]
    files += ask(client, "ASK", rid=3, what="sheet")["files"]
    client.send(wire.encode("ACQUIRE", rid=4, task="ab" * 16, gpus=1))
    while (told := receive(client))["verb"] != "GRANT":
        pass
    files += told["files"]
    with open(PROGRAM, "rb") as file:
        program = file.read()
    said = {number: arm(f"/proc/self/fd/{number}", program) for number in files}
    said[path] = arm(path, program)
    os.chmod(state, 0o4755)
    os.setgroups([])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    print(json.dumps({"files": files, "said": said}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
