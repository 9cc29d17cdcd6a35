"""The bytes of a context, learned from figures that did not move."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from nodemgr.core.model.entities import Gpu, Process, Transport
from nodemgr.edge.gpu.context_estimate import INITIAL_BYTES, ContextSizes
from nodemgr.edge.gpu.usage import Figure
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import FakeGpus, LocalManager
from tests.support.udp_clients import FakeClient

MIB = 2**20
GPUS = {
    "GPU-0": Gpu("GPU-0", 0, "H100", 80 << 30),
    "GPU-1": Gpu("GPU-1", 1, "H100", 80 << 30),
    "GPU-2": Gpu("GPU-2", 2, "T4", 16 << 30),
}


ENVS = ("alice", "bob")


def figure(
    pid: int,
    driver_mib: int,
    word_mib: int,
    *,
    uuid: str = "GPU-0",
    settled: bool = True,
    env: str = "alice",
) -> Figure:
    process = Process(f"unix:{pid}:1", env, "t1", Transport.UNIX, pid, "ann", pid, 1, "r")
    return Figure(process, uuid, driver_mib * MIB, word_mib * MIB, settled)


class World:
    def __init__(self) -> None:
        self.store: dict[str, str | None] = {}
        self.limit_mib = 2_000
        self.sizes = self.again()

    def again(self) -> ContextSizes:
        self.sizes = ContextSizes(
            self.store.__setitem__,
            {key: text for key, text in self.store.items() if text is not None},
        )
        return self.sizes

    def learn(self, *figures: Figure, env: str = "alice") -> int | None:
        """MiB that the env is told anew; None: nothing is."""
        limits_bytes = {(name, uuid): self.limit_mib * MIB for name in ENVS for uuid in GPUS}
        changed = self.sizes.learn(list(figures), GPUS, limits_bytes, ENVS)
        assert changed <= {env}
        return self.sizes.told_bytes(env) // MIB if changed else None


def test_a_process_with_hardly_more_than_a_context_shows_what_that_takes() -> None:
    world = World()
    assert world.learn(figure(1, 520, 84)) == 500
    assert world.learn(figure(1, 520, 84)) is None
    assert world.store == {"context_bytes:alice:H100": str(500 * MIB)}


@pytest.mark.parametrize(
    "odd",
    [
        figure(1, 520, 84, settled=False),
        figure(1, 9_000, 8_000),
        figure(1, 20, 84),
        figure(1, 9_000, 64),
        figure(1, 500, 0),
    ],
    ids=["moves", "has much beside it", "less than was charged", "a bypass", "charged nothing"],
)
def test_odd_figures_teach_nothing(odd: Figure) -> None:
    world = World()
    assert world.learn(odd) is None
    assert world.store == {}


def test_who_was_charged_by_an_earlier_estimate_is_not_measured_by_the_new_one() -> None:
    world = World()
    world.learn(figure(1, 500, 64), figure(2, 1_400, 900))
    assert world.learn(figure(2, 700, 510)) is None
    assert world.learn(figure(3, 700, 500)) is None, "one of two is the lower median"
    assert world.learn(figure(4, 700, 500)) == 700


def test_an_estimate_that_is_too_large_falls_also_where_the_shim_charged_less() -> None:
    world = World()
    world.learn(figure(1, 900, 64))
    world.learn(figure(2, 400, 350))
    assert world.sizes.told_bytes("alice") == 400 * MIB


def test_the_smallest_of_several_models_is_told_and_a_restart_remembers() -> None:
    world = World()
    world.learn(figure(1, 500, 64))
    assert world.learn(figure(2, 300, 500, uuid="GPU-2")) == 300
    sizes = world.again()
    assert sizes.told_bytes("alice") == INITIAL_BYTES
    assert sizes.settle(GPUS.values(), ENVS) == {"alice"}
    assert sizes.told_bytes("alice") == 300 * MIB
    sizes.settle([GPUS["GPU-1"]], ENVS)
    assert sizes.told_bytes("alice") == 500 * MIB


def test_a_process_of_one_env_teaches_nothing_about_another() -> None:
    """It may have allocated past the shim, and the others' contexts are not so large."""
    world = World()
    assert world.learn(figure(1, 900, 64)) == 900
    assert world.sizes.told_bytes("bob") == INITIAL_BYTES
    assert world.learn(figure(2, 400, 64, env="bob"), env="bob") == 400
    assert world.sizes.told_bytes("alice") == 900 * MIB


def test_an_env_beyond_its_limit_teaches_nothing() -> None:
    """The estimate would not fit into the limit.

    No process of the env could make a context and show its true size.
    """
    world = World()
    world.limit_mib = 700
    assert world.learn(figure(1, 400, 64), figure(2, 400, 64)) is None
    assert world.learn(figure(1, 800, 64)) is None
    assert world.learn(figure(1, 700, 64)) == 700


@pytest.mark.parametrize(("driver_mib", "told_mib"), [(1_024, 1_024), (1_025, None)])
def test_a_context_has_at_most_one_gibibyte(driver_mib: int, told_mib: int | None) -> None:
    """In a large env the limit does not stop a process that allocated past the shim."""
    world = World()
    world.limit_mib = 20_000
    assert world.learn(figure(1, driver_mib, 64)) == told_mib


def test_a_removed_env_is_forgotten() -> None:
    world = World()
    world.learn(figure(1, 500, 64))
    assert world.sizes.learn([], GPUS, {}, ["bob"]) == set()
    assert world.store == {"context_bytes:alice:H100": None}
    assert world.sizes.settle(GPUS.values(), ENVS) == set()


def test_small_differences_are_not_told() -> None:
    world = World()
    world.learn(figure(1, 500, 64))
    for pid in range(2, 9):
        assert world.learn(figure(pid, 505, 500)) is None


@pytest.mark.parametrize(
    "seen",
    [figure(1, 64, 74), figure(1, 60, 64), figure(1, 67, 64)],
    ids=["an allocation in flight", "less", "hardly more"],
)
def test_what_is_first_seen_near_the_initial_estimate_or_below_does_not_move_it(
    seen: Figure,
) -> None:
    """Told less, the next processes would have more than their grant."""
    world = World()
    assert world.learn(seen) is None
    assert world.sizes.told_bytes("alice") == INITIAL_BYTES
    assert world.store == {"context_bytes:alice:H100": str(INITIAL_BYTES)}


@pytest.mark.parametrize("text", ["", "-5", "many", "1e9"])
def test_a_store_that_says_nonsense_says_nothing(text: str) -> None:
    assert not ContextSizes(lambda key, value: None, {"context_bytes:alice:H100": text}).settle(
        GPUS.values(), ENVS
    )


def test_clients_are_told(make_client: Callable[..., FakeClient]) -> None:
    with LocalManager(gpus=FakeGpus(1), beat_ms=20) as manager:
        for env in ENVS:
            manager.call("quota_set", env=env, gpus=1)

        def told(env: str = "alice") -> Any:
            lines = (manager.env_dir(env) / "client.conf").read_text().split()
            return dict(line.split("=", 1) for line in lines)["context_bytes"]

        assert told() == str(INITIAL_BYTES)
        client = make_client(manager.env_dir("alice"))
        grant = client.acquire(1)
        where = {name: int(grant[name]) for name in ("slot", "generation")}
        client.order("charge", row=0, **where, size=INITIAL_BYTES)
        manager.gpus.processes[grant["gpus"]][client.pid] = 480 * MIB
        deadline = time.monotonic() + WAIT_LIMIT_S
        while told() == str(INITIAL_BYTES) and time.monotonic() < deadline:
            client.beat()
            manager.do(lambda: None)
        assert (told("alice"), told("bob")) == (str(480 * MIB), str(INITIAL_BYTES))
