"""A cluster's head: a pass at many nodes and jobs, reports of nodes, an idle head.

    python bench/cluster/head.py

Times are of the processor, which other programs do not add to. The first pass fills all nodes; each
later one comes after the ends of some jobs. A report is one frame of a node by which a job begins
or ends: read, decided, stored in SQLite with a full sync, acknowledged. The idle head has its
socket, its store and no node. Beside the pass stands one look at every node, the least that any
pass over them costs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from arguments import parse
from nodemgr.core.cluster import events, gpu_rooms, gpu_shares
from nodemgr.core.cluster.entities import ClusterJob, NodeGpu
from nodemgr.core.cluster.events import NodeAnswer
from nodemgr.core.cluster.head import step
from nodemgr.core.cluster.state import ClusterDraft
from nodemgr.core.model.entities import JobState, TaskClass
from nodemgr.head.node_sessions import NodeSessions
from nodemgr.head.service import HeadService, make

S = 1_000_000_000
HOUR_MS = 3_600_000
ENVS = 100
GIB = 1 << 30
IDLE = (NodeGpu(80 * GIB, 80 * GIB),)
CLASSES = (*TaskClass, TaskClass.NORMAL)


class Clocked:
    """A state on a clock of its own."""

    def __init__(self) -> None:
        self.state, self.now_ns = ClusterDraft("hq"), S

    def happens(self, event: events.ClusterEvent) -> float:
        """Milliseconds of processor time, with the rows applied."""
        self.now_ns += 1_000_000
        began = time.process_time_ns()
        step(self.state, event, self.now_ns).apply()
        return (time.process_time_ns() - began) / 1e6


def filled(nodes: int, gpus: int, jobs: int, dice: random.Random, shared: float) -> Clocked:
    made = Clocked()
    for number in range(ENVS):
        quota = '{"task_class":"latency-sensitive"}'
        made.happens(events.SetEnv(f"e{number}", nodes * gpus // 10, quota=quota))
    for number in range(nodes):
        name = f"n{number:04}"
        made.happens(events.AddNode(name, f"key {number}"))
        made.happens(events.Synced(name, 1, "g", "b", 0, gpus, (), (), shares=IDLE * gpus))
    for number in range(jobs):
        env, limit = number % ENVS, dice.choice((None, HOUR_MS, 8 * HOUR_MS))
        gpus_of_job, percent, memory = dice.choice((1, 1, 1, 1, 2, 2, 4, gpus)), None, None
        if shared and dice.random() < shared:  # those of an environment are of two kinds
            kind = (env + dice.randint(0, 1)) % 3
            gpus_of_job, percent, memory = 1, (20, 30, 50)[kind], GIB * (10, 20, 40)[kind]
        job = ClusterJob(
            "", f"e{env}", "ann", gpus_of_job, limit, compute_percent=percent, memory_bytes=memory,
            task_class=CLASSES[env % 4] if percent else TaskClass.NORMAL,
        )  # fmt: skip
        made.happens(events.Submit((job,)))
    return made


def ends(made: Clocked, count: int, dice: random.Random, numbers: dict[str, int]) -> None:
    """So many jobs that run have ended, and those that were given have begun."""
    state = made.state
    for row in list(state.assignments.values()):
        if row.began_ns is None and row.number % 3:
            _report(made, row, numbers, began=True, over=False)
    for row in dice.sample(list(state.assignments.values()), count):
        _report(made, row, numbers, began=True, over=True)


def reported(state: ClusterDraft, node: str, ended: int) -> tuple[NodeGpu, ...]:
    """The node's GPUs with what has begun there."""
    gpus = [gpu_rooms.GpuRoom.of(*IDLE) for _ in range(state.nodes[node].gpus)]
    numbers: list[list[int]] = [[] for _ in gpus]
    for row in state.at(node):
        if row.began_ns is None or row.number == ended:
            continue
        if row.shares:
            asked = gpu_shares.want(state, row)
            found = gpu_rooms.find(gpus, asked) or []
            for gpu in found:
                gpu.take(asked, len(gpus))
        else:
            found = [gpu for gpu in gpus if not gpu.tasks][: row.gpus]
            for gpu in found:
                gpu.take_whole(row.env)
        for at, gpu in enumerate(gpus):
            numbers[at] += [row.number] * any(gpu is one for one in found)
    return tuple(
        NodeGpu(
            gpu.memory_bytes, gpu.room_bytes, gpu.percent, gpu.is_plain, 0, gpu.tasks,
            tuple(sorted(gpu.envs.items())), tuple(there),
        )
        for gpu, there in zip(gpus, numbers, strict=True)
    )  # fmt: skip


def _report(made: Clocked, row: Any, numbers: dict[str, int], *, began: bool, over: bool) -> None:
    numbers[row.node] = numbers.get(row.node, 0) + 1
    state = JobState.DONE if over else JobState.RUNNING
    answer = NodeAnswer(row.key, row.number, over, began, False, True, state, ran_ms=10_000)
    gpus = made.state.nodes[row.node].gpus
    shares = reported(made.state, row.node, row.number if over else 0)
    made.happens(
        events.NodeReport(row.node, 1, numbers[row.node], gpus, (), (answer,), shares=shares)
    )


def passes(args: argparse.Namespace, shared: float) -> None:
    dice, numbers = random.Random(1), dict[str, int]()
    made = filled(args.nodes, args.gpus, args.jobs, dice, shared)
    gc.collect()
    gc.freeze()
    print(
        f"{args.nodes} nodes of {args.gpus} GPUs, {args.jobs} jobs, {ENVS} environments; "
        f"{shared:.0%} of the jobs share GPUs"
    )
    print(f"{'pass':34}{'ms':>9}{'worst':>9}")
    first = made.happens(events.Pass())
    print(f"{'first, ' + str(len(made.state.assignments)) + ' jobs get a node':34}{first:9.1f}")
    for count in (0, 1, 8, 64):
        times = []
        for _ in range(args.rounds):
            ends(made, min(count, len(made.state.assignments)), dice, numbers)
            times.append(made.happens(events.Pass()))
        text = f"after {count} ends"
        print(f"{text:34}{statistics.median(times):9.1f}{max(times):9.1f}")
    looks = []
    for _ in range(args.rounds):
        began = time.process_time_ns()
        sum(node.gpus for node in made.state.nodes.values() if node.name in made.state.sessions)
        looks.append((time.process_time_ns() - began) / 1e6)
    print(f"{'one look at every node':34}{statistics.median(looks):9.1f}{max(looks):9.1f}")


class Nowhere:
    """Takes what is said to nodes."""

    said, address = 0, ""

    def __init__(self, _sessions: NodeSessions) -> None:
        self.counts = Counter[str]()

    def say(self, _node: str, _kind: str, **_fields: Any) -> bool:
        Nowhere.said += 1
        return True

    def forget(self, _node: str) -> None: ...


def messages(args: argparse.Namespace, path: Path) -> None:
    make(path / "head", "hq", "")
    head = HeadService(path / "head", path / "run", make_links=Nowhere)
    head.open()
    try:
        engine, sessions = head.engine, head.sessions
        engine.happens(events.SetEnv("e", args.reports))
        payload = {"argv": ["true"], "cwd": "/", "environ": ["PATH=/bin"] * 20}
        for number in range(4):
            engine.happens(events.AddNode(f"n{number}", "key"))
        gpus = min(1_000, max(1, args.reports // 4))
        hello = {"generation": "g", "boot_id": "b", "below": 0, "gpus": gpus, "others": []}
        for number in range(4):
            sessions.synced(f"n{number}", 1, {**hello, "answers": []})
        began = time.process_time_ns()
        for _ in range(args.reports):
            engine.happens(events.Submit((ClusterJob("", "e", "ann", 1),)), [payload])
        submit_us = (time.process_time_ns() - began) / 1e3 / args.reports
        engine.happens(events.Pass())
        rows, numbers = list(engine.state.assignments.values()), dict[str, int]()
        began = time.process_time_ns()
        for row in rows:
            for over in (False, True):
                numbers[row.node] = numbers.get(row.node, 0) + 1
                answer = {
                    "key": row.key, "number": row.number, "over": over, "began": True,
                    "job": "j1", "confirmed": True, "state": "done" if over else "running",
                }  # fmt: skip
                said = {"t": "report", "number": numbers[row.node], "gpus": gpus, "others": []}
                sessions.message(row.node, 1, {**said, "answers": [answer]})
        report_us = (time.process_time_ns() - began) / 1e3 / (2 * len(rows))
        print(f"{'one message':34}{'us':>9}{'a second':>9}")
        for what, took_us in (("submission, stored", submit_us), ("report, stored", report_us)):
            print(f"{what:34}{took_us:9.0f}{1e6 / took_us:9.0f}")
    finally:
        head.close()


def idle(args: argparse.Namespace, path: Path) -> None:
    make(path / "idle", "hq", "127.0.0.1:0")
    head = HeadService(path / "idle", path / "run-idle")
    head.open()
    try:
        head.loop.run_until_complete(asyncio.sleep(0.2))
        began = time.process_time_ns()
        head.loop.run_until_complete(asyncio.sleep(args.idle_s))
        share = (time.process_time_ns() - began) / 1e9 / args.idle_s * 100
        print(f"{'an idle head, % of a core':34}{share:9.2f}")
    finally:
        head.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--shared", type=float, default=0.3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--reports", type=int, default=2_000)
    parser.add_argument("--idle-s", type=float, default=10.0)
    args = parse(parser, nodes=10, jobs=200, rounds=2, reports=20, idle_s=0.5)
    passes(args, 0)
    passes(args, args.shared)
    with tempfile.TemporaryDirectory(prefix="nm") as path:
        messages(args, Path(path))
        idle(args, Path(path))


if __name__ == "__main__":
    main()
