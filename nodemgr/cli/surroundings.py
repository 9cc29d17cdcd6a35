"""What surrounds a command that enters an environment: the file that it means, its variables, and why it could never be served.

Knows: the clients' variables (csrc/client.h), an environment's client.conf, what a preloaded library meets in a program. Must not
know: who executes the command, now (run) or when its turn comes (submit). Cheap to import: no pyzmq, psutil or NVML.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodemgr import paths, units
from nodemgr.cli import asking
from nodemgr.cli.faults import Exit, Fault, say
from nodemgr.cli.loadable import Preload, preload

NOTES = {
    Preload.WORKS: None,
    Preload.STATIC: "is statically linked: nothing can be preloaded into it, so it gets no GPU by itself; programs that it starts do",
    Preload.MUSL: "runs on musl, into which nothing is preloaded: only the Python hook is active, and no memory quota is enforced in it",
    Preload.FOREIGN: "is built for another kind of machine: nothing is preloaded into it, so it gets no GPU by itself",
    Preload.PRIVILEGED: "is setuid or setgid: nothing is preloaded into it, so it gets no GPU by itself",
}
"""What to say about a program before it starts; only musl must be spared LD_PRELOAD, its loader would end the program."""


@dataclass(frozen=True)
class Wish:
    gpus: int | None = None
    memory_bytes: int | None = None
    """Per GPU."""
    wait_ms: int | None = None


def settings_of(directory: Path, env: str) -> dict[str, str]:
    run_dir = directory.parent.parent
    try:
        return asking.read_client_conf(directory)
    except OSError as error:
        if error.errno == errno.EACCES:
            raise Fault(f"you may not look into {directory}: ask an admin to name you in the quota of {env}", Exit.QUOTA_REFUSES) from None
    if not run_dir.is_dir():
        raise Fault(f"no manager has its run directory at {run_dir} (start one: nodemgr serve)", Exit.UNREACHABLE)
    raise Fault(f"no environment {env!r} at {run_dir} (an admin makes it: nodemgr quota set {env} --gpus N)", Exit.QUOTA_REFUSES)


def refusal(status: Mapping[str, Any], settings: Mapping[str, str], wish: Wish) -> str | None:
    """Why this wish can never be granted under the present quota, in the order in which the manager looks."""
    env = settings.get("env", "")
    quota = next((row["quota"] for row in status["envs"] if row["name"] == env), None)
    if quota is None or not wish.gpus:
        return None
    node_gpus = int(settings.get("node_gpus", wish.gpus))
    limit = quota["memory_per_gpu_bytes"]
    if wish.gpus > quota["gpus"]:
        return f"--gpus {wish.gpus} is more than the quota of {env}, {quota['gpus']}: ask for fewer, or an admin for more"
    if wish.gpus > node_gpus:
        return f"--gpus {wish.gpus} is more than this node has, {node_gpus}: ask for fewer"
    if wish.memory_bytes and limit is not None and wish.memory_bytes > limit:
        wished, allowed = units.format_size(wish.memory_bytes), units.format_size(limit)
        return f"--memory {wished} is more than {env} may use on one GPU, {allowed}: ask for less, or an admin for more"
    return None


def program_of(name: str) -> Path:
    """The file that `name` means, as a shell finds it."""
    if os.sep in name:
        if not os.path.exists(name):
            raise Fault(f"{name}: not found", Exit.NOT_FOUND)
        if os.path.isdir(name) or not os.access(name, os.X_OK):
            raise Fault(f"{name}: not executable", Exit.NOT_EXECUTABLE)
        return Path(name)
    if found := shutil.which(name):
        return Path(found)
    if shutil.which(name, mode=os.F_OK):
        raise Fault(f"{name}: not executable", Exit.NOT_EXECUTABLE)
    raise Fault(f"{name}: not found in PATH", Exit.NOT_FOUND)


def own_environ() -> dict[str, str]:
    """Our caller's environment: an interpreter in a C locale adds LC_CTYPE to its own, which is nobody else's business."""
    variables = dict(os.environ)
    try:
        given = Path("/proc/self/environ").read_bytes()
    except OSError:
        return variables
    if not given.startswith(b"LC_CTYPE=") and b"\0LC_CTYPE=" not in given:
        variables.pop("LC_CTYPE", None)
    return variables


def environment(base: Mapping[str, str], directory: Path, settings: Mapping[str, str], wish: Wish, program: Path) -> dict[str, str]:
    """The command's environment variables (names: CONTRACT of the clients in csrc/client.h), and a note where the shim
    cannot come along."""
    variables = dict(base)
    if variables.get("NODEMGR_ENV_DIR") != str(directory):
        leave_task(variables)
    variables["NODEMGR_ENV_DIR"] = str(directory)
    wishes = {
        "NODEMGR_GPUS": wish.gpus,
        "NODEMGR_MEMORY": wish.memory_bytes,
        "NODEMGR_WAIT": None if wish.wait_ms is None else -(-wish.wait_ms // 1_000),
    }
    variables.update({name: str(value) for name, value in wishes.items() if value is not None})
    if library_path := settings.get("library_path"):
        _prepend(variables, "LD_LIBRARY_PATH", library_path)
    _bring_client(variables, program)
    return variables


def leave_task(variables: dict[str, str]) -> None:
    """What another environment's task gave its children means nothing in this one."""
    variables.pop("NODEMGR_TASK", None)
    visible = variables.pop("NODEMGR_VISIBLE", None)
    if visible is not None and variables.get("CUDA_VISIBLE_DEVICES") == visible:
        del variables["CUDA_VISIBLE_DEVICES"]


def _bring_client(variables: dict[str, str], program: Path) -> None:
    """The shim, which brings the hook into Python interpreters; where it cannot come, the hook alone."""
    library = asking.client_library()
    if not library.is_file():
        say(f"{library} is missing, so nothing here gets a GPU by itself or is held to a quota: install nodemgr again (nodemgr doctor)")
    elif any(letter in str(library) for letter in " :\t\n"):
        # ld.so splits LD_PRELOAD there, and knows no quoting
        say(f"{library} has a blank or colon in its path, so it cannot be preloaded: only the Python hook is active")
    else:
        meeting = preload(program, library)
        if note := NOTES[meeting]:
            say(f"{program} {note}")
        if meeting is not Preload.MUSL:
            _prepend(variables, "LD_PRELOAD", str(library))
            return
    _prepend(variables, "PYTHONPATH", str(paths.payload_dir() / "sitecustomize"))


def _prepend(variables: dict[str, str], name: str, entry: str) -> None:
    """Before what the user has there, which stays as it is (an empty entry means the working directory)."""
    present = variables.get(name)
    if not present:
        variables[name] = entry
    elif present.split(":")[0] != entry:
        variables[name] = f"{entry}:{present}"
