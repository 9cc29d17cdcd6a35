"""Fixtures: a manager on two simulated GPUs, and fake containers of its envs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

from client_plugin.ways.faults import Fault
from tests.inside import boxes
from tests.support.manager import Manager
from tests.support.queue_pages import queue_rows


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)
    ours = [item for item in items if str(item.path).startswith(here + os.sep)]
    if ours and (reason := boxes.unusable()) is not None:
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def node() -> Iterator[Manager]:
    """One for all tests of a file: each has boxes of its own."""
    manager = Manager(simulate="2x16GiB").start()
    for env in ("alice", "bob"):
        manager.quota(env, 1)
    yield manager
    manager.close()


@pytest.fixture
def make_box(node: Manager) -> Iterator[Callable[..., boxes.Box]]:
    made: list[boxes.Box] = []

    def make(env: str = "alice") -> boxes.Box:
        made.append(boxes.Box(node, env))
        return made[-1]

    yield make
    for box in made:
        box.stop()
    for row in queue_rows(node.call):
        # a job of a stopped container would meet the next test's runner
        with contextlib.suppress(Fault):
            node.call("job_withdraw", job=row["id"])


@pytest.fixture
def box(make_box: Callable[..., boxes.Box]) -> boxes.Box:
    return make_box()
