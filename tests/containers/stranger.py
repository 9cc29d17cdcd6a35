"""Run by root in a container of one env: it tries every way out.

The ways lead to another env, to the manager, or out of its mounts.

Prints one JSON object: the ways that worked (none should), and the answers. Then it floods until
its standard input closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sys
import threading

ENV_DIR = "/run/nodemgr-env"
READ_ONLY = (ENV_DIR, "/opt/nodemgr/client_plugin", "/opt/nodemgr/sitecustomize")
FILES = (
    "/etc/ld.so.preload",
    "/usr/lib/libcuda.so.1",
    "/usr/local/bin/nodemgr",
    f"{ENV_DIR}/client.conf",
)
CONNECTIONS = 10_000
TOKEN = "cd" * 16


def connect() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    connection.connect(f"{ENV_DIR}/socket")
    connection.settimeout(300)
    return connection


def packet(verb: str, **fields: object) -> bytes:
    return f"NODEMGR/1 {verb}\n".encode() + b"".join(
        f"{key}={value}\n".encode() for key, value in fields.items()
    )


def ask(verb: str, **fields: object) -> str:
    with connect() as connection:
        connection.send(packet(verb, rid=7, **fields))
        return connection.recv(1200).decode()


def changed_mounts() -> list[str]:
    """The files that could be written, removed or replaced."""
    done = []
    for directory in READ_ONLY:
        for attempt in (
            lambda at: open(f"{at}/mine", "w"),  # noqa: SIM115
            lambda at: os.rename(f"{at}/socket", f"{at}/old"),
            os.rmdir,
        ):
            with contextlib.suppress(OSError):
                attempt(directory)
                done.append(directory)
    for file in FILES:
        for attempt in (
            lambda at: open(at, "r+b"),  # noqa: SIM115
            os.unlink,
            lambda at: os.chmod(at, 0o777),
        ):
            with contextlib.suppress(OSError):
                attempt(file)
                done.append(file)
    return done


def many_connections() -> list[socket.socket]:
    found = []
    for _ in range(CONNECTIONS):
        try:
            found.append(connect())
        except OSError:  # the backlog is full, or our own descriptors are out
            continue
    return found


def flood(over: threading.Event) -> None:
    chance = random.Random(3)
    connection = connect()
    while not over.is_set():
        try:
            connection.send(
                chance.choice(
                    [
                        packet("ASK", rid=chance.getrandbits(40), what="status"),
                        chance.randbytes(900),
                        b"",
                    ]
                )
            )
        except OSError:
            with contextlib.suppress(OSError):
                connection = connect()


def main() -> None:
    said = {
        "changed": changed_mounts(),
        "other task": ask("ASK", what="release", argument="t1"),
        "other lease": ask("REJOIN", task=TOKEN, lease="t1", slot=0, generation=1),
        "other env": ask("ACQUIRE", task=TOKEN, env="bob", gpus=2, pid=1, user="root"),
    }
    over = threading.Event()
    flooders = [threading.Thread(target=flood, args=(over,)) for _ in range(4)]
    for flooder in flooders:
        flooder.start()
    said["connections"] = len(held := many_connections())
    print(json.dumps(said), flush=True)
    sys.stdin.read()
    over.set()
    for connection in held:
        connection.close()
    os._exit(0)


if __name__ == "__main__":
    main()
