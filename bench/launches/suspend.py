"""Suspension and resume of a task with 1 GiB on the simulator, by order, through the manager.

    python bench/launches/suspend.py [--rounds 50]

Each order goes over the control socket to the manager, from it to the suspension process, and
back. The reference is a copy of as many bytes within host memory. The simulator takes the time of
its model's bus for them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from client_plugin.ways import locations
from node import Node, against_target, finish, table
from nodemgr.paths import payload_dir

GIB = 1 << 30
TARGET_MS = 500.0
HOLD = payload_dir() / "nodemgr" / "_sim" / "hold"


def copy_ms(rounds: int) -> list[float]:
    """A copy of 1 GiB within host memory."""
    source, target = bytearray(GIB), bytearray(GIB)
    found = []
    for _ in range(min(rounds, 5)):
        began_s = time.perf_counter()
        target[:] = source
        found.append((time.perf_counter() - began_s) * 1e3)
    return found


def orders_ms(node: Node, rounds: int) -> tuple[list[float], list[float]]:
    """The times of both orders."""
    found: dict[str, list[float]] = {"task_suspend": [], "task_resume": []}
    for _ in range(rounds):
        for verb, times in found.items():
            began_s = time.perf_counter()
            node.call(verb, task="t1")
            times.append((time.perf_counter() - began_s) * 1e3)
    return found["task_suspend"], found["task_resume"]


def holder(node: Node) -> subprocess.Popen[Any]:
    """A program that holds 1 GiB."""
    around = {
        **os.environ,
        "NODEMGR_ENV_DIR": str(node.env_dir("alice")),
        "LD_LIBRARY_PATH": str(node.run_dir / "sim"),
        "LD_PRELOAD": locations.preload_entry(),
    }
    program = subprocess.Popen(
        [str(HOLD), "-b", str(GIB)],
        env=around,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert program.stdout is not None
    program.stdout.readline()
    return program


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50)
    options = parse(parser, rounds=1)
    with Node("1x4GiB") as node:
        node.call("quota_set", env="alice", gpus=1)
        program = holder(node)
        suspend, resume = orders_ms(node, options.rounds)
        program.communicate()
    rows = [("suspend", suspend), ("resume", resume), ("copy", copy_ms(options.rounds))]
    table("1 GiB of a task to host memory and back", rows, "ms", "copy")
    against_target("suspend, median", statistics.median(suspend), TARGET_MS, "ms")
    against_target("resume, median", statistics.median(resume), TARGET_MS, "ms")
    return options


if __name__ == "__main__":
    finish(main())
