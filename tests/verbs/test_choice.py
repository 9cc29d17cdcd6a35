"""A way to the manager that several threads use."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from client_plugin import native
from client_plugin.ways import choice


class Connection:
    """Answers with itself."""

    def __init__(self, *_: object) -> None:
        pass

    def call(self, *_: object, **__: object) -> Connection:
        return self


def test_each_thread_has_a_conversation_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one connection the picture's reading took the answer of a job's log."""
    monkeypatch.setattr(choice, "ControlConnection", Connection)
    way, other = choice.AdminWay("run", None), []
    mine = way.ask("queue")
    thread = threading.Thread(target=lambda: other.append(way.ask("queue")))
    thread.start()
    thread.join()
    assert way.ask("queue") is mine
    assert other[0] is not mine


class Library:
    """Answers with a JSON object and, where there is one, a file."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def ask(self, _what: str, _argument: object, out: object, _timeout_ms: int) -> tuple[int, int]:
        out.raw = text = b'{"queue": []}'  # type: ignore[attr-defined]
        return len(text), self.descriptor


@pytest.mark.parametrize("has_file", [False, True])
def test_an_answer_over_udp_leaves_no_file_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_file: bool
) -> None:
    (tmp_path / "client.conf").write_text("env=alice\naddress=udp:127.0.0.1:1\n")
    monkeypatch.setenv("NODEMGR_ENV_DIR", "")
    descriptor = os.open(tmp_path, os.O_RDONLY) if has_file else -1
    monkeypatch.setattr(native, "load", lambda: Library(descriptor))
    assert choice.UserWay(tmp_path).question("queue") == {"queue": []}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
