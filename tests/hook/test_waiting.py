"""The waiting line on a terminal, in a log and in a notebook."""

from __future__ import annotations

import io
import os
import sys
import threading
import types

import pytest

from client_plugin import faults, waiting


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
    waiting_line.show("place 7: " + "bob " * 50)
    line = stderr.getvalue().lstrip("\r").removesuffix("\x1b[K")
    assert len(line) < columns
    assert line.endswith("… (0:00:00)" if columns > 20 else " (0:00:00)")
    waiting_line.end("")
    assert stderr.getvalue().endswith("\r\x1b[K")


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

    monkeypatch.setattr(faults, "_said", set())
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
    faults.say("plätze")


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
