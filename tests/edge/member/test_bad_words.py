"""Each word of a head to a node, with each field of a wrong form: nothing raises.

A real manager hears them over loopback. It refuses and counts, its session goes on, and an
assignment of which the key can be read has an answer in any case.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from nodemgr.core.lifecycle.assignments import MAX_ASSIGNMENTS
from nodemgr.core.model.entities import Assignment, JobState
from nodemgr.edge.links.frames import MAX_FRAME_BYTES, encode
from nodemgr.edge.member import node_summary
from nodemgr.edge.member.asks import Asks
from nodemgr.edge.member.node_summary import Answers
from nodemgr.edge.rpc.operation import OperationError
from tests.edge.member.test_cluster_member import ROOT, Site, site
from tests.wrong import spoiled

__all__ = ["site"]
KEY = "lab/1/c1/1"
WORDS: dict[str, dict[str, Any]] = {
    "give_back": {"key": KEY, "if_waiting": True},
    "acknowledge": {"keys": [KEY], "below": 1},
    "pool_pilots": {"numbers": [1]},
    "answer": {"id": 1, "ok": {}, "part": "x", "last": "{}", "refusal": {"error": "x"}},
    "log_read": {"key": KEY, "job": "j1", "offset": 0, "wait": False},
    "env_put": {"env": "team", "quota": {"gpus": 1, "users": [], "task_class": "normal"}},
    "env_drop": {"env": "team"},
    "snapshot": {},
    "no_such_order": {},
}  # fmt: skip


def frames(word: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if word in ("give_back", "acknowledge", "pool_pilots", "answer"):
        for bad in spoiled(WORDS[word]):
            yield word, bad
        return
    for bad in spoiled({"id": 7, "verb": word, "arguments": WORDS[word]}):
        yield "order", bad


def plain(bad: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in bad.items() if name not in ("t", "s", "n")}


def test_a_word_of_each_wrong_form(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    site.join()
    for number, word in enumerate(WORDS, 1):
        for kind, bad in frames(word):
            site.head.links.say("gn1", kind, **plain(bad))
        site.head.links.say("gn1", "later", of="a version to come")
        site.assign(f"c{number}", number=number)  # each word before it was heard
        site.answer(f"c{number}", lambda row: row["over"])
    hellos = [frame for frame in site.head.frames if frame["t"] == "hello"]
    assert hellos == [], "the session is the first one"
    text = capfd.readouterr().err
    assert "Traceback" not in text, text[-3_000:]
    assert "words of the head lab" in text
    assert len(text.splitlines()) < 100, "not a line for each"


ASSIGN = {
    "key": "lab/1/c2/1", "number": 2, "env": "alice", "user": ROOT, "uid": os.getuid(),
    "gid": os.getgid(), "argv": ["true"], "cwd": "/", "environ": ["PATH=/bin"], "gpus": 1,
    "umask": 18, "time_limit_ms": 5_000, "memory_bytes": 2**20, "waited_ms": 5, "refuse": False,
    "name": "n", "cpus": 1,
}  # fmt: skip


def test_an_assignment_of_each_wrong_form_has_an_answer(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    site.join()
    last = 2
    for bad in spoiled(ASSIGN):
        if bad.get("key") == ASSIGN["key"] and bad.get("number") == ASSIGN["number"]:
            last += 1
            bad |= {"key": f"lab/1/c{last}/1", "number": last}
        site.head.links.say("gn1", "assign", **plain(bad))
    said = set[str]()

    def is_it(frame: Any) -> bool:
        said.update(row["key"] for row in frame.get("answers", ()) if row["over"])
        return len(said) >= last - 2

    site.heard(is_it)
    assert said >= {f"lab/1/c{number}/1" for number in range(3, last + 1)}
    rows = site.world.manager.daemon.state.assignments
    assert "cannot read the job: argv" in " ".join(row.why for row in rows.values())
    assert "Traceback" not in capfd.readouterr().err


def test_an_unreadable_job_is_refused_once_and_for_ever(site: Site) -> None:
    site.join()
    site.assign("c1", argv=[7])
    row = site.answer("c1", lambda row: row["over"])
    assert (row["began"], row["state"], row.get("job")) == (False, "withdrawn", None)
    assert row["reason"].startswith("this node cannot read the job: argv")
    site.assign("c1")
    site.assign("c2", number=2)
    site.answer("c2", lambda row: row["over"])
    assert [job for job in site.world.begun() if job == "j1:1"] == []


def test_a_hello_with_as_many_answers_as_a_node_keeps_is_one_frame() -> None:
    class State:
        def __init__(self, count: int) -> None:
            head, why = "h" * 64, "ä\n" * 5_000
            keys = [f"{head}/{10**17}/c{10**14 + n}/{10**9}" for n in range(count)]
            self.jobs: dict[str, Any] = {}
            self.unconfirmed: dict[str, Any] = {}
            self.assignments = {
                key: Assignment(key, 2**61, "e" * 63, "j" + "9" * 15, JobState.WITHDRAWN, why)
                for key in keys
            }

    answers = Answers(State(MAX_ASSIGNMENTS), "h" * 64)  # type: ignore[arg-type]
    rows = answers.every()
    assert len(rows) == MAX_ASSIGNMENTS
    models = {"models": ["m" * 64] * 16}
    assert len(encode("hello", {"answers": rows, **models}, 2**62, 1)) < MAX_FRAME_BYTES
    assert rows[0]["reason"]
    assert answers.fresh(5) == []
    first = Answers(State(600), "h" * 64)  # type: ignore[arg-type]
    told = [len(first.fresh(node_summary.MAX_TOLD)) for _ in range(3)]
    assert told == [node_summary.MAX_TOLD, 100, 0], "reports tell them in turns"


def test_an_order_longer_than_a_frame_is_refused_and_harms_no_other() -> None:
    sent: list[Any] = []

    def send(kind: str, /, **fields: Any) -> bool:
        sent.append(encode(kind, fields, 1, 1))
        return True

    asks = Asks(None, send, lambda: "")  # type: ignore[arg-type]
    told: list[Any] = []
    asks.ask({"verb": "v", "arguments": {"x": "a" * 2**20}}, told.append, lambda: True)
    assert isinstance(told[0], OperationError)
    assert told[0].code == "usage"
    asks.ask({"verb": "v", "arguments": {}}, told.append, lambda: True)
    asks.link_changed()
    assert len(sent) == 2


def test_a_node_that_left_says_nothing_more(site: Site) -> None:
    site.join()
    daemon = site.world.manager.daemon
    before = len(daemon.informer._subscribers), len(daemon.jobs.on_final)
    for _ in range(3):
        site.head.answers = {"node_remove": {"ok": {}}}
        site.call("node_leave")
        site.join()
    assert (len(daemon.informer._subscribers), len(daemon.jobs.on_final)) == before
