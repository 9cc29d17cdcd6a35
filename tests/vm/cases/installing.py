"""Installation by the wheel: upgrade of a version before, uninstall."""

from __future__ import annotations

from tests.vm.cases.lab import Lab, hold, ready, shown, states, tasks
from tests.vm.machine import Machine

PIP = "/opt/nodemgr/bin/pip install --quiet --no-index --no-deps --force-reinstall"
WAITS = "until test -e /run/go; do sleep 0.2; done; exit 5"


def busy(machine: Machine) -> str:
    """A task, a job that runs and one that waits. Returns the one that runs."""
    hold(machine, "alice")
    job = machine.run(f"nodemgr submit --env bob --gpus 2 -- sh -c '{WAITS}'").strip()
    machine.run("nodemgr submit --env bob --gpus 2 -- true")
    return job


def upgrade(lab: Lab) -> str:
    """The version before is replaced under a task, a job that runs and one that waits."""
    if lab.before is None:
        return "skipped: name the version before by --before COMMIT"
    with lab.node_before.machine(lab.wheel) as machine:
        ready(machine)
        job = busy(machine)
        before, waiting = tasks(machine), states(machine)
        machine.run(f"{PIP} /mnt/{lab.wheel.name}")
        machine.run("nodemgr setup --yes")
        machine.run("systemctl restart nodemgr || true")
        ready(machine)
        assert tasks(machine) == before, (before, tasks(machine))
        assert states(machine) == waiting, (waiting, states(machine))
        machine.run(f"touch /run/go; nodemgr wait {job}; test $? = 5")
        machine.run("nodemgr wait --help > /dev/null; nodemgr doctor > /run/doctor || true")
        failed = machine.run("grep ^FAIL /run/doctor || true")
        assert not failed, failed
        return f"{len(before)} tasks and {len(waiting)} jobs went on; {job} ended with its own 5"


def uninstall(lab: Lab) -> str:
    """`setup --uninstall` leaves the state, and the job that runs; setup brings it all back."""
    with lab.node.machine() as machine:
        ready(machine)
        job = machine.run(f"nodemgr submit --env bob --gpus 0 -- sh -c '{WAITS}'").strip()
        said = machine.run("nodemgr setup --uninstall --yes")
        assert f"{job}" in said, said
        left = machine.run("ls /etc/systemd/system | grep nodemgr || true")
        assert not left, left
        assert shown(machine, "nodemgr", "LoadState") == "not-found"
        machine.run("test ! -e /run/nodemgr && test -e /var/lib/nodemgr/state.db")
        assert machine.run("systemctl --failed --no-legend") == ""
        machine.run("nodemgr setup --yes || systemctl start nodemgr")
        machine.run(f"touch /run/go; nodemgr wait {job}; test $? = 5")
        return f"{job} went on without a manager, and its end was found by the next one"
