"""A storm over a pool on real Slurm: real head, pilots and managers; what was lost or begun twice.

Each job takes a lock of its own for as long as it runs, so two attempts at one time are seen. The
head's history says how often a job's node was taken from it: it may begin once more for each.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from client_plugin.ways.control import ControlConnection
from client_plugin.ways.faults import Fault
from nodemgr.core.cluster.entities import ClusterStage
from nodemgr.head.store import HeadStore
from tests.session import TMP
from tests.slurm.site import SlurmSite, end_with_us
from tests.support.limits import WAIT_LIMIT_S

START_S, CALM_S = 60, 600
SCRIPT = (
    "exec 9>>{dir}/locks/{n}; flock -n 9 || echo overlap {n} >>{dir}/marks; "
    "echo begun {n} >>{dir}/marks; sleep {s}; echo ended {n} >>{dir}/marks"
)


class Cluster:
    """A head with a pool, and one own node without GPUs of note, from which users submit."""

    def __init__(self, directory: Path, slurm: SlurmSite, gpus: int = 2) -> None:
        self.gpus = gpus
        self.directory, self.slurm = directory, slurm
        (directory / "locks").mkdir()
        self.environ = {
            **slurm.environ,
            "NODEMGR_HEAD_DIR": str(directory / "head"),
            "NODEMGR_HEAD_RUN_DIR": str(directory / "head-run"),
            "NODEMGR_RUN_DIR": str(directory / "own"),
            "NODEMGR_STATE_DIR": str(directory / "own-state"),
            "NODEMGR_CLUSTER_USERS": "root",
            "NODEMGR_DISK_RESERVE_BYTES": str(2**20),
        }
        self.address = f"127.0.0.1:{slurm.free_port}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def says(self, *words: str, ok: bool = True) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "nodemgr", *words], env=self.environ, capture_output=True,
            text=True, timeout=CALM_S, check=False,
        )  # fmt: skip
        assert not ok or done.returncode == 0, done.stderr
        return done.stdout if done.returncode == 0 else ""

    def asked(self, verb: str, **given: Any) -> Any:
        """The head's own answer; {}: it is away. A node answers with its own rows then."""
        try:
            with ControlConnection(Path(self.environ["NODEMGR_HEAD_RUN_DIR"]), CALM_S) as head:
                return head.call(verb, **given)
        except Fault:
            return {}

    def is_calm(self) -> bool:
        return self.asked("cluster_queue", limit=1).get("queue") == []

    def begin(self, name: str, *words: str) -> None:
        with open(self.directory / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "nodemgr", *words], env=self.environ,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def start(self, *pool: str) -> None:
        self.says(
            "head", "setup", "--dir", str(self.directory / "head"), "--address", self.address,
            "--engine", "slurm", "--partition", "gpu", "--max-nodes", "4", "--simulate",
            f"{self.gpus}x80GiB", "--pilot-dir", str(self.directory / "nodes"),
            "--change-every", "1s", *pool,
        )  # fmt: skip
        self.head()
        self.own()
        until(lambda: self.says("node", "list", "--run-dir", self.environ["NODEMGR_HEAD_RUN_DIR"],
                                ok=False))  # fmt: skip
        until(lambda: self.says("status", ok=False))
        word = self.says("head", "word", "own").strip()
        self.says("node", "join", self.address, word, "--name", "own")
        self.says("quota", "set", "alice", "--cluster", "--gpus", "16", "--user", "root")
        until(lambda: "alice" in self.says("status", ok=False))

    def head(self) -> None:
        self.begin("head", "head", "serve")

    def own(self) -> None:
        self.begin("own", "serve", "--simulate", "1x80GiB")

    def managers(self) -> list[int]:
        found = []
        for lock in (self.directory / "nodes").glob("*/run/manager.lock"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                pid = int(lock.read_text().split()[0])
                if b"nodemgr" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def pilots(self) -> list[int]:
        mark = f"{self.directory}/nodes".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"pilot" in words and mark in words and words[0] != b"srun":
                    found.append(int(entry.name))
        return found

    def marks(self) -> collections.Counter[tuple[str, str]]:
        file = self.directory / "marks"
        lines = file.read_text().splitlines() if file.exists() else []
        return collections.Counter((line.split()[0], line.split()[1]) for line in lines)

    def close(self) -> None:
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.running.values():
            process.wait(WAIT_LIMIT_S)
        for pid in (*self.pilots(), *self.managers()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGTERM)


def until(true: Callable[[], object], limit_s: float = START_S) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, "it has not come to be"
        time.sleep(0.2)


@contextlib.contextmanager
def cluster(*pool: str, epilog: str = "", nodes: int = 4, gpus: int = 2) -> Iterator[Cluster]:
    """`epilog`: the text of Slurm's Epilog; {dir} is the cluster's directory."""
    with (
        tempfile.TemporaryDirectory(prefix="nms", dir=TMP, ignore_cleanup_errors=True) as name,
        end_with_us(Path(name)),  # its exit closes the pipe, and waits for it
    ):
        program = Path(name) / "epilog"
        program.write_text(epilog.format(dir=name))
        program.chmod(0o755)
        slurm = SlurmSite(Path(name) / "slurm", nodes, gpus, program if epilog else None)
        made = Cluster(Path(name), slurm, gpus)
        try:
            slurm.start()
            made.start(*pool)
            yield made
        finally:
            made.close()
            slurm.close()


class Storm:
    def __init__(self, made: Cluster, seed: int) -> None:
        self.made, self.dice = made, random.Random(seed)
        self.faults: collections.Counter[str] = collections.Counter()

    def blow(self) -> None:
        faults = {
            self.kill_head: 3, self.stop_head: 1, self.kill_manager: 3, self.stop_manager: 1,
            self.kill_pilot: 1, self.cancel: 1, self.kill_slurmd: 2, self.kill_slurmctld: 1,
            self.forget: 1, self.stop_slurmctld: 1,
        }  # fmt: skip
        fault = self.dice.choices([*faults], [*faults.values()])[0]
        self.faults[fault.__name__] += 1
        fault()

    def kill_head(self) -> None:
        self.made.running["head"].kill()
        self.made.running["head"].wait()
        self.made.head()

    def _stop(self, pid: int, seconds: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)

    def stop_head(self) -> None:
        self._stop(self.made.running["head"].pid, self.dice.uniform(1, 8))

    def _one(self, pids: list[int], number: int) -> None:
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.dice.choice(pids), number)

    def kill_manager(self) -> None:
        self._one(self.made.managers(), signal.SIGKILL)

    def stop_manager(self) -> None:
        if pids := self.made.managers():
            self._stop(self.dice.choice(pids), self.dice.uniform(1, 8))

    def kill_pilot(self) -> None:
        self._one(self.made.pilots(), signal.SIGKILL)

    def cancel(self) -> None:
        if names := self.made.slurm.says("squeue", "-h", "-tR", "-o%j").split():
            self.made.slurm.says("scancel", "-n", self.dice.choice(names))

    def kill_slurmd(self) -> None:
        name = self.dice.choice(self.made.slurm.nodes)
        self.made.slurm.kill(name)
        time.sleep(self.dice.uniform(0, 1))
        self.made.slurm.start_one(name)

    def kill_slurmctld(self, *, forgets: bool = False) -> None:
        self.made.slurm.kill("slurmctld")
        time.sleep(self.dice.uniform(0, 2))
        self.made.slurm.start_one("slurmctld", forgets=forgets)

    def forget(self) -> None:
        self.kill_slurmctld(forgets=True)

    def stop_slurmctld(self) -> None:
        self._stop(self.made.slurm.running["slurmctld"].pid, self.dice.uniform(1, 8))


def play(made: Cluster, jobs: int, seconds: float, seed: int, job_s: float = 0.2) -> str:
    """The figures in one line. Raises AssertionError with what was lost or begun twice."""
    lines = [SCRIPT.format(dir=made.directory, n=number, s=job_s) for number in range(jobs)]
    file = made.directory / "jobs"
    rows = [json.dumps({"command": ["sh", "-c", line], "gpus": 1}) for line in lines]
    file.write_text("\n".join(rows) + "\n")
    made.says("submit", "--from", str(file), "--env", "alice")
    storm, began = Storm(made, seed), time.monotonic()
    while time.monotonic() - began < seconds:
        time.sleep(storm.dice.uniform(0.5, 3))
        storm.blow()

    until(made.is_calm, CALM_S)
    took = time.monotonic() - began
    made.running["head"].terminate()
    made.running["head"].wait(WAIT_LIMIT_S)
    store = HeadStore(made.directory / "head")
    ended = {row.job.job_id: row for row in store.history("alice", 0, None, jobs + 10)[0]}
    store.close()
    marks = made.marks()
    begun = {name: count for (what, name), count in marks.items() if what == "begun"}
    again = sum(count - 1 for count in begun.values())
    taken = sum(row.job.interruptions for row in ended.values())
    states = collections.Counter(row.job.stage for row in ended.values())
    overlaps = [name for what, name in marks if what == "overlap"]
    faults = ", ".join(f"{name} {count}" for name, count in sorted(storm.faults.items()))
    figures = (
        f"{jobs} jobs in {took:.0f} s: {len(ended)} ended ({dict(states)}), {len(begun)} begun, at "
        f"one time twice {len(overlaps)}, begun again {again} after {taken} nodes taken; {faults}"
    )
    assert len(ended) == jobs == states[ClusterStage.DONE] == len(begun), figures
    assert not overlaps, figures
    assert again <= taken, figures
    return figures
