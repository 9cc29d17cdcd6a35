"""The packages of Debian: install, reboot, upgrade, remove, purge."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.vm import images
from tests.vm.cases.installing import busy
from tests.vm.cases.lab import Lab, ready, shown, states, tasks
from tests.vm.machine import Machine

LEFT = "find /etc /usr /var /run /opt -xdev -iname '*nodemgr*' -not -path '/var/log/*'"
PREPARED = (
    f"echo '{images.SETTINGS}' >> /etc/nodemgr/config.toml",
    "systemctl restart nodemgr || systemctl start nodemgr",
    "nodemgr env create alice --gpus 2 --memory 8GiB --user alice",
    "nodemgr env create bob --gpus 2 --memory 8GiB --user bob",
)


def built(lab: Lab, suite: str) -> tuple[Path, Path]:
    """The package, and the same as a later revision."""

    def make(place: Path) -> None:
        command = [sys.executable, "-m", "deploy.debian", suite, "--wheel", str(lab.wheel)]
        subprocess.run([*command, "--output", str(place)], check=True, cwd=images.ROOT)
        (deb,) = place.glob("*.deb")
        unpacked = place / "unpacked"
        subprocess.run(["dpkg-deb", "-R", deb, unpacked], check=True)
        control = unpacked / "DEBIAN" / "control"
        control.write_text(control.read_text().replace("-1+deb", "-2+deb"))
        later = place / deb.name.replace("-1+deb", "-2+deb")
        subprocess.run(["dpkg-deb", "-b", "-Znone", unpacked, later], check=True)
        shutil.rmtree(unpacked)

    sources = sorted((images.ROOT / "deploy/debian").glob("*"))
    key = images.digest(lab.wheel, *(path for path in sources if path.is_file()))
    first, second = sorted(images.cached(f"deb-{suite}", key, make).glob("*.deb"))
    return first, second


def of(suite: str) -> Callable[[Lab], str]:
    """The case of a suite."""

    def case(lab: Lab) -> str:
        first, second = built(lab, suite)
        with images.installed(None, suite).machine(first, second) as machine:
            return tried(machine, first.name, second.name)

    case.__doc__ = f"The package for {suite}: install, reboot, upgrade, remove, purge."
    return case


def tried(machine: Machine, first: str, second: str) -> str:
    """Installed on a bare Debian, and taken away to the last file."""
    machine.run(f"dpkg -i /mnt/{first}")
    for command in PREPARED:
        machine.run(command)
    version = machine.run("nodemgr --version").strip()
    complete = "complete -p nodemgr"
    machine.run(f". /usr/share/bash-completion/completions/nodemgr; {complete}")
    machine.reboot()
    machine.run("mount /dev/vdb /mnt")
    ready(machine)
    job = busy(machine)
    before, waiting = tasks(machine), states(machine)
    machine.run(f"dpkg -i /mnt/{second}")
    ready(machine)
    assert (tasks(machine), states(machine)) == (before, waiting), (tasks(machine), before)
    machine.run(f"touch /run/go; nodemgr wait {job}; test $? = 5")
    machine.run("systemctl stop hold; dpkg -r nodemgr")
    assert shown(machine, "nodemgr", "LoadState") == "not-found"
    machine.run("test -e /var/lib/nodemgr/state.db && test -e /etc/nodemgr/config.toml")
    machine.run("dpkg -P nodemgr")
    left = machine.run(LEFT)
    assert not left, left
    assert not machine.run("getent group nodemgr nodemgr-page || true")
    return f"{version}; {len(before)} tasks and {len(waiting)} jobs over the upgrade; nothing left"
