"""`python -m tests.jobs.storm --seconds 600`: random orders about jobs, and random kills.

Jobs are submitted, held, unheld, moved, requeued and withdrawn in any order, while managers,
launchers, supervisors and the jobs' own processes are killed. In the end the results are counted.

Each attempt's program writes one line. In the end no attempt has two, none began while anything of
the one before it ran, no submission that was answered is lost or is there twice, every job has
ended as its last line says, and nothing of any job runs.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from client_plugin.ways.choice import UserWay
from client_plugin.ways.control import ControlConnection
from client_plugin.ways.faults import Exit, Fault, Lost
from nodemgr.edge.executor.launcher import CAP_SETUID, PROGRAM
from nodemgr.edge.kernel.processes import ancestors
from tests.supervisor.world import own_audit_session
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager
from tests.support.processes import children, is_running, named

CALL_LIMIT_S = 5.0
"""The time of a call in the storm, which may lose its manager and is then repeated."""
PATH = "/usr/local/bin:/usr/bin:/bin"
ENVS = ("alice", "bob")
WRITERS = 3
MOST_LIVING = 40
KILLED = " killed"
PR_CAPBSET_DROP = 24
FINAL = frozenset({"done", "failed", "withdrawn"})
SCRIPT = """
born() { set -- $(cat "/proc/$1/stat" 2>/dev/null); case $3 in Z|X) ;; *) echo "${22}" ;; esac; }
job=${NODEMGR_JOB%:*}
for each in $(cat "pids/$job" 2>/dev/null); do
    [ "$(born "${each%:*}")" = "${each#*:}" ] &&
        echo "$NODEMGR_JOB began beside $each of before" >> overlaps
done
echo "$$:$(born $$)" >> "pids/$job"
echo "$NODEMGR_JOB" >> marks
case $0 in
    well) ;;
    badly) exit 3 ;;
    takes*) sleep "${0#takes}" ;;
    leaves*|hides*) case $0 in hides*) wipe="env -i PATH=$PATH" ;; esac
        (trap '' TERM HUP; exec $wipe setsid sh -c '
            echo "$$:$(cut -d" " -f22 /proc/$$/stat)" >> "pids/$0"; : > "left/$1"; sleep "$2"' \
            "$job" "$NODEMGR_JOB" "${0#*s}") &
        until [ -e "left/$NODEMGR_JOB" ]; do sleep 0.02; done ;;
esac
"""
"""Runs in the storm's directory; $0 is its command.

A process is known by its PID and the time of its start, because a PID alone may be reused.
"""
PROGRAMS = ("well", "well", "badly", "takes0.1", "takes0.5", "takes2", "leaves1", "leaves60")
HIDES = ("hides1", "hides60")
StormAction = Callable[[random.Random], None]


class Storm:
    def __init__(self, manager: Manager, seed: int) -> None:
        self.manager = manager
        self.directory = manager.directory / "storm"
        for name in ("pids", "left"):
            (self.directory / name).mkdir(parents=True)
        self.jobs_dir = manager.state_dir / "jobs"
        self.seed = seed
        self.programs = PROGRAMS + HIDES if own_audit_session() else PROGRAMS
        self.submitted: dict[str, list[str]] = {}
        """By key, the jobs that the answer means."""
        self.asked: set[str] = set()
        """Keys of which no answer came before the end."""
        self.tally: Counter[str] = Counter()
        self.over = threading.Event()
        self.faults: list[BaseException] = []

    # -- what is ordered --

    def call(self, verb: str, **arguments: object) -> dict[str, Any] | None:
        """None: refused, or there is no manager just now."""
        try:
            with ControlConnection(self.manager.run_dir, timeout_s=CALL_LIMIT_S) as client:
                return client.call(verb, **arguments)
        except Fault:
            return None

    def ask(self, verb: str, **arguments: object) -> dict[str, Any]:
        """Asks in the calm, when the manager stays; a busy machine may be slow."""
        deadline = time.monotonic() + WAIT_LIMIT_S
        while (answer := self.call(verb, **arguments)) is None:
            assert time.monotonic() < deadline, f"{verb} is not answered"
        return answer

    def submit(self, dice: random.Random) -> None:
        """Submits as a client that repeats its request until it is answered."""
        if len((self.call("queue", limit=MOST_LIVING) or {"queue": ()})["queue"]) >= MOST_LIVING:
            return
        key = f"{dice.getrandbits(128):032x}"
        array = list(range(dice.choice([0, 0, 0, 2, 4])))
        known = [job_id for jobs in list(self.submitted.values())[-8:] for job_id in jobs]
        arguments = {
            "argv": ["/bin/sh", "-c", SCRIPT, dice.choice(self.programs)],
            "cwd": str(self.directory), "environ": [f"PATH={PATH}"],
            "key": key, "gpus": dice.choice([0, 1, 1, 2]), "array": array,
            "max_restarts": dice.choice([0, 1, 3]),
            "time_limit_ms": dice.choice([None, None, 1_000]), "hold": dice.random() < 0.1,
            "priority": dice.choice([None, "high", "low"]), "after": dice.sample(known,
                1) if known and dice.random() < 0.2 else [],
        }  # fmt: skip
        way = UserWay(self.manager.env_dir(dice.choice(ENVS)))
        self.asked.add(key)
        while not self.over.is_set():
            try:
                job_id = way.ask("job_submit", timeout_s=CALL_LIMIT_S, **arguments)["job"]
            except Fault as fault:
                if not isinstance(fault, Lost) and fault.code != Exit.UNREACHABLE:
                    self.asked.discard(key)  # the one that it waits for has failed, say
                    return
                self.over.wait(0.05)
            else:
                self.submitted[key] = [f"{job_id}.{index}" for index in array] or [job_id]
                self.asked.discard(key)
                self.tally["submitted"] += 1
                return

    def order(self, dice: random.Random) -> None:
        known = [job_id for jobs in list(self.submitted.values())[-12:] for job_id in jobs]
        if known:
            name = dice.choice(known)
            name = name.partition(".")[0] if dice.random() < 0.2 else name
            verb = dice.choice(
                [
                    "job_withdraw",
                    "job_hold",
                    "job_free",
                    "job_free",
                    "job_requeue",
                    "job_requeue",
                    "job_move",
                ]
            )
            more = {"first": True} if verb == "job_move" else {}
            self.tally[verb] += self.call(verb, job=name, **more) is not None

    # -- kills --

    def kill(self, dice: random.Random) -> None:
        victim = dice.choice(
            ["manager", "manager", "supervisor", "supervisor", "launcher", "both", "job"]
        )
        if victim == "manager":
            self.manager.kill()
            self.start()
        supervisors, launchers = list(self.supervisors()), list(self.launchers())
        pids = []
        if victim == "launcher" and launchers:
            pids.append(dice.choice(launchers))
        if victim in ("supervisor", "both", "job") and supervisors:
            supervisor = dice.choice(supervisors)
            above = [
                pid for pid in ancestors(supervisor)[:1] if pid in launchers and victim == "both"
            ]
            pids += of_job(supervisor)[:1] if victim == "job" else [*above, supervisor]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.tally[victim + KILLED] += victim == "manager" or bool(pids)
        self.over.wait(dice.uniform(0.05, 0.6))

    def start(self) -> None:
        self.manager.start(wait=False)
        try:
            self.manager.wait_for_line("ready on ", WAIT_LIMIT_S)
        except AssertionError:
            os.kill(self.manager.pid, signal.SIGABRT)  # says where it is (PYTHONFAULTHANDLER)
            raise

    def supervisors(self) -> Iterator[int]:
        for claim in self.jobs_dir.glob("*/*/claim.[0-9]*"):
            pid, ticks = claim.name.split(".")[1:3]
            if born(int(pid)) == ticks:
                yield int(pid)

    def launchers(self) -> Iterator[int]:
        for process in psutil.process_iter(["cmdline"]):
            if (process.info["cmdline"] or [])[1:3] == ["launcher", str(self.jobs_dir)]:
                yield process.pid

    # -- a storm, and the calm after it --

    def blow(self, seconds: float, submissions: int, kills: int) -> None:
        """Storms for `seconds`, and until there were enough submissions and kills."""
        programs: list[StormAction] = [
            lambda dice: (self.submit if dice.random() < 0.5 else self.order)(dice)
        ] * WRITERS + [self.kill]
        threads = [
            threading.Thread(target=self._go_on, args=(action, self.seed * 100 + number))
            for number, action in enumerate(programs)
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + seconds
        while not self.over.wait(0.05):
            killed = sum(count for what, count in self.tally.items() if what.endswith(KILLED))
            if (
                time.monotonic() >= until
                and self.tally["submitted"] >= submissions
                and killed >= kills
            ):
                self.over.set()
        for thread in threads:
            thread.join()
        if self.faults:
            raise self.faults[0]

    def _go_on(self, action: StormAction, seed: int) -> None:
        dice = random.Random(seed)
        try:
            while not self.over.is_set():
                action(dice)
                self.over.wait(dice.uniform(0.0, 0.1))
        except BaseException as fault:
            self.faults.append(fault)
            self.over.set()

    def settle(self) -> None:
        """A manager with launchers of its own ends what is left."""
        self.manager.kill()
        self.start()
        seen, deadline = 0, 0.0
        while living := self.ask("queue")["queue"]:
            if (done := len(self._lines("marks")) - len(living)) != seen:
                seen, deadline = done, time.monotonic() + WAIT_LIMIT_S
            assert time.monotonic() < deadline, f"{len(living)} wait for nothing: {living[:3]}"
            for row in living:
                if row["state"] == "held":
                    self.call("job_free", job=row["job"])
            time.sleep(0.2)

    # -- what is counted --

    def count(self) -> None:
        marks = self._lines("marks")
        twice = [mark for mark, times in Counter(marks).items() if times > 1]
        assert not twice, f"ran twice: {twice}"
        assert not self._lines("overlaps"), self._lines("overlaps")
        last: dict[str, int] = {}
        for job_id, _, attempt in (mark.partition(":") for mark in marks):
            last[job_id] = max(last.get(job_id, 0), int(attempt))
        there = {row["job"]: row for row in self._history()}
        answered = [job_id for jobs in self.submitted.values() for job_id in jobs]
        assert len(answered) == len(set(answered)), "two submissions are one job"
        assert set(answered) <= there.keys(), f"lost: {set(answered) - there.keys()}"
        unknown = {job_id.partition(".")[0] for job_id in there.keys() - set(answered)}
        assert len(unknown) <= len(self.asked), f"there without a submission: {unknown}"
        for job_id, row in there.items():
            assert row["state"] in FINAL, row
            assert row["state"] != "done" or last.get(job_id) == row["attempts"][-1]["number"], (
                f"done without its last line: {row}"
            )
            assert last.get(job_id, 0) <= max(
                (attempt["number"] for attempt in row["attempts"]), default=0
            ), f"unknown start: {row}"
        assert self.ask("status")["tasks"] == []
        for path in (self.directory / "pids").iterdir():
            for pid, _, ticks in (line.partition(":") for line in path.read_text().split()):
                assert born(int(pid)) != ticks, f"{pid} of {path.name} goes on"
        self.tally["attempts"] = len(marks)

    def _lines(self, name: str) -> list[str]:
        path = self.directory / name
        return path.read_text().splitlines() if path.exists() else []

    def _history(self) -> Iterator[dict[str, Any]]:
        before = None
        while True:
            page = self.ask("history", limit=200, before=before)
            for row in page["history"]:
                for job_id in jobs_of(row):
                    yield self.ask("job_show", job=job_id)["jobs"][0]
            if (before := page.get("before")) is None or not page["history"]:
                return


def jobs_of(row: dict[str, Any]) -> list[str]:
    """The job of a row of the history, or those that ended together before they started."""
    if not row["indices"]:
        return [row["job"]]
    runs = [run.split("-") for run in row["indices"].split(",")]
    indices = [index for run in runs for index in range(int(run[0]), int(run[-1]) + 1)]
    return [f"{row['job']}.{index}" for index in indices]


def born(pid: int) -> str | None:
    """When, in ticks after boot; None: not alive."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def of_job(supervisor: int) -> list[int]:
    """Its children, except the one that keeps the log."""
    with contextlib.suppress(psutil.NoSuchProcess):
        below = [pid for pid in children(supervisor) if is_running(pid)]
        return sorted(set(below) - set(named(below, "nodemgr-log")))
    return []


class Service:
    """A launcher that restarts at its end, as under systemd; its managers may fork none."""

    def __init__(self, manager: Manager) -> None:
        manager.before_exec = self._give_up_setuid
        self._command = [
            str(PROGRAM),
            "launcher",
            str(manager.state_dir / "jobs"),
            str(manager.run_dir / "launcher"),
        ]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep)
        for directory in (manager.state_dir / "jobs", manager.run_dir):
            directory.mkdir(parents=True, exist_ok=True)
        (manager.state_dir / "jobs").chmod(0o700)
        self._thread.start()

    @staticmethod
    def _give_up_setuid() -> None:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SETUID, 0, 0, 0)

    def _keep(self) -> None:
        while not self._over.is_set():
            with subprocess.Popen(self._command) as launcher:
                while launcher.poll() is None and not self._over.wait(0.05):
                    pass
                launcher.kill()

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def storm(
    seconds: float,
    seed: int,
    trace: Path | None = None,
    submissions: int = 1,
    kills: int = 1,
    *,
    service: bool = False,
) -> dict[str, int]:
    """Runs a storm and returns the counts; raises AssertionError if a promise did not hold.

    On a failure all files are copied to `trace`. It lasts for the given time, and until there were
    enough submissions and kills.
    """
    pauses = {"NODEMGR_REQUEUE_PAUSE_MS": "20", "NODEMGR_MAX_REQUEUE_PAUSE_MS": "200"}
    manager = Manager(simulate="3x8GiB", environment={"PYTHONFAULTHANDLER": "1", **pauses})
    launcher = Service(manager) if service else None
    try:
        found = Storm(manager, seed)
        found.start()
        for env in ENVS:
            found.ask("quota_set", env=env, gpus=2)
        found.blow(seconds, submissions, kills)
        found.settle()
        found.count()
        return dict(found.tally)
    except AssertionError:
        if trace is not None:
            shutil.copytree(
                manager.directory,
                trace,
                ignore=lambda directory, names: [n for n in names if not is_plain(directory, n)],
            )
        raise
    finally:
        manager.close()
        if launcher is not None:
            launcher.close()


def is_plain(directory: str, name: str) -> bool:
    path = Path(directory, name)
    return path.is_dir() or path.is_file()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.jobs.storm")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="DIRECTORY",
        help="where the node's files are copied to on a failure",
    )
    parser.add_argument(
        "--service", action="store_true", help="with the launcher as a service has it (root only)"
    )
    options = parser.parse_args()
    print(json.dumps(storm(options.seconds, options.seed, options.trace, service=options.service)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
