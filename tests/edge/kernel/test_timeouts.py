"""A read without an answer is left alone, and delays no other."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from nodemgr.edge.host import stderr_log
from nodemgr.edge.kernel import processes, timeouts
from nodemgr.edge.kernel.processes import command_line
from nodemgr.edge.kernel.timeouts import read_within
from tests.support.limits import WAIT_LIMIT_S


@pytest.fixture
def silent(tmp_path: Path) -> Path:
    """A pipe without a writer, like a page without a server."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def answer(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY))


def test_what_answers_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert read_within(str(tmp_path / "file"), 10, WAIT_LIMIT_S) == b"x" * 10
    with pytest.raises(FileNotFoundError):
        read_within(str(tmp_path / "none"), 10, WAIT_LIMIT_S)
    # On a busy machine its thread may not run within its timeout: then it is asked again.
    assert any("python" in command_line(os.getpid()) for _ in range(100))


def test_what_does_not_answer_is_left_alone(silent: Path) -> None:
    with pytest.raises(TimeoutError):
        read_within(str(silent), 10, timeout_s=0.01)
    answer(silent)


def test_a_users_name_that_does_not_come_is_his_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable directory server must not delay a connecting client."""
    gate = threading.Event()
    monkeypatch.setattr(processes.pwd, "getpwuid", lambda uid: gate.wait())
    assert processes.user_name(123_456_789) == "123456789"
    gate.set()


def test_what_is_logged_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    stderr_log.say("a fault\nin \x1b[31mred\u202e")
    assert capsys.readouterr().err == "nodemgr: a fault in ?[31mred?\n"


def test_many_that_do_not_answer_stop_the_reading_until_one_does(
    silent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "_stuck", set())
    monkeypatch.setattr(timeouts, "MAX_STUCK", 2)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            read_within(str(silent), 10, timeout_s=0.01)
    with pytest.raises(TimeoutError, match="too many"):
        read_within("/proc/self/cmdline", 10)
    stuck = set(timeouts._stuck)
    assert len(stuck) == 2
    answer(silent)
    for thread in stuck:
        thread.join()
    assert read_within("/proc/self/cmdline", 10)
