"""An env's ask while processes of a user that no quota names connect to its socket.

    python bench/connect_flood.py [--strangers 2] [--seconds 10] [--pause-ms 20]

One ask has the steps of a new program: connect, ACQUIRE, GRANT, RELEASE, close. A stranger connects
and closes as fast as it can. The reference (`calm`) is the same asks before the strangers start.
`busy` is the same asks beside as many processes that connect to a path without a socket: it shows
the part of the difference that comes from busy processors alone. A connect that the kernel refuses
(EAGAIN: the backlog is full) counts as a refusal. Needs root, to run processes of another user.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import time
from pathlib import Path

from arguments import parse
from node import RECEIVE_S, Client, Node, against_target, finish, table

STRANGER_UID = 65_534
MOST_S = 120
TARGET_TIMES = 3.0


def stranger(path: Path) -> None:
    """Until it is killed, or for two minutes."""
    os.setgroups([])
    os.setresgid(STRANGER_UID, STRANGER_UID, STRANGER_UID)
    os.setresuid(STRANGER_UID, STRANGER_UID, STRANGER_UID)
    signal.alarm(MOST_S)
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as sock:
            sock.connect_ex(str(path))


class Asker(Client):
    """One that is refused at once where the backlog is full, as the shim is."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self.socket.settimeout(RECEIVE_S)


def asks(path: Path, seconds: float, pause_s: float) -> tuple[list[float], int]:
    """(Milliseconds of each, refusals)."""
    took, refused, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end or not (took or refused):
        time.sleep(pause_s)
        begin_ns = time.monotonic_ns()
        try:
            asker = Asker(path)
        except BlockingIOError:
            refused += 1
            continue
        asker.send("ACQUIRE", rid=1, task=f"{begin_ns:x}", gpus=1)
        asker.until("GRANT")
        took.append((time.monotonic_ns() - begin_ns) / 1e6)
        asker.send("RELEASE", rid=2, task=f"{begin_ns:x}")
        asker.until("ACK")
        asker.socket.close()
    return took, refused


def beside(path: Path, given: argparse.Namespace, target: Path) -> tuple[list[float], int]:
    """Asks while strangers connect to `target`."""
    strangers = []
    for _ in range(given.strangers):
        if (pid := os.fork()) == 0:
            stranger(target)
        strangers.append(pid)
    try:
        return asks(path, given.seconds, given.pause_ms / 1e3)
    finally:
        for pid in strangers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strangers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--pause-ms", type=float, default=20)
    given = parse(parser, strangers=1, seconds=0.3, pause_ms=5)
    node = Node("1x80GiB")
    node.call("quota_set", env="bob", gpus=1)
    node.directory.chmod(0o755)
    path = node.env_dir("bob") / "socket"
    calm, _ = asks(path, given.seconds, given.pause_ms / 1e3)
    busy, _ = beside(path, given, node.directory / "nothing")
    flooded, refused = beside(path, given, path)
    node.close()
    table(
        "an ask of bob's",
        [("calm", calm), ("busy", busy), (f"beside {given.strangers} strangers", flooded or [0.0])],
        "ms",
        "calm",
    )
    against_target("refused", refused, 0, "asks")
    against_target(
        "median beside calm",
        statistics.median(flooded) / statistics.median(calm) if flooded else 1e9,
        TARGET_TIMES,
        "times",
    )
    if flooded:
        print(
            "median beside the busy processors'"
            f" {statistics.median(flooded) / statistics.median(busy):.2f} times"
        )
    return given


if __name__ == "__main__":
    finish(main())
