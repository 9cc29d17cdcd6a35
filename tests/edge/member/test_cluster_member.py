"""A real manager as a member, against a stand-in head on loopback: join, assign, report, ask."""

from __future__ import annotations

import os
import pwd
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodemgr.edge.admin.control_client import ManagerRefused
from nodemgr.edge.links import keys
from nodemgr.edge.member.membership import KEY_FILE
from tests.edge.links.ends import Ends, Head, ends
from tests.jobs.world import KINDS, World
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import FakeGpus

ROOT = pwd.getpwuid(os.getuid()).pw_name


class StandIn(Head):
    """A head that answers as it is told, and keeps whole frames."""

    frames: list[Any]
    answers: dict[str, Any]

    def synced(self, node: str, session: int, said: Any) -> None:
        self.frames.append(said)
        super().synced(node, session, said)

    def message(self, node: str, session: int, said: Any) -> None:
        self.frames.append(said)
        if said["t"] == "ask":
            answer = self.answers.get(said["verb"], {"refusal": {"error": "no", "code": "usage"}})
            self.links.say(node, "answer", id=said["id"], **answer)


class Site:
    """The head, and the manager of one node."""

    def __init__(self, both: Ends, world: World) -> None:
        self.both, self.world = both, world
        self.head = StandIn(both.loop)
        self.head.frames, self.head.answers = [], {}
        both.open.append(self.head.links)

    def call(self, verb: str, **given: Any) -> Any:
        """An administrator's order, while the head's loop runs."""
        outcome: list[Any] = []

        def order() -> None:
            try:
                outcome.append(self.world.manager.call(verb, **given))
            except ManagerRefused as refused:
                outcome.append(refused)

        thread = threading.Thread(target=order)
        thread.start()
        self.both.until(lambda: outcome)
        thread.join(WAIT_LIMIT_S)
        if isinstance(outcome[0], ManagerRefused):
            raise outcome[0]
        return outcome[0]

    def join(self) -> None:
        word = keys.new_word(self.head.pair.public)
        self.head.words[word.pair.public] = ""
        self.call("node_join", address=self.head.links.address, word=word.text, node="gn1")
        self.both.until(lambda: "gn1" in self.head.links.sessions())

    def order(self, verb: str, **given: Any) -> Any:
        self.head.links.say("gn1", "order", id=len(self.head.frames), verb=verb, arguments=given)
        return self.heard(lambda frame: frame["t"] == "answer")

    def heard(self, is_it: Callable[[Any], Any]) -> Any:
        """The first such frame; it and those before it are forgotten."""
        frames = self.head.frames

        def found() -> Any:
            return next((at for at, frame in enumerate(frames) if is_it(frame)), None)

        self.both.until(lambda: found() is not None)
        at = found()
        frame = frames[at]
        del frames[: at + 1]
        return frame

    def assign(self, job: str, script: str = "true", number: int = 1, **more: Any) -> None:
        said = {
            "key": f"lab/1/{job}/1", "number": number, "env": "alice", "user": ROOT,
            "uid": os.getuid(), "gid": os.getgid(), "argv": ["sh", "-c", script], "cwd": "/",
            "environ": ["PATH=/usr/bin:/bin", "HERE=@NODEMGR_RUN_DIR@/x"], "gpus": 1,
        }  # fmt: skip
        self.head.links.say("gn1", "assign", **{**said, **more})

    def answer(self, job: str, holds: Callable[[Any], Any]) -> Any:
        """The node's answer about a job, as soon as it is so."""
        found: list[Any] = []

        def is_it(frame: Any) -> bool:
            found[:] = [
                row for row in frame.get("answers", ())
                if row["key"] == f"lab/1/{job}/1" and holds(row)
            ]  # fmt: skip
            return bool(found)

        self.heard(is_it)
        return found[0]


@pytest.fixture
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="nm", dir="/tmp") as name, ends() as both:
        world = World(Path(name), KINDS[0], gpus=FakeGpus(2), cluster_users=ROOT)
        try:
            yield Site(both, world)
        finally:
            world.close()


def test_a_word_joins_and_the_hello_has_the_nodes_state(site: Site) -> None:
    site.join()
    hello = site.heard(lambda frame: frame["t"] == "hello")
    assert (hello["name"], hello["gpus"], hello["others"]) == ("gn1", 2, [])
    assert (hello["below"], hello["answers"]) == (0, [])
    key = site.world.directory / "state" / KEY_FILE
    assert key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ManagerRefused, match="joined to lab"):
        site.join()


def test_an_assigned_job_runs_and_its_end_is_reported_until_it_is_acknowledged(
    site: Site, tmp_path: Path
) -> None:
    site.join()
    site.assign("c1", f"echo $HERE >{tmp_path}/here; exit 3")
    over = site.answer("c1", lambda row: row["over"])
    assert (over["began"], over["state"], over["exit_code"]) == (True, "failed", 3)
    assert (tmp_path / "here").read_text().strip() == f"{site.world.manager.run_dir}/x"
    site.assign("c1")  # late, or said again: the answer stays
    site.head.links.say("gn1", "acknowledge", keys=["lab/1/c1/1"], below=2)
    site.both.until(lambda: not site.world.manager.daemon.state.assignments)


def test_a_job_that_runs_is_given_back_only_if_the_head_says_so(site: Site) -> None:
    site.join()
    gate = site.world.gate()
    site.assign("c1", f"read x <{gate}")
    site.answer("c1", lambda row: row["began"] and not row["over"])
    site.head.links.say("gn1", "give_back", key="lab/1/c1/1", if_waiting=True)
    site.assign("c2", number=2)
    site.answer("c2", lambda row: row["over"])
    state = site.world.manager.daemon.state
    assert not state.assignments["lab/1/c1/1"].is_over
    site.head.links.say("gn1", "give_back", key="lab/1/c1/1", if_waiting=False)
    assert site.answer("c1", lambda row: row["over"])["state"] == "withdrawn"


def test_jobs_that_are_not_wanted_or_of_a_system_user_are_refused_for_ever(site: Site) -> None:
    site.join()
    site.assign("c1", refuse=True)
    assert not site.answer("c1", lambda row: row["over"])["began"]
    site.assign("c2", number=2, user="daemon", uid=1, gid=1)
    assert "starts no job" in site.answer("c2", lambda row: row["over"])["reason"]
    assert not site.world.manager.daemon.state.jobs


def test_an_environment_of_the_head_is_the_nodes_quota_and_refused_to_others(site: Site) -> None:
    site.join()
    quota = {"gpus": 99, "users": []}
    assert site.order("env_put", env="team", quota=quota)["ok"]["quota"]["gpus"] == 2
    with pytest.raises(ManagerRefused, match="change it at the head lab"):
        site.call("quota_set", env="team", gpus=1)
    assert site.order("env_put", env="../x", quota=quota)["refusal"]["code"] == "usage"
    assert site.order("no_such", x=1)["refusal"]["code"] == "usage"
    assert len(site.order("snapshot")["ok"]["gpus"]) == 2
    assert site.order("env_drop", env="team")["ok"]["env"] == "team"
    site.call("quota_set", env="team", gpus=1)


def test_orders_about_the_clusters_jobs_go_to_the_head(site: Site) -> None:
    with pytest.raises(ManagerRefused, match="in none"):
        site.call("job_show", job="c1")
    site.join()
    site.head.answers = {
        "cluster_show": {"ok": {"jobs": [{"job": "c1"}]}},
        "cluster_cancel": {"ok": {"job": "c1"}},
        "cluster_queue": {"ok": {"queue": [{"id": "c1"}], "after": None}},
        "node_list": {"ok": {"nodes": ["gn1"]}},
    }
    assert site.call("job_show", job="c1") == {"jobs": [{"job": "c1"}]}
    assert site.call("node_list") == {"nodes": ["gn1"]}
    rows = site.call("job_orders", order="withdraw", jobs=["c1", "c2"])["jobs"]
    assert [row["error"] for row in rows] == [None, None]
    with pytest.raises(ManagerRefused, match="two orders"):
        site.call("job_wait", jobs=["c1", "j1"])
    with pytest.raises(ManagerRefused, match=r"no$"):
        site.call("job_wait", jobs=["c1"])
    first = site.call("queue")
    assert (first["queue"], first["after"]) == ([], "cluster:")
    beyond = site.call("queue", after=first["after"])
    assert (beyond["queue"], beyond["after"]) == ([{"id": "c1"}], None)
    asked = site.heard(lambda frame: frame["t"] == "ask")
    assert (asked["by"]["uid"], asked["env"]) == (0, None)


def test_a_restarted_manager_is_a_member_again_and_waits_for_the_heads_word(site: Site) -> None:
    site.join()
    gate = site.world.gate()
    site.assign("c1", f"read x <{gate}", gpus=2)
    site.assign("c2", number=2)
    site.answer("c2", lambda row: not row["over"])
    site.world.restart()
    hello = site.heard(lambda frame: frame["t"] == "hello" and frame["answers"])
    by_key = {row["key"]: row for row in hello["answers"]}
    assert by_key["lab/1/c1/1"]["began"]
    assert not by_key["lab/1/c2/1"]["confirmed"]


def test_leaving_needs_the_heads_answer_and_no_job_of_it(site: Site) -> None:
    with pytest.raises(ManagerRefused, match="in no cluster"):
        site.call("node_leave")
    site.join()
    gate = site.world.gate()
    site.assign("c1", f"read x <{gate}")
    site.answer("c1", lambda row: row["began"])
    with pytest.raises(ManagerRefused, match="node drain gn1"):
        site.call("node_leave")
    site.head.links.say("gn1", "give_back", key="lab/1/c1/1")
    site.answer("c1", lambda row: row["over"])
    site.head.answers = {"node_remove": {"ok": {}}}
    assert site.call("node_leave")["node"] == "gn1"
    site.both.until(lambda: "gn1" not in site.head.links.sessions() or True)
