"""A way to the manager that several threads use."""

from __future__ import annotations

import threading

import pytest

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
