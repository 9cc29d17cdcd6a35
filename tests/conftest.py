"""Fixtures for every test: a manager on a simulated node, and clients of its environments."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.manager import Manager
from tests.support.udp_clients import FakeClient

TESTS = Path(__file__).parent
MOST_WORKERS = 8
"""Each may hold a PyTorch and a TensorFlow in memory."""
ONE_AT_A_TIME = {"containers", "service"}  # /etc/cdi, podman's state, systemd's cgroups


def pytest_configure() -> None:
    """A shell ignores Ctrl-C for what it runs in the background, and children inherit that: every
    test starts from the default.
    """
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    os.environ.setdefault("NODEMGR_DISK_RESERVE_BYTES", str(2**20))  # thousands of stores are made


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers for each processor: most tests wait for processes.

    None where only files are named: their output is seen live.
    """
    folders = any(Path(argument.split("::")[0]).is_dir() for argument in config.args)
    return min(2 * len(os.sched_getaffinity(0)), MOST_WORKERS) if folders else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups for `--dist loadgroup`: the tests of a group run one after another, in one worker."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and (group := _group(item)):
            item.add_marker(pytest.mark.xdist_group(group))


def _group(item: pytest.Item) -> str | None:
    """Tests that share what the machine has once, and tests of one file that share what is built or
    started for it once.
    """
    folder = item.path.relative_to(TESTS).parts[0]
    if folder in ONE_AT_A_TIME:
        return "machine"
    assert isinstance(item, pytest.Function)
    found = item._fixtureinfo.name2fixturedefs
    scopes = {
        fixture.scope for fixtures in found.values() for fixture in fixtures if fixture.baseid
    }
    return str(item.path.relative_to(TESTS)) if scopes & {"module", "session"} else None


@pytest.fixture(autouse=True)
def usual_umask() -> None:
    """A manager within the test's own process changes what is one for all of its threads, while it
    binds its sockets and for good.
    """
    os.umask(0o022)


@pytest.fixture
def make_manager() -> Iterator[Callable[..., Manager]]:
    """Starts managers: make_manager(simulate="4x80GiB", options=[...], environment={...},
    start=True).
    """
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
