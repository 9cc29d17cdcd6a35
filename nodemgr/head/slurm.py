"""Slurm's commands, as a pool uses them: sbatch, squeue, scancel, sinfo, scontrol.

Knows: their options and the fields that are asked for. Must not know: why a pilot is asked for.

Each command ends within TIMEOUT_S, in an environment without the head's variables. A line of
another form is left out. Pilots are found and cancelled by name alone: a slurmctld that has lost
its state gives ids twice.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from client_plugin.messages.form import relayed, stated
from nodemgr.core.cluster.pilots import ListedPilot, PoolConfig

TIMEOUT_S = 20.0
MAX_LINES = 10_000
RUNNING = frozenset(("RUNNING", "SUSPENDED", "STOPPED", "CONFIGURING", "COMPLETING", "SIGNALING"))
PENDING = frozenset(("PENDING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"))
NEEDED = ("sbatch", "squeue", "scancel", "sinfo", "scontrol")
OLDEST = (20, 11)
"""`srun --overlap` came with it."""
_VERSION = re.compile(r"slurm(?:-wlm)? (\d+)\.(\d+)", re.ASCII)
_GPUS = re.compile(r"gpu(?::[A-Za-z0-9_.-]+)?:(\d+)", re.ASCII)


class SlurmFault(Exception):
    """Slurm has refused, in one line; or it does not answer (`refused` False)."""

    def __init__(self, line: str, *, refused: bool) -> None:
        super().__init__(line)
        self.line, self.refused = line, refused


class SiteCheck(NamedTuple):
    name: str
    ok: bool | None
    """None: it could not be looked at."""
    detail: str
    cure: str = ""


class Slurm:
    """The commands, for the pilots of one head."""

    def __init__(self, head: str, config: PoolConfig, address: str) -> None:
        """`head`: its name with the sign of its own, which no other head has."""
        self._head, self._config, self._address = head, config, address

    def name(self, number: int) -> str:
        return f"nodemgr-{self._head}-{number}"

    def number(self, name: str) -> int | None:
        start = f"nodemgr-{self._head}-"
        digits = name[len(start) :]
        if not name.startswith(start) or not re.fullmatch("[1-9][0-9]{0,17}", digits, re.ASCII):
            return None
        return int(digits)

    # -- the commands --

    def ask(self, number: int, node: str, word: str) -> None:
        """Queues a pilot. Raises SlurmFault."""
        config = self._config
        minutes = max(1, config.time_limit_s // 60)
        options = [
            "--parsable", "--no-requeue", "--nodes=1", "--exclusive", "--mem=0", "--export=ALL",
            f"--job-name={self.name(number)}", f"--time={minutes}", "--chdir=/",
            f"--signal=TERM@{config.grace_s}", "--output=/dev/null", "--error=/dev/null",
        ]  # fmt: skip
        options += [f"--partition={config.partition}"] if config.partition else []
        options += [f"--nodelist={node}"] if node else []
        options += [f"--gres=gpu:{config.gpus}"] if config.has_gres else []
        self._run(["sbatch", *options, *config.options], self.script(number, word))

    def script(self, number: int, word: str) -> str:
        """srun, since Slurm signals the tasks of steps before the batch script."""
        config = self._config
        pilot = [
            sys.executable, "-m", "nodemgr", "node", "pilot", str(number), self._address,
            "--seconds", str(config.time_limit_s), "--grace", str(config.grace_s),
        ]  # fmt: skip
        pilot += ["--dir", config.directory] if config.directory else []
        pilot += ["--simulate", config.simulate] if config.simulate else []
        command = shlex.join(["srun", "--overlap", "--ntasks=1", *pilot])
        return f"#!/bin/sh\nexport NODEMGR_PILOT_WORD={shlex.quote(word)}\nexec {command}\n"

    def listed(self) -> tuple[ListedPilot, ...]:
        """The pilots of this head that Slurm has. Raises SlurmFault."""
        said = self._run(["squeue", "--noheader", "--user", self._user(), "--format=%j|%T|%N"])
        found = {}
        for line in said.splitlines()[:MAX_LINES]:
            name, _, rest = line.strip().partition("|")
            state, _, node = rest.partition("|")
            number = self.number(name)
            if number is None or (state not in RUNNING and state not in PENDING):
                continue
            row = ListedPilot(number, runs=state in RUNNING, node=_host(node))
            if number not in found or row.runs:
                found[number] = row
        return tuple(found.values())

    def cancel(self, numbers: Sequence[int]) -> None:
        """Raises SlurmFault."""
        for number in numbers:
            self._run(["scancel", "--user", self._user(), "--name", self.name(number)])

    def gpus(self) -> int:
        """The fewest GPUs of a node of the partition, by Slurm's own count; 0: it knows none."""
        where = ["--partition", self._config.partition] if self._config.partition else []
        said = self._run(["sinfo", "--noheader", "--Node", *where, "--format=%G"])
        counts = [
            sum(map(int, _GPUS.findall(line))) for line in said.splitlines()[:MAX_LINES] if line
        ]
        return min(counts, default=0)

    # -- the site --

    def checks(self) -> list[SiteCheck]:
        """The checks of setup and of doctor; the first that fails ends the list."""
        found = []
        for check in (self._version, self._partition, self._may_submit, self._modes):
            try:
                found.append(check())
            except SlurmFault as fault:
                found.append(SiteCheck("slurm", False, fault.line, "see the site's Slurm"))
            if found[-1].ok is False:
                break
        return found

    def _version(self) -> SiteCheck:
        said = self._run(["sinfo", "--version"]).strip()
        number = _VERSION.search(said)
        ok = number is not None and (int(number[1]), int(number[2])) >= OLDEST
        oldest = ".".join(f"{part:02}" for part in OLDEST)
        return SiteCheck("slurm", ok, relayed(said[:80]), f"the pool needs Slurm {oldest} or later")

    def _partition(self) -> SiteCheck:
        name = self._config.partition
        said = self._run(["sinfo", "--noheader", "--format=%R|%a|%D|%l"])
        rows = [line.strip().split("|") for line in said.splitlines()[:MAX_LINES]]
        known = {row[0]: row for row in rows if len(row) == 4}
        if name and name not in known:
            cure = f"name one of {', '.join(sorted(known)[:10])} with --partition"
            return SiteCheck("partition", False, f"Slurm has no partition {name}", cure)
        row = known.get(name)
        if row is not None and row[1] != "up":
            return SiteCheck("partition", False, f"{name} is {row[1][:40]}", "scontrol update")
        size = f"{row[2]} nodes, time limit {row[3]}" if row else "the default one of the site"
        return SiteCheck("partition", True, relayed(f"{name or 'partition'}: {size}"))

    def _may_submit(self) -> SiteCheck:
        config = self._config
        options = [f"--partition={config.partition}"] if config.partition else []
        options += [f"--gres=gpu:{config.gpus}"] if config.has_gres else []
        minutes = max(1, config.time_limit_s // 60)
        try:
            self._run(
                ["sbatch", "--test-only", "--nodes=1", "--exclusive", "--mem=0",
                 f"--time={minutes}", *options, *config.options],
                "#!/bin/sh\n",
            )  # fmt: skip
        except SlurmFault as fault:
            if not fault.refused:
                raise
            cure = "change --partition, --time or --sbatch-option, or ask the site for the right"
            return SiteCheck("submit", False, fault.line, cure)
        return SiteCheck("submit", True, f"{self._user()} may submit a pilot of {minutes} min")

    def _modes(self) -> SiteCheck:
        said = self._run(["scontrol", "show", "config"])
        rows = dict(re.findall(r"^(\w+) += *(.*?) *$", said, re.MULTILINE | re.ASCII))
        mode = rows.get("PreemptMode", "OFF")
        if "SUSPEND" in mode or "GANG" in mode:
            cure = "PreemptMode = CANCEL or OFF for the pool's partition"
            return SiteCheck("preemption", False, f"PreemptMode is {mode[:40]}", cure)
        kill_s = int((re.match(r"\d+", rows.get("KillWait", "")) or ["0"])[0])
        note = f"PreemptMode {mode[:40]}, KillWait {kill_s} s"
        if rows.get("Epilog", "(null)") in ("(null)", ""):
            cure = "a line in the site's Epilog: nodemgr node emptied --within 60"
            return SiteCheck("epilog", None, f"{note}; the site has no Epilog", cure)
        return SiteCheck("preemption", True, note)

    # -- a command --

    def _user(self) -> str:
        return self._config.user or pwd.getpwuid(os.geteuid()).pw_name

    def _run(self, command: Sequence[str], text: str = "") -> str:
        """Its output. Raises SlurmFault."""
        names = ("PATH", "SLURM_CONF", "HOME", "LANG", "PYTHONPATH")
        around = {name: os.environ[name] for name in names if name in os.environ}
        more: dict[str, object] = {}
        if self._config.user and os.geteuid() == 0:
            try:
                row = pwd.getpwnam(self._config.user)
            except KeyError:
                line = stated(f"there is no user {self._config.user}", "head setup --user")
                raise SlurmFault(line, refused=True) from None
            more = {"user": row.pw_uid, "group": row.pw_gid, "extra_groups": []}
        try:
            done = subprocess.run(
                list(command), input=text.encode(), capture_output=True, env=around, check=False,
                timeout=TIMEOUT_S, cwd="/", **more,  # type: ignore[call-overload]
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SlurmFault(f"{command[0]} has not ended in 20 s", refused=False) from None
        except OSError as error:
            fault = f"{command[0]} cannot be run ({error.strerror})"
            raise SlurmFault(fault, refused=True) from None
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason"]
            why = " ".join(said[-1].split())[:300]
            away = "Unable to contact" in why or "Socket timed out" in why
            raise SlurmFault(f"{command[0]}: {why}", refused=not away)
        output: str = done.stdout.decode("utf-8", "replace")
        return output


def _host(text: str) -> str:
    """One node's name; else none."""
    return text if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", text, re.ASCII) else ""


def own_directory() -> str:
    """For the managers that an ordinary user's pilots start, on the disk of each node."""
    return str(Path("/var/tmp") / f"nodemgr-pool-{os.geteuid()}")
