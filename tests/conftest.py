"""Fixtures for every test: a manager on a simulated node, and clients of its environments."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import FakeClient
from tests.support.manager import Manager


def pytest_configure() -> None:
    """A shell ignores Ctrl-C for what it runs in the background, and children inherit that: every test starts from the default."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    os.environ.setdefault("NODEMGR_DISK_RESERVE_BYTES", str(2**20))  # thousands of stores are made


@pytest.fixture(autouse=True)
def usual_umask() -> None:
    """A manager within the test's own process changes what is one for all of its threads, while it binds its sockets and for good."""
    os.umask(0o022)


@pytest.fixture
def make_manager() -> Iterator[Callable[..., Manager]]:
    """Starts managers: make_manager(simulate="4x80GiB", options=[...], environment={...}, start=True)."""
    managers: list[Manager] = []

    def make(*, start: bool = True, **arguments: Any) -> Manager:
        managers.append(Manager(**arguments))
        return managers[-1].start() if start else managers[-1]

    yield make
    for manager in managers:
        manager.close()


@pytest.fixture
def manager(make_manager: Callable[..., Manager]) -> Manager:
    """A manager on four simulated GPUs of 80 GiB."""
    return make_manager()


@pytest.fixture
def make_client() -> Iterator[Callable[..., FakeClient]]:
    """Starts hand-driven client processes: make_client(manager.env_dir("alice"))."""
    clients: list[FakeClient] = []

    def make(env_dir: Path, **options: Any) -> FakeClient:
        clients.append(FakeClient(env_dir, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
