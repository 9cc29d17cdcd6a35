"""A head in this process, on a store of its own, with stand-in nodes in place of the network.

A stand-in node is the plain node of the core's walks (tests/core/cluster/world.py), spoken to in
frames. Time is a clock that tests move; the loop turns when a test says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nodemgr.core.cluster import events
from nodemgr.core.cluster.entities import GivenJob, NodeGpu
from nodemgr.core.cluster.messages import Assign, GiveBack
from nodemgr.core.model.entities import JobState
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.edge.store.database import CommitHook
from nodemgr.head.node_sessions import NodeSessions
from nodemgr.head.service import HeadService, make
from nodemgr.head.submissions import Who
from tests.core.cluster.world import PlainNode
from tests.edge.simulated_clock import SimulatedClock

ANN = Who("ann", 1000, 1000, "ann")
BOB = Who("bob", 1001, 1001, "bob")
ADMIN = Who("root", 0, 0, None)
KEY = "ab" * 16


class FakeLinks:
    """Links without a network: what is said to a node reaches it when the test turns the loop."""

    address = "127.0.0.1:7470"

    def __init__(self, sessions: NodeSessions) -> None:
        self.sessions = sessions
        self.nodes: dict[str, PlainNode] = {}
        self.open: dict[str, int] = {}
        self.said: list[tuple[str, str, dict[str, Any]]] = []
        self.reports: dict[str, int] = {}
        self.last = 0
        self.counts = Counter[str]()

    def say(self, node: str, kind: str, **fields: Any) -> bool:
        if node not in self.open:
            return False
        self.said.append((node, kind, fields))
        self.counts["said"] += 1
        return True

    def forget(self, node: str) -> None:
        session = self.open.pop(node, None)
        if session is not None:
            self.sessions.silent(node, session)


def frame_rows(node: PlainNode, *, all_kept: bool = False) -> list[dict[str, Any]]:
    return [
        {
            "key": row.key, "number": row.number, "over": row.over, "began": row.began,
            "job": None if row.is_refusal else f"j{row.number}", "confirmed": row.confirmed,
            "state": row.state.value, "exit_code": 0 if row.over else None, "reason": "",
            "cause": None if row.cause is None else row.cause.value,
        }
        for row in node.answers(all_kept=all_kept)
    ]  # fmt: skip


def share_row(gpu: NodeGpu) -> dict[str, Any]:
    """In GiB, of which the plain node counts units."""
    return {
        "memory": gpu.memory_bytes << 30, "room": gpu.room_bytes << 30, "percent": gpu.percent,
        "plain": gpu.is_plain, "tasks": gpu.tasks, "numbers": list(gpu.numbers),
        "envs": [[env, free << 30] for env, free in gpu.envs],
    }  # fmt: skip


class World:
    """A head's directory, the head on it, and its nodes, which outlive it."""

    def __init__(self, path: Path, **gpus: int) -> None:
        self.directory, self.run_dir = path / "head", path / "run"
        self.clock = SimulatedClock(wall_ns=time.time_ns())  # make() has the real one
        make(self.directory, "hq", "")
        self.nodes = {name: PlainNode(count, fails=0.0) for name, count in gpus.items()}
        self.shares = True
        """Whether its nodes report them."""
        self.hook = CommitHook()
        self.head: HeadService
        self.links: FakeLinks
        self.start()
        for name in self.nodes:
            self.head.engine.happens(events.AddNode(name, f"key of {name}"))

    def start(self) -> None:
        def links(sessions: NodeSessions) -> FakeLinks:
            self.links = FakeLinks(sessions)
            return self.links

        self.head = HeadService(self.directory, self.run_dir, self.clock, self.hook, links)
        self.head.open()

    def die(self) -> None:
        """As by kill -9: nothing is written any more."""
        self.head.close()

    def restart(self) -> None:
        self.die()
        self.start()

    # -- nodes --

    def sync(self, *names: str) -> None:
        for name in names or self.nodes:
            self.links.last += 1
            self.links.open[name] = self.links.last
            self.links.reports[name] = 0
            self.head.sessions.synced(
                name, self.links.last,
                {
                    "generation": "1", "boot_id": "b", "wall_ns": self.clock.wall_ns(),
                    **self._facts(name, all_kept=True),
                },
            )  # fmt: skip

    def _facts(self, name: str, *, all_kept: bool = False) -> dict[str, Any]:
        node = self.nodes[name]
        return {
            "below": node.below(), "gpus": node.gpus(), "others": list(map(list, node.others())),
            "answers": frame_rows(node, all_kept=all_kept),
            **({"shares": list(map(share_row, node.shares() or ()))} if self.shares else {}),
        }  # fmt: skip

    def report(self, name: str) -> None:
        self.links.reports[name] += 1
        said = {"t": "report", "number": self.links.reports[name], **self._facts(name)}
        self.head.sessions.message(name, self.links.open[name], said)

    def turn(self, turns: int = 6) -> None:
        """Words reach the nodes, the nodes report, passes run."""
        for _ in range(turns):
            said, self.links.said = self.links.said, []
            for name, kind, fields in said:
                self._hear(name, kind, fields)
            for name in list(self.links.open):
                if said:
                    self.report(name)
            self.head.loop.run_until_complete(asyncio.sleep(0.001))

    def _hear(self, name: str, kind: str, said: dict[str, Any]) -> None:
        node = self.nodes[name]
        if kind == "assign":
            row = GivenJob(
                said["number"], said["key"], "", said["env"], name, "1", said["gpus"], None,
                compute_percent=said.get("compute_percent"),
                memory_bytes=None if said.get("memory_bytes") is None
                else said["memory_bytes"] >> 30,
            )  # fmt: skip
            node.hear(Assign(row, refuse=said["refuse"]))
        elif kind == "give_back":
            node.hear(GiveBack(said["key"], if_waiting=said["if_waiting"]))
        elif kind == "acknowledge":
            node.hear(events.Acknowledge(name, tuple(said["keys"]), said["below"]))
        elif kind == "order":
            answer: dict[str, Any] = {"t": "answer", "id": said["id"], "ok": said["arguments"]}
            self.head.sessions.message(name, self.links.open[name], answer)

    def finish(self) -> None:
        """All that nodes have ends well."""
        for name, node in self.nodes.items():
            node.finish()
            if name in self.links.open:
                self.report(name)

    def ended(self, job: str) -> str:
        return str(self.ask(ADMIN, "cluster_show", job=job)["jobs"][0]["state"])

    # -- verbs --

    def answers(self, who: Who, verb: str, **given: Any) -> list[Any]:
        """The answers so far: none, or one."""
        found: list[Any] = []
        self.head.verbs.asked(who, verb, given, found.append)
        return found

    def ask(self, who: Who, verb: str, **given: Any) -> dict[str, Any]:
        (answer,) = self.answers(who, verb, **given)
        if isinstance(answer, OperationError):
            raise answer
        assert isinstance(answer, dict)
        return answer

    def submit(self, who: Who = ANN, number: int = 1, **given: Any) -> str:
        said = {
            "argv": ["true"], "cwd": "/", "environ": ["PATH=/bin"], "key": f"{number:032x}",
        } | given  # fmt: skip
        return str(self.ask(who, "cluster_submit", **said)["job"])


@contextlib.contextmanager
def cluster(path: Path, **gpus: int) -> Iterator[World]:
    world = World(path, **gpus)
    try:
        for env in ("ann", "bob"):
            world.ask(ADMIN, "env_set", env=env, gpus=8)
        world.sync()
        world.turn()
        yield world
    finally:
        world.die()


FINAL = {JobState.DONE.value, JobState.FAILED.value, JobState.WITHDRAWN.value}
