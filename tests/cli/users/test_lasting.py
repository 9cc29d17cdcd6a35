"""A way that outlasts the manager's restarts and busy moments: how long it asks, and its lines."""

from __future__ import annotations

from typing import Any

import pytest

from client_plugin.ways import lasting
from client_plugin.ways.choice import ASK_TIMEOUT_S, Way
from client_plugin.ways.conversation import parsed
from client_plugin.ways.faults import Away, Fault, Lost
from client_plugin.ways.lasting import AWAY_S, LastingWay

ANSWER = {"jobs": []}
BUSY = '{"error": "there is no room", "code": "busy"}'


class Scripted(Way):
    """Answers in turn as it is told; a string is what the manager writes."""

    env = "alice"

    def __init__(self, *answers: Any) -> None:
        self.left = list(answers)

    def ask(self, verb: str, timeout_s: float | None = ASK_TIMEOUT_S, **arguments: Any) -> Any:
        answer = self.left.pop(0)
        if isinstance(answer, Fault):
            raise answer
        return parsed(answer) if isinstance(answer, str) else answer


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds; a pause makes it pass."""
    now = [0.0]
    monkeypatch.setattr(lasting.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(lasting.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def asked(*answers: Any, before: bool = True) -> Any:
    """The last answer of a way; `before`: a manager has answered once."""
    way = LastingWay(Scripted(*([ANSWER] if before else []), *answers))
    if before:
        way.ask("job_show")
    return way.ask("job_show")


@pytest.mark.parametrize("before", [True, False])
def test_a_busy_manager_is_asked_again_and_is_not_said_to_be_away(
    capsys: pytest.CaptureFixture[str], before: bool
) -> None:
    assert asked(BUSY, BUSY, ANSWER, before=before) == ANSWER
    assert capsys.readouterr().err == "nodemgr: there is no room; asking again\n"


def test_an_absent_manager_is_waited_for_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        asked(Lost("it went away"), Away("no manager answers"), Away("no manager answers"), ANSWER)
        == ANSWER
    )
    assert capsys.readouterr().err == "nodemgr: it went away; waiting for it to come back\n"


def test_a_manager_that_goes_while_it_is_busy_is_said_to_be_away(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert asked(BUSY, Away("no manager answers"), ANSWER) == ANSWER
    assert (
        capsys.readouterr().err.splitlines()[1]
        == "nodemgr: no manager answers; waiting for it to come back"
    )


def test_a_manager_that_never_answered_is_an_error_at_once(clock: list[float]) -> None:
    with pytest.raises(Away, match="no manager answers"):
        asked(Away("no manager answers"), before=False)
    assert clock == [0.0]


@pytest.mark.parametrize("answer", [BUSY, Away("no manager answers")])
def test_the_retry_timeout_ends(clock: list[float], answer: Any) -> None:
    with pytest.raises(Away, match=r"no (room|manager)"):
        asked(*[answer] * int(2 * AWAY_S))
    assert AWAY_S < clock[0] <= AWAY_S + 2


def test_a_refusal_is_not_asked_again(clock: list[float]) -> None:
    with pytest.raises(Fault, match="no such job"):
        asked(Lost("it went away"), '{"error": "no such job", "code": "not_found"}')
    assert clock == [1.0]
