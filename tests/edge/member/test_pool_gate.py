"""A node that Slurm lends: closed without a pilot; given back with notice and without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin.ways.faults import Fault
from nodemgr.core.model.entities import Gpu
from nodemgr.edge.member import pool_gate
from tests.edge.links.ends import ends
from tests.edge.member.test_cluster_member import ROOT, Site, StandIn
from tests.jobs.world import KINDS, World, open_gate
from tests.session import TMP
from tests.support.limits import until
from tests.support.local import GIB, FakeGpus
from tests.support.ordinary import UID
from tests.support.udp_clients import FakeClient

MISSED = pool_gate.MISSED


class LentSite(Site):
    """A lent node with a pilot that is a process of this test."""

    pilot: subprocess.Popen[bytes]

    def join(self, *, drain: bool = False) -> None:
        """And the head names a pilot."""
        super().join(drain=drain)
        self.names(1)

    def names(self, *numbers: int) -> None:
        self.head.links.say("gn1", "pool_pilots", numbers=numbers)
        self.head.links.say("gn1", "order", id=numbers[0], verb="snapshot", arguments={})

        def answers() -> list[Any]:
            frames = self.head.frames
            return [frame for frame in frames if (frame["t"], frame.get("id")) == here]

        here = "answer", numbers[0]
        self.both.until(answers)  # so the word before it was heard
        for frame in answers():
            self.head.frames.remove(frame)

    def holds(
        self, number: int = 1, *, left_s: int = 3_600, leaves: bool = False, **more: Any
    ) -> Any:
        return self.call(
            "pool_hold", pilot=number, pid=self.pilot.pid, left_s=left_s, leaves=leaves, **more
        )

    def facts(self, is_it: Callable[[Any], Any]) -> Any:
        """The node's next words about the pool that are so."""
        return self.heard(lambda frame: "pool" in frame and is_it(frame["pool"]))

    def usable(self) -> int:
        """Between two turns of the manager: it closes a GPU in the turn that finds it."""
        manager = self.world.manager
        gpus = manager.daemon.state.gpus
        count: int = manager.do(lambda: sum(gpu.usable for gpu in gpus.values()))
        return count


@pytest.fixture
def tick_s() -> float:
    return 0.05


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tick_s: float) -> Iterator[LentSite]:
    monkeypatch.setattr(pool_gate, "TICK_S", tick_s)
    monkeypatch.setattr(pool_gate, "MISSED", 1_000_000)
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as name, ends() as both:
        world = World(Path(name), KINDS[0], gpus=FakeGpus(2), cluster_users=ROOT, slurm_pool=True)
        made = LentSite(both, world)
        assert isinstance(made.head, StandIn)
        made.pilot = subprocess.Popen(["sleep", "1000"])
        try:
            yield made
        finally:
            made.pilot.kill()
            made.pilot.wait()
            world.close()


def test_a_lent_node_is_closed_until_a_pilot_registers(site: LentSite) -> None:
    site.join()
    hello = site.heard(lambda frame: frame["t"] == "hello")
    assert hello["pool"] == {"pilot": 0, "left_ms": None, "waits": False}
    assert (hello["gpus"], site.usable()) == (0, 0)
    assert site.holds() == {"ends": False}
    assert site.facts(lambda pool: pool["pilot"] == 1)["gpus"] == 2
    assert site.usable() == 2
    with pytest.raises(Fault, match="pilot 1 lives here already"):
        site.holds(2)


@pytest.mark.parametrize("tick_s", [1_000])
def test_a_gpu_is_closed_as_soon_as_it_is_open(site: LentSite) -> None:
    """Not at the next tick: a program that asks before it would have the GPU."""
    manager = site.world.manager
    assert site.usable() == 0
    assert isinstance(manager.gpus, FakeGpus)
    manager.gpus.processes["GPU-00000002"] = {}
    manager.gpus.gpus.append(Gpu("GPU-00000002", 2, "Test GPU", 80 * GIB))
    manager.do(manager.daemon.informer.stirred)
    until(lambda: len(manager.daemon.state.gpus) == 3)
    assert site.usable() == 0
    manager.call("gpu_repaired", index=2)
    assert site.usable() == 0


def test_the_gpus_that_slurm_gave_a_pilot_are_opened_alone(site: LentSite) -> None:
    site.join()
    with pytest.raises(Fault, match="pilot 1 names GPU 7, and this node has none of that name"):
        site.holds(gpus=["0", "7"])
    for bad in ("0", [0], [""], ["x" * 100], ["0"] * 2_000):
        with pytest.raises(Fault, match="must be a list of indices and uuids of GPUs"):
            site.holds(gpus=bad)
    assert site.usable() == 0
    assert site.holds(gpus=["1"]) == {"ends": False}
    assert site.facts(lambda pool: pool["pilot"] == 1)["gpus"] == 1
    gpus = site.world.manager.daemon.state.gpus.values()
    assert [gpu.index for gpu in gpus if gpu.usable] == [1]
    (warning,) = {gpu["warning"] for gpu in site.call("status")["gpus"] if gpu["index"] == 0}
    assert "Slurm has not given this GPU to the cluster" in warning
    assert site.holds(gpus=["1"]) == {"ends": False}, "its beat"
    assert site.usable() == 1


def test_a_pilot_is_taken_once_and_only_if_the_head_has_named_it(site: LentSite) -> None:
    site.join()
    with pytest.raises(Fault, match="the head has not named pilot 2 to this node"):
        site.holds(2)
    assert (site.holds()["ends"], site.usable()) == (False, 2)
    site.pilot.kill()
    site.pilot.wait()
    site.both.until(lambda: site.usable() == 0)
    site.pilot = subprocess.Popen(["sleep", "1000"])
    with pytest.raises(Fault, match="has not named pilot 1"):
        site.holds()  # one that was lost
    site.names(2, 3)
    assert (site.holds(3)["ends"], site.usable()) == (False, 2)


def test_a_program_that_waits_on_a_closed_node_reads_who_has_it(site: LentSite) -> None:
    site.join()
    site.order("env_put", env="team", quota={"gpus": 2, "users": [ROOT]})
    program = FakeClient(site.world.manager.env_dir("team"))
    try:
        program.ask(1)
        site.facts(lambda pool: pool["waits"])
        why = "GPUs 0 and 1 drained: Slurm has this node; asked for it at "

        def says(text: str) -> bool:
            (standing,) = site.world.manager.daemon.state.standings.values()
            return text in standing.why

        site.both.until(lambda: says(why))
        with pytest.raises(Fault, match="Slurm has this node"):
            site.call("gpu_resume", index=0)
        (warning,) = {gpu["warning"] for gpu in site.call("status")["gpus"] if gpu["index"] == 0}
        assert "it opens when the head of the cluster holds this node again" in warning
        site.head.links.close()
        site.both.open.remove(site.head.links)
        site.both.until(lambda: says("the head that asks for it is away"))
    finally:
        program.close()


def test_a_node_goes_back_when_it_is_empty(site: LentSite) -> None:
    site.join()
    site.holds()
    gate = site.world.gate()
    site.assign("c1", f"read x <{gate}")
    site.answer("c1", lambda row: row["began"])
    site.head.links.say("gn1", "pool_return", pilot=1)
    site.both.until(lambda: site.usable() == 0)  # no new grant
    assert site.holds() == {"ends": False}
    open_gate(gate)
    over = site.answer("c1", lambda row: row["over"])
    assert over["state"] == "done"
    site.both.until(lambda: not site.world.manager.daemon.state.tasks)
    assert site.holds() == {"ends": True}
    assert site.facts(lambda pool: pool["pilot"] == 0)["gpus"] == 0


def test_a_best_effort_job_leaves_a_node_that_goes_back_at_once(site: LentSite) -> None:
    site.join()
    site.holds()
    gate = site.world.gate()
    for number, more in enumerate(({}, {"task_class": "best-effort"}), 1):
        site.assign(f"c{number}", f"read x <{gate}", number, **more)
        site.answer(f"c{number}", lambda row: row["began"])
    site.head.links.say("gn1", "pool_return", pilot=1)
    over = site.answer("c2", lambda row: row["over"])
    assert (over["state"], over["cause"]) == ("failed", "preempted")  # it keeps its place
    open_gate(gate)
    assert site.answer("c1", lambda row: row["over"])["state"] == "done"


@pytest.mark.parametrize("notice", [False, True])
def test_what_runs_is_ended_when_the_pilot_is_lost_or_its_time_is_over(
    site: LentSite, *, notice: bool
) -> None:
    site.join()
    site.holds()
    site.assign("c1", f"read x <{site.world.gate()}")
    site.answer("c1", lambda row: row["began"])
    if notice:
        site.holds(left_s=3, leaves=True)
    else:
        site.pilot.kill()
        site.pilot.wait()
    over = site.answer("c1", lambda row: row["over"])
    assert (over["state"], over["cause"]) == ("failed", "preempted")  # it keeps its place
    site.both.until(lambda: site.usable() == 0)


@pytest.mark.parametrize("notice", [False, True])
def test_a_process_with_a_gpu_is_killed_without_grace(site: LentSite, *, notice: bool) -> None:
    site.join()
    site.order("env_put", env="team", quota={"gpus": 2, "users": [ROOT]})
    site.holds()
    program = FakeClient(site.world.manager.env_dir("team"))
    try:
        program.acquire(1)
        if notice:
            site.holds(left_s=3, leaves=True)
        else:
            site.pilot.kill()
            site.pilot.wait()
        site.both.until(lambda: program.process.poll() == -signal.SIGKILL)
        site.both.until(lambda: site.usable() == 0)
    finally:
        program.close()


@pytest.mark.parametrize("notice", [False, True])
def test_a_node_is_not_empty_while_a_killed_process_is_ending(
    site: LentSite, monkeypatch: pytest.MonkeyPatch, *, notice: bool
) -> None:
    """As one inside a call of the driver: its task is over, the kernel has it still."""
    site.join()
    site.order("env_put", env="team", quota={"gpus": 2, "users": [ROOT]})
    site.holds()
    processes = site.world.manager.daemon.processes
    kill, told = processes.kill, list[str]()
    monkeypatch.setattr(processes, "kill", told.append)
    program = FakeClient(site.world.manager.env_dir("team"))
    try:
        program.acquire(1)
        if notice:
            site.holds(left_s=3, leaves=True)
        else:
            site.pilot.kill()
            site.pilot.wait()
        site.both.until(lambda: told and not site.world.manager.daemon.state.tasks)
        assert not site.call("pool_state")["empty"]
        if notice:
            assert site.holds(left_s=3, leaves=True) == {"ends": False}
        site.world.manager.do(lambda: kill(told[0]))
        until(lambda: site.call("pool_state")["empty"])
        if notice:
            assert site.holds(left_s=3, leaves=True) == {"ends": True}
    finally:
        program.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_pilot_of_an_ordinary_user_speaks_for_itself_from_a_step_of_slurm(
    site: LentSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.join()
    site.world.directory.chmod(0o755)
    control = site.world.manager.run_dir / "control.sock"
    control.chmod(0o666)  # as of its group
    program = FakeClient(control.parent, connect=False, user=UID)
    try:
        program.order("connect", path=str(control))

        def told(pid: int) -> str:
            asked = {"verb": "pool_hold", "args": {"pilot": 1, "pid": pid, "left_s": 3_600}}
            program.send("ASK", rid=1, what="order", argument=json.dumps(asked))
            return str(program.receive())

        assert "is not the pilot that it names" in told(site.pilot.pid)
        assert "is in no step of Slurm" in told(program.pid)
        assert site.usable() == 0
        python = os.path.basename(os.readlink(f"/proc/{os.getpid()}/exe"))
        monkeypatch.setattr(pool_gate, "STEP", python)  # root's, and its parent
        assert '"ends":false' in told(program.pid)
        assert site.usable() == 2
    finally:
        program.close()


def test_a_pilot_that_does_not_speak_is_lost(
    site: LentSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that Slurm has suspended: its process lives."""
    assert (pool_gate.TICK_S, MISSED) == (0.05, 3)  # 3 s: CLUSTER.md
    site.join()
    site.holds()
    assert site.facts(lambda pool: pool["pilot"] == 1)["gpus"] == 2
    monkeypatch.setattr(pool_gate, "MISSED", 2)
    assert site.facts(lambda pool: pool["pilot"] == 0)["gpus"] == 0
    assert site.pilot.poll() is None


def test_a_manager_goes_on_with_the_pilot_that_is_stored(site: LentSite) -> None:
    site.join()
    site.holds()
    site.world.restart()
    site.both.until(lambda: "gn1" in site.head.links.sessions())
    assert site.usable() == 2
    assert site.holds() == {"ends": False}
    site.pilot.kill()
    site.pilot.wait()
    site.world.restart()
    site.both.until(lambda: site.usable() == 0)


def test_a_pilot_that_does_not_live_and_a_node_that_is_not_lent(site: LentSite) -> None:
    site.pilot.kill()
    site.pilot.wait()
    with pytest.raises(Fault, match="the pilot is gone"):
        site.holds()
    assert os.getpid() != site.pilot.pid
