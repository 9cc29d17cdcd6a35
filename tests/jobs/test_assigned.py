"""Jobs that a head assigns, on a manager that dies before or after any commit.

The test is the head: it has each assignment on record, and says it again until it knows the end.
Each job is begun once, its end is known, and an old message begins nothing.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from client_plugin.ways.choice import UserWay
from client_plugin.ways.faults import Fault
from nodemgr.core.model import events
from nodemgr.core.model.effects import SubmitAnswered
from nodemgr.core.model.entities import Assignment, JobState
from nodemgr.edge.api.verb_table import ENV, Speaker
from nodemgr.edge.clients.client_server import Connection
from nodemgr.edge.rpc.operation import OperationError
from tests.jobs.world import KINDS, WAIT_LIMIT_S, World, open_gate
from tests.session import TMP
from tests.support.local import DyingStore, FakeGpus
from tests.support.manager import Manager

COMMITS = range(1, 10)


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as name:
        world = World(Path(name), KINDS[0], gpus=FakeGpus(1), store=DyingStore())
        yield world
        world.close()


class Head:
    def __init__(self, world: World) -> None:
        self.world = world
        self.given: list[str] = []
        """The keys, in the order of their numbers from 1."""
        self.ends: dict[str, Assignment] = {}

    def give(self) -> str:
        key = f"hq/1/c{len(self.given) + 1}/1"
        self.given.append(key)
        return key

    def say(self, key: str) -> SubmitAnswered | None:
        """None: the manager died, and nothing was heard."""
        world, number = self.world, self.given.index(key) + 1
        world.revive()
        assigned = events.Assigned(key, number)
        submission = world.submission("true", max_restarts=0, assigned=assigned)
        found: list[SubmitAnswered] = []

        def say(answered: threading.Event) -> None:
            def answer(effect: SubmitAnswered) -> None:
                found.append(effect)
                answered.set()

            world.manager.daemon.submissions.submit(submission, answer)

        self._order(say)
        return found[0] if found else None

    def _order(self, order: Callable[[threading.Event], None]) -> bool:
        """Whether it was carried out; False: the manager died. One at a time.

        (A manager of a test that dies does what is queued in its loop all the same.)
        """
        manager, done = self.world.manager, threading.Event()
        with contextlib.suppress(RuntimeError):  # its loop is closed
            manager.service.loop.call_soon_threadsafe(order, done)
        while manager.is_alive and not done.wait(0.02):
            pass
        return done.is_set()

    def hear(self) -> None:
        """Reads the ends of a manager that lives, and has them on record."""
        with contextlib.suppress(RuntimeError):
            rows = dict(self.world.manager.daemon.state.assignments)
            self.ends |= {key: row for key, row in rows.items() if row.is_over}

    def until_over(self) -> None:
        """Says each open assignment again, and acknowledges what it has heard."""
        deadline = time.monotonic() + WAIT_LIMIT_S
        while open_keys := [key for key in self.given if key not in self.ends]:
            assert time.monotonic() < deadline, f"open: {open_keys}"
            for key in open_keys:
                self.say(key)
            self.hear()

    def acknowledge(self) -> None:
        """Until a manager has taken it."""
        deadline = time.monotonic() + WAIT_LIMIT_S
        keys, below = tuple(self.ends), len(self.given) + 1

        def say(done: threading.Event) -> None:
            daemon = self.world.manager.daemon
            event = events.AcknowledgeEnds("hq", keys, below, daemon.clock.wall_ns())
            if daemon.submit(event):
                done.set()

        self.world.revive()
        while not self._order(say):
            assert time.monotonic() < deadline
            self.world.revive()
        assert self.world.manager.daemon.state.assignments == {}


def begun(world: World) -> Counter[str]:
    return Counter(name.split(":")[0] for name in world.begun())


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_at_any_commit_begins_each_once(world: World, when: str, commit: int) -> None:
    store, head = world.manager.store, Head(world)
    assert isinstance(store, DyingStore)
    store.die(when, commit)
    while len(head.given) < 3 or not store.deaths:
        head.say(head.give())
    head.until_over()
    jobs = [head.ends[key].job_id for key in head.given]
    assert begun(world) == Counter(jobs)
    assert len(set(jobs)) == len(head.given)
    assert {head.ends[key].state for key in head.given} == {JobState.DONE}
    assert all(row.began for row in head.ends.values())
    store.die(when, 1)
    head.acknowledge()
    assert store.deaths == 2
    for key in head.given:  # late messages
        answer = head.say(key)
        assert answer is not None
        assert answer.job_id is None
        assert "is over" in answer.reason
    world.settle()
    assert begun(world) == Counter(jobs)


def test_deaths_one_after_another(world: World) -> None:
    store, head = world.manager.store, Head(world)
    assert isinstance(store, DyingStore)
    while len(head.given) < 10 or store.deaths < 5:
        number = len(head.given)
        store.die("after" if number % 2 else "before", 1 + number % 5)
        head.say(head.give())
    head.until_over()
    assert begun(world) == Counter(head.ends[key].job_id for key in head.given)


def test_a_manager_that_is_killed_begins_each_once(make_manager: Callable[..., Manager]) -> None:
    """kill -9 of the process, at whatever it does just then."""
    manager = make_manager(simulate="2x1GiB")
    manager.quota("alice", 2)
    marks, over = manager.directory / "marks", dict[str, Any]()
    owner = pwd.getpwuid(os.getuid())
    given = {
        "user": owner.pw_name, "uid": owner.pw_uid, "gid": owner.pw_gid,
        "cwd": "/", "environ": [f"PATH={os.environ['PATH']}"], "gpus": 1,
    }  # fmt: skip

    def say(number: int) -> None:
        script = f"echo {number} >> {marks}; sleep 0.{number % 3}"
        UserWay(manager.env_dir("alice")).ask(
            "job_assign", timeout_s=WAIT_LIMIT_S, key=f"hq/1/c{number}/1", number=number,
            argv=["/bin/sh", "-c", script], **given,
        )  # fmt: skip

    numbers = range(1, 13)
    for number in numbers:
        say(number)
        if number % 3 == 0:
            manager.restart()
    deadline = time.monotonic() + WAIT_LIMIT_S
    while len(over) < len(numbers):
        assert time.monotonic() < deadline, f"over are {sorted(over)}"
        for number in numbers:
            say(number)
        found = manager.call("job_assigned", head="hq")["assigned"]
        over = {row["key"]: row for row in found if row["over"]}
    begun = Counter(marks.read_text().split() if marks.exists() else ())
    for number in numbers:
        row = over[f"hq/1/c{number}/1"]
        assert begun[str(number)] in ((1,) if row["state"] == "done" else (0, 1)), row
        assert row["began"] or not begun[str(number)], row


def order(world: World, key: str, number: int, script: str, **more: Any) -> dict[str, Any]:
    """`job_assign` by root, as the head's words reach the node."""
    given: dict[str, Any] = {
        "user": pwd.getpwuid(os.getuid()).pw_name, "uid": os.getuid(),
        "gid": os.getgid(), "argv": ["/bin/sh", "-c", script], "cwd": str(world.directory),
        "environ": [f"PATH={os.environ['PATH']}"], "gpus": 1,
    }  # fmt: skip
    way = UserWay(world.manager.env_dir("alice"))
    row = way.ask("job_assign", timeout_s=WAIT_LIMIT_S, key=key, number=number, **(given | more))
    assert isinstance(row, dict)
    return row


def rows(world: World) -> dict[str, dict[str, Any]]:
    answer = world.manager.call("job_assigned", head="hq")
    assert not answer["more"]
    return {row["key"]: row for row in answer["assigned"]}


def test_the_orders_of_a_head(world: World) -> None:
    gate = world.gate()
    row = order(world, "hq/1/c1/1", 1, f"read line < {gate}; exit 3", waited_ms=5_000)
    assert (row["job"], row["over"], row["confirmed"]) == ("j1", False, True)
    world.until_running("j1")
    waiting = order(world, "hq/1/c2/1", 2, "true")
    assert (waiting["state"], waiting["began"]) == ("queued", False)
    stranger = order(world, "hq/1/c3/1", 3, "true", user="nobody-of-this-name")
    assert (stranger["job"], stranger["over"], stranger["began"]) == (None, True, False)
    assert order(world, "hq/1/c3/1", 3, "true") == stranger, "a refusal stays"
    with pytest.raises(Fault, match="a job of the cluster of hq"):
        world.manager.call("job_hold", job="j2")
    world.manager.call("job_withdraw", job="j2")
    open_gate(gate)
    world.until_ended("j1")
    found = rows(world)
    assert [(row["state"], row["began"], row["exit_code"]) for row in found.values()] == [
        ("failed", True, 3), ("withdrawn", False, None), ("withdrawn", False, None),
    ]  # fmt: skip
    done = world.manager.call("job_acknowledge", head="hq", keys=sorted(found), below=4)
    assert done == {"open": []}
    assert rows(world) == {}
    with pytest.raises(Fault, match="is over"):
        order(world, "hq/1/c2/1", 2, "true")


def test_a_page_of_the_answers_goes_on_behind_a_key(world: World) -> None:
    for number in (1, 2, 3):
        order(world, f"hq/1/c{number}/1", number, "true", gpus=9)
    order(world, "other/1/c1/1", 1, "true", gpus=9)
    first = world.manager.call("job_assigned", head="hq", limit=2)
    assert ([row["number"] for row in first["assigned"]], first["more"]) == ([1, 2], True)
    rest = world.manager.call("job_assigned", head="hq", after=first["assigned"][-1]["key"])
    assert ([row["number"] for row in rest["assigned"]], rest["more"]) == ([3], False)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"key": "hq/1/c1"}, "HEAD/GENERATION/JOB/ATTEMPT"),
        ({"number": 0}, "number"),
        ({"uid": -1}, "uid"),
        ({"after": ["j1"]}, "after"),
        ({"hold": True}, "hold"),
    ],
)
def test_an_order_without_sense_is_no_answer(
    world: World, wrong: dict[str, Any], line: str
) -> None:
    given = {"key": "hq/1/c1/1", "number": 1} | wrong
    with pytest.raises(Fault, match=line):
        order(world, given.pop("key"), given.pop("number"), "true", **given)
    assert rows(world) == {}


def test_a_key_outlives_the_history() -> None:
    """Its end stays though the history has no room for its job."""
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as name:
        world = World(Path(name), KINDS[0], gpus=FakeGpus(1), max_history_bytes=2**20)
        try:
            row = order(world, "hq/1/c1/1", 1, f"echo once >> {name}/once")
            world.until_ended(row["job"])
            pad = "x" * 100_000
            for _ in range(14):
                world.until_ended(world.submit(f": {pad}", command=f"true {pad}"))
            assert world.manager.do(lambda: world.manager.daemon.journal.ended(row["job"])) == []
            for _ in range(2):
                again = order(world, "hq/1/c1/1", 1, f"echo once >> {name}/once")
                assert (again["job"], again["state"]) == (row["job"], "done")
                world.restart()
            assert Path(name, "once").read_text() == "once\n"
        finally:
            world.close()


@pytest.mark.parametrize(
    ("uid", "on_node", "may"), [(0, True, True), (0, False, False), (12_345, True, False)]
)
def test_root_alone_assigns_since_it_names_the_user(
    world: World, monkeypatch: pytest.MonkeyPatch, uid: int, on_node: bool, may: bool
) -> None:
    """By the kernel's word. An administrator, of whom it says less, does not have the order."""
    verbs, hosts = world.manager.service.daemon.verbs, world.manager.service.daemon.hosts
    row = verbs.rows["job_assign"]
    assert row.who is ENV
    session = object.__new__(Connection)
    session.identity = cast(Any, SimpleNamespace(uid=uid, gids=()))
    monkeypatch.setattr(hosts, "is_on_node", lambda _session: on_node)
    assert hosts.is_root(session) is may
    with pytest.raises(OperationError, match="root's to assign"):
        row.perform(Speaker(ENV, "someone over UDP", "someone", "alice"), {})
