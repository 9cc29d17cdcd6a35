"""Questions of a node to its head: at once, asked again, given up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from client_plugin.ways.conversation import parsed
from client_plugin.ways.faults import Away, Lost
from nodemgr.edge.member.asks import Asks
from nodemgr.edge.rpc.operation import OperationError


class Link:
    """A link that is up or not, as the test says."""

    def __init__(self) -> None:
        self.is_up = False
        self.sent: list[dict[str, Any]] = []
        self.loop = asyncio.new_event_loop()
        self.asks = Asks(self.loop, self.send, lambda: "" if self.is_up else "it is off", 0.0)
        self.told: list[Any] = []

    def send(self, kind: str, /, **fields: Any) -> bool:
        if self.is_up:
            self.sent.append(fields)
        return self.is_up

    def ask(self, verb: str) -> None:
        self.asks.ask({"verb": verb}, self.told.append, lambda: True)

    def turn(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.run_until_complete(asyncio.sleep(0))

    def code(self) -> str:
        (refused,) = self.told
        assert isinstance(refused, OperationError)
        return refused.code


@pytest.mark.parametrize("verb", ["cluster_queue", "cluster_submit"])
def test_a_question_that_need_not_wait_is_answered_at_once(verb: str) -> None:
    link = Link()
    link.ask(verb)
    assert link.code() == "away"
    link.loop.close()


def test_another_is_kept_for_its_time_and_asked_in_the_next_session() -> None:
    link = Link()
    link.ask("cluster_show")
    assert link.told == []
    link.is_up = True
    link.asks.link_changed()
    assert [fields["verb"] for fields in link.sent] == ["cluster_show"]
    link.asks.answered({"id": 1, "ok": {"jobs": []}})
    assert link.told == [{"jobs": []}]
    link.turn()
    link.loop.close()


def test_a_submission_that_was_sent_before_the_end_of_the_session_is_unknown() -> None:
    link = Link()
    link.is_up = True
    link.ask("cluster_submit")
    link.is_up = False
    link.asks.link_changed()
    assert link.code() == "lost"
    link.loop.close()


@pytest.mark.parametrize(("code", "fault"), [("away", Away), ("lost", Lost)])
def test_a_verb_asks_again_only_where_it_may_help(code: str, fault: type[Away]) -> None:
    with pytest.raises(Away) as raised:
        parsed(f'{{"error": "no head", "code": "{code}"}}')
    assert type(raised.value) is fault
