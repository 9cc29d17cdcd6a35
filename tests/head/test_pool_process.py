"""A pool from nothing and back: a real head, real pilots and managers, Slurm's commands stood in.

Pilots are killed, Slurm forgets them, the head is killed between two turns; each job begins once
for each time that its node was taken, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodemgr.core.cluster.entities import ClusterStage
from nodemgr.core.cluster.pilots import PoolConfig
from nodemgr.head import pool_keeper
from nodemgr.head.pilot_process import PilotProcess, gpus_of
from nodemgr.head.service import HeadService, make
from nodemgr.head.verbs import Who
from tests.head.slurm_site import SlurmStandIn
from tests.head.world import ADMIN
from tests.session import TMP
from tests.support.limits import WAIT_LIMIT_S

USER = pwd.getpwuid(os.getuid()).pw_name
ANN = Who(USER, os.getuid(), os.getgid(), "ann")


class Site:
    """A head with a pool of at most two simulated nodes of two GPUs."""

    def __init__(self, path: Path, slurm: SlurmStandIn) -> None:
        self.path, self.slurm, self.count = path, slurm, 0
        config = PoolConfig(
            max_nodes=2, gpus=2, idle_return_s=1, rest_s=0, grace_s=20,
            directory=str(path / "nodes"), simulate="2x80GiB",
        )  # fmt: skip
        make(path / "head", "hq", "127.0.0.1:0", config)
        self.start()
        self.head.verbs.asked(ADMIN, "env_set", {"env": "ann", "gpus": 8}, lambda _answer: None)

    def start(self) -> None:
        self.head = HeadService(self.path / "head", self.path / "run")
        self.head.open()
        # the nodes find the next head at the same port
        address = self.head.links.address  # type: ignore[union-attr]
        settings = self.head.settings._replace(address=address)
        (self.path / "head" / "settings.json").write_text(settings.text())

    def restart(self) -> None:
        self.head.close()
        self.start()

    def until(self, true: Callable[[], object]) -> None:
        async def wait() -> None:
            while not true():
                await asyncio.sleep(0.02)

        self.head.loop.run_until_complete(asyncio.wait_for(wait(), WAIT_LIMIT_S))

    def submits(self, script: str, gpus: int = 2) -> str:
        self.count += 1
        said = {
            "argv": ["/bin/sh", "-c", script], "cwd": "/", "environ": ["PATH=/usr/bin:/bin"],
            "key": f"{self.count:032x}", "gpus": gpus,
        }  # fmt: skip
        found: list[dict[str, str]] = []
        self.head.verbs.asked(ANN, "cluster_submit", said, found.append)
        return found[0]["job"]

    def stage(self, job: str) -> ClusterStage | None:
        row = self.head.engine.state.jobs.get(job)
        return None if row is None else row.stage

    def marks(self, name: str) -> int:
        file = self.path / name
        return len(file.read_text().split()) if file.exists() else 0

    def has_gone_back(self) -> bool:
        return not self.head.engine.state.pilots and not self.slurm.jobs()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(pool_keeper, "TURN_S", 0.3)
    monkeypatch.setattr(pool_keeper.PoolKeeper.__init__, "__defaults__", (0.3,))
    monkeypatch.setenv("NODEMGR_DISK_RESERVE_BYTES", str(2**20))
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP, ignore_cleanup_errors=True) as name:
        slurm = SlurmStandIn(Path(name) / "slurm", "gn1", "gn2")
        monkeypatch.setenv("PATH", slurm.search_path)
        made = Site(Path(name), slurm)
        try:
            yield made
        finally:
            made.head.close()
            slurm.close()
            end_managers(Path(name) / "nodes")


def end_managers(nodes: Path) -> None:
    """Those that outlived their pilots; returns when they are gone."""
    for lock in nodes.glob("*/run/manager.lock"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(lock.read_text().split()[0])
            descriptor = os.pidfd_open(pid)
            os.kill(pid, signal.SIGTERM)
            select.select([descriptor], [], [], WAIT_LIMIT_S)
            os.close(descriptor)


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, []),
        ({"SLURM_JOB_GPUS": "0,3"}, ["0", "3"]),
        ({"SLURM_JOB_GPUS": "1-3,7"}, ["1", "2", "3", "7"]),
        ({"SLURM_JOB_GPUS": "2", "CUDA_VISIBLE_DEVICES": "0"}, ["2"]),
        ({"SLURM_STEP_GPUS": "5"}, ["5"]),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, ["GPU-a", "GPU-b"]),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ({"SLURM_JOB_GPUS": "x, 1,"}, ["x", "1"]),
        ({"SLURM_JOB_GPUS": "0-999999999"}, ["0-999999999"]),
    ],
)
def test_the_gpus_that_slurm_names(environ: dict[str, str], gpus: list[str]) -> None:
    """A name that the node does not know is refused there, and none is guessed."""
    assert gpus_of(environ) == gpus


def test_a_pool_grows_survives_its_faults_and_goes_back(site: Site) -> None:
    gate = site.path / "gate"
    os.mkfifo(gate)
    first = site.submits(f"echo x >>{site.path}/first; read x <{gate}")
    second = site.submits(f"echo x >>{site.path}/second")
    site.until(lambda: site.stage(first) is ClusterStage.RUNNING and site.marks("first"))
    site.until(lambda: site.stage(second) is None)  # it has ended, on another node
    assert site.marks("second") == 1
    nodes = site.head.engine.state.nodes
    assert all(node.pool is not None for node in nodes.values())

    # a head that is killed, and a Slurm that forgets: nothing begins again
    site.slurm.forget()
    site.restart()
    site.until(lambda: len(site.head.engine.state.sessions) >= 1)
    site.until(lambda: site.stage(first) is ClusterStage.RUNNING)
    gate.write_text("go\n")
    site.until(lambda: site.stage(first) is None)
    assert site.marks("first") == 1


def test_a_pilot_that_is_killed_costs_the_job_its_attempt_and_not_its_place(site: Site) -> None:
    gate = site.path / "gate"
    os.mkfifo(gate)
    first = site.submits(f"echo x >>{site.path}/first; read x <{gate}")
    site.until(lambda: site.stage(first) is ClusterStage.RUNNING and site.marks("first"))
    (job,) = site.slurm.jobs()
    os.kill(job["pid"], signal.SIGKILL)
    site.until(lambda: site.stage(first) in (ClusterStage.PAUSED, ClusterStage.QUEUED))
    assert site.head.engine.state.jobs[first].restarts == 0
    site.until(lambda: site.marks("first") == 2)  # begun again, on a node that was asked for again
    gate.write_text("go\n")
    site.until(lambda: site.stage(first) is None)
    assert site.marks("first") == 2
    site.until(site.has_gone_back)


def test_the_end_of_a_pilot_asks_its_manager_to_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    pilot = PilotProcess(1, "127.0.0.1:1", "word", tmp_path, 60, 1)
    with subprocess.Popen(["sleep", "infinity"]) as manager:
        monkeypatch.setattr(pilot, "_manager", manager)
        pilot.close()
    assert manager.returncode == -signal.SIGTERM
