"""A stand-in for the manager's end of the page's socket: a node of any size with changing figures.

    python -m tests.browser.page_node [--gpus 16] [--tasks 50] [--waiting 1000]

Prints one line of JSON (url, pid of the page process), and serves until its input ends. The page
process is the real one. The tokens are `admin` and `env`. Knows: the forms of rows. Must not know:
a manager, a browser.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodemgr.edge.page import process
from nodemgr.edge.page.address import listen, url
from nodemgr.edge.page.server import PageSettings, read_files

GIB = 2**30
ENVS = ("alice", "bob", "carol", "dana", "erin", "frank", "grace", "heidi")
SHOWN = 200
"""The rows of the queue in a view."""
DAY_S = 86_400
COMMANDS = (
    "python train.py --model resnet50 --batch 256",
    "python -m ipykernel_launcher -f kernel-1f2e.json",
    "torchrun --nproc-per-node 2 pretrain.py --config base.toml",
    "python evaluate.py --checkpoint last.pt",
)
Row = dict[str, Any]


class World:
    """The rows of a node. `turn` changes every figure, as readings do each second."""

    def __init__(self, gpus: int, tasks_of_gpu: int, waiting: int) -> None:
        self._random = random.Random(7)
        self.now = time.time()
        self.gpus = [self._gpu(index) for index in range(gpus)]
        self.tasks = [self._task(number) for number in range(gpus * tasks_of_gpu)]
        self.queue = [self._waiting(number) for number in range(waiting)]
        for gpu in self.gpus:
            own = [task for task in self.tasks if gpu["uuid"] in task["gpus"]]
            gpu["tasks"], gpu["task_ids"] = len(own), [task["id"] for task in own]
            gpu["envs"] = sorted({task["env"] for task in own})
            gpu["memory_granted_bytes"] = len(gpu["envs"]) * 10 * GIB
        self.turn()

    def _gpu(self, index: int) -> Row:
        return {
            "index": index, "uuid": f"GPU-{index:08x}", "name": "Stand-in GPU",
            "memory_total_bytes": 80 * GIB, "memory_granted_bytes": 0, "memory_used_bytes": 0,
            "memory_remaining_bytes": 80 * GIB, "memory_residue_bytes": 0,
            "memory_unbooked_bytes": 0, "tasks": 0, "task_ids": [], "envs": [],
            "state": "healthy", "utilization_percent": 0, "temperature_c": 40, "power_w": 90.0,
        }  # fmt: skip

    def _task(self, number: int) -> Row:
        gpu = number % len(self.gpus)
        env = ENVS[(number // len(self.gpus)) % len(ENVS)]
        return {
            "id": f"t{number + 1}", "job": f"j{number + 1}" if number % 3 == 0 else None,
            "env": env, "state": "active", "gpus": [f"GPU-{gpu:08x}"], "gpu_indices": [gpu],
            "pids": [10_000 + number], "command": COMMANDS[number % len(COMMANDS)],
            "since": int(self.now) - self._random.randrange(DAY_S), "memory_named_bytes": None,
            "users": [env], "processes": 1, "transports": ["unix"], "places": [],
            "memory_limit_bytes": [10 * GIB], "connected": 1, "duration_seconds": 1,
            "last_beat_age_seconds": 1, "memory_bytes": 0, "gpu_memory_bytes": [0],
            "utilization_percent": 0, "gpu_utilization_percent": [0], "idle_seconds": 0,
            "idle_source": "nvml", "host_cpu_percent": 0, "host_memory_bytes": 2 * GIB,
        }  # fmt: skip

    def _waiting(self, number: int) -> Row:
        env = ENVS[number % len(ENVS)]
        return {
            "id": f"j{5_000 + number}", "request": f"r{number + 1}", "job": f"j{5_000 + number}",
            "name": None, "env": env, "gpus": 1 + number % 2, "priority": "normal",
            "position": number + 1, "state": "waiting",
            "reason": f"needs {1 + number % 2} GPUs, 0 free; {env} holds GPU 0 since 10:53 UTC",
            "memory_named_bytes": None, "pids": [], "users": [env],
            "command": COMMANDS[number % len(COMMANDS)], "since": int(self.now) - number,
            "waited_seconds": number, "time_limit_seconds": 3_600, "place": None, "after": [],
            "restarts": 0, "interruptions": 0, "resumes": None,
        }  # fmt: skip

    def turn(self) -> None:
        chance = self._random
        self.now = time.time()
        for gpu in self.gpus:
            gpu["memory_used_bytes"] = chance.randrange(20, 60) * GIB
            gpu["utilization_percent"] = chance.randrange(101)
            gpu["temperature_c"], gpu["power_w"] = chance.randrange(40, 85), chance.random() * 600
        for task in self.tasks:
            task["memory_bytes"] = chance.randrange(8 * GIB)
            task["gpu_memory_bytes"] = [task["memory_bytes"]]
            task["utilization_percent"] = chance.randrange(60)
            task["gpu_utilization_percent"] = [task["utilization_percent"]]
            task["host_cpu_percent"] = chance.randrange(400)
            task["idle_seconds"] = chance.randrange(9)

    def view(self, env: str | None) -> Row:
        tasks = [task for task in self.tasks if env in (None, task["env"])]
        queue = [row for row in self.queue if env in (None, row["env"])]
        quota = {"gpus": 4, "memory_bytes": 40 * GIB, "default_gpus": None, "priority": "normal",
                 "max_priority": None, "users": [], "groups": []}  # fmt: skip
        envs = [
            {"name": name, "quota": {"env": name, **quota}, "gpus": [], "gpu_indices": [],
             "memory_remaining_bytes": 0, "memory_granted_bytes": 40 * GIB, "tasks": 0,
             "waiting": 0, "jobs": 0}
            for name in ENVS if env in (None, name)
        ]  # fmt: skip
        return {
            "scope": "admin" if env is None else "env", "now": self.now, "schema_version": 1,
            "gpus": self.gpus, "envs": envs, "queue": queue[:SHOWN], "queue_length": len(queue),
            "jobs": [], "violations": [], "residues": [], "store": {"state": "ok", "error": None},
            "launcher": {"state": "ok", "error": None}, "tasks": tasks,
        }  # fmt: skip

    def leases(self) -> list[Row]:
        """Of the last day, some on each GPU; the same each time."""
        chance = random.Random(3)
        rows: list[Row] = []
        for gpu in self.gpus:
            began = int(self.now) - DAY_S
            while began < self.now:
                began += chance.randrange(3_600)
                env, held_s = chance.choice(ENVS), chance.randrange(4 * 3_600)
                rows.append({
                    "record": len(rows), "task": f"t{len(rows)}", "env": env, "user": env,
                    "job": None, "gpus": [gpu["uuid"]], "gpu_indices": [gpu["index"]],
                    "command": chance.choice(COMMANDS), "asked": began - 60, "began": began,
                    "waited_seconds": 60, "waited_at_least": False, "ran_seconds": held_s,
                    "ran_at_least": False,
                    "ended": None if began + held_s > self.now else began + held_s,
                    "why": "released",
                })  # fmt: skip
                began += held_s // 2
        return [row for row in rows if row["began"] < self.now]

    def samples(self, given: Mapping[str, Any]) -> Row:
        chance = random.Random(4)
        since = given["since_wall_ns"] // 10**9
        until = given.get("until_wall_ns", int(self.now * 1e9)) // 10**9
        step_s = max(60, (until - since) // 288)
        count = (until - since) // step_s
        return {
            "step_s": step_s, "since": since,
            "gpus": {
                gpu["uuid"]: {
                    "utilization_percent": [chance.randrange(30, 95) for _ in range(count)]
                }
                for gpu in self.gpus
            },
        }  # fmt: skip

    def history(self) -> list[Row]:
        return [self.job(f"j{number + 1}") for number in range(SHOWN)]

    def job(self, job_id: str) -> Row:
        ended = int(self.now) - 600
        return {
            "job": job_id, "env": ENVS[0], "name": None, "command": COMMANDS[0], "user": ENVS[0],
            "state": "done", "exit_code": 0, "signal": None, "why": "", "gpus": 1,
            "memory_named_bytes": None, "priority": "normal", "time_limit_seconds": 3_600,
            "after": [], "restarts": 0, "max_restarts": 0, "interruptions": 0, "resumes": None,
            "submitted": ended - 4_000, "entered": ended - 4_000, "started": ended - 3_000,
            "waited_seconds": 1_000, "waited_at_least": False, "ran_seconds": 3_000,
            "ran_at_least": False, "ended": ended, "cwd": "/home/alice/work", "place": None,
            "attempts": [
                {"number": 1, "started": ended - 3_000, "ended": ended, "gpus": ["GPU-00000000"],
                 "gpu_indices": [0], "exit_code": 0, "signal": None, "why": "", "cause": "ended",
                 "ran_seconds": 3_000, "ran_at_least": False,
                 "log_tail": "epoch 9: loss 0.31\nsaved last.pt"}
            ],
            "deeds": [{"time": ended - 4_000, "who": ENVS[0], "what": "submitted"}],
        }  # fmt: skip

    def public(self) -> Row:
        totals = {
            "gpus": len(self.gpus), "gpus_healthy": len(self.gpus), "gpus_held": len(self.gpus),
            "memory_total_bytes": len(self.gpus) * 80 * GIB, "memory_granted_bytes": 0,
            "memory_used_bytes": sum(gpu["memory_used_bytes"] for gpu in self.gpus),
            "utilization_percent": 50, "power_w": sum(gpu["power_w"] for gpu in self.gpus),
            "tasks": len(self.tasks), "waiting": len(self.queue),
        }  # fmt: skip
        queues = [{"name": "normal", "length": len(self.queue)}]
        return {"scope": "public", "schema_version": 1, "now": self.now, "totals": totals,
                "queues": queues}  # fmt: skip


class StandIn:
    """Answers the verbs that a page asks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._verbs = {
            "view": self._view, "judge": self._judge, "queue": self._queue,
            "history": lambda _token, _given: {"history": self.world.history(), "before": None},
            "leases": lambda _token, _given: {"leases": self.world.leases(), "before": None},
            "samples": lambda _token, given: self.world.samples(given),
            "report": lambda _token, _given: {"envs": []},
            "job_show": self._job,
        }  # fmt: skip

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while line := await reader.readline():
                asked = json.loads(line)
                perform = self._verbs.get(asked["verb"])
                answer: Row = {"ok": False, "code": "not_found", "error": "not in the stand-in"}
                if perform is not None:
                    answer = {"ok": True, "result": perform(asked["token"], asked["args"])}
                writer.write(json.dumps({"id": asked["id"], **answer}).encode() + b"\n")
                await writer.drain()

    def _view(self, token: str | None, _given: Mapping[str, Any]) -> Row:
        self.world.turn()
        if token is None:
            return self.world.public()
        return self.world.view(None if token == "admin" else ENVS[0])

    def _job(self, _token: str | None, given: Mapping[str, Any]) -> Row:
        return {"jobs": [self.world.job(given["job"])]}

    @staticmethod
    def _judge(_token: str | None, given: Mapping[str, Any]) -> list[Row]:
        expires = int(time.time()) + 3_600
        return [
            {"scope": "admin" if token == "admin" else "env",
             "env": None if token == "admin" else ENVS[0], "token": "w1", "expires": expires}
            for token in given["tokens"]
        ]  # fmt: skip

    def _queue(self, _token: str | None, given: Mapping[str, Any]) -> Row:
        first = int(given.get("after") or 0)
        last = first + given.get("limit", SHOWN)
        after = str(last) if last < len(self.world.queue) else None
        return {"queue": self.world.queue[first:last], "queues": [], "after": after}


async def _answer(views: Path, world: World) -> None:
    server = await asyncio.start_unix_server(StandIn(world).serve, views, limit=2**24)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("--gpus", 16), ("--tasks", 50), ("--waiting", 1_000)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    listeners = listen("127.0.0.1", 0)
    with tempfile.TemporaryDirectory(prefix="nmp", dir="/tmp") as directory:
        views = Path(directory) / "views"
        page = os.fork()
        if page == 0:
            sys.stdin.close()
            asyncio.run(process.run(views, PageSettings((), "/"), read_files(), listeners))
            os._exit(0)
        print(json.dumps({"url": url(listeners, "/"), "page_pid": page}), flush=True)
        for listener in listeners:
            listener.close()
        try:
            asyncio.run(_answer(views, World(options.gpus, options.tasks, options.waiting)))
        finally:
            os.kill(page, signal.SIGTERM)
            os.waitpid(page, 0)


if __name__ == "__main__":
    main()
