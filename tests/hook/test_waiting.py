"""The waiting line on a terminal, in a log and in a notebook."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
import types

import pytest

from client_plugin import stderr as client_stderr
from client_plugin import waiting
from tests.conftest import ROOT
from tests.support.limits import WAIT_LIMIT_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    now = types.SimpleNamespace(s=0)
    monkeypatch.setattr(waiting.time, "monotonic_ns", lambda: now.s * 1_000_000_000)
    return now


class Captured:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.text = capsys, ""

    def getvalue(self) -> str:
        self.text += self.capsys.readouterr().err
        return self.text


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Captured:
    return Captured(capsys)


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(waiting, "choose", waiting.Terminal)
    monkeypatch.setattr(waiting, "columns", lambda: columns)


def test_a_log_gets_a_line_on_change_at_most_one_a_minute(clock, stderr) -> None:
    wait = waiting.Wait()
    for clock.s, place in [(0, 9), (1, 9), (2, 8), (59, 7), (60, 6), (61, 5), (119, 4), (200, 4)]:
        wait.show(f"place {place}")
    wait.end("granted")
    assert stderr.getvalue().splitlines() == [
        "nodemgr: place 9",
        "nodemgr: place 6",
        "nodemgr: place 4",
        "nodemgr: granted after 0:03:20",
    ]


def test_a_terminal_gets_one_line_rewritten_each_second(clock, stderr, monkeypatch) -> None:
    on_terminal(monkeypatch, 80)
    wait = waiting.Wait()
    for clock.s, text in [(0, "place 2"), (0, "place 2"), (61, "place 2"), (61, "place 1")]:
        wait.show(text)
    assert stderr.getvalue().split("\r")[1:] == [
        "nodemgr: place 2 (0:00:00)\x1b[K",
        "nodemgr: place 2 (0:01:01)\x1b[K",
        "nodemgr: place 1 (0:01:01)\x1b[K",
    ]
    assert "\n" not in stderr.getvalue()
    wait.end("granted")
    assert stderr.getvalue().endswith("\r\x1b[Knodemgr: granted after 0:01:01\n")


@pytest.mark.parametrize("columns", [20, 40, 60])
def test_a_long_text_never_wraps_and_keeps_its_clock(
    clock, stderr, monkeypatch, columns: int
) -> None:
    on_terminal(monkeypatch, columns)
    waiting_line = waiting.Wait()
    for text in ("place 7: " + "bob " * 50, "place 6: " + "bob " * 50):
        waiting_line.show(text)
    *_, below, line = stderr.getvalue().split("\r")
    for shown in (below, line):
        assert len(shown.removesuffix("\x1b[K")) < columns
    assert "waiting".startswith(below.removeprefix("nodemgr: ").split(" (")[0].rstrip("…"))
    assert line.removesuffix("\x1b[K").endswith("… (0:00:00)" if columns > 20 else " (0:00:00)")
    waiting_line.end("")
    assert stderr.getvalue().endswith("\r\x1b[K")


def test_a_text_that_is_cut_is_printed_whole_above_its_clock_once_a_minute(
    clock, stderr, monkeypatch
) -> None:
    """At 80 columns the remedy of this line was never seen."""
    on_terminal(monkeypatch, 80)
    texts = [
        f"place {place} in queue normal: needs 1 GPU of the 1 in alice's quota, 0 left: waits for"
        " its own tasks; `--memory SIZE` would share a GPU where SIZE is free"
        for place in (1, 2, 3)
    ]
    wait = waiting.Wait()
    for clock.s, text in [(0, texts[2]), (1, texts[2]), (30, texts[1]), (60, texts[0])]:
        wait.show(text)
    lines = stderr.getvalue().split("\n")
    assert [line.split("\r\x1b[Knodemgr: ")[-1] for line in lines[:-1]] == [texts[2], texts[0]]
    cut = f"nodemgr: {texts[1][:59]}… (0:00:30)\x1b[K"
    assert lines[1].split("\r")[1:4] == [
        "nodemgr: waiting (0:00:00)\x1b[K",
        "nodemgr: waiting (0:00:01)\x1b[K",
        cut,
    ]
    assert lines[-1] == "\rnodemgr: waiting (0:01:00)\x1b[K"
    wait.end("")


IN_BACKGROUND = """
from client_plugin import waiting
wait = waiting.Wait()
for place in (3, 2, 1):
    wait.show(f"place {place}")
wait.end("granted")
"""


def test_in_the_background_of_a_shell_the_prompt_is_not_written_over() -> None:
    leader, follower = os.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.background", sys.executable, "-c", IN_BACKGROUND],
        cwd=ROOT, env={**os.environ, "TERM": "xterm"}, stderr=follower, timeout=WAIT_LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0
    place, granted = os.read(leader, 4096).decode().splitlines()
    assert place == "nodemgr: place 3"
    assert re.fullmatch(r"nodemgr: granted after \d:\d\d:\d\d", granted)
    for descriptor in (leader, follower):
        os.close(descriptor)


def test_a_wait_without_a_line_ends_without_one(clock, stderr) -> None:
    waiting.Wait().end("granted")
    assert stderr.getvalue() == ""


def test_another_users_words_cannot_steer_the_terminal(clock, stderr) -> None:
    wait = waiting.Wait()
    wait.show("bob runs \x1b]0;owned\x07\r\nrm")
    wait.end("")
    assert stderr.getvalue() == "nodemgr: bob runs ?]0;owned???rm\n"


class Handle:
    def __init__(self, shown: list[str]) -> None:
        self.shown = shown

    def update(self, data, raw: bool) -> None:
        assert raw
        self.shown.append("updated: " + data["text/plain"])


def notebook(monkeypatch, display) -> None:
    monkeypatch.setattr(waiting, "choose", lambda: waiting.Notebook(display))


def test_a_notebook_gets_one_output_that_updates_itself(clock, stderr, monkeypatch) -> None:
    shown: list[str] = []

    def display(data, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        shown.append("displayed: " + data["text/plain"])
        return Handle(shown)

    notebook(monkeypatch, display)
    wait = waiting.Wait()
    for clock.s in (0, 1):
        wait.show("place 1")
    wait.end("granted")
    assert shown == [
        "displayed: nodemgr: place 1 (0:00:00)",
        "updated: nodemgr: place 1 (0:00:01)",
        "updated: nodemgr: granted after 0:00:01",
    ]
    assert stderr.getvalue() == ""


def test_a_notebook_whose_display_fails_gets_a_log(clock, stderr, monkeypatch) -> None:
    def display(*_args: object, **_kwargs: object) -> None:
        raise OSError("no frontend")

    monkeypatch.setattr(client_stderr, "_said", set())
    notebook(monkeypatch, display)
    wait = waiting.Wait()
    for clock.s in (0, 1):
        wait.show("place 1")
    wait.end("granted")
    assert stderr.getvalue().splitlines() == [
        "nodemgr: IPython's display failed (OSError: no frontend); the program goes on without it;"
        " `nodemgr doctor` checks the client",
        "nodemgr: place 1",
        "nodemgr: granted after 0:00:01",
    ]


def test_one_thread_draws_and_another_takes_over(clock, stderr) -> None:
    first, second = waiting.Wait(), waiting.Wait()
    first.show("place 1")
    drawn = threading.Thread(target=second.show, args=("place 1",))
    drawn.start()
    drawn.join()
    assert stderr.getvalue() == "nodemgr: place 1\n"
    first.end("")
    second.show("place 1")
    second.end("")
    assert stderr.getvalue() == "nodemgr: place 1\n" * 2


def test_none_takes_over_what_is_granted(clock, stderr, monkeypatch) -> None:
    """A thread that has not looked since had the line once more, below its end."""
    monkeypatch.setattr(waiting, "_settled_ns", {"last": -1})
    first, second = waiting.Wait(), waiting.Wait()
    first.show("place 1")
    first.end("granted", is_for_all=True)
    second.show("place 1")
    clock.s = 1
    later = waiting.Wait()
    later.show("place 2")
    later.end("")
    assert stderr.getvalue().splitlines() == [
        "nodemgr: place 1",
        "nodemgr: granted after 0:00:00",
        "nodemgr: place 2",
    ]


@pytest.mark.parametrize("stream", [None, "closed", "ascii"])
def test_a_stderr_that_cannot_be_written_harms_nobody(
    clock, monkeypatch, stream: str | None
) -> None:
    target = io.TextIOWrapper(io.BytesIO(), encoding="ascii") if stream else None
    if stream == "closed":
        target.close()
    monkeypatch.setattr(sys, "stderr", target)
    wait = waiting.Wait()
    wait.show("plätze")
    wait.end("granted")
    client_stderr.say("plätze")


def test_where_the_line_goes(monkeypatch, tmp_path) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    with (tmp_path / "log").open("w") as log:
        monkeypatch.setattr(sys, "stderr", log)
        assert type(waiting.choose()) is waiting.Plain
    monkeypatch.setattr(sys, "stderr", None)
    assert type(waiting.choose()) is waiting.Plain
    leader, follower = os.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        assert type(waiting.choose()) is waiting.Terminal
        assert waiting.columns() == 80
        monkeypatch.setenv("TERM", "dumb")
        assert type(waiting.choose()) is waiting.Plain
    os.close(leader)


@pytest.mark.parametrize(
    ("shell", "style"),
    [(None, "Plain"), (object(), "Plain"), (types.SimpleNamespace(kernel=object()), "Notebook")],
)
def test_only_an_ipython_with_a_kernel_is_a_notebook(
    monkeypatch, stderr, shell: object, style: str
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=print))
    assert type(waiting.choose()).__name__ == style


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (75, "0:01:15"), (3675, "1:01:15"), (360000, "100:00:00")]
)
def test_durations(seconds: int, text: str) -> None:
    assert waiting.duration(seconds) == text
