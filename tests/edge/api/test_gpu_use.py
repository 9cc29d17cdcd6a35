"""The record of the GPUs' use, from the reading to the answer, and over a kill of the manager."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from nodemgr.core.views.gpu_minutes import MINUTE_NS, GpuReading
from nodemgr.edge.api.gpu_use import PastUse
from nodemgr.edge.api.verb_table import Right, Speaker
from tests.edge.simulated_clock import SimulatedClock
from tests.support.limits import until
from tests.support.local import FakeGpus, LocalManager

START_WALL_NS = 28_000_000 * MINUTE_NS
START_S = START_WALL_NS // 1_000_000_000


ASKER = Speaker(Right.ADMIN_TOKEN, "someone", "someone", None)


class Node:
    """A manager whose minutes end when the test says so."""

    def __init__(self, directory: Path, clock: SimulatedClock, gpus: FakeGpus) -> None:
        self.clock = clock
        self.gpus = gpus
        self.manager = LocalManager(directory=directory, clock=clock, gpus=gpus)
        self.sampler = self.manager.service.daemon.sampler

    def minute_ends(self) -> None:
        self.clock.advance(MINUTE_NS)
        self.manager.do(self.sampler._minute_ended)
        until(lambda: not self.manager.do(lambda: self.sampler._is_reading))

    def uses(self, *percents: int) -> None:
        self.gpus.recent = {self.gpus.gpus[0].uuid: GpuReading(percents, 5)}

    def told(self) -> dict[str, Any]:
        """The answer, since the start."""
        parts = self.manager.service.daemon
        use = PastUse(parts, parts._past)
        answers: list[str] = []
        span = {"since_wall_ns": START_WALL_NS}
        self.manager.do(lambda: use.samples(ASKER, span).begin(answers.append))
        until(lambda: bool(answers))
        told: dict[str, Any] = json.loads(answers[0])
        assert (told["step_s"], told["since"]) == (60, START_S)
        return told

    def shown(self) -> list[float | None]:
        """The utilisation of the first GPU."""
        told = self.told()
        figures: list[float | None] = told["gpus"][self.gpus.gpus[0].uuid]["utilization_percent"]
        return figures


def test_each_minute_is_shown_and_outlives_a_kill(tmp_path: Path) -> None:
    clock, gpus = SimulatedClock(wall_ns=START_WALL_NS), FakeGpus(1)
    node = Node(tmp_path, clock, gpus)
    with node.manager:
        node.uses(20, 40)
        node.minute_ends()
        node.gpus.recent = {}
        node.minute_ends()
        node.uses(50)
        node.minute_ends()
        assert node.shown() == [30.0, None, 50.0]
        killed = tmp_path / "killed"
        shutil.copytree(tmp_path / "state", killed / "state")
    again = Node(killed, clock, gpus)
    with again.manager:
        again.minute_ends()
        assert again.shown() == [30.0, None, 50.0, 50.0]


def test_the_gpus_are_in_the_order_of_their_indices(tmp_path: Path) -> None:
    gpus = FakeGpus(3)
    gpus.gpus.reverse()
    node = Node(tmp_path, SimulatedClock(wall_ns=START_WALL_NS), gpus)
    with node.manager:
        assert node.told()["gpus"].keys() == {gpu.uuid for gpu in gpus.gpus}
        assert list(node.told()["gpus"]) == [f"GPU-{index:08x}" for index in range(3)]


def test_a_store_that_fails_loses_the_minute_and_no_grant(tmp_path: Path) -> None:
    node = Node(tmp_path, SimulatedClock(wall_ns=START_WALL_NS), FakeGpus(1))
    with node.manager:
        node.uses(20)
        database = node.manager.daemon.journal._store._db
        node.manager.do(lambda: database.execute("DROP TABLE gpu_minutes"))
        node.minute_ends()
        assert node.manager.call("quota_set", env="alice", gpus=1)["quota"]["gpus"] == 1
        assert node.manager.call("status")["store"]["state"] == "ok"
