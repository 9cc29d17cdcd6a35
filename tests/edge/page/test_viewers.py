"""Viewers get what they need and slow nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from nodemgr.edge.page import viewers as module
from nodemgr.edge.page.channel import Channel, ManagerAway, RequestRefused
from nodemgr.edge.page.hosts import neighbours
from nodemgr.edge.page.viewers import PUBLIC, Scope, Viewer, Viewers
from tests.support.limits import WAIT_LIMIT_S

ALICE = Scope("env", "alice")


class FakeChannel(Channel):
    """A manager that answers as the test says."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.here = True
        self.asked: list[tuple[str, str | None]] = []
        self.value = 0
        self.bad: set[str] = set()

    @property
    def is_here(self) -> bool:
        return self.here

    def turn(self, here: bool) -> None:
        self.here = here
        self._changed(here)

    async def ask(self, verb: str, token: str | None = None, arguments: Any = None) -> Any:
        self.asked.append((verb, token))
        await asyncio.sleep(0)
        if not self.here:
            raise ManagerAway
        if verb == "judge":
            return [
                {"error": "expired", "code": "token"} if token in self.bad else {"scope": "env"}
                for token in arguments["tokens"]
            ]
        if token in self.bad:
            raise RequestRefused("expired", code="token")
        self.value += 1
        return {"now": 0, "value": self.value, "token": token}


class FakeOutput:
    """A viewer that reads, or does not."""

    def __init__(self, *, reads: bool = True) -> None:
        self.reads = reads
        self.data: list[bytes] = []
        self.ended = ""

    def send(self, data: bytes) -> Awaitable[Any]:
        self.data.append(data)
        sent = asyncio.get_running_loop().create_future()
        if self.reads:
            sent.set_result(None)
        return sent

    def drop(self) -> None:
        self.ended = "dropped"

    def end(self) -> None:
        self.ended = "ended"

    def events(self) -> list[tuple[str, Any]]:
        found = []
        for text in b"".join(self.data).decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
            if "event" in fields:
                found.append((fields["event"], json.loads(fields["data"])))
        return found

    def names(self) -> list[str]:
        return [name for name, _ in self.events()]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PERIOD_S", 0.005)


def run(script: Callable[[FakeChannel, Viewers], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        channel = FakeChannel()
        async with asyncio.timeout(WAIT_LIMIT_S):
            await script(channel, Viewers(channel))

    asyncio.run(limited())


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def test_a_view_is_asked_for_once_for_all_viewers_of_a_scope_while_there_are_some() -> None:
    async def script(channel: FakeChannel, viewers: Viewers) -> None:
        outputs = [FakeOutput() for _ in range(50)]
        members = [Viewer(output, "t", ALICE) for output in outputs]
        for member in members:
            viewers.add(member)
        await until(lambda: all(len(output.names()) >= 3 for output in outputs))
        views = [verb for verb, _ in channel.asked if verb == "view"]
        assert len(views) <= max(len(output.names()) for output in outputs) + 1
        assert {output.names()[0] for output in outputs} == {"snapshot"}
        for member in members:
            viewers.remove(member)
        await until(lambda: viewers._pace is None)
        asked = len(channel.asked)
        await asyncio.sleep(0.05)
        assert len(channel.asked) == asked, "nobody looks, nothing is asked"

    run(script)


def test_a_viewer_that_does_not_read_is_dropped_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "DROP_S", 0.05)

    async def script(channel: FakeChannel, viewers: Viewers) -> None:
        deaf, other = FakeOutput(reads=False), FakeOutput()
        viewers.add(Viewer(deaf, None, PUBLIC))
        viewers.add(Viewer(other, None, PUBLIC))
        await until(lambda: deaf.ended)
        assert deaf.ended == "dropped"
        assert len(deaf.data) == 1, "nothing is piled up for it"
        assert (len(viewers), viewers.dropped) == (1, 1)
        seen = len(other.data)
        await until(lambda: len(other.data) > seen + 2)

    run(script)


def test_a_slow_viewer_gets_a_snapshot_when_it_reads_again() -> None:
    async def script(channel: FakeChannel, viewers: Viewers) -> None:
        output = FakeOutput(reads=False)
        viewer = Viewer(output, None, PUBLIC)
        viewers.add(viewer)
        await until(lambda: output.data and channel.value > 3)
        assert output.names() == ["snapshot"]
        output.reads = True
        assert viewer._unsent is not None
        viewer._unsent.set_result(None)
        await until(lambda: len(output.data) > 2)
        assert output.names()[:3] == ["snapshot", "snapshot", "change"]

    run(script)


def test_a_token_that_ends_takes_its_viewer_along() -> None:
    async def script(channel: FakeChannel, viewers: Viewers) -> None:
        first, second = FakeOutput(), FakeOutput()
        viewers.add(Viewer(first, "t1", ALICE))
        viewers.add(Viewer(second, "t2", ALICE))
        await until(lambda: first.data and second.data)
        channel.bad.add("t1")
        await until(lambda: first.ended)
        assert first.events()[-1] == ("token", {"error": "expired", "code": "token"})
        seen = len(second.data)
        await until(lambda: len(second.data) > seen + 2)
        assert all(token != "t1" for _, token in channel.asked[-3:])

    run(script)


def test_viewers_hear_that_the_manager_went_and_came() -> None:
    async def script(channel: FakeChannel, viewers: Viewers) -> None:
        output, late = FakeOutput(), FakeOutput()
        viewers.add(Viewer(output, None, PUBLIC))
        await until(lambda: output.data)
        channel.turn(False)
        viewers.add(Viewer(late, None, PUBLIC))
        assert output.events()[-1] == ("manager", {"state": "away"})
        assert late.events() == [("manager", {"state": "away"})]
        asked = len(channel.asked)
        await asyncio.sleep(0.03)
        assert len(channel.asked) <= asked + 1
        channel.turn(True)
        seen = len(output.names())
        await until(lambda: len(output.names()) > seen)
        assert output.names()[seen - 1 : seen + 1] == ["manager", "snapshot"]
        await until(lambda: "snapshot" in late.names())

    run(script)


def test_a_viewer_with_a_token_takes_the_place_of_the_oldest_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_VIEWERS", 3)

    async def script(channel: FakeChannel, viewers: Viewers) -> None:
        first, second, member = FakeOutput(), FakeOutput(), FakeOutput()
        viewers.add(Viewer(member, "t", ALICE))
        viewers.add(Viewer(first, None, PUBLIC))
        viewers.add(Viewer(second, None, PUBLIC))
        assert viewers.refusal(None, PUBLIC, "10.0.0.1") is not None
        assert viewers.refusal("t", ALICE, "10.0.0.1") is None
        viewers.add(Viewer(FakeOutput(), "t", ALICE))
        assert (first.ended, second.ended, member.ended) == ("dropped", "", "")
        viewers.add(Viewer(FakeOutput(), "u", ALICE))
        assert (second.ended, member.ended, len(viewers)) == ("dropped", "", 3)
        assert viewers.refusal("t", ALICE, "10.0.0.1") is not None, "all have a token of alice"

    run(script)


def fill(
    viewers: Viewers, count: int, token: str, scope: Scope, near: str | None
) -> list[FakeOutput]:
    """Opens so many streams, as far as they are let in."""
    outputs = []
    for _ in range(count):
        if viewers.refusal(token, scope, near) is None:
            outputs.append(FakeOutput())
            viewers.add(Viewer(outputs[-1], token, scope, near))
    return outputs


def test_one_environment_locks_no_administrator_and_no_other_out() -> None:
    async def script(channel: FakeChannel, viewers: Viewers) -> None:
        mine = fill(viewers, 200, "t1", ALICE, "10.0.0.1")
        assert len(mine) == module.MAX_OF_TOKEN
        for token in ("t2", "t3", "t4"):
            mine += fill(viewers, 200, token, ALICE, "10.0.0.1")
        assert len(mine) == module.MAX_OF_ENV, "of all its tokens"
        others = fill(viewers, 5, "b", Scope("env", "bob"), "10.0.0.1")
        assert len(others) == 5
        assert len(viewers) == module.MAX_OF_ENV + 5

    run(script)


def test_many_streams_from_one_address_leave_room_for_others() -> None:
    async def script(channel: FakeChannel, viewers: Viewers) -> None:
        near = None
        for number in range(200):
            near = neighbours(f"2001:db8::{number:x}")
            fill(viewers, 1, f"t{number}", Scope("env", f"e{number}"), near)
        assert len(viewers) == module.MAX_OF_ADDRESS, "a network of IPv6 counts as one address"
        assert viewers.refusal("t", ALICE, "10.0.0.1") is None
        assert viewers.refusal("a", Scope("admin"), near) is None

    run(script)


def test_an_administrator_takes_the_place_of_the_env_with_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_VIEWERS", 4)

    async def script(channel: FakeChannel, viewers: Viewers) -> None:
        mine = fill(viewers, 3, "t", ALICE, "10.0.0.1")
        (other,) = fill(viewers, 1, "b", Scope("env", "bob"), "10.0.0.1")
        fill(viewers, 1, "a", Scope("admin"), "10.0.0.1")
        assert [one.ended for one in (*mine, other)] == ["dropped", "", "", ""]
        assert viewers.refusal("t", ALICE, "10.0.0.1") is not None
        fill(viewers, 1, "c", Scope("env", "carol"), "10.0.0.1")
        assert [one.ended for one in (*mine, other)] == ["dropped", "dropped", "", ""]
        assert viewers.refusal("d", Scope("env", "dave"), "10.0.0.1") is not None, "each has one"

    run(script)
