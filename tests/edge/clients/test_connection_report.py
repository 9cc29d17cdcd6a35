"""The owners of an env's connections."""

from __future__ import annotations

from collections import Counter

import pytest

from nodemgr.edge.clients import connection_report
from nodemgr.edge.clients.connection_report import Crowd

CONTAINER = "3f" * 32


def test_the_container_with_most_connections_is_named_and_the_process_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        connection_report, "container_of", lambda pid: None if pid == 7 else CONTAINER
    )
    monkeypatch.setattr(
        connection_report, "name_of", lambda container: "web-1" if container == CONTAINER else None
    )
    found = Crowd.of("mallory", Counter({7: 400, 8: 300, 9: 300}))
    assert (found.connections, found.container, found.container_connections) == (
        1_000,
        CONTAINER[:12],
        600,
    )
    assert (found.pid, found.pid_connections) == (7, 400)
    assert "600 are from container web-1, 400 of pid 7" in found.line()
    assert found.fields()["text"] == found.line()


def test_a_process_that_is_gone_or_in_no_container_is_the_nodes() -> None:
    assert (
        "1 are from the node itself, 1 of pid 4194305"
        in Crowd.of("mallory", Counter({4_194_305: 1})).line()
    )


def test_only_so_many_processes_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(connection_report, "container_of", looked.append)
    Crowd.of("mallory", Counter(range(1_000)))
    assert len(looked) == connection_report.MAX_EXAMINED
