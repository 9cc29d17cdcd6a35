"""A context is charged before it is made, and its charge ends with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.shim.hooks.test_every_hook import green, new_pool
from tests.shim.world import MIB, OUT_OF_MEMORY, World

MakeWorld = Callable[..., World]
CONTEXT = {"context_bytes": str(64 * MIB)}


def test_a_context_takes_part_of_the_grant(make_world: MakeWorld) -> None:
    env = make_world(limit=100 * MIB, settings=CONTEXT)
    with env.probe() as probe:
        assert (env.used(), env.held()) == (64 * MIB, 0)
        for _ in range(2):
            assert probe.cuDevicePrimaryCtxRetain(probe.alloc(8), 0) == 0
        assert env.used() == 64 * MIB
        assert probe.cuMemAlloc_v2(probe.alloc(8), 37 * MIB) == OUT_OF_MEMORY
        assert probe.cuMemAlloc_v2(probe.alloc(8), 36 * MIB) == 0
        for _ in range(2):
            assert probe.cuDevicePrimaryCtxRelease_v2(0) == 0
            assert (env.used(), env.held()) == (100 * MIB, 36 * MIB)
        assert probe.cuDevicePrimaryCtxRelease_v2(0) == 0
        env.agree(0)


def test_a_context_that_does_not_fit_is_refused(make_world: MakeWorld) -> None:
    env = make_world(limit=63 * MIB, settings=CONTEXT)
    with env.probe(started=False) as probe:
        assert probe.cuInit(0) == 0
        context = probe.alloc(8)
        assert probe.cuDevicePrimaryCtxRetain(context, 0) == OUT_OF_MEMORY
        assert probe.cuCtxCreate_v2(context, 0, 0) == OUT_OF_MEMORY
        env.agree(0)
        assert env.node.books()[0].used_bytes == 0
        assert "out of GPU memory by quota" in probe.end().stderr


def test_an_estimate_is_no_more_than_the_gpu_lacks(make_world: MakeWorld) -> None:
    """The simulator's contexts take 64 MiB."""
    env = make_world(settings={"context_bytes": str(500 * MIB)})
    with env.probe():
        assert (env.used(), env.held()) == (64 * MIB, 0)


def test_nor_that_of_a_primary_context_which_a_green_one_made(make_world: MakeWorld) -> None:
    """It is measured beside the green one, whose own part stays as estimated."""
    env = make_world(settings={"context_bytes": str(500 * MIB)})
    with env.probe(started=False) as probe:
        assert probe.cuInit(0) == 0
        green(probe)
        assert env.used() == 500 // 4 * MIB + env.node.books()[0].used_bytes


@pytest.mark.parametrize("said", ["", "a lot", "-1", "1e9"])
def test_without_a_word_from_the_manager_there_is_an_estimate(
    said: str, make_world: MakeWorld
) -> None:
    env = make_world(settings={"context_bytes": said})
    with env.probe():
        assert env.used() == 64 * MIB


def test_a_context_that_the_driver_keeps_stays_charged(make_world: MakeWorld) -> None:
    env = make_world(limit=100 * MIB, settings=CONTEXT)
    with env.probe() as probe:
        primary = probe.alloc(8)
        assert probe.call("cuCtxGetCurrent", primary) == 0
        address = probe.memory(30 * MIB)
        assert probe.cuCtxDestroy_v2(probe.u64(primary)) != 0  # it is the primary one
        assert (env.used(), env.held()) == (94 * MIB, 30 * MIB)
        assert probe.cuMemFree_v2(address) == 0
        assert probe.cuDevicePrimaryCtxReset_v2(0) == 0
        env.agree(0)


def test_after_a_reset_pools_are_not_asked_until_the_program_uses_them(env: World) -> None:
    """It is unknown whether they are still there. Their memory stays charged until then."""
    with env.probe() as probe:
        pool, out = new_pool(probe), probe.alloc(8)
        assert probe.cuMemAllocFromPoolAsync(out, 6 * MIB, pool, 0) == 0
        assert probe.cuDevicePrimaryCtxReset_v2(0) == 0
        assert env.used() == 6 * MIB >= env.held()
        probe.start()
        # where other pools are asked to give something up
        assert probe.cuMemAlloc_v2(out, 2 << 30) == OUT_OF_MEMORY
        assert env.used() == 6 * MIB
        assert probe.cuMemAllocFromPoolAsync(out, 2 * MIB, pool, 0) == 0
        env.agree(env.held())
        assert probe.cuMemFreeAsync(probe.u64(out), 0) == 0
        assert probe.cuMemPoolTrimTo(pool, 0) == 0
        env.agree(0)


def test_memory_is_charged_to_the_device_of_the_context_that_is_current(
    make_world: MakeWorld,
) -> None:
    """Any context may have been current before, also one that had the same handle.

    The simulator reuses a handle at once.
    """
    env = make_world(devices=2, settings={"context_bytes": "0"})
    with env.probe(started=False) as probe:
        out = probe.alloc(8)

        def create(device: int) -> int:
            assert probe.cuCtxCreate_v2(out, 0, device) == 0
            return probe.u64(out)

        assert probe.cuInit(0) == 0
        first, second = create(0), create(1)
        probe.memory(1 * MIB)
        assert probe.cuCtxSetCurrent(first) == 0
        probe.memory(2 * MIB)
        assert probe.cuCtxSetCurrent(second) == 0
        probe.memory(4 * MIB)
        env.agree(2 * MIB, index=0)
        env.agree(5 * MIB, index=1)

        assert probe.cuCtxDestroy_v2(second) == 0
        env.agree(0, index=1)
        assert create(0) == second
        probe.memory(8 * MIB)
        env.agree(10 * MIB, index=0)
        env.agree(0, index=1)
