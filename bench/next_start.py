"""From the end of one job to the start of the next job's process.

Both need the only GPU of the node.

    python bench/next_start.py [--jobs 200]

The supervisors record both times: the first when no process of its job is left, the second when it
has started its process. Between them lie the end on the disk, the end in the store, a scheduling
pass, the durable start in the store, and two forks. The references are the two disk writes that
cannot be avoided (an append and fsync each), and a process that starts another one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from arguments import parse
from node import Node, against_target, finish, table
from nodemgr.edge.store.database import FILE_NAME
from submit_rate import Submitter

TARGET_MS = 20.0


def disk_ms(directory: Path, rounds: int) -> list[float]:
    """Two appends, each waited for."""
    found = []
    with open(directory / "appended", "wb", buffering=0) as file:
        for _ in range(rounds):
            begin_ns = time.monotonic_ns()
            for _ in range(2):
                file.write(b"x" * 4_096)
                os.fsync(file.fileno())
            found.append((time.monotonic_ns() - begin_ns) / 1e6)
    return found


def process_ms(rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        begin_ns = time.monotonic_ns()
        pid = os.posix_spawn("/bin/true", ["/bin/true"], {})
        found.append((time.monotonic_ns() - begin_ns) / 1e6)
        os.waitpid(pid, 0)
    return found


def between_ms(node: Node, jobs: int) -> list[float]:
    """Of jobs that are done one after the other."""
    submitter = Submitter(node, "alice")
    for _ in range(jobs):
        submitter.send_small()
    last = [submitter.answer() for _ in range(jobs)][-1]
    submitter.close()
    node.call("job_wait", jobs=[last])
    with sqlite3.connect(f"file:{node.state_dir / FILE_NAME}?mode=ro", uri=True) as db:
        attempts = [
            json.loads(value)["job"]["attempts"][-1]
            for (value,) in db.execute("SELECT value FROM history ORDER BY number")
        ]
    db.close()
    return [
        (after["started_wall_ns"] - before["ended_wall_ns"]) / 1e6
        for before, after in itertools.pairwise(attempts)
    ]


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=200)
    options = parse(parser, jobs=4)
    jobs = options.jobs
    with tempfile.TemporaryDirectory(prefix="nmb", dir="/tmp") as name, Node("1x80GiB") as node:
        node.call("quota_set", env="alice", gpus=1)
        found = between_ms(node, jobs)
        rows = [
            ("end to next start", found),
            ("two waits for the disk", disk_ms(Path(name), jobs)),
            ("one process", process_ms(jobs)),
        ]
    table("From the end of a job to the start of the next", rows, "ms", "two waits for the disk")
    against_target("end to next start, median", statistics.median(found), TARGET_MS, "ms")
    return options


if __name__ == "__main__":
    finish(main())
