"""The manager with nothing to do: resident memory, and how often it wakes up.

    python bench/idle.py [--seconds 10]

Measured after one lease has ended, with no lease and no request left. The reference is a Python
process that imports the manager's modules and sleeps.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import psutil

from arguments import parse
from node import Client, Node, against_target, finish

TARGET_MIB = 60.0
IMPORTS = "import nodemgr.edge.service, pynvml, time; print(flush=True); time.sleep(3600)"


def resident_mib(pid: int) -> float:
    return psutil.Process(pid).memory_info().rss / 2**20


def switches(pid: int) -> int:
    """How often any of its threads gave the processor away so far."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        count += sum(
            int(line.split()[1])
            for line in status.read_text().splitlines()
            if "ctxt_switches" in line
        )
    return count


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--settle",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="until what was asked has come to rest",
    )
    options = parse(parser, seconds=0.3, settle=0.3)
    seconds = options.seconds
    with (
        Node("4x80GiB") as node,
        subprocess.Popen([sys.executable, "-P", "-c", IMPORTS], stdout=subprocess.PIPE) as bare,
    ):
        assert bare.stdout is not None
        bare.stdout.readline()
        node.call("quota_set", env="alice", gpus=1)
        client = Client(node.env_dir("alice"))
        client.send("ACQUIRE", rid=1, task="ab" * 16)
        client.until("GRANT")
        client.send("RELEASE", rid=2, task="ab" * 16)
        client.until("ACK")
        client.socket.close()
        node.call("status")
        time.sleep(options.settle)
        before = {pid: switches(pid) for pid in (bare.pid, node.pid)}
        time.sleep(seconds)
        woken = {pid: switches(pid) - before[pid] for pid in (bare.pid, node.pid)}
        mib = {pid: resident_mib(pid) for pid in (bare.pid, node.pid)}
        bare.kill()
    print(f"\nIdle for {seconds:g} s\n{'':22} {'resident MiB':>13} {'ratio':>6} {'wake-ups':>9}")
    for name, pid in (("imports, then sleep", bare.pid), ("manager", node.pid)):
        print(f"{name:22} {mib[pid]:13.1f} {mib[pid] / mib[bare.pid]:6.2f} {woken[pid]:9}")
    against_target("resident", mib[node.pid], TARGET_MIB, "MiB")
    against_target("wake-ups", woken[node.pid], 0, "")
    return options


if __name__ == "__main__":
    finish(main())
