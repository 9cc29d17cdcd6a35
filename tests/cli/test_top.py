"""`nodemgr top`: once as text, live on a terminal, and one line where it cannot be drawn."""

from __future__ import annotations

import base64
import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin.verbs.commands import top
from client_plugin.verbs.presentation import tables
from client_plugin.verbs.reading import top_feed
from client_plugin.ways.event_stream import EventSignals
from tests.cli.conftest import (
    ROOT,
    WAIT_LIMIT_S,
    EnvStandIn,
    Run,
    RunningManager,
    clean_environment,
    event,
    one_line,
)
from tests.verbs.top import node_views
from tests.verbs.top.node_views import GIB, small_node

HOSTILE = "python\x1b[2Jevil\u202e<script>\r\n.py"
LEFT = "\x1b[?1049l"
"""The terminal's other screen is left."""


def scripted(stand_in: Any) -> dict[str, Any]:
    """Has it answer all that `top` asks; returns its status."""
    view = small_node()
    stand_in.answers["status"] = view.status
    stand_in.answers["queue"] = {"queue": view.queue}
    stand_in.answers["figures"] = {
        "gpus": [{"uuid": row["uuid"]} for row in view.status["gpus"]],
        "tasks": [{"id": row["id"]} for row in view.status["tasks"]],
    }
    return view.status


@pytest.fixture
def shown(manager: RunningManager) -> dict[str, Any]:
    return scripted(manager)


# -- once


def test_once_prints_one_picture(nodemgr: Run, shown: dict[str, Any]) -> None:
    result = nodemgr("top", "--once")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"nodemgr top  {os.uname().nodename}  ")
    assert "\x1b" not in result.stdout
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.startswith("t")] == ["t1", "t2", "t3", "t4"]
    assert any("j9 (2 jobs)" in line for line in lines)
    assert not any("q quit" in line for line in lines)


def test_once_has_the_width_that_columns_asks_for(nodemgr: Run, shown: dict[str, Any]) -> None:
    result = nodemgr("top", "--once", environment={"COLUMNS": "160"})
    assert "torchrun --nproc-per-node 2 finetune.py" in result.stdout
    assert "HOST" in result.stdout


def test_once_in_a_poor_locale_is_ascii(nodemgr_process: Run, shown: dict[str, Any]) -> None:
    result = nodemgr_process("top", "--once", environment={"PYTHONIOENCODING": "latin-1"})
    assert result.returncode == 0
    assert result.stdout.isascii()
    assert "##" in result.stdout


@pytest.mark.parametrize("has_rich", [True, False])
def test_once_on_a_terminal(
    nodemgr: Run, shown: dict[str, Any], monkeypatch: pytest.MonkeyPatch, has_rich: bool
) -> None:
    """With rich or without: the same text."""
    monkeypatch.setattr(tables, "colours_wanted", lambda: True)
    if not has_rich:
        monkeypatch.delattr("client_plugin.verbs.screen.printed", raising=False)
        monkeypatch.setitem(sys.modules, "client_plugin.verbs.screen.printed", None)
    lines = nodemgr("top", "--once").stdout.splitlines()
    assert lines[1] == ""
    assert any("t1     alice" in line or "t1  " in line for line in lines)


def test_once_of_an_environment(
    nodemgr: Run, env_stand_in: Callable[[str], EnvStandIn], short_dir: Path
) -> None:
    alice = env_stand_in("alice")
    scripted(alice)
    alice.answers["order"] = {"queue": small_node().queue}
    result = nodemgr("top", "--once", "--env", "alice")
    assert result.returncode == 0, result.stderr
    assert "env alice" in result.stdout.splitlines()[0]
    assert {what for what, _ in alice.asked} == {"status", "order"}


def test_once_shows_nothing_raw(nodemgr: Run, shown: dict[str, Any]) -> None:
    shown["tasks"][0] |= {"command": HOSTILE, "env": HOSTILE}
    result = nodemgr("top", "--once", environment={"COLUMNS": "200"})
    assert "evil?<script>??.py" in result.stdout
    assert all(letter.isprintable() or letter == "\n" for letter in result.stdout)


def test_without_a_manager_it_ends_at_once(nodemgr: Run) -> None:
    result = nodemgr("top", "--once")
    assert result.returncode == 69
    assert "nodemgr serve" in one_line(result)


# -- refusals


def test_a_pipe_instead_of_a_terminal_is_one_line(nodemgr_process: Run) -> None:
    result = nodemgr_process("top")
    assert result.returncode == 2
    assert "nodemgr top --once prints one picture" in one_line(result)


def test_without_the_extra_it_is_one_line(nodemgr: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "_check_terminal", lambda said: None)
    monkeypatch.delattr("client_plugin.verbs.screen.live", raising=False)
    monkeypatch.delitem(sys.modules, "client_plugin.verbs.screen.live", raising=False)
    monkeypatch.setitem(sys.modules, "textual", None)
    result = nodemgr("top")
    assert result.returncode == 1
    line = one_line(result)
    assert f"cd {ROOT} && {sys.executable} -m pip install -e '.[faces]'" in line
    assert "nodemgr top --once" in line


# -- live


class Screen:
    """`nodemgr top` on a terminal of its own."""

    def __init__(self, run_dir: Path, *words: str, columns: int = 80, rows: int = 24,
                 **variables: str) -> None:  # fmt: skip
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        said = {"NODEMGR_RUN_DIR": str(run_dir), "TERM": "xterm-256color", "NO_COLOR": "1"}
        bare = {"COLUMNS": None, "LINES": None, "PYTHONUNBUFFERED": None}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nodemgr", "top", *words],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env=clean_environment(**{**bare, **said, **variables}),
        )  # fmt: skip
        os.close(theirs)
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def until(self, part: str) -> str:
        """The output from now on, up to the part."""
        found = ""
        while part not in found:
            try:
                readable, _, _ = select.select([self._ours], [], [], WAIT_LIMIT_S)
                piece = os.read(self._ours, 65_536) if readable else b""
            except OSError:
                piece = b""
            assert piece, f"it ended or hangs before {part!r}: {found[-2_000:]!r}"
            found += self._decoder.decode(piece)
        self.text += found
        return found

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def ended(self) -> int:
        try:
            while piece := os.read(self._ours, 65_536):
                self.text += self._decoder.decode(piece)
        except OSError:
            pass
        return self.process.wait(WAIT_LIMIT_S)

    def hang_up(self) -> None:
        """The terminal is closed; no SIGHUP comes, since it is not the controlling one."""
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self._ours)
        os.close(nothing)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


Open = Callable[..., Screen]


@pytest.fixture
def screen(short_dir: Path) -> Iterator[Open]:
    opened: list[Screen] = []

    def make(*words: str, **more: Any) -> Screen:
        opened.append(Screen(short_dir, *words, **more))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def test_keys_change_the_node(manager: RunningManager, screen: Open) -> None:
    scripted(manager)
    manager.answers["release"] = {"task": "t1"}
    manager.answers["job_hold"] = ("refused", "j1 runs: only jobs in a queue can be held")
    manager.answers["job_free"] = {}
    top_screen = screen()
    top_screen.until("q quit")
    top_screen.press("r")
    top_screen.until("y: yes")
    assert not any(verb == "release" for verb, _ in manager.orders)
    top_screen.press("y")
    top_screen.until("t1 is released")
    assert ("release", "t1") in [(verb, said.get("task")) for verb, said in manager.orders]
    top_screen.press("\th")
    top_screen.until("only jobs in a queue can be held")
    top_screen.press("Gh")
    top_screen.until("j5 waits again")
    top_screen.press("q")
    assert top_screen.ended() == 0
    assert LEFT in top_screen.text


def test_it_ends_with_its_terminal(manager: RunningManager, screen: Open) -> None:
    scripted(manager)
    top_screen = screen()
    top_screen.until("q quit")
    top_screen.hang_up()
    assert top_screen.process.wait(WAIT_LIMIT_S) == 128 + signal.SIGHUP


def test_it_follows_events_and_figures(manager: RunningManager, screen: Open) -> None:
    status = scripted(manager)
    top_screen = screen()
    top_screen.until("q quit")
    manager.answers["figures"]["tasks"][0]["utilization_percent"] = 99
    top_screen.until("99")
    status["tasks"][1]["id"] = "t77"
    manager.answers["figures"]["tasks"][1]["id"] = "t77"
    manager.publish(event(1, "task.granted"))
    top_screen.until("77")


def test_the_output_of_a_job_is_followed(manager: RunningManager, screen: Open) -> None:
    scripted(manager)
    written = b"x" * 99_999 + b"\nepoch 1 \x1b[2J\n"

    def log(offset: int = 0, **_: Any) -> dict[str, Any]:
        piece = written[offset : offset + 65_536]
        return {"job": "j7", "attempt": 1, "living": True, "at": offset,
                "data": base64.b64encode(piece).decode(),
                "size_bytes": len(written)}  # fmt: skip

    size = len(written)
    manager.answers["job_log_read"] = log
    top_screen = screen()
    top_screen.until("q quit")
    top_screen.press("l")
    assert "\x1b[2J" not in top_screen.until(r"epoch 1 \x1b[2J")
    written += b"epoch 2\n"
    top_screen.until("epoch 2")
    offsets = [said.get("offset", 0) for verb, said in manager.orders if verb == "job_log_read"]
    assert offsets[1] == size - top_feed.LOG_TAIL_BYTES


@pytest.mark.parametrize(
    ("end", "code"),
    [(lambda one: one.press("\x03"), 130),
     (lambda one: one.process.send_signal(signal.SIGTERM), 143)],
    ids=["Ctrl-C", "SIGTERM"],
)  # fmt: skip
def test_the_terminal_is_given_back(
    manager: RunningManager, screen: Open, end: Callable[[Screen], None], code: int
) -> None:
    scripted(manager)
    top_screen = screen()
    top_screen.until("q quit")
    end(top_screen)
    assert top_screen.ended() == code
    assert LEFT in top_screen.text
    assert "Traceback" not in top_screen.text


def test_the_manager_goes_and_comes_back(short_dir: Path, screen: Open) -> None:
    first = RunningManager(short_dir)
    scripted(first)
    first.start()
    top_screen = screen()
    top_screen.until("q quit")
    top_screen.press("r")
    top_screen.until("y: yes")
    first.stop()
    top_screen.until("No manager answers: the picture is of")
    top_screen.press("y")
    top_screen.until("no manager runs on")
    second = RunningManager(short_dir)
    status = scripted(second)
    status["tasks"][0]["command"] = "second-command"
    second.start()
    try:
        top_screen.until("second-comm")
    finally:
        second.stop()


def test_an_error_of_ours_ends_the_picture(manager: RunningManager, screen: Open) -> None:
    scripted(manager)
    top_screen = screen()
    top_screen.until("q quit")
    manager.answers["figures"] = {"no": "gpus"}
    assert top_screen.ended() == 1
    assert LEFT in top_screen.text
    assert "KeyError" in top_screen.text


def test_faults_of_the_node_stand_above(nodemgr: Run, shown: dict[str, Any]) -> None:
    shown["violations"] = [{}]
    shown["residues"] = [{"memory_bytes": GIB}, {"memory_bytes": GIB}]
    lines = nodemgr("top", "--once", environment={"COLUMNS": "120"}).stdout.splitlines()
    assert lines[1].startswith("warning: 1 violation of a lease or quota (nodemgr status) (and 1")
    shown["violations"] = []
    lines = nodemgr("top", "--once").stdout.splitlines()
    assert lines[1] == "warning: 2 GiB is in use without a lease (nodemgr status)"


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (20, 5)])
def test_nothing_reaches_the_terminal_raw(
    manager: RunningManager, screen: Open, columns: int, rows: int
) -> None:
    status = scripted(manager)
    status["tasks"][0] |= {"command": HOSTILE, "env": HOSTILE, "users": [HOSTILE]}
    top_screen = screen(columns=columns, rows=rows)
    text = top_screen.until("q quit")
    top_screen.press("\r")
    text += top_screen.until("Esc back")
    assert "\x1b[2Jevil" not in text
    assert "\u202e" not in text


def test_no_colours(manager: RunningManager, screen: Open) -> None:
    scripted(manager)
    plain, coloured = screen(), screen(NO_COLOR="")
    assert "\x1b[36m" in coloured.until("q quit")
    assert "\x1b[36m" not in plain.until("q quit")


def test_a_terminal_that_cannot_be_drawn_on(screen: Open) -> None:
    top_screen = screen(TERM="dumb")
    assert top_screen.ended() == 2
    assert "nodemgr top --once" in top_screen.text.replace("\r\n", "")


def test_a_user_sees_the_environment(
    env_stand_in: Callable[[str], EnvStandIn], screen: Open
) -> None:
    alice = env_stand_in("alice")
    status = scripted(alice)
    alice.answers["order"] = {"queue": small_node().queue}
    alice.answers["release"] = ("forbidden", "t1 is no task of alice")
    top_screen = screen("--env", "alice")
    assert "env alice" in top_screen.until("q quit")
    top_screen.press("ry")
    top_screen.until("t1 is no task of alice")
    status["tasks"][0]["memory_bytes"] = 33 * GIB
    top_screen.until("33")


def test_an_environment_without_a_queue_is_asked_for_its_status_alone(
    nodemgr: Run, env_stand_in: Callable[[str], EnvStandIn]
) -> None:
    alice = env_stand_in("alice")
    alice.answers["status"] = node_views.empty_node().status
    assert "Nothing waits." in nodemgr("top", "--once", "--env", "alice").stdout
    assert [what for what, _ in alice.asked] == ["status"]


# -- the stream


def test_a_signal_comes_with_an_event_alone(manager: RunningManager) -> None:
    signals = EventSignals(manager.run_dir)
    assert not signals.wait(0)
    manager.publish(event(1, "task.granted"))
    while not signals.wait(0.5):  # the subscription may come after the event
        manager.publish(event(2, "task.granted"))
    while signals.wait(0.5):
        pass
    signals.close()


def test_the_end_of_the_stream_is_a_signal_and_no_stream_is_none(short_dir: Path) -> None:
    manager = RunningManager(short_dir)
    manager.start()
    signals = EventSignals(short_dir)
    assert not signals.wait(0)
    manager.stop()
    assert signals.wait(WAIT_LIMIT_S)
    assert not signals.wait(0)
    assert not EventSignals(None).wait(0)
