"""Slurm's commands against a stand-in: names, options, garbage, faults; the look at the site."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemgr.core.cluster.pilots import ListedPilot, PoolConfig
from nodemgr.head.slurm import Slurm, SlurmFault
from tests.head.slurm_site import SlurmStandIn

CONFIG = PoolConfig(
    partition="gpu", gpus=2, has_gres=True, time_limit_s=3_600, grace_s=30, options=("--qos=low",)
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmStandIn:
    made = SlurmStandIn(tmp_path / "slurm")  # without nodes: nothing starts
    monkeypatch.setenv("PATH", made.search_path)
    return made


def slurm(config: PoolConfig = CONFIG) -> Slurm:
    return Slurm("hq-abcdef", config, "10.0.0.5:7470")


def test_a_pilot_is_asked_for_listed_and_cancelled_by_name(site: SlurmStandIn) -> None:
    made = slurm()
    made.ask(7, "", "w'ord")
    made.ask(8, "gn3", "word")
    first, second = site.jobs()
    assert first["name"] == "nodemgr-hq-abcdef-7"
    assert {"--exclusive", "--no-requeue", "--gres=gpu:2", "--qos=low", "--time=60"} <= set(
        first["words"]
    )
    assert "--signal=TERM@30" in first["words"]
    assert "--nodelist=gn3" in second["words"]
    assert "NODEMGR_PILOT_WORD='w'\"'\"'ord'" in first["script"]
    assert "exec srun --overlap" in first["script"]
    assert made.listed() == (ListedPilot(7, runs=False), ListedPilot(8, runs=False))
    made.cancel((7,))
    assert [row.number for row in made.listed()] == [8]


def test_a_list_with_foreign_jobs_and_garbage_has_the_pilots_alone(site: SlurmStandIn) -> None:
    lines = [
        "train|RUNNING|gn1", "nodemgr-hq-000000-3|RUNNING|gn1", "nodemgr-hq-abcdef-|PENDING|",
        "nodemgr-hq-abcdef-0|PENDING|", "nodemgr-hq-abcdef-4|RUNNING|gn4;x", "||||", "\x00\xff",
        "nodemgr-hq-abcdef-5|NEW_STATE|gn5", "nodemgr-hq-abcdef-6|PENDING|",
        "nodemgr-hq-abcdef-6|RUNNING|gn6", "nodemgr-hq-abcdef-9999999999999999999|RUNNING|gn7",
    ]  # fmt: skip
    (site.path / "lines").write_text("\n".join(lines))
    (site.path / "bin" / "squeue").write_text(f"#!/bin/sh\ncat {site.path}/lines\n")
    assert slurm().listed() == (
        ListedPilot(4, runs=True), ListedPilot(6, runs=True, node="gn6"),
    )  # fmt: skip


def test_a_refusal_is_one_line_and_a_slurmctld_that_is_away_is_none(
    site: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.fails(sbatch="sbatch: error: Invalid account")
    with pytest.raises(SlurmFault, match="Invalid account") as refused:
        slurm().ask(1, "", "word")
    assert refused.value.refused
    site.fails(sbatch="error: Unable to contact slurm controller (connect failure)")
    with pytest.raises(SlurmFault) as away:
        slurm().ask(1, "", "word")
    assert not away.value.refused
    monkeypatch.setenv("PATH", str(site.path / "none"))
    with pytest.raises(SlurmFault, match="squeue cannot be run"):
        slurm(PoolConfig()).listed()


def test_the_look_at_a_site(site: SlurmStandIn) -> None:
    site.site("Epilog                  = /etc/slurm/epilog\nKillWait                = 30 sec\n")
    assert [check.ok for check in slurm().checks()] == [True] * 4
    assert slurm().gpus() == 0  # it has no nodes
    assert slurm(PoolConfig(partition="none")).checks()[-1].detail == "Slurm has no partition none"
    site.site("PreemptMode             = SUSPEND,GANG\n")
    assert slurm().checks()[-1].name == "preemption"
    site.site("PreemptMode             = CANCEL\n")
    assert slurm().checks()[-1].ok is None  # no Epilog
    site.fails(sbatch="sbatch: error: Access/permission denied")
    assert (slurm().checks()[-1].name, slurm().checks()[-1].ok) == ("submit", False)
    site.fails(sinfo="slurm_load_partitions: Unable to contact slurm controller")
    assert slurm().checks()[-1].ok is False


def test_a_service_user_who_does_not_exist_is_named(site: SlurmStandIn) -> None:
    with pytest.raises(SlurmFault, match="no user nobody-here"):
        slurm(PoolConfig(user="nobody-here")).listed()
