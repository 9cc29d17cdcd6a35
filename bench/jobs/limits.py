"""The price of a cgroup: start and end of a job, `run` with a limit, a grant; what jobs leave.

    python bench/jobs/limits.py [--rounds 200] [--jobs 1000] [--grants 2000]

The reference is the same launcher without a scope, in turns with the one that has it. Without the
kernel's controllers the cgroups are made and removed, and have no limits. An environment has limits
in each second block of its grants.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import grant_latency
import job_start
from arguments import parse
from grant_latency import timed
from node import Client, Node, against_target, finish, miss, table
from nodemgr.core.model.entities import RunSpec
from nodemgr.edge.executor import leaf_limits
from nodemgr.edge.executor.launcher import PROGRAM, LauncherEndpoint
from nodemgr.edge.executor.local import NodeFactory
from nodemgr.edge.kernel import cgroups
from nodemgr.edge.kernel.processes import process_key, start_ticks

START_MS, END_MS, RUN_MS, GRANT_PERCENT = 1.0, 5.0, 2.0, 2.0
BLOCK = 5
"""Requests under one quota."""
LIMITED = RunSpec("", 0, None, None, cpus=1, host_memory_bytes=1 << 30)


class Side:
    """A launcher as the service has it, with or without a scope."""

    def __init__(self, loop: asyncio.AbstractEventLoop, scope: Path | None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="nmb", dir="/tmp"))
        jobs = self.directory / "jobs"
        jobs.mkdir(mode=0o700)
        words = [PROGRAM, "launcher", str(jobs), str(self.directory / "launcher")]
        self.program = subprocess.Popen(
            words if scope is None else [*words, str(scope)], stderr=subprocess.DEVNULL
        )
        self.loop, self.heard = loop, job_start.Heard()
        endpoint = LauncherEndpoint(jobs, self.directory / "launcher")
        self.factory = NodeFactory(loop, self.heard, jobs, endpoint)
        while not self.factory.state()[0]:
            loop.run_until_complete(asyncio.sleep(0.01))

    def job(self, number: int) -> tuple[float, float]:
        """(To its process, from that to the report of its end), in ms."""
        started_ms, ended_ms = job_start.job_ms(
            self.loop, self.factory, self.heard, number, LIMITED
        )
        return started_ms, ended_ms - started_ms

    def enter(self) -> float:
        """The move of a process of a command, in ms."""
        self.factory._launcher._controllers = ["cpu", "memory"]
        answers: list[str | None] = []
        with subprocess.Popen(["sleep", "600"]) as command:
            begin_ns = time.monotonic_ns()
            key = process_key(command.pid, start_ticks(command.pid) or 0)
            self.factory.enter("bench", key, leaf_limits.of_run(LIMITED), answers.append)
            while not answers:
                self.loop.run_until_complete(asyncio.sleep(0))
            took_ms = (time.monotonic_ns() - begin_ns) / 1e6
            command.kill()
        if answers[0] is not None:
            raise SystemExit(answers[0])
        return took_ms

    def close(self) -> None:
        self.factory.close()
        self.program.kill()
        self.program.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def enable(scope: Path) -> None:
    """Let the cgroups below have the controllers that the hierarchy has."""
    for name in (scope / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):  # some cannot be where processes are
            (scope / "cgroup.subtree_control").write_text(f"+{name}")


def measure(options: argparse.Namespace, scope: Path) -> None:
    loop = asyncio.new_event_loop()
    plain, limited = Side(loop, None), Side(loop, scope)
    samples = [(plain.job(n), limited.job(n)) for n in range(options.rounds + 5)][5:]
    runs = [limited.enter() for _ in range(options.rounds)]
    for number in range(options.rounds + 5, options.jobs):
        limited.job(number)
    left = [path for path in scope.glob("*/*") if path.is_dir() and path.name.startswith("j")]
    for side in (plain, limited):
        side.close()
    loop.close()
    for part, what, limit_ms in ((0, "start", START_MS), (1, "end", END_MS)):
        without, with_one = [[pair[side][part] for pair in samples] for side in (0, 1)]
        rows = [(f"{what} without a cgroup", without), (f"{what} with one", with_one)]
        table(f"{what} of a job", rows, "ms", rows[0][0])
        more_ms = statistics.median(with_one) - statistics.median(without)
        against_target(f"median, {what}, more with a cgroup", more_ms, limit_ms, "ms")
    table("run", [("a command is moved", runs)], "ms")
    against_target("median, a command is moved", statistics.median(runs), RUN_MS, "ms")
    print(f"directories left by {max(options.jobs, len(samples) + 5)} jobs: {len(left)}")
    if left:
        miss("a job left its directory")


def measure_grants(rounds: int) -> None:
    """One client; its environment has limits in each second block of requests."""
    times: dict[str, list[float]] = {"without limits": [], "with limits": []}
    limits = {"cpus": 1, "host_memory_bytes": 1 << 30}
    with Node("2x8GiB") as node:
        node.call("quota_set", env="bench", gpus=1)
        client = Client(node.env_dir("bench"))
        for rid in range(1, 2 * rounds + 1):
            is_limited = rid // BLOCK % 2 == 1
            if rid % BLOCK == 0:
                now = limits if is_limited else dict.fromkeys(limits)
                node.call("quota_set", env="bench", gpus=1, **now)
            packet = grant_latency.request(rid)
            taken_us = timed(grant_latency.ask, client, packet)
            times["with limits" if is_limited else "without limits"].append(taken_us)
            grant_latency.give_back(client, rid)
            time.sleep(grant_latency.SETTLE_S)
    rows = list(times.items())
    table("grant", rows, "µs", rows[0][0])
    plain_us, limited_us = (statistics.median(values) for _, values in rows)
    more_percent = 100 * (limited_us / plain_us - 1)
    against_target("median, a grant with limits, more", more_percent, GRANT_PERCENT, "%")


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--grants", type=int, default=2_000)
    options = parse(parser, rounds=3, jobs=10, grants=10)
    measure_grants(options.grants)
    scope = (cgroups.mount_point() or Path("/nowhere")) / f"nodemgr-bench-{os.getpid()}"
    try:
        scope.mkdir()
        enable(scope)
    except OSError as error:
        raise SystemExit(f"no cgroup of version 2 can be made here: {error}") from None
    try:
        measure(options, scope)
    finally:
        for path in sorted(scope.rglob("*/"), reverse=True):
            path.rmdir()
        scope.rmdir()
    return options


if __name__ == "__main__":
    finish(main())
