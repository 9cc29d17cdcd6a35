"""A world of its own for each test of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.supervisor.world import World


@pytest.fixture
def make_world() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(**options: object) -> World:
        worlds.append(World(**options))  # type: ignore[arg-type]
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()
