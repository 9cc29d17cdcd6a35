"""The start of a manager on a store full of held jobs: time and memory.

The time ends when a client is served.

    python bench/restart.py [--mib 1024]

Two environments submit held jobs with 0.96 MB of variables each, so many MiB each. The manager is
killed (SIGKILL) and started again. The reference, in the same run, is a manager that starts on an
empty store.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import statistics
import time
from pathlib import Path

from arguments import parse
from node import Client, Node, against_target, finish
from nodemgr.edge.rpc.shared_buffers import SHEET_BYTES
from submit_rate import Submitter

TARGET_S, TARGET_MIB = 2.0, 200.0
ENVIRON = [f"VARIABLE_{number}={'x' * 120_000}" for number in range(8)]
MIB = 2**20


def order(environ: list[str]) -> bytes:
    arguments = {
        "argv": ["/bin/true"],
        "cwd": "/",
        "environ": environ,
        "gpus": 1,
        "key": secrets.token_hex(16),
        "hold": True,
    }
    return json.dumps({"verb": "job_submit", "args": arguments}).encode()


def fill(node: Node, env: str, size_bytes: int) -> int:
    """Submits held jobs until their payloads are so large; returns how many."""
    submitter = Submitter(node, env)
    submitter.lend_sheet()
    payload_bytes = sum(map(len, ENVIRON))
    count = max(1, size_bytes // payload_bytes - size_bytes // (64 * MIB))
    for _ in range(count):
        text = order(ENVIRON)
        assert len(text) <= SHEET_BYTES
        submitter.write(text)
        submitter.answer()
    submitter.close()
    return count


def peak_mib(pid: int) -> float:
    line = next(
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) / 1024


def served(node: Node, env: str) -> float:
    """Seconds from the manager's start to the answer to a client's request."""
    begin = time.monotonic()
    node.start()
    client = os.fork()
    if client == 0:
        asked = Client(node.env_dir(env))
        asked.send("ACQUIRE", rid=1, task=secrets.token_hex(16))
        asked.until("GRANT")
        os._exit(0)
    _, status = os.waitpid(client, 0)
    if status:
        raise SystemExit("the client was not served")
    return time.monotonic() - begin


def starts(node: Node, count: int) -> tuple[float, float]:
    """(seconds, MiB) of a start after a kill, the medians of some.

    The client is a process of its own: one that lived on would make the next manager look for the
    ledger of its lease.
    """
    found = []
    for _ in range(count):
        node.stop(signal.SIGKILL)
        took_s = served(node, "carol")
        found.append((took_s, peak_mib(node.pid)))
    return statistics.median(row[0] for row in found), statistics.median(row[1] for row in found)


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=1_024)
    parser.add_argument("--starts", type=int, default=3)
    options = parse(parser, mib=2, starts=1)
    size_bytes = options.mib * MIB
    with Node("4x80GiB") as node:
        for env in ("alice", "bob", "carol"):
            node.call("quota_set", env=env, gpus=1)
        empty = starts(node, options.starts)
        jobs = sum(fill(node, env, size_bytes) for env in ("alice", "bob"))
        store_mib = (
            sum(os.stat(node.state_dir / name).st_size for name in ("state.db", "state.db-wal"))
            / MIB
        )
        full = starts(node, options.starts)
    print(f"\nFrom a manager's start to a client's grant, medians of {options.starts}")
    print(f"{'':36} {'seconds':>8} {'peak MiB':>9}")
    print(f"{'an empty store':36} {empty[0]:8.2f} {empty[1]:9.1f}")
    print(f"{f'{jobs} held jobs, files of {store_mib:.0f} MiB':36} {full[0]:8.2f} {full[1]:9.1f}")
    print(f"{'ratio':36} {full[0] / empty[0]:8.2f} {full[1] / empty[1]:9.2f}")
    against_target("until a client is served", full[0], TARGET_S, "s")
    against_target("peak memory", full[1], TARGET_MIB, "MiB")
    return options


if __name__ == "__main__":
    finish(main())
