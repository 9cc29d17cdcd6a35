"""A page of a long past, page by page, beside a manager that goes on.

A deep run (`python -m tests.deep --times 10 FILE`) has a million leases.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

import pytest

from tests.support.examples import LONG_PAST
from tests.support.local import LocalManager
from tests.support.web import Site

SECOND_NS = 1_000_000_000
FIRST_WALL_NS = 1_700_000_000 * SECOND_NS


def rows() -> Iterator[tuple[int, str, int, str]]:
    """One lease a second, of alice and bob in turn, each of two seconds."""
    for number in range(1, LONG_PAST + 1):
        env, began_ns = "alice" if number % 2 else "bob", FIRST_WALL_NS + number * SECOND_NS
        record = {
            "record_id": number, "env": env, "task_id": f"t{number}", "command": "train.py",
            "gpus_new": ["GPU-00000000"], "gpus_reused": [], "grant_bytes": [1],
            "remaining_gpus": 0, "remaining_memory_bytes": None, "asked_wall_ns": began_ns,
            "granted_wall_ns": began_ns, "ended_wall_ns": began_ns + 2 * SECOND_NS, "why": "ended",
            "asked_ns": began_ns, "granted_ns": began_ns, "ended_ns": began_ns + 2 * SECOND_NS,
        }  # fmt: skip
        yield number, env, began_ns, json.dumps(record)


@pytest.mark.slow
def test_the_leases_of_a_long_past_come_page_by_page() -> None:
    with LocalManager(web="127.0.0.1:0") as manager:
        manager.call("quota_set", env="alice", gpus=1)
        with sqlite3.connect(manager.directory / "state" / "state.db") as db:
            db.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", rows())
        token = manager.call("web_token", env="alice", for_ms=3_600_000)["token"]
        site = Site(str(manager.service._page.url))
        began = 1_700_000_000 + LONG_PAST - 5_000
        seen: list[int] = []
        before = ""
        while True:
            path = f"api/timeline?since={began}&limit=1000{before}"
            page = site.ask(path, token=token).json()
            assert manager.call("ping")
            assert {row["env"] for row in page["leases"]} <= {"alice"}
            seen += [row["record"] for row in page["leases"]]
            if page["before"] is None:
                break
            before = f"&before={page['before']}"
        overlapping = [
            number
            for number in range(LONG_PAST, 0, -1)
            if number % 2 and 1_700_000_000 + number + 2 >= began
        ]
        assert seen == overlapping
        first = site.ask("api/timeline?limit=1&before=2", token=token).json()["leases"]
        assert [row["record"] for row in first] == [1]
