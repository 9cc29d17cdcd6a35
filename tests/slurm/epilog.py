"""Interactive grants against foreign jobs for the same GPUs, while pilots are taken away.

The node is as on a site: its own manager, the line of `nodemgr node emptied` in Slurm's Epilog. A
program of the simulator holds a lock for as long as it has a GPU, also when it is killed; a foreign
job that gets the lock not, or a program that does not, is one that had the node at one time with
the other.

Pilots are cancelled with Slurm's notice, or killed without one, which the Epilog is for. Some are
killed while the program does not end: it is in the kernel's freezer, as one inside a long call of a
driver, or it goes on and the manager that would end it is stopped.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.slurm import storm
from tests.slurm.storm import Cluster, cluster, until
from tests.support.manager import HOLD

NODE, GPUS = "gn1", 2
FREEZER = Path("/sys/fs/cgroup/freezer")
STAYS = ("frozen", "stopped")
TAKES = ("frozen", "killed", "stopped", "cancelled")
STAYS_S = 6
"""So long does it stay, or until the next job has begun: Slurm needs less."""
EPILOG = f"""#!/bin/sh
export PYTHONPATH={os.getcwd()}
{sys.executable} -m nodemgr node emptied --within 60 --run-dir {{dir}}/nodes/$SLURMD_NODENAME/run \
    2>>{{dir}}/epilog.log
code=$?
echo epilog $code >>{{dir}}/marks
exit $code
"""
NO_EPILOG = "#!/bin/sh\necho epilog 0 >>{dir}/marks\n"
THEIRS = """#!/bin/sh
exec 9>>{dir}/lock
flock -n 9 || echo overlap theirs >>{dir}/marks
echo begun theirs >>{dir}/marks
sleep 0.2
"""
OURS = """
import fcntl, os, subprocess, sys
directory, hold = sys.argv[1:]
def mark(text):
    with open(directory + "/marks", "a") as file:
        file.write(text + " ours\\n")
while True:
    with open(directory + "/lock", "a") as lock:
        # killed without grace: its lock is gone when it is, and not before
        program = subprocess.Popen([hold, "-s", "0.5"], stdout=subprocess.PIPE,
                                   pass_fds=[lock.fileno()])
        with open(directory + "/holder", "w") as file:
            file.write(str(program.pid))
        if program.stdout.readline():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                mark("overlap")
            mark("begun")
    program.stdout.read()
    program.wait()
"""


def started(made: Cluster) -> Path:
    """The node's own manager, and programs that ask there for a GPU again and again."""
    folder = made.directory / "nodes" / NODE
    folder.mkdir(parents=True)
    made.environ["NODEMGR_SLURM_POOL"] = "true"
    made.begin(NODE, "serve", "--simulate", f"{GPUS}x80GiB", "--run-dir", str(folder / "run"),
               "--state-dir", str(folder / "state"))  # fmt: skip
    del made.environ["NODEMGR_SLURM_POOL"]
    return folder / "run"


@contextlib.contextmanager
def frozen(pid: int, name: str) -> Iterator[None]:
    """The process does nothing, and ends by no signal. With cgroups of version 1."""
    group = FREEZER / name
    group.mkdir(exist_ok=True)
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Node:
    """The node that both want: programs ask there for a GPU again and again, foreign jobs wait."""

    def __init__(self, made: Cluster, seed: int) -> None:
        self.made, self.dice = made, random.Random(seed)
        self.theirs, self.ours = made.directory / "theirs", made.directory / "ours.py"
        self.theirs.write_text(THEIRS.format(dir=made.directory))
        self.ours.write_text(OURS)
        self.log = made.directory / f"{NODE}.log"
        self.takes: collections.Counter[str] = collections.Counter()
        run_dir = started(made)
        # the first pilot joins the node, which then knows the environment
        made.says("submit", "--env", "alice", "--gpus", str(GPUS), "--", "true")
        until(made.is_calm, storm.CALM_S)
        made.begin("ours", "run", "--env", "alice", "--gpus", "1", "--run-dir", str(run_dir), "--",
                   sys.executable, str(self.ours), str(made.directory), str(HOLD))  # fmt: skip
        until(lambda: made.marks()["begun", "ours"], storm.CALM_S)

    def queue_theirs(self) -> None:
        if self.made.slurm.says("squeue", "-h", "-n", "theirs", "-o%A").count("\n") < 2:
            self.made.slurm.says("sbatch", "-Jtheirs", "-N1", "--exclusive", f"--gres=gpu:{GPUS}",
                                 "--output=/dev/null", "--chdir=/", str(self.theirs))  # fmt: skip

    def pilot(self) -> str:
        found = self.made.slurm.says("squeue", "-h", "-tR", "-o%A %j").partition(" nodemgr-")
        return found[0].rpartition("\n")[2] if found[1] else ""

    def is_held(self) -> bool:
        """By a program of ours, or a foreign job."""
        with open(self.made.directory / "lock", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    @contextlib.contextmanager
    def stays(self, how: str) -> Iterator[None]:
        """The program that has the GPU does not end meanwhile."""
        holder = int((self.made.directory / "holder").read_text())
        if how == "frozen" and FREEZER.exists():
            with frozen(holder, self.made.directory.name):
                yield
        elif how == "stopped":
            with stopped(self.made.running[NODE].pid), stopped(holder):
                yield
        else:
            yield

    def take(self, pilot: str, how: str) -> None:
        with contextlib.suppress(ProcessLookupError), self.stays(how):
            if not self.is_held():
                return
            before, end = self.made.marks()["begun", "theirs"], time.monotonic() + STAYS_S
            if how == "cancelled":
                self.made.slurm.says("scancel", pilot)
            for pid in self.made.pilots() if how != "cancelled" else []:
                os.kill(pid, signal.SIGKILL)  # Slurm's own signals come with notice
            self.takes[how] += 1
            while how in STAYS and time.monotonic() < end:
                if self.made.marks()["begun", "theirs"] > before:
                    return
                time.sleep(0.1)


def play(epilog: str, seconds: float, seed: int = 1) -> collections.Counter[tuple[str, str]]:
    with cluster("--idle-return", "1s", "--grace", "10s", epilog=epilog, nodes=1) as made:
        node, end = Node(made, seed), time.monotonic() + seconds
        while time.monotonic() < end:
            node.queue_theirs()
            if (pilot := node.pilot()) and node.dice.random() < 0.3:
                node.take(pilot, TAKES[node.takes.total() % len(TAKES)])
            time.sleep(node.dice.uniform(0.2, 1))
        found = made.marks()
        found.update({("taken", how): count for how, count in node.takes.items()})
        assert not (why := drained(made)), f"{told(found)}\n{why}\n{node.log.read_text()[-4_000:]}"
        return found


def drained(made: Cluster) -> str:
    """Why Slurm has drained the node, in its own words and the Epilog's; empty: it has not."""
    if "drain" not in made.slurm.says("sinfo", "-hN", "-o%T"):
        return ""
    logs = [made.directory / "epilog.log", *(made.slurm.directory / "log").glob("slurm*")]
    lines = [made.slurm.says("scontrol", "show", "node", NODE)]
    return "\n".join(lines + [f"{log.name}: {log.read_text()[-6_000:]}" for log in logs])


def told(found: collections.Counter[tuple[str, str]]) -> str:
    ends = {name: count for (what, name), count in found.items() if what == "epilog"}
    takes = ", ".join(f"{how} {n}" for (what, how), n in sorted(found.items()) if what == "taken")
    return (
        f"{found['begun', 'ours']} grants and {found['begun', 'theirs']} foreign jobs while pilots "
        f"were taken ({takes}): both at one time {both(found)}; Epilogs {ends}"
    )


def both(found: collections.Counter[tuple[str, str]]) -> int:
    return found["overlap", "ours"] + found["overlap", "theirs"]


def with_epilog(seconds: float = 120) -> str:
    found = play(EPILOG, seconds)
    assert both(found) == 0, told(found)
    return told(found)


def without_epilog(seconds: float = 120) -> str:
    """The same without the line in the Epilog: so the measure sees what the line is for."""
    found = play(NO_EPILOG, seconds)
    assert both(found) > 0, told(found)
    return told(found)
