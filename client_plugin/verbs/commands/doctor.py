"""Checks of the client in this container, each with its cure: one row of CHECKS a check.

Knows: the parts that the env's mounts bring, and the view of a program inside an environment. Must
not know: how the program came in.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from client_plugin.messages import doctor as messages
from client_plugin.messages.form import relayed
from client_plugin.verbs import INSIDE
from client_plugin.verbs.arguments.parser import JSON, Said, Verb
from client_plugin.verbs.presentation import tables
from client_plugin.ways import installed, locations
from client_plugin.ways.choice import UserWay
from client_plugin.ways.faults import Fault, Mute

PAYLOAD = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
)
SHIM = locations.preload_entry(PAYLOAD)
PRELOAD_FILE = "/etc/ld.so.preload"
CHILD_TIMEOUT_S = 20
MUSL = "/lib/ld-musl-*.so.1"
ASK_PYTHON = "import sys; print(any(getattr(finder, 'nodemgr', False) for finder in sys.meta_path))"
CheckRow = Dict[str, Any]
CheckOutcome = Tuple[Optional[bool], str]
"""(whether it is well, None: there was nothing to check; what was found)."""


class ClientCheck(NamedTuple):
    name: str
    cure: str
    examine: Callable[[], Union[CheckOutcome, List[CheckRow]]]


def environment() -> CheckOutcome:
    if os.environ.get("NODEMGR_OFF") == "1":
        return False, "NODEMGR_OFF=1 is set: the client does nothing in programs started from here"
    settings = locations.read_conf(locations.around_us())
    if "env" not in settings or "address" not in settings:
        return False, messages.CONF_INCOMPLETE(directory=locations.around_us())
    address = settings["address"]
    if address.startswith("unix:"):
        address = "unix:" + os.path.join(locations.around_us(), address[len("unix:") :])
    return True, messages.ENVIRONMENT_FOUND(env=settings["env"], address=address)


def preload() -> CheckOutcome:
    """Whether the dynamic linker of this image loads the shim into started programs.

    The check runs this image's own linker.
    """
    if glob.glob(MUSL) and not _has_mapped("self", "ld-linux"):
        return False, f"this image has musl, which ignores {PRELOAD_FILE}"
    if _has_mapped("self", "libnodemgr"):
        return True, f"{SHIM} is in this process"
    try:
        with open(PRELOAD_FILE) as file:
            named = file.read().split()
    except OSError as error:
        return False, messages.FILE_FAULT(file=PRELOAD_FILE, error=error.strerror)
    entries = ", ".join(named) or "nothing"
    return False, f"the shim is not in this process, and {PRELOAD_FILE} names {entries}"


def hook() -> CheckOutcome:
    """Whether the hook is in the Python of this container's users."""
    python = shutil.which("python3") or shutil.which("python")
    if python is None:
        return None, messages.NO_PYTHON_IN_PATH()
    answer = subprocess.run(
        [python, "-c", ASK_PYTHON], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, universal_newlines=True, timeout=CHILD_TIMEOUT_S, check=False,
    )  # fmt: skip
    if answer.stdout.strip() == "True":
        return True, messages.PYTHON_HAS_HOOK(python=python)
    said = answer.stderr.strip().splitlines()
    if not said:
        return False, f"{python} starts without the import hook"
    return False, f"{python} starts without the import hook: {said[-1]}"


SOCKET = (
    "socket",
    "the node's manager must run (systemctl status nodemgr), and the env's directory be mounted",
)


def manager() -> List[CheckRow]:
    """The way to the manager, and its answer about this environment."""
    try:
        told = UserWay(locations.around_us()).question("doctor")["checks"]
    except Mute as mute:
        return [full(mute)]
    return [row_of(*SOCKET, True, messages.MANAGER_ANSWERS()), *told]


def full(mute: Mute) -> CheckRow:
    """The socket takes what is sent, and nobody reads it.

    So it is where an environment has as many connections as it may have.
    """
    what = f"{mute.message} (an environment with all its connections gets none either)"
    return row_of(
        "socket",
        "end programs of this environment that are connected; an administrator's `nodemgr "
        "doctor` names those with most, and the settings have max_connections_per_env",
        False,
        relayed(what),
    )


FIRST_PAGE_OF_DRIVER = re.compile(r"^\S+ \S+ 0+ \S+ \S+ +\S*/libcuda\.so\S*$", re.MULTILINE)
"""Matches in /proc/PID/maps once for each linker namespace that has a driver."""


def ledger() -> CheckOutcome:
    """Whether each process of this container and env that uses the driver has mapped the ledger."""
    if locations.read_conf(locations.around_us()).get("address", "").startswith("udp:"):
        return None, messages.NO_LEDGER_OVER_UDP()
    others = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
    users = [pid for pid in others if _has_mapped(pid, "libcuda.so") and _is_beside_us(pid)]
    without = [pid for pid in users if not _has_mapped(pid, "memfd:nodemgr")]
    if without:
        return False, messages.WITHOUT_LEDGER(pids=", ".join(without))
    twice = [pid for pid in users if len(FIRST_PAGE_OF_DRIVER.findall(_maps_of(pid))) > 1]
    if twice:
        return False, messages.SECOND_DRIVER(pids=", ".join(twice))
    if not users:
        return None, "no process here uses the driver at the moment"
    return True, f"in all processes here that use the driver: {len(users)}"


def driver() -> CheckOutcome:
    try:
        import ctypes

        found = [name for name in ("libcuda.so.1", "libnvidia-ml.so.1") if ctypes.CDLL(name)]
    except (ImportError, OSError) as error:
        return False, messages.DRIVER_DOES_NOT_LOAD(error=error)
    return True, f"{' and '.join(found)} load"


def _is_beside_us(pid: str) -> bool:
    """Whether the process is in this container and was started in this environment.

    With the host's PIDs (--pid=host) there are others.
    """
    try:
        if os.stat(f"/proc/{pid}/ns/mnt").st_ino != os.stat("/proc/self/ns/mnt").st_ino:
            return False
        with open(f"/proc/{pid}/environ", "rb") as file:
            named = re.search(rb"(?:^|\0)NODEMGR_ENV_DIR=([^\0]+)", file.read())
    except OSError:
        return False
    return (
        os.fsdecode(named[1]) if named else locations.CONTAINER_ENV_DIR
    ) == locations.around_us()


def _maps_of(pid: str) -> str:
    """Empty where this user may not look."""
    try:
        with open(f"/proc/{pid}/maps", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _has_mapped(pid: str, name: str) -> bool:
    return re.search(rf"/{re.escape(name)}", _maps_of(pid)) is not None


CHECKS = (
    ClientCheck(
        "environment",
        "start the container with --device nodemgr.local/env=NAME (on the node: nodemgr env "
        "show NAME)",
        environment,
    ),
    ClientCheck(
        "preload",
        "start the container with --device nodemgr.local/env=NAME (on the node: nodemgr env "
        "show NAME); use an image with glibc: on musl nothing of nodemgr is active",
        preload,
    ),
    ClientCheck(
        "hook",
        "unset what keeps Python from PYTHONPATH; with -E and -I the shim alone asks for GPUs",
        hook,
    ),
    ClientCheck(*SOCKET, manager),
    ClientCheck(
        "ledger",
        "such a program escapes its quota: static linking, NODEMGR_OFF, or an old lease; end it",
        ledger,
    ),
    ClientCheck(
        "driver",
        "bring the driver in, too: --device nvidia.com/gpu=all (the NVIDIA container toolkit "
        "makes it)",
        driver,
    ),
)


def examine() -> List[CheckRow]:
    """All checks; one that cannot look is not well."""
    return [row for check in CHECKS for row in _run(check)]


def _run(check: ClientCheck) -> List[CheckRow]:
    try:
        found = check.examine()
    except Fault as fault:
        found = (False, relayed(fault.message))
    except (OSError, subprocess.SubprocessError) as error:
        found = (False, messages.CHECK_FAILED(error=error))
    if isinstance(found, list):
        return found
    ok, detail = found
    return [row_of(check.name, check.cure, ok, detail)]


def row_of(name: str, cure: str, ok: Optional[bool], detail: str) -> CheckRow:
    """A result as `--json` has it."""
    return {
        "name": name,
        "ok": ok,
        "detail": detail,
        "cure": cure.replace("{install}", installed.command()) if ok is False else None,
    }


WORDS = {True: "ok", False: "FAIL", None: "skip"}


def show(checks: List[CheckRow]) -> None:
    width = max(len(row["name"]) for row in checks)
    for row in checks:
        word = WORDS[row["ok"]]
        shown = f"{word:<6}"
        if tables.colours_wanted() and word in tables.COLOURS:
            shown = tables.styled(word, tables.COLOURS[word]) + shown[len(word) :]
        cure = f" -> {row['cure']}" if row["ok"] is False and row["cure"] else ""
        print(f"{shown}{row['name']:<{width}}  {tables.printable(row['detail'] + cure)}")


def run(said: Said) -> int:
    answer: CheckRow = {"schema_version": 1, "checks": examine()}
    if said.as_json:
        tables.print_json(answer)
    else:
        show(answer["checks"])
    return 1 if any(check["ok"] is False for check in answer["checks"]) else 0


VERB = Verb("doctor", INSIDE["doctor"], run, (JSON,))
