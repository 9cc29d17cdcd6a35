"""Interactive grants against foreign jobs for the same GPUs, while pilots are taken away.

The node is as on a site: its own manager, the line of `nodemgr node emptied` in Slurm's Epilog. A
program of the simulator holds a lock for as long as it has a GPU, also when it is killed; a foreign
job that gets the lock not, or a program that does not, is one that had the node at one time with
the other.
"""

from __future__ import annotations

import collections
import os
import random
import sys
import time
from pathlib import Path

from tests.slurm import storm
from tests.slurm.storm import Cluster, cluster, until
from tests.support.manager import HOLD

NODE, GPUS = "gn1", 2
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
        program = subprocess.Popen([hold, "-s", "0.05"], stdout=subprocess.PIPE,
                                   pass_fds=[lock.fileno()])
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


def play(epilog: str, seconds: float, seed: int = 1) -> collections.Counter[tuple[str, str]]:
    dice = random.Random(seed)
    with cluster("--idle-return", "1s", "--grace", "10s", epilog=epilog, nodes=1) as made:
        run_dir = started(made)
        theirs, ours = made.directory / "theirs", made.directory / "ours.py"
        theirs.write_text(THEIRS.format(dir=made.directory))
        ours.write_text(OURS)
        # the first pilot joins the node, which then knows the environment
        made.says("submit", "--env", "alice", "--gpus", str(GPUS), "--", "true")
        until(made.is_calm, storm.CALM_S)
        made.begin("ours", "run", "--env", "alice", "--gpus", "1", "--run-dir", str(run_dir), "--",
                   sys.executable, str(ours), str(made.directory), str(HOLD))  # fmt: skip
        until(lambda: made.marks()["begun", "ours"], storm.CALM_S)
        log = made.directory / f"{NODE}.log"
        end, takes = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            if made.slurm.says("squeue", "-h", "-n", "theirs", "-o%A").count("\n") < 2:
                made.slurm.says("sbatch", "-Jtheirs", "-N1", "--exclusive", f"--gres=gpu:{GPUS}",
                                "--output=/dev/null", "--chdir=/", str(theirs))  # fmt: skip
            pilot = made.slurm.says("squeue", "-h", "-tR", "-o%A %j").partition(" nodemgr-")
            if pilot[1] and dice.random() < 0.3:
                takes += 1
                how = dice.choice((["--signal=KILL", "--full"], ["--signal=KILL", "--full"], []))
                made.slurm.says("scancel", *how, pilot[0].rpartition("\n")[2])
            time.sleep(dice.uniform(0.2, 1))
        found = made.marks()
        found["taken", "pilots"] = takes
        assert not (why := drained(made)), f"{told(found)}\n{why}\n{log.read_text()[-4_000:]}"
        return found


def drained(made: Cluster) -> str:
    """Why Slurm has drained the node, in its own words and the Epilog's; empty: it has not."""
    if "drain" not in made.slurm.says("sinfo", "-hN", "-o%T"):
        return ""
    logs = [made.directory / "epilog.log", *(made.slurm.directory / "log").glob("slurm*")]
    lines = [made.slurm.says("scontrol", "show", "node", NODE)]
    return "\n".join(lines + [f"{log.name}: {log.read_text()[-6_000:]}" for log in logs])


def told(found: collections.Counter[tuple[str, str]]) -> str:
    both = found["overlap", "ours"] + found["overlap", "theirs"]
    ends = {name: count for (what, name), count in found.items() if what == "epilog"}
    return (
        f"{found['begun', 'ours']} grants and {found['begun', 'theirs']} foreign jobs while pilots "
        f"were taken {found['taken', 'pilots']} times: both at one time {both}; Epilogs {ends}"
    )


def with_epilog(seconds: float = 120) -> str:
    found = play(EPILOG, seconds)
    assert found["overlap", "ours"] + found["overlap", "theirs"] == 0, told(found)
    return told(found)


def without_epilog(seconds: float = 120) -> str:
    """The same without the line in the Epilog."""
    return told(play(NO_EPILOG, seconds))
