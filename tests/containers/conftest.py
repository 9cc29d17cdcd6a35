"""Fixtures for tests with real containers.

They are a manager with a CDI file that podman reads, and containers on its devices.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.containers import podman
from tests.support.manager import Manager


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)
    ours = [item for item in items if str(item.path).startswith(here + os.sep)]
    reason = podman.unusable() if ours else None
    for item in ours:
        item.add_marker(pytest.mark.containers)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def kind() -> str:
    """A kind of CDI device that is this test's own."""
    return f"nm{os.getpid()}t{os.urandom(3).hex()}.test/env"


@pytest.fixture
def timeout_ms() -> int:
    """After this silence a task counts as stalled: none of a busy machine's is so long."""
    return 60_000


@pytest.fixture
def shares_client() -> bool:
    """Whether other tests' managers may have the files of its client open."""
    return True


@pytest.fixture
def node(
    make_manager: Callable[..., Manager], kind: str, timeout_ms: int, shares_client: bool
) -> Iterator[Manager]:
    """A manager on two simulated GPUs of 16 GiB."""
    yield from container_node(
        make_manager, kind, shares_client, NODEMGR_TIMEOUT_MS=str(timeout_ms)
    )


def container_node(
    make_manager: Callable[..., Manager], kind: str, shares_client: bool = True, **settings: str
) -> Iterator[Manager]:
    manager = make_manager(
        start=False,
        simulate="2x16GiB",
        environment={
            "NODEMGR_CDI_DIR": str(podman.CDI_DIR),
            "NODEMGR_CDI_KIND": kind,
            **settings,
        },
    )
    if not shares_client:
        manager.state_dir.mkdir(mode=0o700)
    yield manager.start()
    (podman.CDI_DIR / (kind.partition(".")[0] + ".json")).unlink(missing_ok=True)


@pytest.fixture
def containers(node: Manager, kind: str) -> Iterator[podman.Containers]:
    """Containers of this test, removed at its end (while the manager still lives)."""
    box = podman.Containers(kind, kind.partition(".")[0])
    yield box
    box.close()
