"""The feed of `top` where the picture takes nothing: a terminal has stopped reading."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any, cast

import pytest

from client_plugin.verbs.picture.model import TopModel
from client_plugin.verbs.reading import top_feed
from client_plugin.ways.choice import Way
from tests.support.limits import WAIT_LIMIT_S
from tests.verbs.top.node_views import small_node

TOO_MANY_S = 0.5
"""Without back pressure hundreds of views come within this time."""


class FakeWay:
    """A manager that answers at once."""

    env = None

    def status(self) -> dict[str, Any]:
        return small_node().status

    def ask(self, verb: str, **_: Any) -> dict[str, Any]:
        return {"queue": small_node().queue}


def test_at_most_one_view_waits_for_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_feed, "PERIOD_S", 0.001)
    handed: queue.Queue[Callable[[], None]] = queue.Queue()
    model = TopModel("node")
    top_feed.TopFeed(cast(Way, FakeWay()), model, handed.put).start()
    first = handed.get(timeout=WAIT_LIMIT_S)
    with pytest.raises(queue.Empty):
        handed.get(timeout=TOO_MANY_S)
    first()
    assert model.view is not None
    handed.get(timeout=WAIT_LIMIT_S)  # it goes on; the thread then waits until the process ends
