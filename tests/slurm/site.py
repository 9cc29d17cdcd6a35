"""A real Slurm in a folder: munged, slurmctld, four slurmd with GPUs that are copies of /dev/null.

`python -m tests.slurm.site DIRECTORY` runs one with eight GPUs a node until SIGINT or SIGTERM; the
file DIRECTORY/env has what a shell needs for it.

Knows: slurm.conf, the processes that it has started. No system service is used, two sites do not
meet. As root; on Debian: apt-get install slurmctld slurmd slurm-client munge.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

from tests.support.limits import WAIT_LIMIT_S

START_S, CLOSE_S = 60, 5
GRACE_S = 30
"""Between the signal and the kill of a job that one of the partition `first` preempts."""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
CONF = """
ClusterName=nmtest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={dir}/run/munge.sock
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/run/slurmctld.pid
SlurmdPidFile={dir}/run/slurmd-%n.pid
SlurmctldLogFile={dir}/log/slurmctld
SlurmdLogFile={dir}/log/slurmd-%n
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
JobRequeue=0
SlurmdTimeout=6
KillWait=30
PrologFlags=Alloc
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SchedulerParameters=sched_min_interval=1000,bf_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
GresTypes=gpu
"""


def missing() -> str:
    """Why no site can be made here; empty: one can."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if lacking:
        return f"no {', '.join(lacking)}: apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "slurmd wants root"


class SlurmSite:
    def __init__(
        self, directory: Path, nodes: int = 4, gpus: int = 2, epilog: Path | None = None
    ) -> None:
        self.directory = directory
        self.nodes = [f"gn{number}" for number in range(1, nodes + 1)]
        for name in ("run", "log", "state", "dev", "munge", "etc"):
            (directory / name).mkdir(parents=True)
        (directory / "munge").chmod(0o700)
        for number in range(gpus):
            os.mknod(directory / "dev" / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        port = self._ports(nodes + 2)
        self.free_port = port + nodes + 1
        host = socket.gethostname().partition(".")[0]
        lines = CONF.format(dir=directory, host=host, port=port).strip().splitlines()
        lines += [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port + at} CPUs=64 "
            f"RealMemory=64000 Gres=gpu:{gpus} State=UNKNOWN"
            for at, name in enumerate(self.nodes, 1)
        ]
        nodes = ",".join(self.nodes)
        lines += [
            *([f"Epilog={epilog}"] if epilog else []),
            f"PartitionName=gpu Nodes={nodes} Default=YES MaxTime=INFINITE GraceTime={GRACE_S}",
            f"PartitionName=first Nodes={nodes} PriorityTier=10 PreemptMode=OFF",
        ]
        self.conf = directory / "etc" / "slurm.conf"
        self.conf.write_text("\n".join(lines) + "\n")
        devices = f"{directory}/dev/gpu[0-{gpus - 1}]"
        (directory / "etc" / "gres.conf").write_text(f"Name=gpu File={devices}\n")
        self.environ = {
            **os.environ, "SLURM_CONF": str(self.conf),
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        }  # fmt: skip
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    @staticmethod
    def _ports(count: int) -> int:
        for base in range(12_000 + os.getpid() * 97 % 19_000, 32_000, count):
            with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
                for port in range(base, base + count):
                    stack.enter_context(socket.socket()).bind(("0.0.0.0", port))
                return base
        raise AssertionError("no ports are free")

    def start(self) -> None:
        key = self.directory / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._run(
            "munged", "munged", "--foreground", "--force", "--key-file", str(key), "--seed-file",
            f"{key.parent}/seed", "--socket", f"{self.directory}/run/munge.sock", "--pid-file",
            f"{self.directory}/run/munged.pid",
        )  # fmt: skip
        self.until(lambda: (self.directory / "run" / "munge.sock").exists())
        self.start_one("slurmctld", forgets=True)
        for name in self.nodes:
            self.start_one(name)
        self.until(
            lambda: len(self.says("sinfo", "-hN", "-tidle", "-o%N").split()) >= len(self.nodes)
        )

    def until(self, true: object) -> None:
        end = time.monotonic() + START_S
        while not true():  # type: ignore[operator]
            assert time.monotonic() < end, "Slurm does not come up"
            time.sleep(0.1)

    def _run(self, name: str, *command: str) -> None:
        with open(self.directory / "log" / f"{name}.out", "ab") as log:
            self.running[name] = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def start_one(self, name: str, *, forgets: bool = False) -> None:
        """slurmctld (`forgets`: without its state), or the slurmd of a node."""
        conf = str(self.conf)
        if name == "slurmctld":
            self._run(name, "slurmctld", "-D", *(["-c"] if forgets else []), "-f", conf)
        else:
            self._run(name, "slurmd", "-D", "-N", name, "-f", conf)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].wait()

    def says(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=WAIT_LIMIT_S,
            check=False,
        )  # fmt: skip
        return done.stdout

    def close(self) -> None:
        self.says("scancel", "--signal=KILL", "--full", "--user=root")
        for process in reversed(self.running.values()):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.running.values():
            try:
                process.wait(CLOSE_S)
            except subprocess.TimeoutExpired:  # a slurmd waits for steps that are ending
                process.kill()
                process.wait()
        end_all(self.directory)  # a slurmstepd outlives its slurmd


def end_all(directory: Path) -> None:
    """Kills each process with this folder in its command or its variables, this one excepted."""
    mark = f"{directory}/".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if mark in said and int(entry.name) != os.getpid():
                os.kill(int(entry.name), signal.SIGKILL)


def end_with_us(directory: Path) -> subprocess.Popen[bytes]:
    """A process that ends all of a folder when this one is gone, also by SIGKILL."""
    program = (
        "import shutil, sys; from pathlib import Path; from tests.slurm.site import end_all; "
        "sys.stdin.read(); path = Path(sys.argv[1]); end_all(path); shutil.rmtree(path, True)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, str(directory)], stdin=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def main() -> None:
    directory = Path(sys.argv[1]).resolve()
    if why := missing():
        sys.exit(why)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    site = SlurmSite(directory, gpus=8)
    try:
        site.start()
        lines = [f"export {name}={site.environ[name]}\n" for name in ("SLURM_CONF", "PATH")]
        (directory / "env").write_text("".join(lines))
        print(f"ready: . {directory}/env", file=sys.stderr, flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        site.close()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
