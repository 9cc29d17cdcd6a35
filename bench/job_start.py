"""From the order to a job's running process, and to the report of its end.

The way leads through the launcher and a supervisor.

    python bench/job_start.py [--rounds 200]

The reference is an unsupervised process: posix_spawn of the same program from this process, which
returns when the program was executed, and its wait.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pwd
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from arguments import parse
from node import against_target, finish, table
from nodemgr.core.model.entities import RunSpec
from nodemgr.edge.executor.interface import RunOrder, Status
from nodemgr.edge.executor.launcher import LauncherEndpoint
from nodemgr.edge.executor.local import NodeFactory

TARGET_MS = 5.0
PROGRAM = "/bin/true"
USER = pwd.getpwuid(os.geteuid())


class Heard:
    """The listener, with a clock."""

    def __init__(self) -> None:
        self.started_ns = self.ended_ns = 0

    def started(
        self, job_id: str, attempt: int, pid: int | None, wall_ns: int, boot_ns: int | None = None
    ) -> None:
        self.started_ns = time.monotonic_ns()

    def ended(
        self, job_id: str, attempt: int, status: Status, log_tail: str, wall_ns: int,
        boot_ns: int | None = None,
    ) -> None:  # fmt: skip
        if status.exit_code != 0:
            raise SystemExit(f"{PROGRAM}: {status}")
        self.ended_ns = time.monotonic_ns()

    def requeued_before_start(self, job_id: str, attempt: int, why: str) -> None:
        raise SystemExit(why)

    def launch_host_changed(self, place: str, is_up: bool, why: str) -> None:
        pass


UNLIMITED = RunSpec(str(PROGRAM), 0, None, None)


def order(number: int, run: RunSpec = UNLIMITED) -> RunOrder:
    return RunOrder(
        f"j{number}",
        1,
        "bench",
        run,
        (),
        USER.pw_name,
        USER.pw_uid,
        USER.pw_gid,
        (PROGRAM,),
        "/",
        ("PATH=/usr/bin:/bin",),
    )


def job_ms(
    loop: asyncio.AbstractEventLoop, factory: NodeFactory, heard: Heard, number: int,
    run: RunSpec = UNLIMITED,
) -> tuple[float, float]:  # fmt: skip
    heard.started_ns = heard.ended_ns = 0
    begin_ns = time.monotonic_ns()
    factory.create(order(number, run))
    while not heard.ended_ns:
        loop.run_until_complete(asyncio.sleep(0.0001))
    return (heard.started_ns - begin_ns) / 1e6, (heard.ended_ns - begin_ns) / 1e6


def bare_ms() -> tuple[float, float]:
    begin_ns = time.monotonic_ns()
    pid = os.posix_spawn(PROGRAM, [PROGRAM], {})
    started_ns = time.monotonic_ns()
    os.waitpid(pid, 0)
    return (started_ns - begin_ns) / 1e6, (time.monotonic_ns() - begin_ns) / 1e6


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    options = parse(parser, rounds=3)
    rounds = options.rounds
    directory = Path(tempfile.mkdtemp(prefix="nmb", dir="/tmp"))
    jobs_dir = directory / "jobs"
    jobs_dir.mkdir(mode=0o700)
    loop, heard = asyncio.new_event_loop(), Heard()
    factory = NodeFactory(loop, heard, jobs_dir, LauncherEndpoint(jobs_dir))
    jobs, bare = [], []
    for number in range(rounds + 5):
        sample = job_ms(loop, factory, heard, number), bare_ms()
        if number >= 5:  # the first ones warm up
            jobs.append(sample[0])
            bare.append(sample[1])
    factory.close()
    loop.close()
    shutil.rmtree(directory, ignore_errors=True)
    rows = [
        ("bare: executed", [pair[0] for pair in bare]),
        ("job: order to its process", [pair[0] for pair in jobs]),
    ]
    table("a process begins", rows, "ms", "bare: executed")
    rows = [
        ("bare: waited for", [pair[1] for pair in bare]),
        ("job: order to news of its end", [pair[1] for pair in jobs]),
    ]
    table("a process begins and ends", rows, "ms", "bare: waited for")
    against_target(
        "median, order to process", statistics.median(pair[0] for pair in jobs), TARGET_MS, "ms"
    )
    return options


if __name__ == "__main__":
    finish(main())
