"""New clients over UDP while strangers send packets that no key has signed.

    python bench/udp_flood.py [--clients 20] [--rate 20000] [--hosts 8]

Each client is examples/hold.c with the real shim: HELLO, ACQUIRE, GRANT, one allocation, RELEASE,
with the retries of the client. The strangers are one process with a socket on each of so many
loopback addresses; half of its packets are well formed with a wrong MAC, half are rubbish. The
reference is the same clients without strangers. The manager's share of a core is taken over the
whole flood.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

from arguments import parse
from node import Node, against_target, finish, table
from nodemgr.edge.rpc.wire import encode, sign
from nodemgr.paths import payload_dir
from nodemgr.simulator import library_directory

WAIT_LIMIT_S = 5.0
SLICE_S = 0.002
PAUSE_S, LEAST_S = 0.1, 3.0
"""Between two clients; of a flood."""
MOST_FLOOD_S = 120


def flood(address: tuple[str, int], rate: int, hosts: int) -> None:
    """Until it is killed, or for two minutes."""
    socks = []
    for number in range(hosts):
        socks.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        socks[-1].bind((f"127.0.1.{number + 1}", 0))
    forged = sign(
        encode("ACQUIRE", env="alice", client="ab", rid=1, task="ab", epoch=1, counter=1),
        secrets.token_bytes(32),
    )
    packets = (forged, b"NODEMGR/1 rubbish\n")
    print("begun", flush=True)
    begin, sent = time.monotonic(), 0
    while (now := time.monotonic()) - begin < MOST_FLOOD_S:
        due = int((now - begin) * rate)
        for number in range(sent, due):
            socks[number % hosts].sendto(packets[number // hosts % 2], address)
        sent = max(sent, due)
        time.sleep(SLICE_S)


def client_s(node: Node) -> float | None:
    """None: it was not answered in time."""
    shim = payload_dir() / "client_plugin" / "_lib" / "libnodemgr.so"
    environment = {
        **os.environ, "LD_PRELOAD": str(shim),
        "NODEMGR_ENV_DIR": str(node.state_dir / "keys" / "alice"),
        "LD_LIBRARY_PATH": str(node.run_dir / "sim"),
    }  # fmt: skip
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [library_directory() / "hold", "-s", "0"],
            env=environment,
            capture_output=True,
            timeout=WAIT_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return time.monotonic() - begin if done.returncode == 0 else None


def clients(node: Node, count: int) -> list[float]:
    """Of those that were answered."""
    answered = []
    for _ in range(count):
        time.sleep(PAUSE_S)
        answered.append(client_s(node))
    return [took for took in answered if took is not None]


def strange(node: Node) -> int:
    """Packets so far that no key has signed."""
    counters = node.call("status")["counters"]
    return sum(int(counters[f"packets_{name}"]) for name in ("forged", "malformed", "throttled"))


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--flood", metavar="HOST:PORT", help="be the strangers")
    parser.add_argument("--seconds", type=float, default=LEAST_S, help="of the flood, at the least")
    given = parse(parser, clients=2, rate=500, hosts=2, seconds=0.5)
    if given.flood:
        host, _, port = given.flood.rpartition(":")
        flood((host, int(port)), given.rate, given.hosts)
        return given
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
    node = Node("1x80GiB", "--udp", address)
    node.call("quota_set", env="alice", gpus=1)
    calm = clients(node, given.clients)
    options = ["--flood", address, "--rate", str(given.rate), "--hosts", str(given.hosts)]
    strangers = subprocess.Popen(
        [sys.executable, Path(__file__), *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert strangers.stdout is not None
    strangers.stdout.readline()
    time.sleep(min(1, given.seconds))
    before_s, begin, before = node.cpu_s(), time.monotonic(), strange(node)
    flooded = clients(node, given.clients)
    time.sleep(max(0.0, begin + given.seconds - time.monotonic()))
    took_s = time.monotonic() - begin
    share, rate = (node.cpu_s() - before_s) / took_s, (strange(node) - before) / took_s
    strangers.kill()
    strangers.wait()
    counters = node.call("status")["counters"]
    node.close()
    rows = [
        ("calm", [1e3 * took for took in calm or [WAIT_LIMIT_S]]),
        ("flooded", [1e3 * took for took in flooded or [WAIT_LIMIT_S]]),
    ]
    table("a new client, from its start to its end", rows, "ms", "calm")
    print({name: counters[f"packets_{name}"] for name in ("forged", "malformed", "throttled")})
    print(f"answered: {len(calm)} of {given.clients} calm, {len(flooded)} flooded")
    print(
        f"{rate:.0f} strange packets a second; the manager took {100 * share:.0f} % of a core"
        " meanwhile"
    )
    against_target("not answered", given.clients - len(flooded), 0, "clients")
    return given


if __name__ == "__main__":
    finish(main())
