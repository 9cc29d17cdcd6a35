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
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodemgr.edge.api.client_verbs import LONG_PART_BYTES, pages
from nodemgr.edge.page import process
from nodemgr.edge.page.address import listen, url
from nodemgr.edge.page.server import PageSettings, read_files
from nodemgr.edge.rpc.wire import PACKET_BYTES
from tests.session import TMP
from tests.support.packets import decode

GIB = 2**30
ENVS = ("alice", "bob", "carol", "dana", "erin", "frank", "grace", "heidi")
SHOWN = 200
"""The rows of the queue in a view."""
ARRAY = range(1, 4)
"""These of the queue are the jobs of one array."""
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

    def __init__(self, gpus: int, tasks: int, waiting: int, elsewhere: int = 0) -> None:
        """`elsewhere`: jobs of a cluster that this node has not; it is in none without."""
        self._random = random.Random(7)
        self.now = time.time()
        self.gpus = [self._gpu(index) for index in range(gpus)]
        self.tasks = [self._task(number) for number in range(gpus * tasks)]
        self.queue = [self._waiting(number) for number in range(waiting)]
        self.elsewhere = [self._elsewhere(number) for number in range(elsewhere)]
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
        env, job = ENVS[number % len(ENVS)], f"j{5_000 + number}"
        if number in ARRAY:
            env, job = ENVS[0], f"j{5_000 + ARRAY[0]}.{number - ARRAY[0]}"
        return {
            "id": job, "request": f"r{number + 1}", "job": job,
            "name": None, "env": env, "gpus": 1 + number % 2, "priority": "normal",
            "position": number + 1, "state": "waiting",
            "reason": f"needs {1 + number % 2} GPUs, 0 free; erin holds GPU 0 since 10:53 UTC",
            "memory_named_bytes": None, "pids": [], "users": [env],
            "command": COMMANDS[number % len(COMMANDS)], "since": int(self.now) - number,
            "waited_seconds": number, "time_limit_seconds": 3_600, "place": None, "after": [],
            "restarts": 0, "interruptions": 0, "resumes": None,
        }  # fmt: skip

    def _elsewhere(self, number: int) -> Row:
        node, state = (None, "queued") if number % 2 else ("gn2", "running")
        name = f"c{number + 1}"
        more = {"id": name, "job": name, "request": None, "position": None}
        return {**self._waiting(number), **more, "node": node, "state": state, "reason": ""}

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
            "jobs": self.jobs(env), "violations": [], "residues": [],
            "store": {"state": "ok", "error": None},
            "launcher": {"state": "ok", "error": None}, "tasks": tasks,
        }  # fmt: skip

    def jobs(self, env: str | None) -> list[Row]:
        """One that runs in a cgroup."""
        row = {
            "id": "j0", "job": "j0", "request": None, "env": ENVS[0], "users": [ENVS[0]],
            "state": "running", "position": None, "gpus": 0, "priority": "normal", "reason": "runs",
            "since": int(self.now) - 90, "command": COMMANDS[0], "name": None, "indices": None,
            "cpu_seconds": 83.5, "host_memory_bytes": GIB, "host_peak_bytes": 3 * GIB,
            "read_bytes": 20 << 20, "written_bytes": 0,
        }  # fmt: skip
        return [row] if env in (None, ENVS[0]) else []

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
                 "ran_seconds": 3_000, "ran_at_least": False, "cpu_seconds": 83.5,
                 "host_peak_bytes": 3 * GIB, "read_bytes": 20 << 20, "written_bytes": 0,
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

    async def serve(self, sock: socket.socket) -> None:
        """Answers the questions of one connection."""
        loop = asyncio.get_running_loop()
        with sock, contextlib.suppress(OSError):
            while packet := await loop.sock_recv(sock, PACKET_BYTES):
                fields = decode(packet).fields
                order = json.loads(str(fields["argument"]))
                perform = self._verbs.get(order["verb"])
                answer: object = {"code": "not_found", "error": "not in the stand-in"}
                if perform is not None:
                    answer = perform(order["by"], order["args"])
                parts = list(pages(answer, LONG_PART_BYTES))
                for index, data in enumerate(parts):
                    head = f"rid={fields['rid']}\nindex={index}\ncount={len(parts)}"
                    part = f"NODEMGR/1 PART\n{head}\ndata={data}\n"
                    await loop.sock_sendall(sock, part.encode())

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
        if given.get("after") == "cluster:":
            return {"queue": self.world.elsewhere, "queues": [], "after": None}
        first = int(given.get("after") or 0)
        last = first + given.get("limit", SHOWN)
        end = "cluster:" if self.world.elsewhere else None
        after = str(last) if last < len(self.world.queue) else end
        return {"queue": self.world.queue[first:last], "queues": [], "after": after}


async def _answer(views: Path, world: World) -> None:
    loop, stand_in = asyncio.get_running_loop(), StandIn(world)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.setblocking(False)
    listener.bind(str(views))
    listener.listen()

    async def accept() -> None:
        async with asyncio.TaskGroup() as serving:
            while True:
                sock, _ = await loop.sock_accept(listener)
                serving.create_task(stand_in.serve(sock))

    accepting = loop.create_task(accept())
    await asyncio.to_thread(sys.stdin.read)
    accepting.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("--gpus", 16),
        ("--tasks", 50),
        ("--waiting", 1_000),
        ("--elsewhere", 0),
    ):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    listeners = listen("127.0.0.1", 0)
    with tempfile.TemporaryDirectory(prefix="nmp", dir=TMP) as directory:
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
            asyncio.run(_answer(views, World(**vars(options))))
        finally:
            os.kill(page, signal.SIGTERM)
            os.waitpid(page, 0)


if __name__ == "__main__":
    main()
