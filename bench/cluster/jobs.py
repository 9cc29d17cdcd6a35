"""A cluster's jobs and grants beside the node alone: a real head, and managers on simulated GPUs.

    python bench/cluster/jobs.py

- Freed to started: jobs one after the other on the only GPU of a node, from the end of one to the
  start of the next one's process as the supervisors record both; of the node's own jobs (--here),
  and of the cluster's, of which one is always given to the node ahead of its time.
- Submit to started: a job on an idle node, of the node and of the cluster, in turns.
- An interactive grant on a node without a head, on one with a head, and with that head stopped, in
  turns.
- 1 000 jobs of 0.2 s over 32 GPUs, beside the time that they need at least; messages of the link
  for each, without beats. bench/cluster/slurm.py has them beside Slurm.
- Messages over the link, both ends in one process: processor time of a frame there and back.
- The head with its nodes, while nothing happens.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import pwd
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from client_plugin.ways.choice import UserWay
from client_plugin.ways.control import ControlConnection
from grant_latency import ask, give_back, request
from node import Client, Node, against_target, cpu_s, finish, table
from nodemgr.edge.links import keys
from nodemgr.edge.links.head_links import HeadLinks
from nodemgr.edge.links.node_link import NodeLink
from nodemgr.edge.store.database import FILE_NAME

USER = pwd.getpwuid(os.getuid()).pw_name
TEAM, OWN = "team", "alice"
"""An environment of the cluster, and one of each node."""
FRAMES = ("said", "heard")
QUICK = {"NODEMGR_CLUSTER_USERS": USER}


class Head:
    def __init__(self, directory: Path) -> None:
        self.run_dir = directory / "run"
        make = ["head", "setup", "--dir", str(directory / "head"), "--address", "127.0.0.1:1"]
        program = [sys.executable, "-m", "nodemgr"]
        subprocess.run([*program, *make], check=True, stdout=subprocess.DEVNULL)
        settings = directory / "head" / "settings.json"
        settings.write_text(settings.read_text().replace("127.0.0.1:1", "127.0.0.1:0"))
        serve = ["head", "serve", "--dir", str(directory / "head"), "--run-dir", str(self.run_dir)]
        self.process = subprocess.Popen([*program, *serve], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.address = self.process.stderr.readline().strip().rpartition(" ")[2]

    def call(self, verb: str, **given: Any) -> dict[str, Any]:
        with ControlConnection(self.run_dir, timeout_s=600) as client:
            answer: dict[str, Any] = client.call(verb, **given)
        return answer

    def messages(self) -> int:
        """To and from nodes so far, without beats."""
        lines = self.call("head_metrics")["text"].splitlines()
        counts = dict(line.split() for line in lines if not line.startswith("#"))
        return sum(int(counts[f'nodemgr_head_frames_total{{what="{way}"}}']) for way in FRAMES)

    def takes(self, node: Node, name: str) -> None:
        word = self.call("node_word", node=name)["word"]
        node.call("node_join", address=self.address, word=word, node=name)
        while not (self.call("node_show", node=name)["up"] and node.env_dir(TEAM).exists()):
            time.sleep(0.02)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def submit(node: Node, env: str, number: int, script: str = "true") -> str:
    said = {
        "argv": ["/bin/sh", "-c", script], "cwd": "/", "environ": ["PATH=/usr/bin:/bin"],
        "gpus": 1, "key": f"{number:032x}",
    }  # fmt: skip
    return str(UserWay(node.env_dir(env)).ask("job_submit", timeout_s=60, **said)["job"])


def wait(node: Node, jobs: Sequence[str]) -> None:
    for at in range(0, len(jobs), 100):
        node.call("job_wait", jobs=list(jobs[at : at + 100]))


def attempts(node: Node, env: str) -> list[dict[str, Any]]:
    with sqlite3.connect(f"file:{node.state_dir / FILE_NAME}?mode=ro", uri=True) as db:
        rows = db.execute("SELECT value FROM history WHERE env = ? ORDER BY number", (env,))
        found = [json.loads(value)["job"]["attempts"][-1] for (value,) in rows]
    db.close()
    return found


def started_ms(node: Node, env: str) -> list[float]:
    """From the end of each job to the start of the next one."""
    return [
        (after["started_wall_ns"] - before["ended_wall_ns"]) / 1e6
        for before, after in itertools.pairwise(attempts(node, env))
    ]


def freed(head: Head, jobs: int, numbers: Any) -> None:
    with Node("1x80GiB", **QUICK) as node:
        node.call("quota_set", env=OWN, gpus=1)
        head.takes(node, "freed")
        for env in (OWN, TEAM):
            wait(node, [submit(node, env, next(numbers)) for _ in range(jobs)])
        alone, held = started_ms(node, OWN), started_ms(node, TEAM)
        table("From a job's end to the next one's start", [("the node alone", alone),
              ("a job of the cluster", held)], "ms", "the node alone")  # fmt: skip
        ratio = statistics.median(held) / statistics.median(alone)
        against_target("freed to started, beside the node alone", ratio, 2.0, "times")
        head.call("node_drain", node="freed")


def submitted(head: Head, rounds: int, numbers: Any) -> None:
    with Node("1x80GiB", **QUICK) as node:
        node.call("quota_set", env=OWN, gpus=1)
        head.takes(node, "submitted")
        found: dict[str, list[float]] = {OWN: [], TEAM: []}
        for _, env in itertools.product(range(rounds), (OWN, TEAM)):
            began_ns = time.time_ns()
            wait(node, [submit(node, env, next(numbers))])
            last = attempts(node, env)[-1]
            found[env].append((last["started_wall_ns"] - began_ns) / 1e6)
        table("From submission to the start", [("the node alone", found[OWN]),
              ("a job of the cluster", found[TEAM])], "ms", "the node alone")  # fmt: skip
        head.call("node_drain", node="submitted")


def granted(head: Head, rounds: int) -> None:
    with Node("4x80GiB") as free, Node("4x80GiB", **QUICK) as held:
        for node in (free, held):
            node.call("quota_set", env=OWN, gpus=1)
        free.call("quota_set", env=TEAM, gpus=4)  # as the head gives it to the other one
        head.takes(held, "granted")
        clients = {"without a head": Client(free.env_dir(OWN))}
        clients["with a head"] = Client(held.env_dir(OWN))
        found: dict[str, list[float]] = {"without a head": [], "with a head": []}
        stopped: dict[str, list[float]] = {"without a head, again": [], "with a stopped head": []}
        numbers = itertools.count(10, 10)
        for times, number in ((found, 0), (stopped, signal.SIGSTOP)):
            if number:
                head.process.send_signal(number)
            for turn in range(rounds + 20):
                pairs = list(zip(times, clients.values(), strict=True))
                for name, client in pairs if turn % 2 else pairs[::-1]:
                    rid = next(numbers)
                    packet = request(rid)
                    began_ns = time.perf_counter_ns()
                    ask(client, packet)
                    if turn >= 20:
                        times[name].append((time.perf_counter_ns() - began_ns) / 1e3)
                    give_back(client, rid)
                    time.sleep(0.005)
        head.process.send_signal(signal.SIGCONT)
        table("An interactive grant", [*found.items(), *stopped.items()], "us", "without a head")
        for name, times in (("with a head", found), ("with a stopped head", stopped)):
            first, second = map(statistics.median, times.values())
            against_target(name, second / first, 1.05, "times")
        while not head.call("node_show", node="granted")["up"]:
            time.sleep(0.05)
        head.call("node_drain", node="granted")


def storm(head: Head, nodes: int, jobs: int, numbers: Any, idle_s: float) -> None:
    held = [Node("8x80GiB", **QUICK) for _ in range(nodes)]
    try:
        for number, node in enumerate(held):
            head.takes(node, f"s{number}")
        before_s = cpu_s(head.process.pid)
        time.sleep(idle_s)
        share = (cpu_s(head.process.pid) - before_s) / idle_s * 100
        print(f"\nan idle head with {nodes} nodes, % of a core {share:.2f}")
        against_target("an idle head", share, 5.0, "% of a core")
        made, messages = list[str](), head.messages()

        def submits(node: Node) -> None:
            for _ in range(jobs // nodes):
                made.append(submit(node, TEAM, next(numbers), "sleep 0.2"))

        began, used = time.monotonic(), cpu_s(head.process.pid)
        threads = [threading.Thread(target=submits, args=(node,)) for node in held]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        submitted_s = time.monotonic() - began
        wait(held[0], made)
        took_s, used = time.monotonic() - began, cpu_s(head.process.pid) - used
        frames = (head.messages() - messages) / len(made)
        least_s = len(made) * 0.2 / (8 * nodes)
        print(
            f"{len(made)} jobs of 0.2 s over {8 * nodes} GPUs: {took_s:.1f} s, at least "
            f"{least_s:.1f}; all submitted after {submitted_s:.1f}; the head's processor "
            f"{used * 1e3 / len(made):.1f} ms a job; {frames:.1f} messages of the "
            "link a job"
        )
    finally:
        for node in held:
            node.close()


class Counting:
    heard = 0

    def joined(self, word: str, node: str, key: str, said: Any) -> dict[str, Any]:
        return {}

    def synced(self, node: str, session: int, said: Any) -> None: ...

    def silent(self, node: str, session: int) -> None: ...

    def message(self, node: str, session: int, said: Any) -> None:
        self.heard += 1


def messages(count: int) -> None:
    loop, own, node = asyncio.new_event_loop(), keys.new_pair(), keys.new_pair()
    events = Counting()
    head = HeadLinks(loop, "127.0.0.1:0", own, {"gn1": node.public}, lambda _key: False, {}, events)

    def echo(frame: Any) -> None:
        link.send("report", text=frame["text"])

    link = NodeLink(loop, head.address, own.public, node, dict, echo, lambda _welcome: None)
    while not (link.is_up and head.sessions()):
        loop.run_until_complete(asyncio.sleep(0.01))
    began, cpu = time.monotonic(), time.process_time()
    while events.heard < count:
        sent = events.heard
        for _ in range(50):
            head.say("gn1", "assign", text="x" * 250)
        while events.heard < sent + 50:
            loop.run_until_complete(asyncio.sleep(0))
    each_us = (time.process_time() - cpu) * 1e6 / events.heard / 2
    rate = 2 * events.heard / (time.monotonic() - began)
    print(
        f"\na frame of 300 bytes, both ends: {each_us:.0f} us of a processor, {rate:.0f} a second"
    )
    link.close()
    head.close()
    loop.close()


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--grants", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--storm", type=int, default=1_000)
    parser.add_argument("--frames", type=int, default=1_500)
    parser.add_argument("--idle-s", type=float, default=10.0)
    args = parse(
        parser, jobs=4, rounds=2, grants=5, nodes=1, storm=8, frames=100, idle_s=0.2
    )  # fmt: skip
    numbers = itertools.count(1)
    with tempfile.TemporaryDirectory(prefix="nmb", dir="/tmp") as name:
        head = Head(Path(name))
        try:
            head.call("env_set", env=TEAM, gpus=100, users=[USER])
            freed(head, args.jobs, numbers)
            submitted(head, args.rounds, numbers)
            granted(head, args.grants)
            storm(head, args.nodes, args.storm, numbers, args.idle_s)
        finally:
            head.close()
    messages(args.frames)
    return args


if __name__ == "__main__":
    finish(main())
