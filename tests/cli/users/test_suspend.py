"""`nodemgr suspend` at a terminal: what takes long is explained."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from client_plugin.verbs.arguments.parser import parse
from client_plugin.verbs.commands import suspend
from client_plugin.ways.choice import ASK_TIMEOUT_S, Way
from tests.support.limits import WAIT_LIMIT_S

LINE = (
    "12 GiB of GPU memory of t1 is being moved to host memory: `nodemgr status` in another terminal"
    " shows its state meanwhile"
)


class Slow(Way):
    """Answers when the line has been said, or at once."""

    env = "alice"

    def __init__(self, said: threading.Event | None) -> None:
        self.said = said
        self.questions = 0

    def ask(self, verb: str, timeout_s: float | None = ASK_TIMEOUT_S, **arguments: Any) -> Any:
        assert self.said is None or self.said.wait(WAIT_LIMIT_S)
        return {"task": "t1"}

    def status(self) -> Any:
        self.questions += 1
        return {"tasks": [{"id": "t1", "memory_bytes": 12 << 30}]}


def lines(
    monkeypatch: pytest.MonkeyPatch, way: Slow, quiet_s: float, at_terminal: bool
) -> list[str]:
    """All that `suspend t1` says."""
    told: list[str] = []

    def say(line: str) -> None:
        told.append(line)
        if way.said is not None:
            way.said.set()

    monkeypatch.setattr(suspend.choice, "node_or_env", lambda _whom: way)
    monkeypatch.setattr(suspend, "say", say)
    monkeypatch.setattr(suspend, "QUIET_S", quiet_s)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: at_terminal)
    assert suspend.run(parse(suspend.VERB, ["t1"])) == 0
    return told


def test_a_long_suspension_says_what_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    told = lines(monkeypatch, Slow(threading.Event()), 0.0, at_terminal=True)
    assert told == [LINE, "t1 is suspended"]


@pytest.mark.parametrize("at_terminal", [True, False])
def test_a_short_one_and_one_without_a_terminal_say_the_end_alone(
    monkeypatch: pytest.MonkeyPatch, at_terminal: bool
) -> None:
    way = Slow(None)
    told = lines(monkeypatch, way, 10 * WAIT_LIMIT_S if at_terminal else 0.0, at_terminal)
    assert told == ["t1 is suspended"]
    assert way.questions == at_terminal
