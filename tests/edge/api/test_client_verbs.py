"""Questions: many questions of one client delay only that client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nodemgr.core.model.entities import Transport
from nodemgr.edge.api.admin_operations import AdminOperations
from nodemgr.edge.api.client_verbs import Questions
from nodemgr.edge.api.verb_table import Verbs
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.host.loop import new_loop
from tests.edge.hub import settle
from tests.edge.simulated_clock import SimulatedClock


class Asker(Session):
    def __init__(self, said: list[str], name: str) -> None:
        super().__init__(1, "alice", name, Transport.UNIX, 1, "root")
        self._said = said
        self.took_ns = 0

    def answer(self, verb: str, fds: Any = (), **fields: Any) -> None:
        self._said.append(self.key)

    def took(self, duration_ns: int) -> None:
        self.took_ns += duration_ns


class World:
    def __init__(self) -> None:
        self.loop, _ = new_loop()
        self.clock = SimulatedClock()
        self.said: list[str] = []
        self.gone: set[str] = set()
        daemon: Any = SimpleNamespace(
            loop=self.loop,
            clock=self.clock,
            knows=lambda session: session.key not in self.gone,
            node=SimpleNamespace(when_fresh=lambda then: then()),
            journal=SimpleNamespace(observe_with=lambda _observer: None),
        )
        self.figures_wait: list[Any] | None = None
        """The questions that wait for figures; None: the figures are fresh."""
        views: Any = SimpleNamespace(status=self._status, when_figures=self._when_figures)
        operations = AdminOperations(daemon, views, lambda _env, _by: None)
        verbs = Verbs(daemon, views, (operations,), lambda *_: False)
        self.questions = Questions(daemon, verbs)

    def _when_figures(self, then: Any) -> None:
        if self.figures_wait is None:
            then()
        else:
            self.figures_wait.append(then)

    def _status(self, env: str) -> dict[str, str]:
        self.clock.advance(1_000)
        return {}

    def ask(self, name: str) -> Asker:
        asker = Asker(self.said, name)
        self.questions.received(asker, {"rid": 1, "what": "status"})
        return asker


@pytest.fixture
def world() -> Any:
    world = World()
    yield world
    world.loop.close()


def test_between_two_answers_others_get_their_turn(world: World) -> None:
    askers = [world.ask(name) for name in "abc"]
    world.loop.call_soon(world.said.append, "a beat")
    settle(world.loop)
    assert world.said == ["a", "a beat", "b", "c"]
    assert [asker.took_ns for asker in askers] == [1_000] * 3, "each is charged with its own"


def test_questions_that_waited_for_figures_have_turns_of_their_own(world: World) -> None:
    world.figures_wait = []
    askers = [world.ask(name) for name in "abc"]
    settle(world.loop)
    assert world.said == []
    for then in world.figures_wait:
        then()
    world.loop.call_soon(world.said.append, "a beat")
    settle(world.loop)
    assert world.said == ["a", "a beat", "b", "c"]
    assert [asker.took_ns for asker in askers] == [1_000] * 3


def test_an_order_that_waits_for_a_reading_takes_another_turn(world: World) -> None:
    faults: list[object] = []
    world.loop.set_exception_handler(lambda _loop, context: faults.append(context))
    asker = Asker(world.said, "a")
    order = {"rid": 1, "what": "order", "argument": '{"verb": "status"}'}
    for _ in range(2):
        world.questions.received(asker, order)
        settle(world.loop)
    assert world.said == ["a", "a"]
    assert faults == []


def test_who_is_gone_costs_no_answer(world: World) -> None:
    world.ask("a")
    gone = world.ask("b")
    world.ask("c")
    world.gone.add("b")
    settle(world.loop)
    assert world.said == ["a", "c"]
    assert gone.took_ns == 0
