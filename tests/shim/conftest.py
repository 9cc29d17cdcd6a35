"""Fixtures of the shim's tests: a fresh node and env for each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.session import TMP
from tests.shim.world import LIBRARY, World, world


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    assert LIBRARY.exists(), "build first: python -m csrc.build"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory with a path that is short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def make_world(short_path: Path) -> Iterator[Callable[..., World]]:
    """A world with options of its own."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(world(short_path, **options))


@pytest.fixture
def env(make_world: Callable[..., World]) -> World:
    """One GPU of 8 GiB, of which the env may use 1 GiB."""
    return make_world()
