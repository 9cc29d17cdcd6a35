"""Make a machine a node, and undo that: a table of steps; each knows whether it is done.

Knows: the files, the group and the service of a node; the maker of each, by a record beside the
settings. Must not know: how it is asked for or shown.

A file that an administrator has made or edited is not overwritten or removed: a file is ours while
it is as the record says. The record is written after each step, so that a run that failed halfway
can be continued, or undone.
"""

from __future__ import annotations

import contextlib
import grp
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from client_plugin.messages.form import SpokenError, notice, relayed, stated
from nodemgr.core.views import cdi
from nodemgr.edge.executor.launcher import PROGRAM as SUPERVISOR
from nodemgr.edge.executor.launcher import SERVICE as JOBS_UNIT
from nodemgr.edge.gate.device_gate import Gate
from nodemgr.edge.gate.node_gate import NodeGate
from nodemgr.edge.host.rundir import PAGE_GROUP, make_open, replace
from nodemgr.edge.setup import settings_reference
from nodemgr.edge.setup.settings import SYSTEM_CONFIG_FILE
from nodemgr.edge.setup.settings_reference import PLAIN
from nodemgr.messages import setup as messages
from nodemgr.messages.admins import COMMAND_FAILED
from nodemgr.paths import SYSTEM_CLIENT_DIR, SYSTEM_RUN_DIR, SYSTEM_STATE_DIR

GROUP = PLAIN.group
UNIT = "nodemgr.service"
UNIT_FILE = Path("/etc/systemd/system") / UNIT
PACKAGED_UNITS = Path("/usr/lib/systemd/system")
WEB_UNIT, HEAD_UNIT_NAME = "nodemgr-web.service", "nodemgr-head.service"
WANTED_FILE = UNIT_FILE.parent / "multi-user.target.wants" / UNIT
TEMPLATE = Path(__file__).resolve().parents[2] / "_service" / UNIT
CDI_DIR = PLAIN.cdi_dir
RECORD_FILE = SYSTEM_CONFIG_FILE.parent / "setup.json"
COMMAND_TIMEOUT_S = 60
UNSEEN_BY_SERVICE = ("/tmp", "/var/tmp")
"""PrivateTmp= hides what lies there."""


class StepFailed(SpokenError):
    """One line."""


def run_command(command: Sequence[str]) -> None:
    """Raises StepFailed with the command's output."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StepFailed(COMMAND_FAILED(command=command[0], error=error)) from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit {done.returncode}"
        raise StepFailed(COMMAND_FAILED(command=" ".join(command), error=said))


@dataclass
class Machine:
    """The machine that becomes a node, or (`root`) the directory that stands for it."""

    root: Path = Path("/")
    program: tuple[str, ...] = field(default_factory=lambda: own_program())
    """The command of the service, before `serve`."""
    run: Callable[[Sequence[str]], None] = run_command
    has_systemd: bool = field(default_factory=lambda: shutil.which("systemctl") is not None)
    record: dict[str, str] = field(default_factory=dict)
    """The things that earlier steps made; of a file, the hash of its text."""

    def __post_init__(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            made = json.loads(self.at(RECORD_FILE).read_text())["made"]
            self.record |= {str(what): str(how) for what, how in made.items()}

    @property
    def is_running(self) -> bool:
        """Whether services can be started here and now."""
        return self.has_systemd and self.root == Path("/") and Path("/run/systemd/system").is_dir()

    def at(self, path: Path) -> Path:
        return self.root / path.relative_to("/")

    def note(self, what: str, how: str = "made") -> None:
        self.record[what] = how
        self._write_record()

    def forget(self, what: str) -> None:
        self.record.pop(what, None)
        self._write_record()

    def _write_record(self) -> None:
        path = self.at(RECORD_FILE)
        if self.record:
            make_open(path.parent)
            replace(
                path, json.dumps({"schema_version": 1, "made": self.record}, indent=2) + "\n", 0o644
            )
        else:
            path.unlink(missing_ok=True)


class PlannedStep(NamedTuple):
    """The effect of a step. The verbs "ok", "keep" and "skip" change nothing."""

    verb: str
    line: str


class Step(Protocol):
    """One thing that a node has. `plan` and `unplan` describe what `do` and `undo` would do."""

    def plan(self, machine: Machine) -> PlannedStep: ...

    def do(self, machine: Machine) -> None: ...

    def unplan(self, machine: Machine) -> PlannedStep: ...

    def undo(self, machine: Machine) -> None: ...


IDLE = frozenset({"ok", "keep", "skip"})


@dataclass(frozen=True)
class SystemGroup:
    """A group of the system."""

    name: str
    why: str

    @property
    def key(self) -> str:
        """Of the record."""
        return f"group {self.name}"

    def plan(self, machine: Machine) -> PlannedStep:
        there = self._exists(machine)
        if there:
            return PlannedStep("ok", messages.IS_THERE(thing=self.key))
        return PlannedStep("make", messages.MAKES(thing=self.key, why=self.why))

    def do(self, machine: Machine) -> None:
        machine.run(["groupadd", *self._where(machine), "--system", self.name])
        machine.note(self.key)

    def unplan(self, machine: Machine) -> PlannedStep:
        if not self._exists(machine):
            return PlannedStep("ok", messages.IS_NOT_THERE(thing=self.key))
        if self.key in machine.record:
            return PlannedStep("remove", messages.REMOVES(thing=self.key))
        return PlannedStep("keep", messages.WAS_THERE_BEFORE(thing=self.key))

    def undo(self, machine: Machine) -> None:
        machine.run(["groupdel", *self._where(machine), self.name])
        machine.forget(self.key)

    @staticmethod
    def _where(machine: Machine) -> list[str]:
        return [] if machine.root == Path("/") else ["--prefix", str(machine.root)]

    def _exists(self, machine: Machine) -> bool:
        if machine.root == Path("/"):
            with contextlib.suppress(KeyError):
                return bool(grp.getgrnam(self.name))
            return False
        try:
            lines = machine.at(Path("/etc/group")).read_text().splitlines()
        except OSError:
            return False
        return any(line.startswith(f"{self.name}:") for line in lines)


@dataclass(frozen=True)
class Directory:
    path: Path
    mode: int
    why: str
    stays: bool = False
    """Left in place by an uninstall."""

    def plan(self, machine: Machine) -> PlannedStep:
        path = machine.at(self.path)
        line = notice(f"{path} ({self.mode:04o}): {self.why}")
        if not path.is_dir():
            return PlannedStep("make", line)
        if self.stays and stat.S_IMODE(path.stat().st_mode) != self.mode:
            return PlannedStep("close", line)
        return PlannedStep("ok", messages.IS_THERE(thing=path))

    def do(self, machine: Machine) -> None:
        path = machine.at(self.path)
        if not path.is_dir():
            make_open(path)
            if not self.stays:
                machine.note(str(self.path))
        path.chmod(self.mode)

    def unplan(self, machine: Machine) -> PlannedStep:
        path = machine.at(self.path)
        if not path.is_dir():
            return PlannedStep("ok", messages.IS_NOT_THERE(thing=path))
        if self.stays:
            return PlannedStep(
                "keep", stated(f"{path}: {self.why}", "remove it if it is no longer needed")
            )
        if str(self.path) in machine.record:
            return PlannedStep("remove", notice(f"{path}: if nothing else is in it"))
        return PlannedStep("keep", messages.WAS_THERE_BEFORE(thing=path))

    def undo(self, machine: Machine) -> None:
        machine.forget(str(self.path))
        with contextlib.suppress(OSError):  # something else is in it
            machine.at(self.path).rmdir()


@dataclass(frozen=True)
class InstalledFile:
    path: Path
    content: Callable[[Machine], str]
    why: str

    def plan(self, machine: Machine) -> PlannedStep:
        path, found = machine.at(self.path), self._found(machine)
        packaged = machine.at(PACKAGED_UNITS) / path.name
        if found is None and path.parent == machine.at(UNIT_FILE).parent and packaged.exists():
            return PlannedStep("ok", notice(f"{packaged}: is there, from a package"))
        if found is None:
            return PlannedStep("write", messages.MAKES(thing=path, why=self.why))
        if found == self.content(machine):
            return PlannedStep("ok", notice(f"{path}: is as it should be"))
        if self._is_ours(machine, found):
            return PlannedStep("replace", messages.MAKES(thing=path, why=self.why))
        return PlannedStep("keep", messages.EDITED_BY_HAND(path=path))

    def do(self, machine: Machine) -> None:
        text = self.content(machine)
        make_open(machine.at(self.path).parent)
        replace(machine.at(self.path), text, 0o644)
        machine.note(str(self.path), _digest(text))

    def unplan(self, machine: Machine) -> PlannedStep:
        path, found = machine.at(self.path), self._found(machine)
        if found is None:
            return PlannedStep("ok", messages.IS_NOT_THERE(thing=path))
        if self._is_ours(machine, found):
            return PlannedStep("remove", messages.REMOVES(thing=path))
        verb = "leave" if str(self.path) in machine.record else "keep"
        return PlannedStep(verb, messages.EDITED_BY_HAND(path=path))

    def undo(self, machine: Machine) -> None:
        if (found := self._found(machine)) is not None and self._is_ours(machine, found):
            machine.at(self.path).unlink(missing_ok=True)
        machine.forget(str(self.path))

    def _found(self, machine: Machine) -> str | None:
        try:
            return machine.at(self.path).read_text()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            return ""

    def _is_ours(self, machine: Machine, found: str) -> bool:
        return machine.record.get(str(self.path)) == _digest(found)


class ServiceUnit:
    """The unit, enabled, and started where systemd runs.

    A manager that runs already goes on as it is until it is restarted.
    """

    def plan(self, machine: Machine) -> PlannedStep:
        if not machine.has_systemd:
            command = f"{shlex.join(machine.program)} serve"
            return PlannedStep(
                "skip",
                stated("systemd is missing", f"start `{command}` at boot by another init system"),
            )
        if self._is_enabled(machine) and all(file.plan(machine)[0] in IDLE for file in UNIT_FILES):
            return PlannedStep("ok", notice(f"{UNIT}: is enabled"))
        if machine.is_running:
            return PlannedStep(
                "enable and start",
                notice(f"{UNIT}: a running one goes on as it is until `systemctl restart nodemgr`"),
            )
        return PlannedStep("enable", notice(f"{UNIT}: starts with the next boot"))

    def do(self, machine: Machine) -> None:
        if not machine.is_running:
            machine.run(["systemctl", f"--root={machine.root}", "enable", UNIT])
            machine.note(UNIT)
            return
        machine.run(["systemctl", "daemon-reload"])
        machine.run(["systemctl", "enable", UNIT])
        machine.note(UNIT)  # enabled is to be undone, whether it starts or not
        machine.run(["systemctl", "restart", JOBS_UNIT])  # no job ends by it
        machine.run(["systemctl", "start", UNIT])

    def unplan(self, machine: Machine) -> PlannedStep:
        if UNIT not in machine.record or not machine.has_systemd:
            return PlannedStep("ok", notice(f"{UNIT}: was not enabled by a setup"))
        verb = "stop and disable" if machine.is_running else "disable"
        return PlannedStep(verb, messages.REMOVES(thing=UNIT))

    def undo(self, machine: Machine) -> None:
        where = ["--now"] if machine.is_running else [f"--root={machine.root}"]
        machine.run(["systemctl", "disable", *where, UNIT])
        machine.forget(UNIT)
        if machine.is_running:
            machine.run(["systemctl", "stop", JOBS_UNIT])  # jobs that run go on to their end

    @staticmethod
    def _is_enabled(machine: Machine) -> bool:
        return UNIT in machine.record and machine.at(WANTED_FILE).is_symlink()


CGROUPS = Path("/sys/fs/cgroup/system.slice")
JOBS_SCOPE = "nodemgr-jobs.scope"


class Traces:
    """Remains of a manager that are useless without one.

    They are a device of containers that leads nowhere, sockets, and gates: no other program would
    open these to the containers behind them. The scope of the jobs ends if no job runs in it.
    """

    def plan(self, machine: Machine) -> PlannedStep:
        return PlannedStep(
            "skip", notice(f"{machine.at(SYSTEM_RUN_DIR)}: the manager makes it at its start")
        )

    def do(self, machine: Machine) -> None: ...

    def unplan(self, machine: Machine) -> PlannedStep:
        there = [str(path) for path in self._paths(machine) if path.exists()]
        if there:
            return PlannedStep("remove", notice(f"{', '.join(there)}: made by the manager"))
        return PlannedStep("ok", notice("nothing is left of a manager"))

    def undo(self, machine: Machine) -> None:
        if machine.root == Path("/"):
            Gate.lift(SYSTEM_RUN_DIR)
            NodeGate.lift(SYSTEM_RUN_DIR)
        scope = machine.at(CGROUPS / JOBS_SCOPE)
        running = [path for path in scope.glob("*/*/cgroup.procs") if path.read_text()]
        if scope.exists() and not running and machine.is_running:
            machine.run(["systemctl", "stop", JOBS_SCOPE])
        for path in self._paths(machine):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    @staticmethod
    def _paths(machine: Machine) -> list[Path]:
        return [machine.at(CDI_DIR / cdi.file_name(PLAIN.cdi_kind)), machine.at(SYSTEM_RUN_DIR)]


def config_template(_machine: Machine) -> str:
    return settings_reference.config_file()


def unit(machine: Machine, name: str = UNIT) -> str:
    """A service for this installation."""
    program = " ".join(map(_quoted, machine.program))
    text = TEMPLATE.with_name(name).read_text().replace("@PROGRAM@", program)
    return text.replace("@SUPERVISOR@", _quoted(str(SUPERVISOR)))


def _unit_file(name: str, why: str) -> InstalledFile:
    return InstalledFile(UNIT_FILE.parent / name, lambda machine: unit(machine, name), why)


def _quoted(word: str) -> str:
    """The word in systemd's quoting of a command line."""
    if re.fullmatch(r"[A-Za-z0-9/._+:@-]+", word, re.ASCII):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


class HeadUnit:
    """Enables and starts the unit, or restarts it: a new address holds from then on."""

    def plan(self, machine: Machine) -> PlannedStep:
        if not machine.has_systemd:
            command = f"{shlex.join(machine.program)} head serve"
            return PlannedStep(
                "skip",
                stated("systemd is missing", f"start `{command}` at boot by another init system"),
            )
        return PlannedStep(
            "enable and start",
            notice(
                f"{HEAD_UNIT_NAME}: a running one goes on as it is until `systemctl restart "
                "nodemgr`"
            ),
        )

    def do(self, machine: Machine) -> None:
        if machine.is_running:
            machine.run(["systemctl", "daemon-reload"])
        machine.run(["systemctl", "enable", HEAD_UNIT_NAME])
        if machine.is_running:
            machine.run(["systemctl", "restart", HEAD_UNIT_NAME])


HEAD_UNIT = _unit_file(HEAD_UNIT_NAME, relayed("the service of a cluster's head"))
HEAD_SERVICE = HeadUnit()
UNIT_FILES = (
    _unit_file(JOBS_UNIT, "the service that starts batch jobs"),
    _unit_file(WEB_UNIT, "the service that serves the web page"),
    _unit_file(UNIT, "the service"),
)
STEPS: tuple[Step, ...] = (
    Directory(SYSTEM_CONFIG_FILE.parent, 0o755, "settings, and a record of this setup"),
    SystemGroup(GROUP, "its members may order the manager, as root may"),
    SystemGroup(PAGE_GROUP, "the web page's process may ask the manager"),
    InstalledFile(SYSTEM_CONFIG_FILE, config_template, "settings, each commented out"),
    Directory(SYSTEM_STATE_DIR, 0o700, "quotas, leases, history and keys", stays=True),
    Directory(SYSTEM_CLIENT_DIR, 0o755, relayed("the client that programs load"), stays=True),
    Directory(CDI_DIR, 0o755, "where container runtimes look for devices"),
    *UNIT_FILES,
    Traces(),
    ServiceUnit(),
)
"""The steps in the order of setup; --uninstall undoes them in reverse."""


def doubts(
    program: Sequence[str], interpreter: Path | None = None, package: Path = TEMPLATE.parent.parent
) -> list[str]:
    """Warnings for an admin about the files that root will run at each boot; a line each."""
    interpreter = (interpreter or Path(sys.executable)).resolve()
    found: list[str] = []
    found += [
        stated(
            f"{path} lies where a service with PrivateTmp= sees nothing",
            "install nodemgr elsewhere, e.g. into /opt/nodemgr",
        )
        for path in (Path(program[0]), interpreter, package)
        if any(path.is_relative_to(directory) for directory in UNSEEN_BY_SERVICE)
    ][:1]
    hidden = hidden_from_others((Path(program[0]), interpreter, package))
    if hidden is not None:
        found.append(hidden)
    for path in (Path(program[0]), interpreter, package):
        if (doubt := _doubt(path)) is not None and doubt not in found:
            found.append(doubt)
    return found


def hidden_from_others(
    files: Sequence[Path] = (Path(sys.executable).resolve(), TEMPLATE.parent.parent),
) -> str | None:
    """The path that keeps other users from reading one of the files, in a line."""
    for file in files:
        for path in (*reversed(file.parents), file):
            with contextlib.suppress(OSError):
                mode = path.stat().st_mode
                if not mode & (stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH):
                    return stated(
                        f"no other user can read {file}, and so run nodemgr: {path} is"
                        f" {stat.filemode(mode)}",
                        "install nodemgr where all users can read it, e.g. into /opt/nodemgr",
                    )
    return None


def _doubt(path: Path) -> str | None:
    """The users beside root that could replace the file."""
    for each in (path, *path.parents):
        try:
            status = each.stat()
        except OSError as error:
            return stated(
                f"{each} cannot be read ({error.strerror})", "mend that, then run it again"
            )
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or (status.st_mode & 0o022 and not is_sticky):
            who = f"uid {status.st_uid}, {stat.filemode(status.st_mode)}"
            return stated(
                f"{each} can be changed by others than root ({who}), and each of them becomes root "
                "by this service",
                "install nodemgr where root alone may write",
            )
    return None


def own_program() -> tuple[str, ...]:
    """The command of the installation that runs now."""
    front = Path(sys.argv[0]).absolute()
    is_front = front.name == "nodemgr" and os.access(front, os.X_OK)
    return (str(front),) if is_front else (sys.executable, "-m", "nodemgr")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
