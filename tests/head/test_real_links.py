"""A head on its real link: a node joins by a word, gets a job, says how it ends, relays a user."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nodemgr.edge.links import keys
from nodemgr.edge.links.frames import Frame
from nodemgr.edge.links.joining import Joining
from nodemgr.edge.links.node_link import NodeLink
from nodemgr.head.service import HeadService, make
from tests.head.world import ADMIN
from tests.support.limits import WAIT_LIMIT_S


def until(head: HeadService, true: Callable[[], object]) -> None:
    async def wait() -> None:
        while not true():
            await asyncio.sleep(0.005)

    head.loop.run_until_complete(asyncio.wait_for(wait(), WAIT_LIMIT_S))


def answers(heard: list[Frame], asked: int) -> Iterator[Frame]:
    """The head's to an `ask`: its orders have numbers of their own."""
    return (frame for frame in heard if (frame["t"], frame.get("id")) == ("answer", asked))


def test_a_node_joins_runs_a_job_and_relays_a_user(tmp_path: Path) -> None:
    make(tmp_path / "head", "hq", "127.0.0.1:0")
    head = HeadService(tmp_path / "head", tmp_path / "run")
    head.open()
    heard: list[Frame] = []
    states: list[Frame | None] = []
    told: list[Any] = []
    own = keys.new_pair()
    try:
        address = head.links.address  # type: ignore[union-attr]
        head.sessions.of_admin("root", "node_word", {"node": "gn1"}, told.append)
        word = keys.read_word(told[0]["word"])
        said = {"node": "gn1", "key": own.public, "envs": []}
        joined: list[Any] = []
        Joining(head.loop, address, word, said, joined.append)
        until(head, lambda: joined)
        assert joined[0]["head"].startswith("hq-"), joined
        head.verbs.asked(ADMIN, "env_set", {"env": "ann", "gpus": 4}, told.append)
        facts = {"gpus": 2, "others": [], "answers": []}
        hello = {"name": "gn1", "generation": "g", "boot_id": "b", "below": 0, **facts}
        link = NodeLink(
            head.loop, address, word.head_key, own, lambda: hello, heard.append, states.append
        )
        until(head, lambda: states and states[-1] is not None)
        by = {"uid": 1000, "gid": 1000, "user": "ann"}
        job = {"argv": ["true"], "cwd": "/", "environ": ["A=1"], "key": "ab" * 16, "gpus": 1}
        link.send("ask", id=1, verb="cluster_submit", arguments=job, by=by, env="ann")
        until(head, lambda: any(frame["t"] == "assign" for frame in heard))
        assigned = next(frame for frame in heard if frame["t"] == "assign")
        assert (assigned["user"], assigned["argv"], assigned["env"]) == ("ann", ["true"], "ann")
        assert any(frame.get("ok") == {"job": "c1"} for frame in heard)
        orders = [frame for frame in heard if frame["t"] == "order"]
        put = next(order for order in orders if order["verb"] == "env_put")
        assert put["arguments"]["quota"]["gpus"] == 4
        link.send("ask", id=2, verb="cluster_wait", arguments={"jobs": ["c1"]}, by=by, env="ann")
        end = {
            "key": assigned["key"], "number": assigned["number"], "over": True, "began": True,
            "job": "j1", "confirmed": True, "state": "failed", "cause": "own", "exit_code": 3,
            "started_wall_ns": 10**18, "ended_wall_ns": 10**18 + 10**10,
        }  # fmt: skip
        link.send("report", number=1, **{**facts, "answers": [end]})
        until(head, lambda: any(frame["t"] == "acknowledge" for frame in heard))
        until(head, lambda: [*answers(heard, 2)])
        (outcome,) = next(answers(heard, 2))["ok"]["jobs"]
        assert (outcome["state"], outcome["exit"]) == ("failed", 3)
        link.close()
        head.links.forget("gn1")  # type: ignore[union-attr]
        assert head.engine.silent_ns.keys() == {"gn1"}
    finally:
        head.close()
