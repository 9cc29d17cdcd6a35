"""The settings of a pool from an administrator's words, and the look at the site before they hold.

Knows: the defaults that follow from others, when a site is refused. Must not know: options of the
command line, Slurm's commands.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from client_plugin.messages.form import relayed
from client_plugin.ways.faults import Exit, Fault, say
from nodemgr.core.cluster.pilots import PoolConfig
from nodemgr.core.model.values import replace
from nodemgr.head.slurm import Slurm, SlurmFault, own_directory


def pool_of(
    name: str, address: str, said: dict[str, Any], simulated: int, show: Callable[[str], None]
) -> PoolConfig:
    """`simulated`: the GPUs of a trial's nodes. Raises Fault: the site has not what it needs."""
    if said["min_nodes"] > said["max_nodes"]:
        raise Fault("--min-nodes is more than --max-nodes", "name fewer", Exit.USAGE)
    directory = said["pilot_dir"]
    if directory is None:
        directory = "" if os.geteuid() == 0 and not simulated else own_directory()
    config = PoolConfig(
        partition=said["partition"], min_nodes=said["min_nodes"], max_nodes=said["max_nodes"],
        time_limit_s=said["time_limit"] // 1_000, grace_s=said["grace"] // 1_000,
        notice_s=min(300, said["time_limit"] // 10_000), user=said["pilot_user"],
        idle_return_s=said["idle_return"] // 1_000, rest_s=said["change_every"] // 1_000,
        always=tuple(filter(None, said["always"].split(","))), directory=directory,
        options=said["sbatch_options"], simulate=said["simulate"],
    )  # fmt: skip
    slurm = Slurm(name, config, address)
    for check in slurm.checks():
        show(f"{check.name}: {check.detail}")
        if check.ok is False:
            raise Fault(relayed(check.detail), relayed(check.cure))
        if check.ok is None:
            say(relayed(check.detail), relayed(check.cure))
    try:
        gpus = slurm.gpus()
    except SlurmFault as fault:
        raise Fault(relayed(fault.line), "see the site's Slurm") from None
    if not (gpus or simulated):
        raise Fault("the nodes of the partition have no GPUs that Slurm knows", "set their Gres")
    return replace(config, gpus=simulated or gpus, has_gres=gpus > 0)
