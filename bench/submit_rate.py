"""How many jobs a second are durably stored through the API, against bare SQLite inserts.

The inserts have the same durability and happen in the same run.

    python bench/submit_rate.py [--jobs 4000]

The client speaks the wire by hand and submits through an env's socket as `nodemgr submit` does:
small jobs in one packet each, many on their way at a time; jobs with a whole environment (4 KiB)
written on a sheet. The references: SQLite (WAL, synchronous=FULL) with the rows that such a
submission really writes, one commit each and one for as many as the manager takes together;
task-spooler, where it is installed. All jobs wait while the node's only GPU is held, so that the
figures contain their submission alone.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import secrets
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from arguments import parse
from node import ROOT, Client, Node, finish, miss
from nodemgr.edge.engine.submission_batches import TURN_SUBMISSIONS
from nodemgr.edge.rpc.shared_buffers import SHEET_BYTES
from nodemgr.edge.store.database import FILE_NAME
from nodemgr.edge.store.migrations import TABLES

TARGET = 2_000
WINDOW = 256
"""Orders on their way at a time."""
PLACE_BYTES = 8_192
"""On a sheet, for one order."""
PLACES = SHEET_BYTES // PLACE_BYTES
ENVIRON = [f"VARIABLE_{number:03}={'x' * 66}" for number in range(50)]


class Submitter:
    """A connection that submits."""

    def __init__(self, node: Node, env: str) -> None:
        self._node, self._env = node, env
        self._client = Client(node.env_dir(env))
        self._rid = 0
        self._sheet = -1

    @staticmethod
    def order(environ: list[str], argv: Sequence[str] = ("/bin/true",)) -> dict[str, object]:
        args = {
            "argv": argv,
            "cwd": "/",
            "environ": environ,
            "gpus": 1,
            "key": secrets.token_hex(16),
        }
        return {"verb": "job_submit", "args": args}

    def send_small(self, *argv: str) -> None:
        self._rid += 1
        body = json.dumps(
            self.order(["PATH=/usr/bin:/bin"], argv or ("/bin/true",)), separators=(",", ":")
        )
        self._client.send("ASK", rid=self._rid, what="order", argument=body)

    def answer(self) -> str:
        """The job's id."""
        verb, packet = self._client.receive()
        if verb != "PART" or b'"job":"' not in packet:
            raise SystemExit(f"not taken: {packet!r}")
        return packet.split(b'"job":"')[1].split(b'"')[0].decode()

    def lend_sheet(self) -> None:
        self._rid += 1
        self._client.send("ASK", rid=self._rid, what="sheet")
        _, ancillary, _, _ = self._client.socket.recvmsg(
            2_000, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC
        )
        (self._sheet,) = array.array("i", ancillary[0][2])

    def send_large(self, place: int) -> None:
        """Writes it on one of the sheet's places."""
        self.write(
            json.dumps(self.order(ENVIRON, ("/bin/true", str(self._rid)))).encode(),
            place * PLACE_BYTES,
        )

    def write(self, text: bytes, offset: int = 0) -> None:
        """Gives an order that stands there on the sheet."""
        self._rid += 1
        os.pwrite(self._sheet, text, offset)
        self._client.send("ASK", rid=self._rid, what="order", argument=f"[{offset},{len(text)}]")

    def close(self) -> None:
        self._client.socket.close()
        if self._sheet >= 0:
            os.close(self._sheet)


def pipelined(
    node: Node, env: str, jobs: int, window: int, send: Callable[[Submitter, int], None]
) -> tuple[float, float]:
    """Jobs a second over one connection with `window` unanswered at a time.

    Also the manager's microseconds of processor time a job.
    """
    submitter = Submitter(node, env)
    submitter.lend_sheet()
    begin, before_s = time.monotonic(), node.cpu_s()
    for number in range(jobs):
        if number >= window:
            submitter.answer()
        send(submitter, number % window)
    for _ in range(min(window, jobs)):
        submitter.answer()
    rate, cost_us = jobs / (time.monotonic() - begin), (node.cpu_s() - before_s) / jobs * 1e6
    submitter.close()
    return rate, cost_us


def one_by_one(node: Node, env: str, jobs: int, connections: int = 8) -> tuple[float, float]:
    """The same as `nodemgr submit` does it, so many at a time.

    Each has a connection and a sheet of its own.
    """
    open_now: list[Submitter] = []
    begin, before_s = time.monotonic(), node.cpu_s()
    for number in range(jobs + connections):
        if number >= connections:
            first = open_now.pop(0)
            first.answer()
            first.close()
        if number < jobs:
            open_now.append(Submitter(node, env))
            open_now[-1].lend_sheet()
            open_now[-1].send_large(0)
    return jobs / (time.monotonic() - begin), (node.cpu_s() - before_s) / jobs * 1e6


def by_verb(node: Node, env: str, jobs: int) -> tuple[float, float]:
    """The same by `nodemgr submit --from -`: its whole process, with this one's environment."""
    lines = "".join(f"/bin/true {number}\n" for number in range(jobs))
    command = [
        sys.executable,
        "-m",
        "nodemgr",
        "submit",
        "--run-dir",
        str(node.run_dir),
        "--env",
        env,
        "--gpus",
        "1",
        "--from",
        "-",
    ]
    begin, before_s = time.monotonic(), node.cpu_s()
    done = subprocess.run(
        command, input=lines, text=True, stdout=subprocess.PIPE, check=True, cwd=ROOT
    )
    if done.stdout.count("\n") != jobs or "error" in done.stdout:
        raise SystemExit(f"not taken: {done.stdout[-500:]}")
    return jobs / (time.monotonic() - begin), (node.cpu_s() - before_s) / jobs * 1e6


def stored(node: Node) -> int:
    with sqlite3.connect(f"file:{node.state_dir / FILE_NAME}?mode=ro", uri=True) as db:
        (count,) = db.execute("SELECT count(*) FROM current WHERE kind = 'job'").fetchone()
    db.close()
    return int(count)


def rows_of_a_job(node: Node) -> tuple[list[tuple[str, str, str]], list[tuple[int, str, str]]]:
    """The rows of the last submission in the store: one of each kind, and its newest event."""
    with sqlite3.connect(f"file:{node.state_dir / FILE_NAME}?mode=ro", uri=True) as db:
        current = [
            db.execute(
                "SELECT kind, key, value FROM current WHERE kind = ? LIMIT 1", (kind,)
            ).fetchone()
            for kind in ("job", "spec", "request", "counter")
        ]
        events = db.execute(
            "SELECT sequence, value, env FROM events ORDER BY sequence DESC LIMIT 1"
        ).fetchall()
    db.close()
    return [row for row in current if row is not None], events


def bare(
    directory: Path,
    rows: tuple[list[tuple[str, str, str]], list[tuple[int, str, str]]],
    jobs: int,
    together: int,
) -> float:
    """Jobs a second: the same rows, straight into SQLite."""
    directory.mkdir()
    db = sqlite3.connect(directory / "bare.db", isolation_level=None)
    db.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; {TABLES}")
    current, events = rows
    begin = time.monotonic()
    for first in range(0, jobs, together):
        db.execute("BEGIN IMMEDIATE")
        for number in range(first, min(first + together, jobs)):
            own = [(kind, f"{key}.{number}", text) for kind, key, text in current]
            db.executemany("INSERT OR REPLACE INTO current VALUES (?, ?, ?)", own)
            told = [(number * 10 + place, text, env) for place, (_, text, env) in enumerate(events)]
            db.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?)", told)
        db.execute("COMMIT")
    rate = jobs / (time.monotonic() - begin)
    db.close()
    return rate


def spooler(directory: Path, jobs: int) -> float | None:
    """Jobs a second given to task-spooler, one process each, which is its only way.

    It stores nothing.
    """
    program = shutil.which("tsp") or shutil.which("ts")
    if program is None:
        return None
    environment = {
        **os.environ,
        "TS_SOCKET": str(directory / "ts"),
        "TS_SAVELIST": str(directory / "list"),
    }
    subprocess.run(
        [program, "sleep", "600"], env=environment, stdout=subprocess.DEVNULL, check=True
    )
    begin = time.monotonic()
    for _ in range(jobs):
        subprocess.run([program, "true"], env=environment, stdout=subprocess.DEVNULL, check=True)
    rate = jobs / (time.monotonic() - begin)
    subprocess.run([program, "-K"], env=environment, stdout=subprocess.DEVNULL, check=True)
    return rate


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=4_000)
    options = parse(parser, jobs=40)
    jobs = options.jobs
    with (
        tempfile.TemporaryDirectory(prefix="nmb", dir="/tmp") as name,
        Node("1x80GiB", NODEMGR_MAX_CONNECTIONS_PER_ENV="100") as node,
    ):
        for env in ("alice", "bob", "carol", "dora", "holder"):
            node.call("quota_set", env=env, gpus=1)
        holder = Submitter(node, "holder")
        holder.send_small("/bin/sleep", "3600")
        held = holder.answer()
        rows = [
            (f"through an env's socket, one packet each, {WINDOW} on their way",
             *pipelined(node, "alice", jobs, WINDOW, lambda submitter, _: submitter.send_small())),
            (f"the same, 4 KiB of environment each, on one sheet, {PLACES} on their way",
             *pipelined(node, "bob", jobs, PLACES, Submitter.send_large)),
            ("the same, each on a connection and a sheet of its own, 8 on their way",
             *one_by_one(node, "carol", jobs // 4)),
            ("nodemgr submit --from -, many in one order", *by_verb(node, "dora", jobs)),
        ]  # fmt: skip
        taken, left = stored(node), rows_of_a_job(node)
        node.call("job_withdraw", job=held)
        references = [
            (
                f"bare SQLite, FULL, one commit for {TURN_SUBMISSIONS}",
                bare(Path(name, "many"), left, jobs, TURN_SUBMISSIONS),
            ),
            (
                "bare SQLite, FULL, one commit each",
                bare(Path(name, "one"), left, min(jobs, max(100, jobs // 10)), 1),
            ),
            (
                "task-spooler, one process each, nothing stored",
                spooler(Path(name), min(jobs, max(100, jobs // 10))),
            ),
        ]
    width = max(len(row[0]) for row in (*rows, *references))
    print(
        f"\nJobs taken ({jobs} each, {jobs // 4} one by one; {taken} stored)\n{'':{width}} "
        f" {'jobs/s':>8} {'manager, us/job':>16}"
    )
    for row, rate, cost_us in rows:
        print(f"{row:{width}}  {rate:8.0f} {cost_us:16.0f}")
    for row, reference in references:
        print(f"{row:{width}}  {'not here' if reference is None else f'{reference:8.0f}'}")
    for row, rate, _ in (rows[0], rows[-1]):
        line = f"the target: {row}: {rate:.0f} jobs/s durably stored, at least {TARGET}"
        if rate >= TARGET:
            print(f"within {line}")
        else:
            miss(f"BELOW {line}")
    return options


if __name__ == "__main__":
    finish(main())
