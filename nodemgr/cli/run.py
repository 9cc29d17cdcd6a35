"""`nodemgr run --env ENV -- COMMAND`: become COMMAND, inside an environment.

Sets the environment variables that bring the shim, the hook and the environment's directory into the command, and
executes it in this process: its pid, signals, terminal and exit code are its own. What would be refused for certain
is refused before. Must start fast: nothing of pyzmq, psutil or NVML is imported here.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click

from nodemgr import paths, units
from nodemgr.cli import asking, options
from nodemgr.cli.faults import Exit, Fault, say
from nodemgr.cli.loadable import Preload, preload

MAX_GPUS = 1_024

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


@click.command(
    short_help="Run a command in an environment of this node.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--env", type=options.ENV, required=True, help="The environment to enter.")
@click.option("--gpus", type=click.IntRange(0, MAX_GPUS), help="GPUs for the task; 0: none.")
@click.option("--memory", type=options.SIZE, help="Device memory that it needs on each GPU, e.g. 8GiB.")
@click.option("--wait", type=options.DURATION, help="How long to wait for GPUs at most, e.g. 10min; 0: not at all.")
@options.run_dir_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    env: str, gpus: int | None, memory: int | None, wait: int | None, run_dir: Path | None, command: tuple[str, ...]
) -> NoReturn:
    """Run COMMAND in environment ENV. It asks for GPUs when it starts to use CUDA; its exit code is its own."""
    directory = paths.env_dir((run_dir or paths.find_run_dir()).absolute(), env)
    settings = _settings(directory, env)
    wish = Wish(gpus, memory, wait)
    program = _program(command[0])
    _refuse_early(directory, settings, wish)
    _become(program, command, environment(_own_environ(), directory, settings, wish, program))


def _settings(directory: Path, env: str) -> dict[str, str]:
    run_dir = directory.parent.parent
    try:
        return asking.read_client_conf(directory)
    except OSError as error:
        if error.errno == errno.EACCES:
            raise Fault(f"you may not look into {directory}: ask an admin to name you in the quota of {env}", Exit.QUOTA_REFUSES) from None
    if not run_dir.is_dir():
        raise Fault(f"no manager has its run directory at {run_dir} (start one: nodemgr serve)", Exit.UNREACHABLE)
    raise Fault(f"no environment {env!r} at {run_dir} (an admin makes it: nodemgr quota set {env} --gpus N)", Exit.QUOTA_REFUSES)


def _refuse_early(directory: Path, settings: Mapping[str, str], wish: Wish) -> None:
    """Refuses what the manager would refuse whenever it was asked. An absent manager refuses nothing: its clients
    follow the environment's policy for that when they need it."""
    if not settings.get("address", "unix:").startswith("unix:"):
        return
    try:
        status = asking.ask(directory, "status")
    except Fault as fault:
        if fault.code != Exit.UNREACHABLE:
            raise
        say(f"{fault.message}; {ABSENT.get(settings.get('no_manager', 'wait'), ABSENT['wait'])}")
        return
    if (reason := _refusal(status, settings, wish)) is not None:
        raise Fault(reason, Exit.QUOTA_REFUSES)


ABSENT = {
    "wait": "the first use of CUDA will wait for it",
    "cpu": "until it is back there is only the CPU",
    "error": "until it is back each use of CUDA fails",
}
"""The environment's policy `no_manager`, as said before a command starts."""


def _refusal(status: Mapping[str, Any], settings: Mapping[str, str], wish: Wish) -> str | None:
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


def _program(name: str) -> Path:
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


def _own_environ() -> dict[str, str]:
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
        _leave_other_environment(variables)
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


def _leave_other_environment(variables: dict[str, str]) -> None:
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


def _become(program: Path, command: tuple[str, ...], variables: Mapping[str, str]) -> NoReturn:
    # Python ignores these two for itself; an ignored signal would stay ignored in the command.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execve(program, command, variables)
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without #!: what execvp and every shell do
            os.execve("/bin/sh", ["/bin/sh", str(program), *command[1:]], variables)
        if error.errno == errno.ENOENT:
            raise Fault(f"{program}: its interpreter is not found", Exit.NOT_FOUND) from None
        raise Fault(f"{program}: cannot be executed ({error.strerror})", Exit.NOT_EXECUTABLE) from None
