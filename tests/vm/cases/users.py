"""A manager that an ordinary user starts as a service of the user's own systemd."""

from __future__ import annotations

import json

from tests.vm.cases.lab import Lab, wait_for
from tests.vm.cases.limits import MIB
from tests.vm.machine import Machine

UID = 1001
ALICE = f"runuser -u alice -- env --chdir=/home/alice XDG_RUNTIME_DIR=/run/user/{UID}"
SERVE = "/opt/nodemgr/bin/nodemgr serve --simulate 1x8GiB"
USERS = f"/sys/fs/cgroup/user.slice/user-{UID}.slice/user@{UID}.service"
OWN = f"{USERS}/app.slice"
SHOWS = (
    "d=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup); echo $d;"
    " cat $d/memory.max $d/cpu.max $d/pids.max; mkdir -p $d/inner/most; until test -e /tmp/go; do"
    " sleep 0.2; done"
)
FILLS = "python3 -c \"x = b'x' * (256 << 20)\""


def user(lab: Lab) -> str:
    """An ordinary user's manager limits jobs by what systemd delegates to the user."""
    with lab.node.machine() as machine:
        machine.run("loginctl enable-linger alice")
        wait_for(machine, f"systemctl is-active --quiet user@{UID}")
        delegated = machine.run(f"cat {USERS}/cgroup.controllers").split()
        begin(machine)
        asked(machine, "quota set alice --gpus 1 --memory 8GiB")
        limits = "--host-memory 64MiB --cpus 1"
        job = asked(machine, f"submit --env alice --gpus 0 {limits} -- sh -c '{SHOWS}'").strip()
        wait_for(machine, f"{ALICE} nodemgr logs {job} | grep -q 32768")
        directory, *limited = asked(machine, f"logs {job}").splitlines()
        assert directory.startswith(f"{OWN}/nodemgr-jobs-"), directory
        wanted = [str(64 * MIB), "100000 100000", "32768"]
        assert limited == wanted if "cpu" in delegated else limited[0] == wanted[0], limited
        restarted(machine, job)
        assert not machine.run(f"ls -d {directory} 2>/dev/null || true")
        over = asked(machine, f"submit --env alice --gpus 0 --host-memory 64MiB -- {FILLS}").strip()
        said = asked(machine, f"wait {over} 2>&1; test $? != 0")
        assert "host memory, 64 MiB of --host-memory" in said, said
        inside = asked(machine, f"run --env alice --host-memory 64MiB -- {FILLS} 2>&1; test $? = 0")
        assert "systemd-run --user --scope" in inside, inside
        moves = "systemd-run --user --quiet --scope nodemgr run --env alice --host-memory 64MiB"
        machine.run(f"! {ALICE} {moves} -- {FILLS}")
        row = detail(machine)
        lacks = "cpu" not in delegated
        assert ("--cpus reserves, and limits nothing" if lacks else "each in a cgroup") in row, row
        machine.run(f"{ALICE} systemctl --user stop own")
        wait_for(machine, f"! ls -d {OWN}/nodemgr-jobs-*.scope 2>/dev/null")
        return f"delegated: {' '.join(delegated)}; {row.rpartition('; ')[2]}"


def begin(machine: Machine) -> None:
    words = f"systemd-run --user --quiet --unit=own {SERVE}"
    machine.run(f"{ALICE} {words}")
    wait_for(machine, f"test -S /run/user/{UID}/nodemgr/control.sock")


def restarted(machine: Machine, job: str) -> None:
    """The job goes on without its manager, and the next one in the same scope finds its end."""
    machine.run(f"{ALICE} systemctl --user stop own")
    assert machine.run("pgrep -f '[u]ntil test -e /tmp/go'"), "the end of the manager ends it"
    begin(machine)
    machine.run("touch /tmp/go")
    asked(machine, f"wait {job}")


def asked(machine: Machine, words: str) -> str:
    """An order to the user's own manager."""
    return machine.run(f"{ALICE} nodemgr {words}")


def detail(machine: Machine) -> str:
    rows = json.loads(asked(machine, "doctor --json || true"))["checks"]
    return next(str(row["detail"]) for row in rows if "own launcher" in str(row["detail"]))
