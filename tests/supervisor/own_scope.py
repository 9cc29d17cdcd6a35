"""A manager of an ordinary user below a stand-in of that user's systemd; prints what it saw.

usage: python -m tests.supervisor.own_scope CGROUP CASE

It runs as root in a mount namespace with a stand-in for systemd-run, enters CGROUP, and becomes the
user.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from nodemgr.edge.executor.launcher import LauncherEndpoint
from nodemgr.edge.kernel import cgroups
from nodemgr.edge.kernel.processes import ancestors, process_key, start_ticks
from tests.supervisor.world import World, end, remove_cgroup

UID = 65_534
NESTS = (
    "d=/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup); mkdir -p $d/a/b/c; chmod 700 $d $d/..;"
    " (echo 0 > $d/a/b/cgroup.procs; exec setsid sleep 600) & echo $!; wait"
)


class Own(World):
    def endpoint(self) -> LauncherEndpoint:
        return LauncherEndpoint.fitting(self.directory, self.jobs_dir)


def begin(world: World, job: str, *argv: str) -> None:
    world.factory.create(world.order(*argv, job=job, user="nobody"))


def where(world: World, job: str) -> str:
    """The cgroup of a job that has run."""
    begin(world, job, "cat", "/proc/self/cgroup")
    status = world.end(job)
    assert status.exit_code == 0, status
    return world.heard.tails[job, 1].strip().rpartition("::")[2]


def plain(world: World, _other: int) -> object:
    return where(world, "l1")


def vanishes(world: World, _other: int) -> object:
    """The scope is stopped, as by `systemctl --user stop`; a spare launcher goes on."""
    before, scope = where(world, "l1"), Path(world.launcher.scope)
    assert scope.is_absolute(), world.launcher.state()
    begin(world, "l2", "sleep", "600")
    world.begun("l2")
    launcher = ancestors(world.supervisor("l2"))[0]
    is_in = cgroups.directory_of(launcher) == scope / "Keeper"
    # a kernel that has killed the launcher's cgroup as one may kill what begins elsewhere later
    found = [procs.read_text().split() for procs in list(scope.rglob("cgroup.procs"))]
    for pid in [pid for pids in found for pid in pids]:
        end(int(pid))
    for path in sorted(scope.rglob("*/"), reverse=True):
        if path.is_dir():
            remove_cgroup(path)
    remove_cgroup(scope)
    world.end("l2")
    return before, is_in, where(world, "l3")


def nests(world: World, _other: int) -> object:
    """The user changes the job's cgroup, and makes others below it."""
    begin(world, "l1", "sh", "-c", NESTS)
    (inner,) = world.said(job="l1")
    leaf = Path(world.launcher.scope, "alice", "l1.1")
    procs = leaf / "a/b/cgroup.procs"
    world.until(lambda: procs.exists() and inner in procs.read_text())
    world.factory.withdraw("l1", 1, "enough")
    return world.end("l1").why, leaf.exists(), Path("/proc", inner).exists()


def moves(world: World, other: int) -> object:
    """A command that is not below the user's systemd, and one that is."""
    where(world, "l1")
    answers: list[str | None] = []
    world.launcher._controllers = ["cpu", "memory"]
    with subprocess.Popen(["sleep", "600"]) as own:
        for count, pid in enumerate((other, own.pid), 1):
            key = process_key(pid, start_ticks(pid) or 0)
            world.factory.enter("alice", key, (), answers.append)
            world.until(lambda wanted=count: len(answers) == wanted)  # type: ignore[misc]
        name = str(cgroups.directory_of(own.pid)).partition(world.launcher.scope)[2]
        own.kill()
    return answers, name.replace(str(own.pid), "PID").rpartition(".")[0]


CASES = {case.__name__: case for case in (plain, vanishes, nests, moves)}


def main(cgroup: str, case: str) -> None:
    with subprocess.Popen(["sleep", "600"], user=UID, group=UID, extra_groups=[]) as other:
        Path(cgroup, "cgroup.procs").write_text("0")
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)
        world = Own()
        try:
            found = CASES[case](world, other.pid)
            print(json.dumps([world.launcher.scope, world.launcher.state()[1], found]))
        finally:
            world.close()
            other.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
