"""The doctor's checks: one row each in CHECKS, at the end of this file.

Knows: what a working installation, node and environment look like from outside. Must not know: how
results are shown.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
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

from client_plugin import units
from client_plugin.messages import doctor as findings
from client_plugin.messages.form import relayed
from client_plugin.verbs.commands import doctor
from client_plugin.ways import locations
from client_plugin.ways.choice import UserWay
from client_plugin.ways.control import ControlConnection, may_control
from client_plugin.ways.conversation import ANSWER_TIMEOUT_S
from client_plugin.ways.faults import Fault, Mute
from nodemgr import paths
from nodemgr.messages import doctor as messages

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


def anybody(_subject: Subject) -> bool:
    return True


def root(_subject: Subject) -> bool:
    return os.geteuid() == 0


def installer(subject: Subject) -> bool:
    return os.access(subject.payload, os.W_OK)


def admin(subject: Subject) -> bool:
    """A user who may order the manager there, or start one."""
    allowed = may_control(subject.run_dir)
    if allowed is None:
        there = next(path for path in (subject.run_dir, *subject.run_dir.parents) if path.exists())
        return os.access(there, os.W_OK)
    return allowed


class InstallationCheck(NamedTuple):
    name: str
    cure: str
    place: str
    examine: Callable[[Subject], CheckResult | list[dict[str, Any]]]
    may_cure: Callable[[Subject], bool] = anybody
    """Whether this user can do what the cure says."""


NOBODY = 65_534


def _child(
    command: list[str], as_other: bool = False, /, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`as_other`: as a user without rights, where this one is root."""
    other: dict[str, Any] = {}
    if as_other and os.geteuid() == 0:
        other = {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
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
        **other,
    )


# -- the installation


def client_library(subject: Subject) -> CheckResult:
    if not subject.library.is_file():
        return CheckResult(False, f"{subject.library} is missing")
    copy = _copy_for_programs(subject)
    library = locations.client_library(copy or str(subject.payload))
    tried = _child(["/bin/true"], LD_PRELOAD=library, LD_BIND_NOW="1")
    if tried.returncode != 0 or tried.stderr:
        return CheckResult(
            False,
            f"/bin/true with {library} preloaded: exit {tried.returncode} {tried.stderr.strip()}",
        )
    entry = locations.preload_entry(copy or str(subject.payload))
    mapped = _child(["/bin/cat", "/proc/self/maps"], copy is not None, LD_PRELOAD=entry)
    if subject.library.name not in mapped.stdout:
        return CheckResult(
            False,
            f"the dynamic linker of this system finds no library at {entry}{_hindrance(entry)}",
        )
    return CheckResult(True, messages.LIBRARY_LOADS(library=entry if copy else subject.library))


def _copy_for_programs(subject: Subject) -> str | None:
    """The client that programs load, which the installed one need not be."""
    named = subject.env_dir
    for env_dir in [named] if named is not None else sorted((subject.run_dir / "envs").glob("*")):
        with contextlib.suppress(OSError):
            copy = locations.read_conf(env_dir).get("client")
            if copy:
                return copy
    return None


def _hindrance(entry: str) -> str:
    """After a colon, a reason why a library cannot be mapped; empty: none shows."""
    directory = entry.partition("/client_plugin/")[0]
    try:
        if os.statvfs(directory).f_flag & os.ST_NOEXEC:
            return ": its file system is mounted noexec"
        if Path("/sys/fs/selinux/enforce").read_text() == "1":
            return f": SELinux may deny it (restorecon -R {directory})"
    except OSError:
        pass
    return ""


def versions(subject: Subject) -> CheckResult:
    try:
        abi = ctypes.CDLL(str(subject.library)).nodemgr_abi()
    except (OSError, AttributeError) as error:
        return CheckResult(False, messages.LIBRARY_FAULT(error=error))
    if abi != ABI:
        return CheckResult(
            False, f"the client library speaks version {abi}, this nodemgr version {ABI}"
        )
    if subject.manager is None:
        line = f"client library: {abi}; no manager to compare with"
        return CheckResult(True, _nobody_answers(subject, line))
    theirs = subject.manager
    ours = paths.installed_version()
    if theirs["version"] != ours or theirs.get("abi", abi) != abi:
        return CheckResult(
            False,
            f"the manager runs {theirs['version']} (client {theirs.get('abi')}), here is {ours} "
            f"(client {abi})",
        )
    return CheckResult(True, f"nodemgr {ours}, client {abi}, here and in the manager")


def extension(_subject: Subject) -> CheckResult:
    try:
        import nodemgr._native
    except ImportError as error:
        return CheckResult(False, messages.LIBRARY_FAULT(error=error))
    return CheckResult(True, f"{nodemgr._native.__file__} loads")


def hook(subject: Subject) -> CheckResult:
    return _hook_in(sys.executable, subject, PYTHONPATH=str(subject.payload / "sitecustomize"))


def _hook_in(python: str, subject: Subject, **variables: str) -> CheckResult:
    """Starts `python` as in an environment and asks whether it has the import hook."""
    with tempfile.TemporaryDirectory(prefix="nodemgr-doctor-") as directory:
        Path(directory, "client.conf").write_text("env=doctor\naddress=unix:socket\n")
        answer = _child(
            [python, "-c", doctor.ASK_PYTHON],
            **{"NODEMGR_ENV_DIR": directory, "NODEMGR_OFF": "0", **variables},
        )
    if answer.returncode != 0 or answer.stderr or answer.stdout.strip() != "True":
        said = answer.stderr.strip().splitlines()
        return CheckResult(
            False,
            f"{python} starts without the import hook of {subject.payload}: {said[-1]}"
            if said
            else f"{python} starts without the import hook of {subject.payload}",
        )
    return CheckResult(True, findings.PYTHON_HAS_HOOK(python=python))


# -- the node


def manager(subject: Subject) -> CheckResult:
    allowed = may_control(subject.run_dir)
    if allowed is False:
        return CheckResult(None, messages.MAY_NOT_ASK(directory=subject.run_dir))
    if subject.manager is not None:
        pid = subject.manager["pid"]
        return CheckResult(True, f"pid {pid} answers at {subject.run_dir}")
    if allowed and manager_holds(subject.run_dir):
        return CheckResult(False, f"the manager at {subject.run_dir} runs but does not answer")
    return CheckResult(False, f"no manager answers at {subject.run_dir}")


def manager_holds(run_dir: Path) -> bool:
    """Whether a living manager holds this run directory."""
    lock = run_dir / "manager.lock"
    try:
        with open(lock, "rb", opener=_without_waiting) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except PermissionError:
        return _is_locked(lock)
    except OSError:
        return False
    return False


def _without_waiting(path: str, flags: int) -> int:
    """The directory may be another user's, with a FIFO or a link in it."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _is_locked(path: Path) -> bool:
    """The kernel's list has the locks of all users."""
    inode = str(path.stat().st_ino)
    with open("/proc/locks") as locks:
        held = [line.split() for line in locks if " FLOCK " in line and "->" not in line]
    return inode in [words[5].rpartition(":")[2] for words in held]


def leftovers(subject: Subject) -> CheckResult:
    if not (subject.run_dir / "manager.lock").exists():
        return CheckResult(
            True,
            "none" if subject.run_dir.exists() else f"no manager ever ran at {subject.run_dir}",
        )
    if manager_holds(subject.run_dir):
        return CheckResult(True, "none: the manager is alive")
    left = [name for name in ("control.sock", "events.sock") if (subject.run_dir / name).exists()]
    left += [
        f"envs/{path.parent.name}/socket" for path in sorted(subject.run_dir.glob("envs/*/socket"))
    ]
    if not left or (subject.run_dir / "manager.lock").stat().st_mtime == 0:  # it was stopped
        return CheckResult(True, "the last manager ended cleanly")
    names = f"{', '.join(left[:4])}{' …' if len(left) > 4 else ''}"
    return CheckResult(False, f"a manager died and left {names}")


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
    for label, name, kind, forbidden in MODES:
        try:
            found = (subject.run_dir / name).lstat()
        except FileNotFoundError:
            continue
        if stat.S_IFMT(found.st_mode) != kind or found.st_mode & forbidden or found.st_uid != owner:
            wrong.append(
                f"{label} {subject.run_dir / name} is {stat.filemode(found.st_mode)} of uid "
                f"{found.st_uid}"
            )
    if wrong:
        return CheckResult(False, f"not as the manager makes them: {'; '.join(wrong)}")
    return CheckResult(True, f"{subject.run_dir} is closed to strangers")


def state(subject: Subject) -> CheckResult:
    directory = _state_dir(subject)
    if directory is None:
        return CheckResult(
            None,
            "only root, the manager's user and the group nodemgr may ask the manager at "
            f"{subject.run_dir} for its state directory (--state-dir names one)",
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
        mode = stat.filemode(found.st_mode)
        return CheckResult(False, f"{directory} is {mode}: keys and records lie there")
    if not os.access(directory, os.W_OK | os.X_OK):
        if found.st_uid != os.geteuid():
            return CheckResult(None, f"{directory} is uid {found.st_uid}'s")
        return CheckResult(False, f"{directory} is not writable")
    free = shutil.disk_usage(directory).free
    size = units.format_size(free)
    if free < MIN_FREE_BYTES:
        return CheckResult(
            False, f"{size} free under {directory}: grants are refused when it is full"
        )
    return CheckResult(True, f"{directory}: {size} free")


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
            return CheckResult(False, findings.DRIVER_DOES_NOT_LOAD(error=error))
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
        f"a manager started here may open {hard} files, enough for "
        f"{hard // DESCRIPTORS_PER_CLIENT} processes"
    )
    return CheckResult(hard >= MIN_DESCRIPTORS, detail)


def _nobody_answers(subject: Subject, line: str) -> str:
    """`line`, unless a manager may be there that answers others."""
    if may_control(subject.run_dir) is False:
        return messages.MAY_NOT_ASK(directory=subject.run_dir)
    return line


def env_directories(subject: Subject) -> CheckResult:
    if subject.manager is None:
        return CheckResult(None, _nobody_answers(subject, "no manager to ask"))
    names = [env["name"] for env in ControlConnection(subject.run_dir).call("status")["envs"]]
    wrong = [fault for name in names if (fault := _env_fault(paths.env_dir(subject.run_dir, name)))]
    if wrong:
        return CheckResult(False, f"not usable: {'; '.join(wrong)}")
    return CheckResult(True, f"{len(names)} with client.conf and a socket that answers")


def _env_fault(directory: Path) -> str | None:
    try:
        locations.read_conf(directory)
    except OSError as error:
        return findings.FILE_FAULT(file=directory / "client.conf", error=error.strerror)
    return _socket_fault(directory / "socket")


def _socket_fault(path: Path) -> str | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(ANSWER_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except OSError as error:
            return findings.FILE_FAULT(file=path, error=error.strerror or error)
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
        path = subject.env_dir / "client.conf"
        return CheckResult(False, findings.FILE_FAULT(file=path, error=error.strerror))
    if "env" not in settings or "address" not in settings:
        return CheckResult(False, findings.CONF_INCOMPLETE(directory=subject.env_dir))
    found = findings.ENVIRONMENT_FOUND(env=settings["env"], address=settings["address"])
    return CheckResult(True, found)


ENV_SOCKET = ("socket", "mount the directory, not the socket file, and check that the manager runs")


def env_answer(subject: Subject) -> list[dict[str, Any]] | CheckResult:
    assert subject.env_dir is not None
    try:
        told = _told(UserWay(subject.env_dir).question("doctor"))
    except Mute as mute:
        return [doctor.full(mute)]
    except Fault as fault:
        return CheckResult(False, relayed(fault.message))
    return [doctor.row_of(*ENV_SOCKET, True, findings.MANAGER_ANSWERS()), *told]


def preload_active(_subject: Subject) -> CheckResult:
    """Whether the shim is in this process, as in a program that starts from here.

    Only a preloaded library's names are the process's.
    """
    asked = getattr(ctypes.CDLL(None), "nodemgr_preloaded", None)
    if asked is None or asked() != 1:
        return CheckResult(False, "the shim is not in this process")
    return CheckResult(True, "the shim is in this process")


def as_within(check: Callable[[], doctor.CheckOutcome]) -> Callable[[Subject], CheckResult]:
    """A check of the client in this container, of this process's environment."""
    return lambda _subject: CheckResult(*check())


CHECKS = (
    InstallationCheck(
        "client library",
        "install again where a C compiler is: {install}",
        ANYWHERE,
        client_library,
        installer,
    ),
    InstallationCheck(
        "versions",
        "install the same nodemgr here and there, then restart the manager (tasks go on)",
        ANYWHERE,
        versions,
        installer,
    ),
    InstallationCheck(
        "import hook", "install again where a C compiler is: {install}", ANYWHERE, hook, installer
    ),
    InstallationCheck(
        "extension", "install again where a C compiler is: {install}", ON_NODE, extension, installer
    ),
    InstallationCheck(
        "manager",
        "start one of your own: nodemgr serve; the node's, as an administrator: systemctl "
        "start nodemgr",
        ON_NODE,
        manager,
    ),
    InstallationCheck(
        "leftovers",
        "harmless, running tasks wait for a new manager; start it: nodemgr serve (or: "
        "systemctl start nodemgr)",
        ON_NODE,
        leftovers,
        admin,
    ),
    InstallationCheck(
        "modes",
        "stop the manager, remove the run directory, start the manager again",
        ON_NODE,
        modes,
        admin,
    ),
    InstallationCheck(
        "state", "make room, and keep it the manager's own (chmod 700)", ON_NODE, state, admin
    ),
    InstallationCheck(
        "driver",
        "have the NVIDIA driver installed, or try without a GPU: nodemgr serve --simulate 4x80GiB",
        ON_NODE,
        driver,
    ),
    InstallationCheck(
        "open files",
        "raise LimitNOFILE= of the manager's unit, or ulimit -Hn",
        ON_NODE,
        descriptors,
        admin,
    ),
    InstallationCheck(
        "environments",
        "set the quota once more (nodemgr quota set), which writes the directory anew",
        ON_NODE,
        env_directories,
        admin,
    ),
    InstallationCheck(
        "manager's own",
        "start it: nodemgr serve (or: systemctl start nodemgr)",
        ON_NODE,
        managers_own,
    ),
    InstallationCheck(
        "env directory", "mount RUN/envs/ENV of the node at /run/nodemgr-env", IN_ENV, env_directory
    ),
    InstallationCheck(*ENV_SOCKET, IN_ENV, env_answer),
    InstallationCheck(
        "preload",
        "mount /etc/ld.so.preload naming the shim into the container, or start programs with "
        "nodemgr run",
        INSIDE,
        preload_active,
    ),
    InstallationCheck(
        "hook",
        "mount /etc/ld.so.preload naming the shim into the container, or start programs with "
        "nodemgr run",
        INSIDE,
        as_within(doctor.hook),
    ),
    InstallationCheck(
        "ledger",
        "such a program escapes its quota: static linking, dlmopen, NODEMGR_OFF, or an old "
        "lease; end it",
        INSIDE,
        as_within(doctor.ledger),
    ),
)
