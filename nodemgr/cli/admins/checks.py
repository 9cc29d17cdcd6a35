"""The doctor's checks: one row each in CHECKS, at the end of this file.

Knows: what a working installation, node and environment look like from outside. Must not know: how
results are shown.
"""

from __future__ import annotations

import contextlib
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

from client_plugin import units
from client_plugin.messages import doctor as findings
from client_plugin.messages.form import Check, MessageLine, relayed
from client_plugin.verbs.commands.doctor import FIRST_PAGE_OF_DRIVER, full, row_of
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
    detail: MessageLine


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
    row: Check
    place: str
    examine: Callable[[Subject], CheckResult | list[dict[str, Any]]]
    may_cure: Callable[[Subject], bool] = anybody
    """Whether this user can do what the row's cure says."""


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
        return CheckResult(False, messages.SHIM_MISSING(library=subject.library))
    copy = _copy_for_programs(subject)
    library = locations.client_library(copy or str(subject.payload))
    tried = _child(["/bin/true"], LD_PRELOAD=library, LD_BIND_NOW="1")
    if tried.returncode != 0 or tried.stderr:
        return CheckResult(
            False,
            messages.LIBRARY_DOES_NOT_LOAD(
                program="/bin/true",
                library=library,
                exit_code=tried.returncode,
                error=tried.stderr.strip(),
            ),
        )
    entry = locations.preload_entry(copy or str(subject.payload))
    mapped = _child(["/bin/cat", "/proc/self/maps"], copy is not None, LD_PRELOAD=entry)
    if subject.library.name not in mapped.stdout:
        return CheckResult(False, messages.ENTRY_NOT_FOUND(entry=entry, why=_hindrance(entry)))
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
        return CheckResult(False, messages.LIBRARY_OF_OTHER_VERSION(theirs=abi, ours=ABI))
    if subject.manager is None:
        line = messages.NO_MANAGER_TO_COMPARE(client=abi)
        return CheckResult(True, _nobody_answers(subject, line))
    theirs = subject.manager
    ours = paths.installed_version()
    if theirs["version"] != ours or theirs.get("abi", abi) != abi:
        return CheckResult(
            False,
            messages.OTHER_VERSIONS(
                theirs=theirs["version"],
                their_client=theirs.get("abi"),
                ours=ours,
                our_client=abi,
            ),
        )
    return CheckResult(True, messages.SAME_VERSIONS(version=ours, client=abi))


def extension(_subject: Subject) -> CheckResult:
    try:
        import nodemgr._native
    except ImportError as error:
        return CheckResult(False, messages.LIBRARY_FAULT(error=error))
    return CheckResult(True, messages.FILE_LOADS(file=nodemgr._native.__file__))


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
            messages.PYTHON_WITHOUT_OUR_HOOK_SAYS(
                python=python, payload=subject.payload, error=said[-1]
            )
            if said
            else messages.PYTHON_WITHOUT_OUR_HOOK(python=python, payload=subject.payload),
        )
    return CheckResult(True, findings.PYTHON_HAS_HOOK(python=python))


# -- the node


def manager(subject: Subject) -> CheckResult:
    allowed = may_control(subject.run_dir)
    if allowed is False:
        return CheckResult(None, messages.MAY_NOT_ASK(directory=subject.run_dir))
    if subject.manager is not None:
        pid = subject.manager["pid"]
        return CheckResult(True, messages.MANAGER_AT(pid=pid, directory=subject.run_dir))
    if allowed and manager_holds(subject.run_dir):
        return CheckResult(False, messages.MANAGER_STUCK(directory=subject.run_dir))
    return CheckResult(False, messages.NO_MANAGER_AT(directory=subject.run_dir))


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
            messages.NO_LEFTOVERS()
            if subject.run_dir.exists()
            else messages.NEVER_A_MANAGER(directory=subject.run_dir),
        )
    if manager_holds(subject.run_dir):
        return CheckResult(True, messages.MANAGER_ALIVE())
    left = [name for name in ("control.sock", "events.sock") if (subject.run_dir / name).exists()]
    left += [
        f"envs/{path.parent.name}/socket" for path in sorted(subject.run_dir.glob("envs/*/socket"))
    ]
    if not left or (subject.run_dir / "manager.lock").stat().st_mtime == 0:  # it was stopped
        return CheckResult(True, messages.ENDED_CLEANLY())
    names = f"{', '.join(left[:4])}{' …' if len(left) > 4 else ''}"
    return CheckResult(False, messages.DIED_AND_LEFT(names=names))


MODES = (
    ("run directory", ".", stat.S_IFDIR, 0o022),
    ("control socket", "control.sock", stat.S_IFSOCK, 0o007),
    ("event socket", "events.sock", stat.S_IFSOCK, 0o007),
    ("environments", "envs", stat.S_IFDIR, 0o022),
)
"""Label, path, file kind, and the mode bits that would let strangers in."""


def modes(subject: Subject) -> CheckResult:
    if not subject.run_dir.is_dir():
        return CheckResult(None, messages.DOES_NOT_EXIST(directory=subject.run_dir))
    owner = subject.run_dir.stat().st_uid
    wrong = []
    for label, name, kind, forbidden in MODES:
        try:
            found = (subject.run_dir / name).lstat()
        except FileNotFoundError:
            continue
        if stat.S_IFMT(found.st_mode) != kind or found.st_mode & forbidden or found.st_uid != owner:
            wrong.append(
                messages.WRONG_MODE(
                    label=label,
                    path=subject.run_dir / name,
                    mode=stat.filemode(found.st_mode),
                    uid=found.st_uid,
                )
            )
    if wrong:
        return CheckResult(False, messages.WRONG_MODES(files="; ".join(wrong)))
    return CheckResult(True, messages.MODES_ARE_WELL(directory=subject.run_dir))


def state(subject: Subject) -> CheckResult:
    directory = _state_dir(subject)
    if directory is None:
        return CheckResult(None, messages.MAY_NOT_ASK_FOR_STATE(directory=subject.run_dir))
    try:
        found = directory.stat()
    except FileNotFoundError:
        return CheckResult(None, messages.NOT_YET_THERE(directory=directory))
    except PermissionError:
        return CheckResult(None, messages.NOT_OPEN_TO_YOU(directory=directory))
    if not stat.S_ISDIR(found.st_mode):
        return CheckResult(False, messages.NO_DIRECTORY(directory=directory))
    if found.st_mode & 0o077:
        mode = stat.filemode(found.st_mode)
        return CheckResult(False, messages.STATE_OPEN_TO_OTHERS(directory=directory, mode=mode))
    if not os.access(directory, os.W_OK | os.X_OK):
        if found.st_uid != os.geteuid():
            return CheckResult(None, messages.OTHERS_STATE(directory=directory, uid=found.st_uid))
        return CheckResult(False, messages.STATE_READ_ONLY(directory=directory))
    free = shutil.disk_usage(directory).free
    size = units.format_size(free)
    if free < MIN_FREE_BYTES:
        return CheckResult(False, messages.STATE_NEARLY_FULL(size=size, directory=directory))
    return CheckResult(True, messages.STATE_IS_WELL(directory=directory, size=size))


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
        return CheckResult(True, messages.SIMULATED_NODE())
    for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
        try:
            ctypes.CDLL(library)
        except OSError as error:
            return CheckResult(False, findings.DRIVER_DOES_NOT_LOAD(error=error))
    return CheckResult(True, messages.DRIVER_LOADS())


def descriptors(subject: Subject) -> CheckResult:
    """The limit of a manager that starts from here; a running manager reports its own."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if subject.manager is not None or hard == resource.RLIM_INFINITY:
        return CheckResult(
            True,
            messages.MANAGERS_OWN_BELOW() if subject.manager is not None else messages.ANY_NUMBER(),
        )
    detail = messages.FILES_OF_MANAGER(files=hard, processes=hard // DESCRIPTORS_PER_CLIENT)
    return CheckResult(hard >= MIN_DESCRIPTORS, detail)


def _nobody_answers(subject: Subject, line: MessageLine) -> MessageLine:
    """`line`, unless a manager may be there that answers others."""
    if may_control(subject.run_dir) is False:
        return messages.MAY_NOT_ASK(directory=subject.run_dir)
    return line


def env_directories(subject: Subject) -> CheckResult:
    if subject.manager is None:
        return CheckResult(None, _nobody_answers(subject, messages.NO_MANAGER_TO_ASK()))
    names = [env["name"] for env in ControlConnection(subject.run_dir).call("status")["envs"]]
    wrong = [fault for name in names if (fault := _env_fault(paths.env_dir(subject.run_dir, name)))]
    if wrong:
        return CheckResult(False, messages.ENV_DIRECTORIES_WRONG(faults="; ".join(wrong)))
    return CheckResult(True, messages.ENV_DIRECTORIES_WELL(count=len(names)))


def _env_fault(directory: Path) -> MessageLine | None:
    try:
        locations.read_conf(directory)
    except OSError as error:
        return findings.FILE_FAULT(file=directory / "client.conf", error=error.strerror)
    return _socket_fault(directory / "socket")


def _socket_fault(path: Path) -> MessageLine | None:
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


def env_answer(subject: Subject) -> list[dict[str, Any]] | CheckResult:
    assert subject.env_dir is not None
    try:
        told = _told(UserWay(subject.env_dir).question("doctor"))
    except Mute as mute:
        return [full(mute)]
    except Fault as fault:
        return CheckResult(False, relayed(fault.message))
    return [row_of(messages.CHECK_ENV_SOCKET, True, findings.MANAGER_ANSWERS()), *told]


def preload_active(_subject: Subject) -> CheckResult:
    """Whether the shim is in this process, as in a program that starts from here.

    Only a preloaded library's names are the process's.
    """
    asked = getattr(ctypes.CDLL(None), "nodemgr_preloaded", None)
    if asked is None or asked() != 1:
        return CheckResult(False, messages.SHIM_ABSENT())
    return CheckResult(True, messages.SHIM_PRESENT())


def hook_active(subject: Subject) -> CheckResult:
    """Check the hook in the Python of this environment's users, started as a user starts it."""
    python = shutil.which("python3") or shutil.which("python")
    if python is None:
        return CheckResult(None, findings.NO_PYTHON_IN_PATH())
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
        return CheckResult(None, findings.NO_LEDGER_OVER_UDP())
    from nodemgr.edge.kernel import ownership, processes  # this check alone needs them

    with_driver, without_ledger, twice = 0, [], []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            maps = processes.mappings(int(pid))
            if not re.search(r"/libcuda\.so", maps):
                continue
            named = ownership.env_dir_at_start(int(pid))
        except OSError:
            continue
        if (named or paths.CONTAINER_ENV_DIR) != subject.env_dir:
            continue
        with_driver += 1
        if not re.search(r"/memfd:nodemgr", maps):
            without_ledger.append(pid)
        if len(FIRST_PAGE_OF_DRIVER.findall(maps)) > 1:
            twice.append(pid)
    if not with_driver:
        return CheckResult(None, messages.ENV_USES_NO_DRIVER())
    if without_ledger:
        return CheckResult(False, findings.WITHOUT_LEDGER(pids=", ".join(without_ledger)))
    if twice:
        return CheckResult(False, findings.SECOND_DRIVER(pids=", ".join(twice)))
    return CheckResult(True, messages.ENV_ALL_WITH_LEDGER(count=with_driver))


CHECKS = (
    InstallationCheck(messages.CHECK_CLIENT_LIBRARY, ANYWHERE, client_library, installer),
    InstallationCheck(messages.CHECK_VERSIONS, ANYWHERE, versions, installer),
    InstallationCheck(messages.CHECK_IMPORT_HOOK, ANYWHERE, hook, installer),
    InstallationCheck(messages.CHECK_EXTENSION, ON_NODE, extension, installer),
    InstallationCheck(messages.CHECK_MANAGER, ON_NODE, manager),
    InstallationCheck(messages.CHECK_LEFTOVERS, ON_NODE, leftovers, admin),
    InstallationCheck(messages.CHECK_MODES, ON_NODE, modes, admin),
    InstallationCheck(messages.CHECK_STATE, ON_NODE, state, admin),
    InstallationCheck(messages.CHECK_NODE_DRIVER, ON_NODE, driver),
    InstallationCheck(messages.CHECK_OPEN_FILES, ON_NODE, descriptors, admin),
    InstallationCheck(messages.CHECK_ENVIRONMENTS, ON_NODE, env_directories, admin),
    InstallationCheck(messages.CHECK_MANAGERS_OWN, ON_NODE, managers_own),
    InstallationCheck(messages.CHECK_ENV_DIRECTORY, IN_ENV, env_directory),
    InstallationCheck(messages.CHECK_ENV_SOCKET, IN_ENV, env_answer),
    InstallationCheck(messages.CHECK_PRELOAD_ACTIVE, INSIDE, preload_active),
    InstallationCheck(messages.CHECK_HOOK_ACTIVE, INSIDE, hook_active),
    InstallationCheck(messages.CHECK_LEDGER_MAPPED, INSIDE, ledger_mapped),
)
