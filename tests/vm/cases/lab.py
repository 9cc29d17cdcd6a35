"""The images that cases begin with, and questions to a node in a machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.vm import images
from tests.vm.machine import Machine

UNITS = ("nodemgr.service", "nodemgr-jobs.service")
CONDITION_LIMIT_S = 600
"""Of a condition in a machine, by the machine's clock."""


@dataclass
class Lab:
    """Each image is made when the first case needs it."""

    before: str | None
    """The commit of the version that is upgraded."""

    @cached_property
    def wheel(self) -> Path:
        return images.own_wheel()

    @cached_property
    def node(self) -> images.Image:
        """This version after `nodemgr setup`."""
        return images.node(self.wheel)

    @cached_property
    def node_before(self) -> images.Image:
        """The version before after `nodemgr setup`."""
        assert self.before is not None, "name the version before: --before COMMIT"
        return images.node(images.earlier_wheel(self.before))


def shown(machine: Machine, unit: str, name: str) -> str:
    """A property of a unit."""
    return machine.run(f"systemctl show {unit} --property={name} --value").strip()


def asked(machine: Machine, words: str) -> Any:
    """The answer of a verb as JSON."""
    return json.loads(machine.run(f"nodemgr {words} --json"))


def states(machine: Machine) -> dict[str, str]:
    """The state of each job: those that wait, in the order of the queue, then those that run."""
    told = asked(machine, "queue")
    return {name: row["state"] for row in told["queue"] + told["running"] for name in ids(row)}


def ids(row: dict[str, Any]) -> list[str]:
    """The job of a row, or each of an array that waits in it."""
    if not row.get("indices"):  # a version before has no arrays in a row
        return [row["id"]]
    runs = [run.split("-") for run in row["indices"].split(",")]
    indices = [index for run in runs for index in range(int(run[0]), int(run[-1]) + 1)]
    return [f"{row['job']}.{index}" for index in indices]


def wait_for(machine: Machine, condition: str) -> None:
    """Until the condition of the shell is true in the machine."""
    machine.run(f"timeout {CONDITION_LIMIT_S} sh -c 'until {condition}; do sleep 0.5; done'")


def ready(machine: Machine) -> None:
    """Until the manager has started after a boot; a busy emulator may miss systemd's bound."""
    machine.run(" || ".join(["systemctl start nodemgr"] * 3))


def hold(machine: Machine, env: str) -> None:
    """A task with 1 GiB on a GPU, which goes on in a unit of its own."""
    # below the virtual environment: of the wheel or of the package
    program = "$(dirname $(readlink -f $(command -v nodemgr)))/../lib/python3*/site-packages"
    command = f"nodemgr run --env {env} --gpus 1 -- {program}/nodemgr/_sim/hold -b 1073741824"
    machine.run(f"echo 'tail -f /dev/null | {command} > /run/hold.out' > /run/hold.sh")
    machine.run("rm -f /run/hold.out")
    machine.run("systemd-run --quiet --unit=hold sh /run/hold.sh")
    wait_for(machine, "grep -q error /run/hold.out")


def tasks(machine: Machine) -> dict[str, tuple[str, str]]:
    """Environment and state of each task."""
    rows = asked(machine, "status")["tasks"]
    return {row["id"]: (row["env"], row["state"]) for row in rows}
