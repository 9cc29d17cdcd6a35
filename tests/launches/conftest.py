"""Fixtures of the launch gate's tests: a node with one GPU and a gate that the test controls."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.launches.gated import GatedWorld, gated_world
from tests.session import TMP


@pytest.fixture
def make_gated() -> Iterator[Callable[..., GatedWorld]]:
    """A world with options of its own, in a directory whose path is short."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="nm", dir=TMP))
        yield lambda **options: stack.enter_context(gated_world(Path(directory), **options))


@pytest.fixture
def gated(make_gated: Callable[..., GatedWorld]) -> GatedWorld:
    return make_gated()
