"""The manager with nothing to do: resident memory, processor time, and how often it wakes up.

Then, with tasks that hold leases: the cost of viewers of the figures.

    python bench/idle.py [--seconds 10] [--tasks 50] [--idle-seconds 120]

Idle is measured after one lease has ended, with no lease and no request left, over whole minutes:
the manager looks at its directory every 2 s, reads the GPUs every 10 s (memory that nobody granted
is found then), and writes its figures at the end of each minute. The reference is a Python process
that imports the manager's modules and sleeps. A viewer asks for the figures once a second. The
reference is the same manager without a viewer.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import psutil

from arguments import parse
from client_plugin.ways.control import ControlConnection
from node import Client, Node, against_target, finish

TARGET_MIB = 60.0
TARGET_IDLE_SHARE = 0.001
"""Of a core."""
TARGET_SHARES = {1: 0.02, 10: 0.05}
"""By number of viewers, of a core."""
HOLDER = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
sock.send(f"NODEMGR/1 ACQUIRE\\nrid=1\\ntask={sys.argv[2]}\\ngpus=1\\n".encode())
while not sock.recv(2000).startswith(b"NODEMGR/1 GRANT"): pass
print(flush=True)
while sock.recv(2000): pass
"""
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


def run_ms(pid: int) -> float:
    """Processor time of all its threads so far; finer than the kernel's ticks."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in files) / 1e6


def watched(node: Node, tasks: int, seconds: float) -> dict[int, float]:
    """The manager's share of a core by number of viewers, while so many tasks hold leases."""
    shares = {}
    node.call("quota_set", env="bob", gpus=4)
    place = str(node.env_dir("bob") / "socket")
    holders = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", HOLDER, place, f"{number:032x}"], stdout=subprocess.PIPE
        )
        for number in range(tasks)
    ]
    try:
        for holder in holders:
            assert holder.stdout is not None
            holder.stdout.readline()
        with ControlConnection(node.run_dir, timeout_s=60) as control:
            for viewers in (0, *TARGET_SHARES):
                before_s, began_s = node.cpu_s(), time.monotonic()
                while time.monotonic() - began_s < seconds:
                    for _ in range(viewers):
                        control.call("figures")
                        time.sleep(1 / viewers)
                    if viewers == 0:
                        time.sleep(seconds)
                shares[viewers] = (node.cpu_s() - before_s) / (time.monotonic() - began_s)
            assert len(control.call("figures")["tasks"]) == tasks
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()
    return shares


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--idle-seconds", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument(
        "--settle",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="until what was asked has come to rest",
    )
    options = parse(parser, seconds=0.3, idle_seconds=0.3, settle=0.3, tasks=2)
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
        pids = (bare.pid, node.pid)
        before = {pid: (switches(pid), run_ms(pid)) for pid in pids}
        time.sleep(options.idle_seconds)
        woken = {pid: switches(pid) - before[pid][0] for pid in pids}
        idle = {pid: (run_ms(pid) - before[pid][1]) / options.idle_seconds / 1_000 for pid in pids}
        mib = {pid: resident_mib(pid) for pid in pids}
        bare.kill()
        shares = watched(node, options.tasks, options.seconds)
    print(
        f"\nIdle for {options.idle_seconds:g} s\n"
        f"{'':22} {'resident MiB':>13} {'ratio':>6} {'share of a core':>16} {'wake-ups':>9}"
    )
    for name, pid in (("imports, then sleep", bare.pid), ("manager", node.pid)):
        print(
            f"{name:22} {mib[pid]:13.1f} {mib[pid] / mib[bare.pid]:6.2f} {idle[pid]:16.5f} "
            f"{woken[pid]:9}"
        )
    against_target("resident", mib[node.pid], TARGET_MIB, "MiB")
    against_target("share", idle[node.pid], TARGET_IDLE_SHARE, "of a core")
    print(f"\nFigures of {options.tasks} tasks, once a second\n{'':22} {'share of a core':>16}")
    for viewers, share in shares.items():
        print(f"{f'{viewers} viewers':22} {share:16.4f}")
        if viewers:
            against_target(f"{viewers} viewers", share, TARGET_SHARES[viewers], "of a core")
    return options


if __name__ == "__main__":
    finish(main())
