"""The soak's scenarios: what is done to the load while it runs.

Knows: which harms there are, and how they are drawn. Must not know: how each is done and judged
(node.py).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.shim.world import GIB, MIB
from tests.soak.node import CONTEXT_BYTES, Load, Tally
from tests.support.limits import until
from tests.support.manager import Manager


@dataclass(frozen=True)
class Size:
    processes: int
    threads: int

    @property
    def grant_bytes(self) -> int:
        """About a quarter of the memory that they would have at a time without refusals."""
        return self.processes * (CONTEXT_BYTES + self.threads * 24 * MIB)

    @property
    def least_bytes(self) -> int:
        """A grant in which every process still has room for its context and something beside."""
        return (self.processes + 2) * CONTEXT_BYTES + 128 * MIB


NODE_BYTES = 16 * GIB
FULL = Size(processes=64, threads=4)
SMALL = Size(processes=6, threads=2)

Harm = Callable[[Load, Size, random.Random], None]


def nothing(load: Load, size: Size, chance: random.Random) -> None:
    load.check_peak()


def kill(load: Load, size: Size, chance: random.Random) -> None:
    load.replace(chance.choice(load.racers))


def halt(load: Load, size: Size, chance: random.Random) -> None:
    load.halt()


def requota(load: Load, size: Size, chance: random.Random) -> None:
    load.requota(chance.randrange(size.least_bytes, size.grant_bytes * 3 // 2, MIB))


def restart(load: Load, size: Size, chance: random.Random) -> None:
    load.restart_manager()


def kill_and_restart(load: Load, size: Size, chance: random.Random) -> None:
    """The next manager is killed before all processes have heard of the one before."""
    chance.choice([kill, kill, restart])(load, size, chance)


def anything(load: Load, size: Size, chance: random.Random) -> None:
    chance.choice([kill, kill, kill, kill, requota, restart])(load, size, chance)


@dataclass(frozen=True)
class Scenario:
    harm: Harm
    pause_s: float
    """Between two harms: for the load to race on."""
    children: bool = False


SCENARIOS: Mapping[str, Scenario] = {
    "calm": Scenario(nothing, 0.5),
    "killed": Scenario(kill, 0.05),
    "children": Scenario(nothing, 0.5, children=True),
    "halted": Scenario(halt, 0.1),
    "requota": Scenario(requota, 0.3),
    "restart": Scenario(restart, 1.0),
    "upheaval": Scenario(kill_and_restart, 0.0),
    "anything": Scenario(anything, 0.1, children=True),
}


def soak(
    manager: Manager, name: str, size: Size, seconds: float, seed: int, trace: Path | None = None
) -> Tally:
    """Runs one scenario on a manager of one GPU.

    AssertionError where something did not hold; then `trace` tells what led to it.
    """
    scenario, chance = SCENARIOS[name], random.Random(seed)
    with Load(manager, NODE_BYTES, size.threads, seed * 10_000) as load:
        samples: list[dict[str, object]] = []
        try:
            for number in range(size.processes):
                load.start(children=scenario.children and number % 8 == 0)
            until(load.are_at_work, "all at work")
            load.requota(size.grant_bytes)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                scenario.harm(load, size, chance)
                samples.append(load.sample())
                time.sleep(scenario.pause_s)
            load.stop()
            load.check_peak()
            load.all_the_room_can_be_had()
            load.end()
        except AssertionError:
            if trace is not None:
                account = {"scenario": name, "seed": seed, **load.account(), "samples": samples}
                trace.write_text("".join(f"{key}: {value}\n" for key, value in account.items()))
            raise
        return load.tally
