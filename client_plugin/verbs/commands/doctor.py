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
from client_plugin.messages.form import Check, MessageLine, relayed
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
CheckOutcome = Tuple[Optional[bool], MessageLine]
"""(whether it is well, None: there was nothing to check; what was found)."""


class ClientCheck(NamedTuple):
    row: Check
    examine: Callable[[], Union[CheckOutcome, List[CheckRow]]]


def environment() -> CheckOutcome:
    if os.environ.get("NODEMGR_OFF") == "1":
        return False, messages.CLIENT_IS_OFF()
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
        return False, messages.IMAGE_HAS_MUSL(file=PRELOAD_FILE)
    if _has_mapped("self", "libnodemgr"):
        return True, messages.SHIM_IS_HERE(library=SHIM)
    try:
        with open(PRELOAD_FILE) as file:
            named = file.read().split()
    except OSError as error:
        return False, messages.FILE_FAULT(file=PRELOAD_FILE, error=error.strerror)
    entries = ", ".join(named) or "nothing"
    return False, messages.SHIM_NOT_NAMED(file=PRELOAD_FILE, entries=entries)


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
        return False, messages.PYTHON_WITHOUT_HOOK(python=python)
    return False, messages.PYTHON_WITHOUT_HOOK_SAYS(python=python, error=said[-1])


def manager() -> List[CheckRow]:
    """The way to the manager, and its answer about this environment."""
    try:
        told = UserWay(locations.around_us()).question("doctor")["checks"]
    except Mute as mute:
        return [full(mute)]
    return [row_of(messages.CHECK_SOCKET, True, messages.MANAGER_ANSWERS()), *told]


def full(mute: Mute) -> CheckRow:
    """The socket takes what is sent, and nobody reads it.

    So it is where an environment has as many connections as it may have.
    """
    what = f"{mute.message} (an environment with all its connections gets none either)"
    return row_of(messages.CHECK_SOCKET_FULL, False, relayed(what))


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
        return None, messages.NO_DRIVER_USERS()
    return True, messages.ALL_WITH_LEDGER(count=len(users))


def driver() -> CheckOutcome:
    try:
        import ctypes

        found = [name for name in ("libcuda.so.1", "libnvidia-ml.so.1") if ctypes.CDLL(name)]
    except (ImportError, OSError) as error:
        return False, messages.DRIVER_DOES_NOT_LOAD(error=error)
    return True, messages.LIBRARIES_LOAD(libraries=" and ".join(found))


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
    ClientCheck(messages.CHECK_ENVIRONMENT, environment),
    ClientCheck(messages.CHECK_PRELOAD, preload),
    ClientCheck(messages.CHECK_HOOK, hook),
    ClientCheck(messages.CHECK_SOCKET, manager),
    ClientCheck(messages.CHECK_LEDGER, ledger),
    ClientCheck(messages.CHECK_DRIVER, driver),
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
    return [row_of(check.row, ok, detail)]


def row_of(row: Check, ok: Optional[bool], detail: MessageLine) -> CheckRow:
    """A result as `--json` has it."""
    return {
        "name": row.what,
        "ok": ok,
        "detail": detail,
        "cure": row.next.replace("{install}", installed.command()) if ok is False else None,
    }


WORDS = {True: "ok", False: "FAIL", None: "skip"}


def lines(answer: CheckRow) -> List[str]:
    width = max(len(row["name"]) for row in answer["checks"])
    shown = []
    for row in answer["checks"]:
        cure = f" -> {row['cure']}" if row["ok"] is False and row["cure"] else ""
        shown.append(
            f"{WORDS[row['ok']]:<6}{row['name']:<{width}}  {tables.printable(row['detail'] + cure)}"
        )
    return shown


def run(said: Said) -> int:
    answer: CheckRow = {"schema_version": 1, "checks": examine()}
    if said.as_json:
        tables.print_json(answer)
    else:
        print("\n".join(lines(answer)))
    return 1 if any(check["ok"] is False for check in answer["checks"]) else 0


VERB = Verb("doctor", INSIDE["doctor"], run, (JSON,))
