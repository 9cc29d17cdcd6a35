"""Request to grant on an open connection, against a bare echo and a bare commit.

The references have the same size and run at the same time.

    python bench/grant_latency.py [--rounds 2000]

The reference is the least cost of such an answer in Python: a SEQPACKET echo between two processes,
and one SQLite commit (WAL, synchronous=NORMAL) of the rows that a grant writes. The rows are
captured from the core, and the reference has as many pages. Three references take turns: the echo,
the commit, and one process that commits the rows and then sends the packet back.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from arguments import parse
from node import Client, Node, against_target, finish, table
from nodemgr.core.manager import Draft, step
from nodemgr.core.model.entities import Config, Gpu, Quota, RunSpec, Transport
from nodemgr.core.model.events import (
    Acquire,
    Caller,
    GpusChanged,
    Release,
    SetQuota,
    UnreclaimedChanged,
)
from nodemgr.edge.host.clock import RealClock
from nodemgr.edge.store.database import CommitBatch, Store
from nodemgr.edge.store.journal import Journal
from nodemgr.edge.store.migrations import TABLES

TARGET_RATIO = 3.0
GRANTED = b"NODEMGR/1 GRANT\n"
SETTLE_S = 0.005
"""A pause after each release: the manager then asks the driver whether the memory is free.

This question is not a part of the next request.
"""


class _Captured(Store):
    """Keeps the last batch."""

    batch = CommitBatch.empty()

    def commit(self, batch: CommitBatch, *, durable: bool = False) -> None:
        self.batch = batch
        super().commit(batch, durable=durable)


def grants_batch(directory: Path) -> CommitBatch:
    """The batch that the real core stores for a grant.

    As in the measurement, the process has held a grant before and gave it back.
    """
    directory.mkdir()
    store = _Captured(directory)
    journal, state, clock = (
        Journal(store, RealClock()),
        Draft(Config()),
        RealClock(),
    )
    caller = Caller(
        1, "alice", f"unix:{os.getpid()}:12345678", Transport.UNIX, os.getpid(), "somebody", (1,)
    )
    gpu = Gpu("GPU-e6d2d1db-1c11-fa9e-1064-18565ac54c9b", 0, "Simulated GPU", 80 * 2**30)
    wall_ns = clock.wall_ns()
    acquire = Acquire(
        caller, "1", "ab" * 16, RunSpec("python train.py", 1, None, None), 1, None, wall_ns
    )
    other = Acquire(
        Caller(2, "alice", "unix:2:2", Transport.UNIX, 2, "root"),
        "2",
        "cd" * 16,
        RunSpec("x", 1, None, None),
        1,
        None,
        wall_ns,
    )
    before = (GpusChanged((gpu,), wall_ns), SetQuota("alice", Quota(1), "", wall_ns), other)
    gave_back = (
        acquire,
        Release(caller, "2", wall_ns),
        UnreclaimedChanged(caller.process, gpu.uuid, 0, wall_ns),
    )
    for event in (*before, *gave_back, acquire):
        transition = step(state, event, clock.monotonic_ns())
        journal.write(transition.saved, transition.published, must_hold=True)
        transition.apply()
    store.close()
    return store.batch


class Commit:
    """The same rows into the same tables, straight into SQLite.

    The lease's and its record's rows get a new key each time.
    """

    def __init__(self, directory: Path, batch: CommitBatch) -> None:
        directory.mkdir()
        self._batch = batch
        self._number = 0
        self._db = sqlite3.connect(directory / "bare.db", isolation_level=None)
        self._db.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; {TABLES}")

    def once(self) -> None:
        self._number += 1
        execute = self._db.execute
        execute("BEGIN IMMEDIATE")
        for (kind, key), value in self._batch.current.items():
            own_key = f"t{self._number}" if kind in ("task", "record") else key
            execute("INSERT OR REPLACE INTO current VALUES (?, ?, ?)", (kind, own_key, value))
        for record in self._batch.records:
            execute(
                "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)",
                (self._number, record.env, 1, record.value),
            )
        for event in self._batch.events:
            execute(
                "INSERT OR REPLACE INTO events VALUES (?, ?, ?)",
                (self._number, event.value, event.env),
            )
        execute("COMMIT")

    def undo(self) -> None:
        """Deletes the row of the lease, as a release does."""
        self._db.execute("DELETE FROM current WHERE key = ?", (f"t{self._number}",))

    def close(self) -> None:
        self._db.close()


class Echo:
    """A process that sends each packet back. With `make_commit` it commits first."""

    def __init__(self, make_commit: Callable[[], Commit] | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket = ours
        self._pid = os.fork()
        if self._pid == 0:
            commit = make_commit() if make_commit is not None else None
            while packet := theirs.recv(2_000):
                if commit is not None:
                    commit.once()
                theirs.send(packet)
                if commit is not None:
                    commit.undo()
            os._exit(0)
        theirs.close()

    def once(self, packet: bytes) -> None:
        self.socket.send(packet)
        self.socket.recv(2_000)

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        os.waitpid(self._pid, 0)


def timed(action: object, *arguments: object) -> float:
    begin_ns = time.perf_counter_ns()
    action(*arguments)  # type: ignore[operator]
    return (time.perf_counter_ns() - begin_ns) / 1e3


def request(rid: int) -> bytes:
    return Client.packet("ACQUIRE", rid=rid, task=f"{rid:032x}", gpus=1, command="python train.py")


def ask(client: Client, packet: bytes) -> None:
    """Sends and receives as the client of the echo does.

    The answer is recognized by its first bytes and not parsed.
    """
    client.socket.send(packet)
    while not client.socket.recv(2_000).startswith(GRANTED):
        pass


def give_back(client: Client, rid: int) -> None:
    client.send("RELEASE", rid=rid + 10**9, task=f"{rid:032x}")
    client.until("ACK")


def holder(node: Node) -> int:
    """Another process of the env, as most of the time there is one: it holds a lease and beats."""
    pid = os.fork()
    if pid == 0:
        client = Client(node.env_dir("alice"))
        ask(client, request(7))
        while True:
            time.sleep(1)
            client.send("BEAT", task=f"{7:032x}")
    while not node.call("status")["tasks"]:
        time.sleep(0.01)
    return pid


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--warm-up", type=int, default=100, metavar="ROUNDS")
    options = parse(parser, rounds=10, warm_up=2)
    rounds, warm_up = options.rounds, options.warm_up
    with (
        tempfile.TemporaryDirectory(prefix="nmb", dir="/tmp") as directory,
        Node("4x80GiB") as node,
    ):
        node.call("quota_set", env="alice", gpus=1)
        batch = grants_batch(Path(directory) / "store")
        echo, commit = Echo(), Commit(Path(directory) / "bare", batch)
        server = Echo(lambda: Commit(Path(directory) / "served", batch))
        pid = holder(node)
        client = Client(node.env_dir("alice"))
        measured: tuple[list[float], ...] = ([], [], [], [])
        for number in range(1, rounds + warm_up + 1):
            packet = request(number * 10)
            turns = (
                (echo.once, packet),
                (commit.once,),
                (server.once, packet),
                (ask, client, packet),
            )
            for turn in range(len(turns)):
                # a later client finds the processor's caches warmer
                which = (number + turn) % len(turns)
                duration_us = timed(*turns[which])
                if number > warm_up:
                    measured[which].append(duration_us)
            commit.undo()
            give_back(client, number * 10)
            time.sleep(SETTLE_S)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for reference_process in (echo, server):
            reference_process.close()
        commit.close()
    print(
        f"a grant writes {len(batch.current)} rows, {len(batch.records)} record,"
        f" {len(batch.events)} events"
    )
    tell(*measured)
    return options


def tell(
    echoes: list[float], commits: list[float], answers: list[float], grants: list[float]
) -> None:
    """Print the medians, and the grant's beside the references'. Durations in µs."""
    reference = [a + b for a, b in zip(echoes, commits, strict=True)]
    rows = [
        ("bare echo", echoes), ("bare commit", commits), ("echo + commit", reference),
        ("both in one", answers), ("request to grant", grants),
    ]  # fmt: skip
    table("Request to grant on an open connection", rows, "µs", "echo + commit")
    for name, values in (("echo + commit", reference), ("both in one process", answers)):
        against_target(
            f"to {name}",
            statistics.median(grants) / statistics.median(values),
            TARGET_RATIO,
            "times",
        )


if __name__ == "__main__":
    finish(main())
