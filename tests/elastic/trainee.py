"""A worker that keeps the leader's protocol and trains nothing: the standard library alone.

It prints a line for each generation and, as a spare, for the GPU that it gets. `--fail N`: worker
N raises after its first generation. `--deaf`: it never leaves. `--child`: it has a child process.
`--done G`: its loop ends with the generation G.

The first workers say hello together: on a busy machine one may start seconds after the other, and
the leader begins without it after 2 s.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", type=int, default=-1)
    parser.add_argument("--done", type=int, default=0)
    for flag in ("--deaf", "--child", "--garbage"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    number = int(os.environ["NODEMGR_WORKER"])
    if options.child:
        subprocess.Popen(["sleep", "1000"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
        agent.connect(os.environ["NODEMGR_ELASTIC"])
        if options.garbage:
            for packet in (b"{", b"[]", b'{"is":1}', b'{"is":"resized","worker":"x"}', b"\xff"):
                agent.send(packet)
        if not os.environ["NODEMGR_WORKER_GPU"]:
            say(agent, "spare", number)
            print(f"given {json.loads(agent.recv(65_536))['gpu']}", flush=True)
        await_peers(number)
        say(agent, "hello", number, pid=os.getpid(), form="inline", phase=1)
        while packet := agent.recv(65_536):
            follow(agent, number, json.loads(packet), options)
    os._exit(1)


def await_peers(number: int) -> None:
    """Wait for the other first workers, which TF_CONFIG names; later workers have none."""
    cluster = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {"worker": []})
    directory = Path(os.environ["NODEMGR_ELASTIC"]).parent
    (directory / f"ready-{number}").touch()
    while len(list(directory.glob("ready-*"))) < len(cluster["worker"]):
        time.sleep(0.01)


def follow(
    agent: socket.socket, number: int, message: dict[str, object], options: argparse.Namespace
) -> None:
    """Do what a word of the leader asks for."""
    generation, workers = message["generation"], message["workers"]
    assert isinstance(generation, int)
    assert isinstance(workers, list)
    ranks = {worker["worker"]: worker["rank"] for worker in workers}
    if number not in ranks:
        if not options.deaf:
            say(agent, "leaving", number, generation=generation)
            os._exit(0)
        return
    print(f"generation {generation} rank {ranks[number]} of {len(ranks)} root {message['root']} "
        f"state {message['state']} at {message['at']}", flush=True)  # fmt: skip
    say(agent, "resized", number, generation=generation)
    if number == options.fail:
        raise SystemExit(3)
    if options.done and generation >= options.done:
        say(agent, "done", number, phase=1)
        sys.exit(0)


def say(agent: socket.socket, word: str, number: int, **fields: object) -> None:
    agent.send(json.dumps({"is": word, "worker": number, **fields}).encode())


main()
