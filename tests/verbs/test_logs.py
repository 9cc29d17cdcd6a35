"""`nodemgr logs --follow`, over a way that answers by a script."""

from __future__ import annotations

import base64
from typing import Any, cast

import pytest

from client_plugin.verbs.commands import history, logs
from client_plugin.verbs.presentation import cells
from client_plugin.ways.choice import Way


class Scripted:
    """A job with a second start that begins and ends between two readings of the reader."""

    def __init__(self, stories: list[dict[str, Any]]) -> None:
        self.stories = stories
        self.opened: list[int | None] = []

    def stay(self) -> Scripted:
        return self

    def leave(self) -> None: ...

    def ask(self, verb: str, **arguments: Any) -> Any:
        if verb == "job_show":
            return {"jobs": [self.stories.pop(0) if len(self.stories) > 1 else self.stories[0]]}
        if "offset" not in arguments:
            self.opened.append(arguments["attempt"])
        number, offset = arguments["attempt"] or 1, arguments.get("offset", 0)
        data = base64.b64encode(f"of start {number}\n".encode()[offset:]).decode()
        return {"job": "j1", "attempt": number, "living": number == 1, "at": offset, "data": data}


def story(state: str, *ended: float | None) -> dict[str, Any]:
    attempts = [
        {"number": number, "ended": at, "signal": None, "exit_code": 7, "why": ""}
        for number, at in enumerate(ended, start=1)
    ]
    return {"job": "j1", "state": state, "attempts": attempts}


ENDED = "; nodemgr history j1 has more\n"


@pytest.mark.parametrize(
    ("last", "end"),
    [
        (story("done", 1.0, 2.0), ""),
        (story("failed", 1.0, 2.0), f"nodemgr: j1 failed: exit code 7{ENDED}"),
        (story("withdrawn", 1.0, 2.0), f"nodemgr: j1 was withdrawn: exit code 7{ENDED}"),
    ],
    ids=["done", "failed", "withdrawn"],
)
def test_a_start_that_comes_and_ends_between_two_looks_is_shown(
    last: dict[str, Any], end: str, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(logs.time, "sleep", lambda _seconds: None)
    way = Scripted([story("running", None), last])
    logs._follow(cast(Way, way), "j1", logs._write)
    said = capfd.readouterr()
    assert said.out == "of start 1\nof start 2\n"
    first = "nodemgr: j1: start 1 has ended (exit code 7); the next follows\n"
    assert said.err == first + end
    assert way.opened == [None, 2]


def test_an_array_in_the_history_has_waited_as_long_as_its_last_job() -> None:
    same = {"state": "done", "signal": None, "exit_code": 0, "why": "", "attempts": []}
    rows = [
        {
            **same,
            "job": f"j1.{index}",
            "started": 100,
            "ended": 165,
            "waited_seconds": waited,
            "waited_at_least": False,
            "ran_seconds": None,
            "ran_at_least": False,
        }
        for index, waited in enumerate((0.0, 60.5))
    ]
    (together,) = history.folded(rows)
    assert together["job"] == "j1 (2 jobs)"
    assert cells.duration(together, "waited") == "0:01:00"
    assert cells.duration(rows[0], "waited") == "0:00:00"


def test_starts_of_a_clusters_jobs_are_counted_where_fewer_are_kept() -> None:
    same = {
        "state": "done", "signal": None, "exit_code": 0, "why": "", "attempts": [{}], "started": 1,
        **dict.fromkeys(("waited_seconds", "ran_seconds")), "waited_at_least": False,
        "ran_at_least": False,
    }  # fmt: skip
    rows = [{**same, "job": "c1.0", "starts": 12}, {**same, "job": "c1.1"}]
    assert [history._starts(row) for row in rows] == [12, 1]
    (together,) = history.folded(rows)
    assert history._starts(together) == 13
