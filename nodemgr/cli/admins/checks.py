"""The doctor's checks: one row each in CHECKS, at the end of this file.

Knows: what a working installation, node and environment look like from outside. Must not know: how
results are shown.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from client_plugin.verbs.commands.doctor import FIRST_PAGE_OF_DRIVER
from client_plugin.verbs.presentation import units
from client_plugin.ways import locations
from client_plugin.ways.choice import UserWay
from client_plugin.ways.control import ControlConnection, may_control
from client_plugin.ways.conversation import ANSWER_TIMEOUT_S
from client_plugin.ways.faults import Fault
from nodemgr import paths

ABI = 1
"""nodemgr_abi() of the client library that this version was made with (csrc/client/client.h)."""
MIN_DESCRIPTORS = 4_096
DESCRIPTORS_PER_CLIENT = 2
"""A connection and a pidfd."""
MIN_FREE_BYTES = 64 * 2**20
CHILD_TIMEOUT_S = 20
ANYWHERE, ON_NODE, IN_ENV, INSIDE = "anywhere", "node", "env", "inside"


class CheckResult(NamedTuple):
    ok: bool | None
    """None: there was nothing to check."""
    detail: str


@dataclass(frozen=True)
class Subject:
    """The node and environment that the checks examine."""

    run_dir: Path
    state_dir: Path | None
    """None: that of the manager of `run_dir`."""
    env_dir: Path | None
    """The environment looked at, if any."""
    inside: bool
    """This very process runs in an environment."""
    payload: Path = field(default_factory=paths.payload_dir)

    @property
    def inside_of(self) -> set[str]:
        """A user inside an environment sees nothing of the node, and need not."""
        found = {ANYWHERE} if self.inside else {ANYWHERE, ON_NODE}
        if self.env_dir is not None:
            found.add(IN_ENV)
        return found | ({INSIDE} if self.inside else set())

    @property
    def library(self) -> Path:
        return self.payload / "client_plugin" / "_lib" / "libnodemgr.so"

    @cached_property
    def manager(self) -> Mapping[str, Any] | None:
        """The manager's own report; None: no manager answers, or this user may not ask."""
        if not may_control(self.run_dir):
            return None
        try:
            answer: Mapping[str, Any] = ControlConnection(self.run_dir).call("ping")
        except Fault:
            return None
        return answer


class InstallationCheck(NamedTuple):
    name: str
    place: str
    examine: Callable[[Subject], CheckResult | list[dict[str, Any]]]
    cure: str


def _child(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {
        key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "PYTHONPATH")
    }
    return subprocess.run(
        command,
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        timeout=CHILD_TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


# -- the installation


def client_library(subject: Subject) -> CheckResult:
    if not subject.library.is_file():
        return CheckResult(False, f"{subject.library} is missing")
    tried = _child(["/bin/true"], LD_PRELOAD=str(subject.library), LD_BIND_NOW="1")
    if tried.returncode != 0 or tried.stderr:
        return CheckResult(
            False,
            f"/bin/true with {subject.library} preloaded: exit {tried.returncode}"
            f" {tried.stderr.strip()}",
        )
    entry = locations.preload_entry(str(subject.payload))
    if subject.library.name not in _child(["/bin/cat", "/proc/self/maps"], LD_PRELOAD=entry).stdout:
        return CheckResult(False, f"the dynamic linker of this system finds no library at {entry}")
    return CheckResult(True, f"{subject.library} loads into any program")


def versions(subject: Subject) -> CheckResult:
    try:
        abi = ctypes.CDLL(str(subject.library)).nodemgr_abi()
    except (OSError, AttributeError) as error:
        return CheckResult(False, str(error))
    if abi != ABI:
        return CheckResult(
            False, f"the client library speaks version {abi}, this nodemgr version {ABI}"
        )
    if subject.manager is None:
        return CheckResult(True, f"client library: {abi}; no manager to compare with")
    theirs = subject.manager
    ours = paths.installed_version()
    if theirs["version"] != ours or theirs.get("abi", abi) != abi:
        return CheckResult(
            False,
            f"the manager runs {theirs['version']} (client {theirs.get('abi')}), here is {ours}"
            f" (client {abi})",
        )
    return CheckResult(True, f"nodemgr {ours}, client {abi}, here and in the manager")


def extension(_subject: Subject) -> CheckResult:
    try:
        import nodemgr._native
    except ImportError as error:
        return CheckResult(False, str(error))
    return CheckResult(True, f"{nodemgr._native.__file__} loads")


def hook(subject: Subject) -> CheckResult:
    return _hook_in(sys.executable, subject, PYTHONPATH=str(subject.payload / "sitecustomize"))


ASK_PYTHON = "import sys; print(any(getattr(finder, 'nodemgr', False) for finder in sys.meta_path))"


def _hook_in(python: str, subject: Subject, **variables: str) -> CheckResult:
    """Starts `python` as in an environment and asks whether it has the import hook."""
    with tempfile.TemporaryDirectory(prefix="nodemgr-doctor-") as directory:
        Path(directory, "client.conf").write_text("env=doctor\naddress=unix:socket\n")
        answer = _child(
            [python, "-c", ASK_PYTHON],
            **{"NODEMGR_ENV_DIR": directory, "NODEMGR_OFF": "0", **variables},
        )
    if answer.returncode != 0 or answer.stderr or answer.stdout.strip() != "True":
        said = answer.stderr.strip().splitlines()
        return CheckResult(
            False,
            f"{python} starts without the import hook of"
            f" {subject.payload}{': ' + said[-1] if said else ''}",
        )
    return CheckResult(True, f"{python} starts with the import hook")


# -- the node


def manager(subject: Subject) -> CheckResult:
    allowed = may_control(subject.run_dir)
    if allowed is False:
        return CheckResult(
            None, f"only root and the group nodemgr may ask the manager at {subject.run_dir}"
        )
    if subject.manager is not None:
        return CheckResult(True, f"pid {subject.manager['pid']} answers at {subject.run_dir}")
    if allowed and manager_holds(subject.run_dir):
        return CheckResult(False, f"the manager at {subject.run_dir} runs but does not answer")
    return CheckResult(False, f"no manager answers at {subject.run_dir}")


def manager_holds(run_dir: Path) -> bool:
    """Whether a living manager holds this run directory."""
    lock = run_dir / "manager.lock"
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def leftovers(subject: Subject) -> CheckResult:
    if not (subject.run_dir / "manager.lock").exists():
        return CheckResult(
            True,
            f"no manager ever ran at {subject.run_dir}" if not subject.run_dir.exists() else "none",
        )
    if manager_holds(subject.run_dir):
        return CheckResult(True, "none: the manager is alive")
    left = [name for name in ("control.sock", "events.sock") if (subject.run_dir / name).exists()]
    left += [
        f"envs/{path.parent.name}/socket" for path in sorted(subject.run_dir.glob("envs/*/socket"))
    ]
    if not left:
        return CheckResult(True, "none: the last manager ended cleanly")
    return CheckResult(
        False, f"a manager died and left {', '.join(left[:4])}{' …' if len(left) > 4 else ''}"
    )


MODES = (
    ("run directory", ".", stat.S_IFDIR, 0o022),
    ("control socket", "control.sock", stat.S_IFSOCK, 0o007),
    ("event socket", "events.sock", stat.S_IFSOCK, 0o007),
    ("environments", "envs", stat.S_IFDIR, 0o022),
)
"""Label, path, file kind, and the mode bits that would let strangers in."""


def modes(subject: Subject) -> CheckResult:
    if not subject.run_dir.is_dir():
        return CheckResult(None, f"{subject.run_dir} does not exist")
    owner = subject.run_dir.stat().st_uid
    wrong = []
    for what, name, kind, forbidden in MODES:
        try:
            found = (subject.run_dir / name).lstat()
        except FileNotFoundError:
            continue
        if stat.S_IFMT(found.st_mode) != kind or found.st_mode & forbidden or found.st_uid != owner:
            wrong.append(
                f"{what} {subject.run_dir / name} is {stat.filemode(found.st_mode)} of uid"
                f" {found.st_uid}"
            )
    if wrong:
        return CheckResult(False, "; ".join(wrong))
    return CheckResult(True, f"{subject.run_dir} is closed to strangers")


def state(subject: Subject) -> CheckResult:
    directory = _state_dir(subject)
    if directory is None:
        asks = "only root and the group nodemgr may ask the manager"
        return CheckResult(
            None, f"{asks} at {subject.run_dir} for its state directory (--state-dir names one)"
        )
    try:
        found = directory.stat()
    except FileNotFoundError:
        return CheckResult(None, f"{directory} does not exist yet")
    except PermissionError:
        return CheckResult(None, f"{directory} is not open to you")
    if not stat.S_ISDIR(found.st_mode):
        return CheckResult(False, f"{directory} is no directory")
    if found.st_mode & 0o077:
        return CheckResult(
            False, f"{directory} is {stat.filemode(found.st_mode)}: keys and records lie there"
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        if found.st_uid != os.geteuid():
            return CheckResult(None, f"{directory} is uid {found.st_uid}'s")
        return CheckResult(False, f"{directory} is not writable")
    free = shutil.disk_usage(directory).free
    if free < MIN_FREE_BYTES:
        return CheckResult(
            False,
            f"{units.format_size(free)} free under {directory}: grants are refused when it is full",
        )
    return CheckResult(True, f"{directory}: {units.format_size(free)} free")


def _state_dir(subject: Subject) -> Path | None:
    """The named state directory, else the running manager's, else a new manager's here.

    None: it is not known.
    """
    if subject.state_dir is not None:
        return subject.state_dir
    if subject.manager is not None and "state_dir" in subject.manager:
        return Path(subject.manager["state_dir"])
    return None if may_control(subject.run_dir) is False else paths.default_state_dir()


def driver(subject: Subject) -> CheckResult:
    if (subject.run_dir / "sim" / "node.state").exists():
        return CheckResult(True, "a simulated node: no driver needed")
    for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
        try:
            ctypes.CDLL(library)
        except OSError as error:
            return CheckResult(False, str(error))
    return CheckResult(True, "libcuda.so.1 and libnvidia-ml.so.1 load")


def descriptors(subject: Subject) -> CheckResult:
    """The limit of a manager that starts from here; a running manager reports its own."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if subject.manager is not None or hard == resource.RLIM_INFINITY:
        return CheckResult(
            True,
            "the check of the manager's own is below"
            if subject.manager is not None
            else "any number",
        )
    detail = (
        f"a manager started here may open {hard} files, enough for {hard // DESCRIPTORS_PER_CLIENT}"
        " processes"
    )
    return CheckResult(hard >= MIN_DESCRIPTORS, detail)


def env_directories(subject: Subject) -> CheckResult:
    if subject.manager is None:
        return CheckResult(None, "no manager to ask")
    names = [env["name"] for env in ControlConnection(subject.run_dir).call("status")["envs"]]
    wrong = [fault for name in names if (fault := _env_fault(paths.env_dir(subject.run_dir, name)))]
    if wrong:
        return CheckResult(False, "; ".join(wrong))
    return CheckResult(True, f"{len(names)} with client.conf and a socket that answers")


def _env_fault(directory: Path) -> str | None:
    try:
        locations.read_conf(directory)
    except OSError as error:
        return f"{directory}/client.conf: {error.strerror}"
    return _socket_fault(directory / "socket")


def _socket_fault(path: Path) -> str | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(ANSWER_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except OSError as error:
            return f"{path}: {error.strerror or error}"
    return None


def managers_own(subject: Subject) -> list[dict[str, Any]]:
    """Store, free space, NVML, GPUs, descriptors: facts that only the manager has.

    Source: nodemgr/edge/setup/doctor.py.
    """
    if subject.manager is None:
        return []
    return _told(ControlConnection(subject.run_dir).call("doctor"))


def _told(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": str(row["name"]),
            "ok": row["ok"],
            "detail": str(row["detail"]),
            "cure": row.get("cure"),
        }
        for row in answer["checks"]
    ]


# -- an environment


def env_directory(subject: Subject) -> CheckResult:
    assert subject.env_dir is not None
    try:
        settings = locations.read_conf(subject.env_dir)
    except OSError as error:
        return CheckResult(False, f"{subject.env_dir}/client.conf: {error.strerror}")
    if "env" not in settings or "address" not in settings:
        return CheckResult(False, f"{subject.env_dir}/client.conf names no env or no address")
    return CheckResult(True, f"environment {settings['env']}, manager at {settings['address']}")


def env_answer(subject: Subject) -> list[dict[str, Any]] | CheckResult:
    assert subject.env_dir is not None
    try:
        told = _told(UserWay(subject.env_dir).question("doctor"))
    except Fault as fault:
        return CheckResult(False, fault.message)
    return [{"name": "socket", "ok": True, "detail": "the manager answers", "cure": None}, *told]


def preload_active(_subject: Subject) -> CheckResult:
    """Whether the shim is in this process, as in a program that starts from here.

    Only a preloaded library's names are the process's.
    """
    asked = getattr(ctypes.CDLL(None), "nodemgr_preloaded", None)
    if asked is None or asked() != 1:
        return CheckResult(False, "the shim is not in this process")
    return CheckResult(True, "the shim is in this process")


def hook_active(subject: Subject) -> CheckResult:
    """Check the hook in the Python of this environment's users, started as a user starts it."""
    python = shutil.which("python3") or shutil.which("python")
    if python is None:
        return CheckResult(None, "no python3 in PATH")
    inherited = {
        name: value for name in ("LD_PRELOAD", "PYTHONPATH") if (value := os.environ.get(name))
    }
    return _hook_in(python, subject, **inherited)


def ledger_mapped(subject: Subject) -> CheckResult:
    """Whether each process of this environment that loaded the driver has mapped the ledger.

    Each must have one driver, too.
    """
    assert subject.env_dir is not None
    if locations.read_conf(subject.env_dir).get("address", "").startswith("udp:"):
        return CheckResult(None, "over UDP there is none: each process has a fixed cap")
    import psutil  # this check alone needs it

    with_driver, without_ledger, twice = 0, [], []
    for process in psutil.process_iter():
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
            if not re.search(r"/libcuda\.so", maps):
                continue
            named = process.environ().get("NODEMGR_ENV_DIR")
        except (OSError, psutil.Error):
            continue
        if Path(named or paths.CONTAINER_ENV_DIR) != subject.env_dir:
            continue
        with_driver += 1
        if not re.search(r"/memfd:nodemgr", maps):
            without_ledger.append(str(process.pid))
        if len(FIRST_PAGE_OF_DRIVER.findall(maps)) > 1:
            twice.append(str(process.pid))
    if not with_driver:
        return CheckResult(None, "no process of this environment uses the driver at the moment")
    if without_ledger:
        return CheckResult(
            False, f"processes that use the driver without a ledger: {', '.join(without_ledger)}"
        )
    if twice:
        return CheckResult(
            False,
            "processes with a second driver (dlmopen), whose memory the ledger does not have:"
            f" {', '.join(twice)}",
        )
    return CheckResult(
        True, f"in all {with_driver} processes of this environment that use the driver"
    )


REINSTALL = "install again where a C compiler is: pip install --force-reinstall nodemgr"
RESTART = "start it: nodemgr serve (or: systemctl start nodemgr)"
IN_CONTAINER = (
    "mount /etc/ld.so.preload naming the shim into the container, or start programs with"
    " nodemgr run"
)

CHECKS = (
    InstallationCheck("client library", ANYWHERE, client_library, REINSTALL),
    InstallationCheck(
        "versions",
        ANYWHERE,
        versions,
        "install the same nodemgr here and there, then restart the manager (tasks go on)",
    ),
    InstallationCheck("import hook", ANYWHERE, hook, REINSTALL),
    InstallationCheck("extension", ON_NODE, extension, REINSTALL),
    InstallationCheck("manager", ON_NODE, manager, RESTART),
    InstallationCheck(
        "leftovers",
        ON_NODE,
        leftovers,
        f"harmless, running tasks wait for a new manager; {RESTART}",
    ),
    InstallationCheck(
        "modes", ON_NODE, modes, "stop the manager, remove the run directory, start it again"
    ),
    InstallationCheck(
        "state", ON_NODE, state, "make room, and keep it the manager's own (chmod 700)"
    ),
    InstallationCheck(
        "driver",
        ON_NODE,
        driver,
        "install the NVIDIA driver, or try without a GPU: nodemgr serve --simulate 4x80GiB",
    ),
    InstallationCheck(
        "open files",
        ON_NODE,
        descriptors,
        "raise LimitNOFILE= of the manager's unit, or ulimit -Hn",
    ),
    InstallationCheck(
        "environments",
        ON_NODE,
        env_directories,
        "set the quota once more (nodemgr quota set), which writes the directory anew",
    ),
    InstallationCheck("manager's own", ON_NODE, managers_own, RESTART),
    InstallationCheck(
        "env directory", IN_ENV, env_directory, "mount RUN/envs/ENV of the node at /run/nodemgr-env"
    ),
    InstallationCheck(
        "socket",
        IN_ENV,
        env_answer,
        "mount the directory, not the socket file; and is the manager running?",
    ),
    InstallationCheck("preload", INSIDE, preload_active, IN_CONTAINER),
    InstallationCheck("hook", INSIDE, hook_active, IN_CONTAINER),
    InstallationCheck(
        "ledger",
        INSIDE,
        ledger_mapped,
        "such a program escapes its quota: static linking, dlmopen, NODEMGR_OFF, or an old lease",
    ),
)
