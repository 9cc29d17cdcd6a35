"""From kill -9 of a task to the grant of the next waiter, on a simulated node with the real shim.

    python bench/kill_to_grant.py [--rounds 40]

The holder is examples/hold.c with 1 GiB allocated. The reference is the time in which the kernel
reports the same death: from kill -9 to a readable pidfd, of a process that holds as much of the
simulated GPU.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import statistics
import subprocess
import time
from pathlib import Path

from arguments import parse
from node import Client, Node, against_target, finish, table
from nodemgr.paths import payload_dir
from nodemgr.simulator import library_directory

TARGET_MS = 20.0
HOLD = library_directory() / "hold"


def hold(node: Node) -> subprocess.Popen[bytes]:
    """A CUDA program of alice's that has its memory."""
    shim = payload_dir() / "client_plugin" / "_lib" / "libnodemgr.so"
    environment = {
        **os.environ, "LD_PRELOAD": str(shim), "NODEMGR_ENV_DIR": str(node.env_dir("alice")),
        "LD_LIBRARY_PATH": str(node.run_dir / "sim"),
    }  # fmt: skip
    program = subprocess.Popen(
        [str(HOLD), "-b", str(2**30)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert program.stdout is not None
    if b'"error": null' not in program.stdout.readline():
        raise SystemExit("hold got no memory")
    return program


def reap(program: subprocess.Popen[bytes]) -> None:
    program.wait()
    for pipe in (program.stdin, program.stdout):
        if pipe is not None:
            pipe.close()


def death_ms(node: Node) -> float:
    """Milliseconds from kill to pidfd, without a request that waits for the GPU."""
    program = hold(node)
    pidfd = os.pidfd_open(program.pid)
    begin_ns = time.monotonic_ns()
    os.kill(program.pid, signal.SIGKILL)
    select.select([pidfd], [], [])
    ended_ns = time.monotonic_ns()
    os.close(pidfd)
    reap(program)
    return (ended_ns - begin_ns) / 1e6


def grant_ms(node: Node, number: int) -> float:
    """Kill to the waiter's GRANT."""
    program = hold(node)
    waiter = Client(node.env_dir("bob"))
    waiter.send("ACQUIRE", rid=number, task=f"{number:032x}", gpus=1)
    if waiter.receive()[0] != "WAIT":
        raise SystemExit("the GPU was free")
    begin_ns = time.monotonic_ns()
    os.kill(program.pid, signal.SIGKILL)
    waiter.until("GRANT")
    granted_ns = time.monotonic_ns()
    waiter.send("RELEASE", rid=number + 10**9, task=f"{number:032x}")
    waiter.until("ACK")
    reap(program)
    return (granted_ns - begin_ns) / 1e6


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    options = parse(parser, rounds=2)
    rounds = options.rounds
    assert Path(HOLD).exists(), "build it first: python -m csrc.build"
    with Node("1x8GiB") as node:
        for env in ("alice", "bob"):
            node.call("quota_set", env=env, gpus=1)
        deaths, grants = [], []
        for number in range(1, rounds + 3):
            sample = death_ms(node), grant_ms(node, number)
            if number > 2:  # the first ones warm up
                deaths.append(sample[0])
                grants.append(sample[1])
    table(
        "kill -9 of a task with 1 GiB",
        [("kill to pidfd", deaths), ("kill to the next grant", grants)],
        "ms",
        "kill to pidfd",
    )
    against_target("median", statistics.median(grants), TARGET_MS, "ms")
    return options


if __name__ == "__main__":
    finish(main())
