"""`python -m tests.head.handshakes --handshakes 10000`: strangers at a head's port, and its nodes.

The head is a process of its own. Strangers, in another process, make handshakes with keys that it
does not know, as fast as it lets them; others send garbage, or nothing. Meanwhile a node asks, one
order after the other. Printed: how long an order took before and meanwhile, and the head's
processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import zmq

from nodemgr.edge.links import keys
from nodemgr.edge.links.joining import Joining
from nodemgr.edge.links.node_link import NodeLink
from tests.cluster.site import Head
from tests.session import TMP
from tests.support.limits import WAIT_LIMIT_S

AT_ONCE = 50
HELLO = {"generation": "g", "boot_id": "b", "below": 0, "gpus": 1, "others": [], "answers": []}


def strangers(address: str, head_key: str, count: int) -> None:
    """Handshakes that end by the head's word, so many at once; then garbage and silence."""
    host, _, port = address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(min(count, 400))]
    context: zmq.Context[Any] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4_000)
    made = 0
    while made < count:
        sockets = []
        for _ in range(min(AT_ONCE, count - made)):
            one = context.socket(zmq.DEALER)
            one.curve_publickey, one.curve_secretkey = zmq.curve_keypair()
            one.curve_serverkey = head_key.encode()
            one.setsockopt(zmq.LINGER, 0)
            one.setsockopt(zmq.RECONNECT_IVL, -1)
            monitor = one.get_monitor_socket(
                zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
                | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
            )  # fmt: skip
            one.connect(f"tcp://{address}")
            sockets.append((one, monitor))
        for one, monitor in sockets:
            monitor.poll(20_000)
            one.disable_monitor()
            monitor.close()
            one.close()
            made += 1
        with socket.create_connection((host, int(port))) as garbage:
            garbage.sendall(b"\xff\0\0\0\0\0\0\0\1\x7f" * 50)
    for one in silent:
        one.close()
    context.term()


class Asker:
    """A node that asks, one order after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, head: Head) -> None:
        self.loop, self.own = loop, keys.new_pair()
        word = keys.read_word(head.call("node_word", node="gn1")["word"])
        told: list[Any] = []
        Joining(loop, head.address, word, {"node": "gn1", "key": self.own.public}, told.append)
        while not told:
            loop.run_until_complete(asyncio.sleep(0.01))
        assert "error" not in told[0], told
        self.head_key = word.head_key
        self.sessions, self.ends = 0, 0
        self.times: list[float] = []
        self._next: asyncio.Future[None] | None = None
        self.link = NodeLink(
            loop, head.address, word.head_key, self.own, lambda: HELLO, self._heard, self._state
        )
        while not self.link.is_up:
            loop.run_until_complete(asyncio.sleep(0.01))

    def _state(self, welcome: Any) -> None:
        self.sessions += welcome is not None
        self.ends += welcome is None

    def _heard(self, frame: Any) -> None:
        if frame["t"] == "answer" and self._next is not None and not self._next.done():
            self._next.set_result(None)

    def ask(self, seconds: float, until: Any = lambda: False) -> None:
        self.times = []

        async def run() -> None:
            ends = time.monotonic() + seconds
            while time.monotonic() < ends and not until():
                self._next = self.loop.create_future()
                began = time.perf_counter()
                by = {"uid": 0, "gid": 0, "user": "root"}
                if self.link.send("ask", id=1, verb="node_list", arguments={}, by=by, env=None):
                    await asyncio.wait_for(self._next, WAIT_LIMIT_S)
                    self.times.append((time.perf_counter() - began) * 1e3)
                await asyncio.sleep(0.005)

        self.loop.run_until_complete(run())

    def figures(self) -> dict[str, float]:
        ordered = sorted(self.times)
        return {
            "orders": len(ordered), "median_ms": round(statistics.median(ordered), 2),
            "p99_ms": round(ordered[len(ordered) * 99 // 100], 2),
            "worst_ms": round(ordered[-1], 1),
        }  # fmt: skip


def measure(directory: Path, handshakes: int, calm_s: float = 3.0) -> dict[str, Any]:
    head = Head(directory / "head")
    head.start()
    loop = asyncio.new_event_loop()
    try:
        asker = Asker(loop, head)
        asker.ask(calm_s)
        before = asker.figures()
        assert head.process is not None
        process = psutil.Process(head.process.pid)
        used = sum(process.cpu_times()[:2])
        began = time.monotonic()
        far = subprocess.Popen(
            [sys.executable, "-m", "tests.head.handshakes", f"--of={head.address}={asker.head_key}",
             "--handshakes", str(handshakes)],
        )  # fmt: skip
        asker.ask(3_600.0, lambda: far.poll() is not None)
        took_s = time.monotonic() - began
        found = {
            "before": before, "meanwhile": asker.figures(), "handshakes": handshakes,
            "seconds": round(took_s, 1), "sessions": asker.sessions, "strangers": far.returncode,
            "head_cpu_percent": round((sum(process.cpu_times()[:2]) - used) / took_s * 100),
            "head_descriptors": process.num_fds(),
        }  # fmt: skip
        asker.link.close()
        return found
    finally:
        loop.close()
        head.kill()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.head.handshakes")
    parser.add_argument("--handshakes", type=int, default=10_000)
    parser.add_argument("--of", metavar="ADDRESS=KEY", help="be the strangers")
    args = parser.parse_args()
    if args.of:
        strangers(*args.of.split("=", 1), args.handshakes)
        return
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as path:
        print(json.dumps(measure(Path(path), args.handshakes), indent=1))


if __name__ == "__main__":
    main()
