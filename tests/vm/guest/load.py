"""Gives orders until the power is cut, and prints each one that the manager has acknowledged.

Runs in the machine as root, by the interpreter of the installation.
usage: load.py SEED ORDERS
"""

import random
import secrets
import sys
from pathlib import Path

import nodemgr  # noqa: F401 (it makes client_plugin known)
from client_plugin.ways.choice import UserWay
from client_plugin.ways.control import ControlConnection

RUN_DIR = "/run/nodemgr"
ENDLESS, SHORT = ("sleep", "infinity"), ("true",)


def submit(way: UserWay, argv: tuple[str, ...], gpus: int, hold: bool) -> str:
    said = {"argv": list(argv), "cwd": "/", "environ": ["PATH=/usr/bin:/bin"], "gpus": gpus}
    answer = way.ask("job_submit", key=secrets.token_hex(16), hold=hold, **said)
    return str(answer["job"])


def main(seed: int, orders: int) -> None:
    dice = random.Random(seed)
    way = UserWay(f"{RUN_DIR}/envs/bob")
    with ControlConnection(Path(RUN_DIR)) as control:
        for number in range(orders):
            if number % 20 == 10:
                env, gpus = f"team{number}", dice.randint(0, 4)
                control.call("quota_set", env=env, gpus=gpus)
                print("quota", env, gpus, flush=True)
            hold = number % 7 == 3
            ends = number % 5 == 2
            job = submit(way, SHORT if ends else ENDLESS, 0 if ends else 1, hold)
            print("held" if hold else "ends" if ends else "waits", job, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
