"""A day of leases and of use in the store of a scene, as a node has them that runs for a day.

Knows: the tables `records` and `gpu_minutes`. Must not know: any one picture. The same day is made
each time.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOUR_S, DAY_S, MINUTE_S = 3_600, 86_400, 60
SECOND_NS = 1_000_000_000
FIRST_RECORD = 1_000_000
"""Above the numbers of the scene's own leases."""
COMMANDS = {
    "alice": "python train.py --lr 3e-4",
    "bob": "python finetune.py",
    "carol": "python pretrain.py --config base.toml",
    "dana": "python -m ipykernel_launcher -f kernel.json",
}


def write(store: Path, uuids: list[str]) -> None:
    """Until two minutes ago; the newest lease of each GPU ends then."""
    now = int(time.time())
    leases = list(_leases(random.Random(11), uuids, now - DAY_S, now - 2 * MINUTE_S))
    with sqlite3.connect(store) as db:
        db.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", leases)
        db.executemany(
            "INSERT INTO gpu_minutes (minute, uuid, utilization_percent, memory_used_bytes)"
            " VALUES (?, ?, ?, ?)",
            _minutes(random.Random(12), leases, uuids, now),
        )


def _leases(
    chance: random.Random, uuids: list[str], since: int, until: int
) -> Iterator[tuple[int, str, int, str]]:
    """Rows of `records`: people work by day, and a long training runs at night."""
    number = FIRST_RECORD
    for gpu, uuid in enumerate(uuids):
        began = since + chance.randrange(HOUR_S)
        while began < until:
            env = chance.choice(list(COMMANDS))
            most_h = 9 if env == "carol" else 3
            ended = min(until, began + chance.randrange(15 * MINUTE_S, most_h * HOUR_S))
            number += 1
            times = {"asked": began - 20 * gpu, "granted": began, "ended": ended}
            record: dict[str, Any] = {
                **{f"{name}_wall_ns": at * SECOND_NS for name, at in times.items()},
                **{f"{name}_ns": at * SECOND_NS for name, at in times.items()},
                "record_id": number, "env": env, "user": env, "task_id": f"t{number % 1_000}",
                "command": COMMANDS[env], "gpus_new": [uuid], "gpus_reused": [],
                "grant_bytes": [1], "remaining_gpus": 0, "remaining_memory_bytes": None,
                "why": "its process ended",
            }  # fmt: skip
            yield number, env, began * SECOND_NS, json.dumps(record)
            began = ended + chance.randrange(2 * HOUR_S) // (1 + chance.randrange(4))


def _minutes(
    chance: random.Random, leases: list[tuple[int, str, int, str]], uuids: list[str], now: int
) -> Iterator[tuple[int, str, float, int]]:
    """Rows of `gpu_minutes`: a training is busy and steady, a notebook is neither."""
    held: dict[str, list[tuple[int, int, str]]] = {uuid: [] for uuid in uuids}
    for _, env, began_ns, value in leases:
        (uuid,) = json.loads(value)["gpus_new"]
        ended_ns = json.loads(value)["ended_wall_ns"]
        held[uuid].append((began_ns // SECOND_NS, ended_ns // SECOND_NS, env))
    for uuid in uuids:
        level = 50.0
        for minute in range((now - DAY_S) // MINUTE_S, now // MINUTE_S):
            moment = minute * MINUTE_S
            env = next((name for began, ended, name in held[uuid] if began <= moment < ended), "")
            aim = {"": 0.0, "dana": chance.choice((2.0, 5.0, 60.0)), "carol": 96.0}.get(env, 82.0)
            level += (aim - level) * 0.5 + (chance.random() - 0.5) * 8 * bool(env)
            yield minute, uuid, round(min(100.0, max(0.0, level)), 1), 0
