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

from client_plugin.ways.faults import Fault
from nodemgr.core.model.entities import Config
from nodemgr.core.state.node_state import State
from nodemgr.edge.api.verb_table import Right, Speaker
from nodemgr.edge.links import keys
from nodemgr.edge.member.delegation import Delegation
from nodemgr.edge.member.membership import KEY_FILE
from tests.edge.links.ends import Ends, Head, ends
from tests.jobs.world import KINDS, World, open_gate
from tests.session import TMP
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
            except Fault as refused:
                outcome.append(refused)

        thread = threading.Thread(target=order)
        thread.start()
        self.both.until(lambda: outcome)
        thread.join(WAIT_LIMIT_S)
        if isinstance(outcome[0], Fault):
            raise outcome[0]
        return outcome[0]

    def is_joined(self) -> bool:
        """Whether the node says that its head is there."""
        checks = self.call("doctor")["checks"]
        return bool(next(row["ok"] for row in checks if row["name"] == "cluster"))

    def join(self, *, drain: bool = False) -> None:
        word = keys.new_word(self.head.pair.public)
        self.head.words[word.pair.public] = ""
        self.call(
            "node_join", address=self.head.links.address, word=word.text, node="gn1", drain=drain
        )
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
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as name, ends() as both:
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
    with pytest.raises(Fault, match="joined to lab"):
        site.join()


def test_a_head_that_does_not_say_who_it_is(site: Site) -> None:
    known = site.head.joined
    for answer in ({"head": None}, {"head": 7}, {"generation": "1"}, {"generation": []}):
        site.head.joined = lambda *_said, answer=answer: dict(answer)  # type: ignore[misc]
        with pytest.raises(Fault, match="does not say who it is"):
            site.join()
    site.head.joined = known  # type: ignore[method-assign]
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
    with pytest.raises(Fault, match="change it at the head lab"):
        site.call("quota_set", env="team", gpus=1)
    assert site.order("env_put", env="../x", quota=quota)["refusal"]["code"] == "usage"
    assert site.order("no_such", x=1)["refusal"]["code"] == "usage"
    assert len(site.order("snapshot")["ok"]["gpus"]) == 2
    assert [env["name"] for env in site.order("snapshot_env", env="team")["ok"]["envs"]] == ["team"]
    assert site.order("snapshot_env", env="other")["ok"] == {"gpus": [], "tasks": []}
    assert site.order("env_put", env="more", quota=quota)["ok"]
    assert site.order("env_only", envs=["more"])["ok"]["envs"] == ["more"]
    with pytest.raises(Fault, match="change it at the head lab"):
        site.call("quota_rm", env="more")
    site.call("quota_set", env="team", gpus=1)


def test_a_missing_directory_and_a_stranger_are_answered_in_one_line(site: Site) -> None:
    site.join()
    site.assign("c1", cwd="/no/such/directory")
    over = site.answer("c1", lambda row: row["over"])
    assert not over["began"]
    assert over["reason"] == "its directory /no/such/directory: No such file or directory"
    site.assign("c2", number=2, user="nobody-here", uid=54_321, gid=54_321)
    over = site.answer("c2", lambda row: row["over"])
    assert over["reason"].startswith("uid 54321 is nobody-here at the head and ")
    site.assign("c3", number=3, user="nobody-here", uid=65_534, gid=65_534)
    reason = site.answer("c3", lambda row: row["over"])["reason"]
    assert reason.startswith("uid 65534 is nobody-here at the head and nobody on this node")
    site.assign("c4", number=4, gpus=3)
    assert "3 GPUs" in site.answer("c4", lambda row: row["over"])["reason"]


def test_a_node_with_jobs_joins_if_it_is_said_and_they_stay_its_own(site: Site) -> None:
    job, gate = site.world.holding()
    site.world.until_begun(job)
    with pytest.raises(Fault, match="or with --drain"):
        site.join()
    site.join(drain=True)
    hello = site.heard(lambda frame: frame["t"] == "hello")
    assert (hello["others"], hello["answers"]) == ([["", 1]], [])
    open_gate(gate)
    site.world.until_ended(job)
    site.heard(lambda frame: frame["t"] == "report" and frame["others"] == [])


def test_orders_about_the_clusters_jobs_go_to_the_head(site: Site) -> None:
    with pytest.raises(Fault, match="in none"):
        site.call("job_show", job="c1")
    site.join()
    site.head.answers = {
        "cluster_show": {"ok": {"jobs": [{"job": "c1"}]}},
        "cluster_orders": {"ok": {"jobs": [{"job": "c1", "error": None}], "after": None}},
        "cluster_queue": {"ok": {"queue": [{"id": "c1"}], "after": None}},
        "node_list": {"ok": {"nodes": ["gn1"]}},
    }
    assert site.call("job_show", job="c1") == {"jobs": [{"job": "c1"}]}
    assert site.call("node_list") == {"nodes": ["gn1"]}
    rows = site.call("job_orders", order="withdraw", jobs=["c1", "c2.*"])["jobs"]
    assert [row["error"] for row in rows] == [None]
    with pytest.raises(Fault, match="two orders"):
        site.call("job_wait", jobs=["c1", "j1"])
    with pytest.raises(Fault, match=r"no$"):
        site.call("job_wait", jobs=["c1"])
    first = site.call("queue")
    assert (first["queue"], first["after"]) == ([], "cluster:")
    beyond = site.call("queue", after=first["after"])
    assert (beyond["queue"], beyond["after"]) == ([{"id": "c1"}], None)
    asked = site.heard(lambda frame: frame["t"] == "ask")
    assert (asked["by"]["uid"], asked["env"]) == (0, None)
    site.head.answers["cluster_match"] = {"ok": {"matched": ["c1"], "after": 7}}
    here = site.call("job_orders", order="hold", user="ann", state="queued")
    assert (here["matched"], here["after"]) == ([], "cluster:")
    there = site.call("job_orders", order="hold", user="ann", state="queued", after="cluster:5")
    assert (there["matched"], there["after"]) == (["c1"], "cluster:7")
    asked = site.heard(lambda frame: frame.get("verb") == "cluster_match")
    assert asked["arguments"] == {"order": "hold", "user": "ann", "state": "queued", "after": 5}


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


def test_without_the_head_a_node_shows_what_it_has_at_once(site: Site) -> None:
    site.join()
    gate = site.world.gate()
    site.assign("c1", f"echo begins; read x <{gate}")
    site.answer("c1", lambda row: row["began"] and not row["over"])
    site.both.open.remove(site.head.links)
    site.head.links.close()
    while site.is_joined():
        pass
    told = site.call("queue")
    assert [(row["id"], row["state"]) for row in told["queue"]] == [("c1", "running")]
    assert "this node's rows alone" in told["note"]
    assert told["after"] is None
    beyond = site.call("queue", after="cluster:")
    assert (beyond["queue"], beyond["after"]) == ([], None)
    assert [row["job"] for row in site.call("job_show", job="c1")["jobs"]] == ["c1"]
    for of_the_head in ({}, {"attempt": 3}):  # the node has one attempt of it
        assert site.call("job_log_read", job="c1", **of_the_head)["job"] == "c1"
    open_gate(gate)
    (outcome,) = site.call("job_wait", jobs=["c1"])["jobs"]
    assert (outcome["job"], outcome["state"], outcome["exit"]) == ("c1", "done", 0)


def test_leaving_needs_the_heads_answer_and_no_job_of_it(site: Site) -> None:
    with pytest.raises(Fault, match="in no cluster"):
        site.call("node_leave")
    site.join()
    gate = site.world.gate()
    site.assign("c1", f"read x <{gate}")
    site.answer("c1", lambda row: row["began"])
    with pytest.raises(Fault, match="node drain gn1"):
        site.call("node_leave")
    site.head.links.say("gn1", "give_back", key="lab/1/c1/1")
    site.answer("c1", lambda row: row["over"])
    site.head.answers = {"node_remove": {"ok": {}}}
    assert site.call("node_leave")["node"] == "gn1"
    site.both.until(lambda: "gn1" not in site.head.links.sessions() or True)


def test_a_job_that_no_gpu_of_this_node_has_memory_for_goes_back(site: Site) -> None:
    """GPUs of nodes differ: the head then avoids this one."""
    site.join()
    site.order("env_put", env="team", quota={"gpus": 2, "users": [ROOT]})
    site.assign("c1", env="team", memory_bytes=200 * 2**30)
    over = site.answer("c1", lambda row: row["over"])
    assert (over["began"], over.get("job")) == (False, None)


def test_the_page_shows_the_clusters_other_jobs_behind_its_nodes_own() -> None:
    rows = [{"id": "c1", "node": "gn1"}, {"id": "c2", "node": "gn2"}, {"id": "c3", "node": None}]
    asked: list[tuple[str | None, str, dict[str, Any]]] = []
    answers: list[Any] = []

    def ask(who: Speaker, verb: str, given: dict[str, Any], reply: Callable[[Any], None]) -> None:
        asked.append((who.env, verb, given))
        reply({"queue": rows, "after": None} if verb == "cluster_queue" else {})

    def begin(_who: Speaker, _verb: str, _given: Any, reply: Callable[[Any], None]) -> None:
        reply({"queue": [{"id": "j1"}], "after": None})

    at_head = Delegation(State(Config()), "hq", "gn1", lambda: ("team",), ask, lambda: "")
    viewer = Speaker(Right.ENV_TOKEN, "ann", "ann", "team")
    for given in ({"limit": 200}, {"limit": 200, "after": "cluster:"}):
        assert at_head.take(begin, viewer, "queue", given, answers.append)
    own, beyond = answers
    assert ([row["id"] for row in own["queue"]], own["after"]) == (["j1"], "cluster:")
    assert [row["id"] for row in beyond["queue"]] == ["c2", "c3"]  # its node's own stand before
    assert at_head.take(begin, viewer, "job_show", {"job": "c2"}, answers.append)
    assert at_head.take(begin, viewer, "job_withdraw", {"job": "c2"}, answers.append)
    assert asked == [
        ("team", "cluster_queue", {"limit": 200}), ("team", "cluster_show", {"job": "c2"}),
        ("team", "cluster_order", {"job": "c2", "order": "withdraw"}),
    ]  # fmt: skip
    for verb, given in (("node_drain", {"node": "gn2"}), ("view", {}), ("job_hold", {"job": "c2"})):
        assert not at_head.take(begin, viewer, verb, given, answers.append), "not of the page"
    stranger = Speaker(Right.PAGE, "the web page", "the web page", None)
    assert not at_head.take(begin, stranger, "queue", {}, answers.append), "it needs a token"
