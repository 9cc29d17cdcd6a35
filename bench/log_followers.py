"""An env's ask while a thousand readers follow the output of another env's job.

    python bench/log_followers.py [--followers 1000] [--seconds 10] [--lines 100]

One ask has the steps of a new program: connect, ACQUIRE, GRANT, RELEASE, close. The reference
(`calm`) is the same asks before the readers come. `busy` is the same asks while the readers follow
a job of another manager: it shows the part of the difference that comes from busy processors alone.
The job prints so many lines a second, and each reader asks for the next output once it has its
piece.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import statistics
import time
from pathlib import Path

from arguments import parse
from connect_flood import asks
from node import RECEIVE_S, Client, Node, against_target, finish, table

TARGET_TIMES = 3.0
MOST_S = 120


class Follower:
    """One connection; `more` takes a packet, and asks again when the answer is whole."""

    def __init__(self, path: Path, job: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(RECEIVE_S)
        self.socket.connect(str(path))
        self._job = job
        self._offset = 0
        self._pages: dict[int, bytes] = {}
        self._ask()

    def _ask(self) -> None:
        arguments = {"job": self._job, "offset": self._offset, "wait": True}
        order = json.dumps({"verb": "job_log_read", "args": arguments})
        self.socket.send(f"NODEMGR/1 ASK\nrid=1\nwhat=order\nargument={order}\n".encode())

    def more(self) -> int:
        """1: a piece has come."""
        fields = dict(
            line.partition(b"=")[::2] for line in self.socket.recv(2_000).split(b"\n")[1:-1]
        )
        self._pages[int(fields[b"index"])] = fields[b"data"]
        if len(self._pages) < int(fields[b"count"]):
            return 0
        told = json.loads(b"".join(self._pages[index] for index in sorted(self._pages)))
        self._pages.clear()
        self._offset = told["size_bytes"]
        self._ask()
        return 1


def follow(path: Path, job: str, count: int, ready: int) -> None:
    """Until it is killed, or for two minutes; then it writes the number of pieces to `ready`."""
    signal.alarm(MOST_S)
    poll = select.epoll()
    followers: dict[int, Follower] = {}
    for _ in range(count):
        follower = Follower(path, job)
        followers[follower.socket.fileno()] = follower
        poll.register(follower.socket, select.EPOLLIN)
    os.write(ready, b"%8d" % 0)
    pieces = 0
    is_over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: is_over.append(number))
    while not is_over:
        for descriptor, _ in poll.poll(0.1):
            pieces += followers[descriptor].more()
    os.write(ready, b"%8d" % pieces)
    os._exit(0)


def followed(node: Node, given: argparse.Namespace, path: Path) -> tuple[list[float], float]:
    """Asks of `path` beside the readers, and the pieces that a reader got in a second."""
    job = submit(node, given.lines)
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        follow(node.env_dir("alice") / "socket", job, given.followers, theirs)
    os.close(theirs)
    os.read(ours, 8)
    began_s = time.monotonic()
    took, _ = asks(path, given.seconds, given.pause_ms / 1e3)
    os.kill(pid, signal.SIGTERM)
    pieces = int(os.read(ours, 8) or 0)
    rate = pieces / given.followers / (time.monotonic() - began_s)
    os.waitpid(pid, 0)
    os.close(ours)
    node.call("job_withdraw", job=job)
    node.call("job_wait", jobs=[job])
    return took, rate


def submit(node: Node, lines: int) -> str:
    """A job of alice's that prints; returns its id."""
    pause_s = 1 / lines
    script = f"while :; do echo a line of output of a training; sleep {pause_s:.4f}; done"
    order = {"verb": "job_submit", "args": {
        "argv": ["/bin/sh", "-c", script], "cwd": "/", "environ": ["PATH=/bin:/usr/bin"],
        "key": os.urandom(16).hex(), "gpus": 0}}  # fmt: skip
    client = Client(node.env_dir("alice"))
    client.send("ASK", rid=1, what="order", argument=json.dumps(order))
    packet = client.until("PART").decode()
    client.socket.close()
    data = packet.partition("data=")[2].rstrip("\n")
    return str(json.loads(data)["job"])


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--followers", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--pause-ms", type=float, default=20)
    parser.add_argument("--lines", type=int, default=100)
    given = parse(parser, followers=20, seconds=0.3, pause_ms=5)
    node, other = Node("1x80GiB"), Node("1x80GiB")
    path = node.env_dir("bob") / "socket"
    for each in (node, other):
        each.call("quota_set", env="alice", gpus=1)
    node.call("quota_set", env="bob", gpus=1)
    calm, _ = asks(path, given.seconds, given.pause_ms / 1e3)
    busy, _ = followed(other, given, path)
    beside, rate = followed(node, given, path)
    node.close()
    other.close()
    rows = [("calm", calm), ("busy", busy), (f"beside {given.followers} readers", beside)]
    table("an ask of bob's", rows, "ms", "calm")
    print(f"a reader got {rate:.2f} pieces a second")
    times = statistics.median(beside) / statistics.median(calm)
    against_target("median beside calm", times, TARGET_TIMES, "times")
    times = statistics.median(beside) / statistics.median(busy)
    print(f"median beside the busy processors' {times:.2f} times")
    return given


if __name__ == "__main__":
    finish(main())
