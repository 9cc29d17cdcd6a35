"""Each message of a node to the head, with each field of a wrong form: nothing raises.

The session goes on, or the message is left out and counted; no answer is an internal fault.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodemgr.edge.links import keys
from nodemgr.edge.links.frames import encode
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.edge.rpc.pieces import MAX_PIECES, MORE, joined, pieces
from nodemgr.head.verbs import MAX_WAITS
from tests.head.test_service import word
from tests.head.world import ADMIN, ANN, World, cluster, frame_rows
from tests.wrong import WRONG, spoiled

BY = {"uid": 1000, "gid": 1000, "user": "ann"}
SUBMISSION = {
    "argv": ["true"], "cwd": "/", "environ": ["A=1"], "key": "cd" * 16, "gpus": 1, "umask": 18,
    "time_limit_ms": 1_000, "name": "n", "max_restarts": 1,
}  # fmt: skip
ASKS: dict[str, dict[str, Any]] = {
    "cluster_submit": SUBMISSION,
    "cluster_queue": {"env": "ann", "after": 1, "limit": 5},
    "cluster_match": {
        "order": "hold",
        "env": "ann",
        "name": "a*",
        "state": "queued",
        "user": "ann",
        "mine": True,
        "after": 1,
    },
    "cluster_show": {"job": "c1"},
    "cluster_wait": {"jobs": ["c1"]},
    "cluster_order": {"job": "c9", "order": "hold"},
    "cluster_orders": {"jobs": ["c9", "c8.1", "c7.*"], "order": "withdraw"},
    "cluster_move": {"job": "c9", "first": True, "queue": None},
    "cluster_submit_many": {
        "cwd": "/",
        "environ": ["A=1"],
        "jobs": [{"argv": ["true"], "key": "ab" * 16, "array": [[0, 3]], "after": ["c9"]}],
    },
    "cluster_logs": {"job": "c1", "offset": 0, "wait": False, "attempt": None},
    "cluster_history": {"env": "ann", "before": 5, "limit": 5, "since_wall_ns": 0},
    "cluster_status": {},
    "node_list": {},
    "node_show": {"node": "gn1"},
    "node_drain": {"node": "gn1", "note": "x"},
    "node_resume": {"node": "gn1"},
    "node_lost": {"node": "gn9"},
    "node_remove": {"node": "gn9"},
    "env_set": {"env": "ann", "gpus": 8, "per_node": None, "users": ["ann"], "add_users": ["b"]},
    "env_list": {},
    "env_rm": {"env": "bob"},
    "head_checks": {},
    "head_metrics": {},
}


def goes_on(world: World) -> None:
    """The head hears its node, and a job of a user comes to its end."""
    world.sync("gn1")
    world.ask(ADMIN, "node_resume", node="gn1")
    world.ask(ADMIN, "env_set", env="ann", gpus=8, per_node=None)
    job = world.submit(number=7, gpus=1)
    for _ in range(4):
        world.turn()
        world.finish()
    assert world.ended(job) == "done"


def no_fault(text: str) -> None:
    assert "Traceback" not in text, text[-3_000:]


@pytest.mark.parametrize("kind", ["hello", "report"])
def test_a_word_about_a_node(tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str) -> None:
    with cluster(tmp_path, gn1=4) as world:
        world.submit(gpus=1)
        world.turn()
        (key,) = world.nodes["gn1"].rows
        gpu = {
            "memory": 8, "room": 4, "percent": 50, "plain": False, "best_effort": 10, "tasks": 1,
            "envs": [["ann", 1]], "numbers": [1],
        }  # fmt: skip
        facts = {
            "gpus": 4, "others": [["ann", 1]], "answers": frame_rows(world.nodes["gn1"]),
            "shares": [gpu],
        }  # fmt: skip
        said: dict[str, Any] = {"t": kind, "s": 1, "n": 1, "number": 99, **facts}
        if kind == "hello":
            said |= {"generation": "1", "boot_id": "b", "below": 1, "models": ["m"]}
        sessions = world.head.sessions
        for number, bad in enumerate(spoiled(said), 100):
            if kind == "hello":
                sessions.synced("gn1", number, bad)
            else:
                sessions.message("gn1", world.links.open["gn1"], bad)
            head = world.head.engine.state.counters[""]
            assert not head.is_copy or kind == "hello"
        assert sessions.bad["gn1"] > 50
        assert sum(line.startswith("nodemgr") for line in capfd.readouterr().err.splitlines()) < 40
        assert key.startswith("hq-")


@pytest.mark.parametrize("wrong", [*WRONG, 2**200, -(2**200)])
@pytest.mark.parametrize("field", ["started_wall_ns", "ended_wall_ns"])
def test_an_end_at_a_time_that_no_clock_shows(tmp_path: Path, field: str, wrong: object) -> None:
    """It is stored, at an unknown time."""
    with cluster(tmp_path, gn1=1) as world:
        job = world.submit()
        world.turn()
        (row,) = frame_rows(world.nodes["gn1"])
        times = {"started_wall_ns": 2**60, "ended_wall_ns": 2**60, field: wrong}
        said = {**row, "over": True, "began": True, "state": "done", **times}
        report = {"t": "report", "number": 99, "gpus": 1, "others": [], "answers": [said]}
        world.head.sessions.message("gn1", world.links.open["gn1"], report)
        assert world.ended(job) == "done"
        (start,) = world.ask(ANN, "cluster_show", job=job)["jobs"][0]["attempts"]
        assert start["ended"] == (None if field == "ended_wall_ns" else 2**60 // 10**9)


def test_a_head_that_heard_nonsense_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with cluster(tmp_path, gn1=4) as world:
        said = {"t": "report", "number": 99, "gpus": 4, "others": [["ann", 1]], "answers": [1]}
        for bad in spoiled(said):
            world.head.sessions.message("gn1", world.links.open["gn1"], bad)
        for bad in spoiled({"t": "answer", "id": 1, "ok": {}, "part": "x", "last": "x"}):
            world.head.sessions.message("gn1", 1, bad)
        for kind in ("later", "beat", "assign", "welcome", "x" * 32):
            world.head.sessions.message("gn1", 1, {"t": kind, "s": 1, "n": 1})
        goes_on(world)
        no_fault(capfd.readouterr().err)


@pytest.mark.parametrize("verb", sorted(ASKS))
def test_an_order_that_a_node_relays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], verb: str
) -> None:
    with cluster(tmp_path, gn1=4) as world:
        assert set(ASKS) == set(world.head.verbs.rows)
        world.submit(gpus=1)
        frame = {"t": "ask", "id": 1, "verb": verb, "arguments": ASKS[verb], "by": BY}
        for env in ("ann", None):
            for bad in spoiled(frame | {"env": env}):
                world.head.sessions.message("gn1", 1, bad)
            for wrong in WRONG:
                world.head.sessions.message("gn1", 1, frame | {"env": env, "verb": wrong})
        answers = [said for _, kind, said in world.links.said if kind == "answer"]
        codes = {said["refusal"]["code"] for said in answers if "refusal" in said}
        assert "internal" not in codes
        goes_on(world)
        no_fault(capfd.readouterr().err)


def test_a_word_to_join(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with cluster(tmp_path, gn1=4) as world:
        _, public = word(world, "gn2")
        key = keys.new_pair().public
        said = {"t": "join", "node": "gn2", "key": key, "envs": ["ann"], "take_over": False}
        for bad in spoiled(said | {"user": "ann"}):
            node = bad.get("node") if isinstance(bad.get("node"), str) else "gn2"
            answer = world.head.sessions.joined(public, str(node), key, bad)
            assert set(answer) in ({"error"}, {"head", "generation"})
        goes_on(world)
        no_fault(capfd.readouterr().err)


def test_a_node_of_another_version(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An earlier one lacks the newest fields; a later one is not taken."""
    with cluster(tmp_path, gn1=4) as world:
        hello = {"generation": "1", "boot_id": "b", "below": 1, "gpus": 2, "t": "hello"}
        world.head.sessions.synced("gn1", 50, hello)
        assert world.head.engine.state.nodes["gn1"].gpus == 2
        world.head.sessions.synced("gn1", 51, hello | {"gpus": 3, "version": 2})
        assert world.head.engine.state.nodes["gn1"].gpus == 2
        assert "no version of the right form" in capfd.readouterr().err
        goes_on(world)


def test_so_many_wait_for_one_job(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=4) as world:
        job = world.submit(gpus=1)
        for _ in range(MAX_WAITS):
            assert world.answers(ANN, "cluster_wait", jobs=[job]) == []
        (refused,) = world.answers(ANN, "cluster_wait", jobs=[job])
        assert refused.code == "busy"


def test_a_node_of_an_ordinary_user_asks_for_that_user_alone(tmp_path: Path) -> None:
    with cluster(tmp_path, gn1=4) as world:
        told: list[Any] = []
        world.head.sessions.of_admin("r", "node_word", {"node": "gn2", "user": "ann"}, told.append)
        public = keys.read_word(told[0]["word"]).pair.public
        key = keys.new_pair().public
        world.head.sessions.joined(public, "gn2", key, {"user": ""})  # whatever it says itself
        world.nodes["gn2"] = type(world.nodes["gn1"])(4, fails=0.0)
        world.sync("gn2")
        world.ask(ADMIN, "env_set", env="ann", gpus=8, users=["ann"])
        order = {"t": "ask", "id": 1, "arguments": {}}
        for by, env, verb, code in (
            ("ann", "ann", "cluster_queue", None),
            ("root", "ann", "cluster_queue", "forbidden"),
            ("bob", "ann", "cluster_queue", "forbidden"),
            ("ann", "bob", "cluster_queue", "forbidden"),
            ("ann", None, "node_list", None),
            ("ann", None, "node_drain", "forbidden"),
            ("ann", "ann", "node_drain", "forbidden"),
        ):
            world.links.said.clear()
            who = {"uid": 0 if by == "root" else 1000, "gid": 0, "user": by}
            said = order | {"by": who, "env": env, "verb": verb}
            world.head.sessions.message("gn2", world.links.open["gn2"], said)
            (answer,) = [said for _, kind, said in world.links.said if kind == "answer"]
            assert answer.get("refusal", {}).get("code") == code, (by, env, verb)
        # it gets no job of others, and stops no head
        world.ask(ADMIN, "node_drain", node="gn1")
        jobs = [world.submit(ANN, 1, gpus=1), world.submit(ANN._replace(name="eve"), 2, gpus=1)]
        world.turn()
        rows = {row["id"]: row["node"] for row in world.ask(ADMIN, "cluster_queue")["queue"]}
        assert rows == {jobs[0]: "gn2", jobs[1]: None}
        said = {"generation": "1", "boot_id": "b", "below": 2**62, "gpus": 4}
        world.head.sessions.synced("gn2", 99, said)
        assert not world.head.engine.state.counters[""].is_copy
        said = order | {"by": {"uid": 1000, "gid": 0, "user": "ann"}, "env": None}
        world.links.said.clear()
        leave = said | {"verb": "node_remove", "arguments": {"node": "gn2"}}
        world.head.sessions.message("gn2", world.links.open["gn2"], leave)
        (answer,) = [said for _, kind, said in world.links.said if kind == "answer"]
        assert "has 1 jobs of the cluster" in answer["refusal"]["error"], "it may leave"


def test_an_order_longer_than_a_frame_is_an_answer_in_pieces(tmp_path: Path) -> None:
    """Text that doubles within JSON: each piece is a frame all the same."""
    answer = {"text": '"\\' * 400_000}
    parts: list[str] = []
    frames = list(pieces(5, answer))
    assert len(frames) > 4
    for fields in frames[:-1]:
        assert encode("answer", fields, 2**62, 2**62)
        assert joined(fields, parts) is MORE
    assert joined(frames[-1], parts) == answer
    endless = {"id": 5, "part": "x"}
    parts = ["x"] * MAX_PIECES
    assert isinstance(joined(endless, parts), OperationError)
    assert isinstance(joined({"last": "{"}, []), OperationError)
    assert isinstance(joined({"last": "[" * 100_000}, []), OperationError)
