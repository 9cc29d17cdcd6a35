"""The processor time of `nodemgr top`, and the bytes that it writes, on a big node.

    python bench/faces/top.py [--seconds 20] [--gpus 16] [--tasks 50] [--waiting 1000]

`--tasks` is per GPU. A stand-in for the manager answers, and every figure changes each second.
`--events N` lets N events come in a second: each has the whole view read again.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import os
import pty
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from node import ROOT, against_target, cpu_s, finish

TARGET_PERCENT = 2.0
SIZES = {"80x24": (80, 24), "200x60": (200, 60)}
GIB = 2**30
READY = "ready"


class Cost(NamedTuple):
    percent: float
    """Of a core."""
    bytes_per_second: float


# -- the stand-in


def gpu(index: int, tasks: int) -> dict[str, Any]:
    return {
        "index": index, "uuid": f"GPU-{index}", "name": "Sim", "state": "healthy",
        "memory_total_bytes": 80 * GIB, "memory_granted_bytes": 80 * GIB, "tasks": tasks,
        "envs": ["alice", "bob"],
    }  # fmt: skip


def task(number: int, gpus: int) -> dict[str, Any]:
    env = ("alice", "bob")[number // gpus % 2]
    return {
        "id": f"t{number}", "job": None, "env": env, "state": "running",
        "gpus": [f"GPU-{number % gpus}"], "gpu_indices": [number % gpus], "pids": [number],
        "command": "python train.py --config large.yaml", "duration_seconds": number,
        "users": [env], "memory_limit_bytes": [40 * GIB], "last_beat_age_seconds": 0,
        "places": [{"pid": number, "pid_inside": None, "user": env, "container": None,
                    "container_name": f"{env}-lab"}],
    }  # fmt: skip


def waiting(number: int, now_s: float) -> dict[str, Any]:
    return {
        "id": f"j{number}", "request": f"r{number}", "job": f"j{number}", "name": "sweep",
        "env": "alice", "gpus": 2, "priority": "normal", "position": number, "state": "queued",
        "reason": "needs 2 GPUs, 0 free", "users": ["alice"],
        "command": "python sweep.py", "waited_seconds": number, "place": None,
        "expected_start": int(now_s) + 60 * number, "expected_spread_seconds": 30,
    }  # fmt: skip


class Answers:
    """The views of a node whose figures are others in each answer."""

    def __init__(self, gpus: int, tasks: int, waiting_jobs: int) -> None:
        self._random = random.Random(1)
        self._gpus = [gpu(index, tasks) for index in range(gpus)]
        self._tasks = [task(number, gpus) for number in range(gpus * tasks)]
        self._queue = [waiting(number, time.time()) for number in range(1, waiting_jobs + 1)]

    def of(self, verb: str) -> dict[str, Any]:
        if verb == "queue":
            return {"queue": self._queue[:200], "queues": [], "after": None}
        gpus, tasks = self._figures()
        if verb == "figures":
            return {"schema_version": 1, "gpus": gpus, "tasks": tasks}
        return {
            "schema_version": 1, "queue": self._queue[:200], "queue_length": len(self._queue),
            "envs": [], "jobs": [], "violations": [], "residues": [],
            "placement": {
                "setting": "auto", "in_force": "spread", "meaning": "fewest tasks first",
                "fault": None,
            },
            "gpus": [{**row, **more} for row, more in zip(self._gpus, gpus, strict=True)],
            "tasks": [{**row, **more} for row, more in zip(self._tasks, tasks, strict=True)],
        }  # fmt: skip

    def _figures(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        number = self._random.randrange
        gpus = [
            {"uuid": row["uuid"], "utilization_percent": number(101), "power_w": 70.5 + number(600),
             "temperature_c": 35 + number(50), "memory_used_bytes": number(80 * GIB)}
            for row in self._gpus
        ]  # fmt: skip
        tasks = [
            {"id": row["id"], "utilization_percent": number(101), "idle_seconds": number(60),
             "idle_source": "nvml", "host_cpu_percent": number(400),
             "host_memory_bytes": number(9 * GIB), "memory_bytes": (used := number(GIB)),
             "gpu_memory_bytes": [used]}
            for row in self._tasks
        ]  # fmt: skip
        return gpus, tasks


def stand_in(run_dir: Path, answers: Answers, events: float) -> None:
    """Answers until it is killed."""
    from tests.cli.conftest import RunningManager

    verbs = {
        verb: lambda verb=verb, **_: answers.of(verb) for verb in ("status", "queue", "figures")
    }
    manager = RunningManager(run_dir, verbs)
    manager.start()
    print(READY, flush=True)
    for number in itertools.count(1):
        time.sleep(1 / events if events else 3_600)
        manager.publish({"sequence": number, "name": "quota.set"})


# -- the measurement


def cost(run_dir: Path, size: tuple[int, int], seconds: float, settle_s: float) -> Cost:
    """Of `nodemgr top` on a terminal of its own, once it has settled."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    said = {"NODEMGR_RUN_DIR": str(run_dir), "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    process = subprocess.Popen(
        [sys.executable, "-m", "nodemgr", "top"],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**environment, **said}, cwd="/",
    )  # fmt: skip
    os.close(theirs)
    written = [0]

    def read() -> None:
        try:
            while piece := os.read(ours, 65_536):
                written[0] += len(piece)
        except OSError:
            pass  # it has ended

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    time.sleep(settle_s)
    if process.poll() is not None:
        raise SystemExit(f"nodemgr top ended with {process.returncode}")
    began_s, before_s, before = time.monotonic(), cpu_s(process.pid), written[0]
    time.sleep(seconds)
    took_s = time.monotonic() - began_s
    found = Cost(100 * (cpu_s(process.pid) - before_s) / took_s, (written[0] - before) / took_s)
    process.kill()
    process.wait()
    reader.join()
    os.close(ours)
    return found


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--gpus", type=int, default=16)
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--waiting", type=int, default=1_000)
    parser.add_argument("--events", type=float, default=0.0)
    parser.add_argument("--settle", type=float, default=4.0, metavar="SECONDS")
    parser.add_argument("--stand-in", type=Path, help=argparse.SUPPRESS)
    options = parse(parser, seconds=0.3, settle=0.5, gpus=2, tasks=3, waiting=5)
    node = ("--gpus", options.gpus, "--tasks", options.tasks, "--waiting", options.waiting)
    if options.stand_in is not None:
        answers = Answers(options.gpus, options.tasks, options.waiting)
        stand_in(options.stand_in, answers, options.events)
    run_dir = Path(tempfile.mkdtemp(prefix="nmb", dir="/tmp"))
    command = [sys.executable, __file__, "--stand-in", run_dir, *node, "--events", options.events]
    with subprocess.Popen(map(str, command), stdout=subprocess.PIPE) as manager:
        assert manager.stdout is not None
        manager.stdout.readline()
        try:
            found = {
                f"top, {size}": cost(run_dir, SIZES[size], options.seconds, options.settle)
                for size in SIZES
            }
        finally:
            manager.kill()
            shutil.rmtree(run_dir, ignore_errors=True)
    what = f"{options.gpus} GPUs, {options.gpus * options.tasks} tasks, {options.waiting} waiting"
    print(f"\n{what}, {options.seconds:g} s each\n{'':24} {'% of a core':>12} {'bytes/s':>9}")
    for what, one in found.items():
        print(f"{what:24} {one.percent:12.2f} {one.bytes_per_second:9.0f}")
    for what, one in found.items():
        against_target(what, one.percent, TARGET_PERCENT, "% of a core")
    return options


if __name__ == "__main__":
    finish(main())
