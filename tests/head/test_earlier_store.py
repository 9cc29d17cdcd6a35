"""A head on a store of the first version (first_store.sql): its jobs go on where they stood.

A version with a migration of the head's store adds its predecessor's store in the same way.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from nodemgr.core.cluster.messages import Assign
from tests.head.world import ADMIN, ANN, World, cluster

STORE = Path(__file__).with_name("first_store.sql")
WORD = "1-E6vReV1=kpfaXp3Zf+OFS57[LrIex$)]4aiE=4"


def put_in_place(world: World) -> None:
    world.die()
    for file in world.directory.glob("state.db*"):
        file.unlink()
    db = sqlite3.connect(world.directory / "state.db")
    db.executescript(STORE.read_text())
    db.close()
    settings = world.directory / "settings.json"
    settings.write_text(json.dumps({"name": "hq-a09c79", "address": ""}))
    world.start()


def test_the_first_store_is_read_and_its_jobs_go_on(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=1, gn2=2) as world:
        put_in_place(world)
        state = world.head.engine.state
        for row in state.assignments.values():  # its nodes have them
            world.nodes[row.node].hear(Assign(row))
        assert world.head.sessions.is_word(WORD)
        assert (state.nodes["gn1"].drained, state.nodes["gn1"].why) == (True, "a new fan")
        shown = world.ask(ANN, "cluster_queue")["queue"]
        assert [row["id"] for row in shown] == ["c2", "c4"]
        (past,) = world.ask(ANN, "cluster_history")["history"]
        assert (past["job"], past["state"], past["node"]) == ("c1", "done", "gn1")
        (start,) = past["attempts"]
        assert (past["starts"], start["number"], start["node"]) == (1, 1, "gn1")
        assert world.submit() == "c1", "a submission of then, said again"
        world.ask(ADMIN, "node_resume", node="gn1")
        world.sync()
        for _ in range(6):
            world.turn()
            world.finish()
        world.turn()
        assert [world.ended(job) for job in ("c2", "c3", "c4")] == ["done"] * 3
        assert world.submit(number=9) == "c5"
