"""`nodemgr kernel`: Jupyter kernels that run in an environment.

A kernelspec of this verb starts `nodemgr run --env ENV -- PYTHON -m ipykernel_launcher …`: the
kernel keeps the process id and the signals of `run`. The field `nodemgr` of its metadata marks it
as this verb's own.

Knows: Jupyter's data directories, the form of a kernel.json. Must not know: Jupyter's code.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile

from client_plugin import units
from client_plugin.messages.form import stated
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import (
    JSON,
    RUN_DIR,
    Said,
    ValueKind,
    Verb,
    VerbOption,
    WrongValue,
    mistake,
)
from client_plugin.verbs.launch import programs
from client_plugin.verbs.launch.surroundings import settings_of
from client_plugin.verbs.presentation import tables
from client_plugin.verbs.presentation.tables import Column
from client_plugin.ways import locations
from client_plugin.ways.faults import Exit, Fault, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple


SYSTEM_DIRECTORIES = ("/usr/local/share/jupyter", "/usr/share/jupyter")
"""Data directories of all users; the first one is written."""
CHECK_TIMEOUT_S = 30
FIND_IPYKERNEL = "import importlib.util as u; print(u.find_spec('ipykernel') is not None)"
MAX_SPEC_BYTES = 1 << 20
MAX_DISPLAY_NAME = 100
UNDER = {
    "install": "Write a kernelspec: its kernels run in environment ENV.",
    "list": "Show the kernelspecs that `nodemgr kernel install` has written.",
    "rm": "Remove such a kernelspec.",
}


def _kernel_name(text: str) -> str:
    if not locations.is_env_name(text):
        kinds.wrong_name(text, "a kernel")
    return text


def _display_name(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > MAX_DISPLAY_NAME:
        raise WrongValue(
            f"{text!r} is no name to show: write 1 to {MAX_DISPLAY_NAME} printable characters"
        )
    return text


def _checked(name: str, parse: Callable[[str], object]) -> ValueKind:
    """Values that `parse` accepts, as they were written."""

    def keep(text: str) -> str:
        parse(text)
        return text

    return ValueKind(name, keep)


# -- directories


def user_directory() -> str:
    """Jupyter's data directory of this user."""
    named = os.environ.get("JUPYTER_DATA_DIR")
    if named:
        return os.path.abspath(named)
    data = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local/share")
    return os.path.join(data, "jupyter")


def kernels_of(data_directory: str) -> str:
    return os.path.join(data_directory, "kernels")


def spec_of(directory: str) -> Optional[Dict[str, Any]]:
    """The kernel.json in a kernel's directory; None where none can be read."""
    try:
        with open(os.path.join(directory, "kernel.json"), "rb") as file:
            spec = json.loads(file.read(MAX_SPEC_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return spec if isinstance(spec, dict) else None


def env_of(spec: Optional[Dict[str, Any]]) -> Optional[str]:
    """The environment of a kernelspec that this verb has written; None: it has not."""
    metadata = (spec or {}).get("metadata")
    own = metadata.get("nodemgr") if isinstance(metadata, dict) else None
    env = own.get("env") if isinstance(own, dict) else None
    return env if isinstance(env, str) else None


# -- install


def _install(said: Said) -> int:
    run_dir = os.path.abspath(said.whom().found_run_dir())
    settings_of(locations.env_dir(run_dir, said.env or ""), said.env or "")
    python = _python(said.python)
    name = said.name or f"nodemgr-{said.env}"[:63]
    data_directory = user_directory() if said.user else SYSTEM_DIRECTORIES[0]
    directory = os.path.join(kernels_of(data_directory), name)
    _check_owners(directory)
    present = os.path.lexists(os.path.join(directory, "kernel.json"))
    if present and env_of(spec_of(directory)) is None:
        raise Fault(
            f"{directory} is a kernel that nodemgr has not written",
            "choose another --name, or remove it with jupyter kernelspec remove",
        )
    missing = _lack_of_ipykernel(python)
    try:
        _write(directory, _spec(said, run_dir, python))
    except OSError as error:
        remedy = "name another with JUPYTER_DATA_DIR" if said.user else "add --user, or run as root"
        line = stated(f"{directory} cannot be written ({error.strerror})", f"{remedy}")
        raise Fault(line) from None
    say(f"kernel {name} is written to {directory}")
    if missing is not None:
        say(f"warning: {missing}")
    return 0


def _python(named: Optional[str]) -> str:
    """The absolute path of the kernel's Python; a link of a virtual environment stays a link."""
    if named is None:
        found = programs.which("python3") or programs.which("python")
        if found is None:
            raise Fault("no python3 is in PATH", "name one with --python", code=Exit.NOT_FOUND)
        return os.path.abspath(found)
    return os.path.abspath(programs.program_of(named))


def _lack_of_ipykernel(python: str) -> Optional[str]:
    """A warning if this Python cannot run a kernel. Raises Fault if it is no Python."""
    try:
        answer = subprocess.run(
            [python, "-c", FIND_IPYKERNEL], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=CHECK_TIMEOUT_S, cwd="/", check=False,
        ).stdout.split()[-1:]  # fmt: skip
    except subprocess.TimeoutExpired:
        return stated(
            f"{python} has not answered within {CHECK_TIMEOUT_S} s whether it has ipykernel",
            "the kernel needs it",
        )
    except OSError as error:
        line = stated(
            f"{python} cannot be executed ({error.strerror})", "name a Python with --python"
        )
        raise Fault(line, code=Exit.NOT_EXECUTABLE) from None
    if answer not in ([b"True"], [b"False"]):
        raise Fault(f"{python} is no Python 3", "name one with --python", code=Exit.USAGE)
    return (
        None
        if answer == [b"True"]
        else stated(
            f"{python} has no ipykernel",
            f"the kernel starts after {python} -m pip install ipykernel",
        )
    )


def _nodemgr() -> List[str]:
    """The command that starts this program again."""
    program = os.path.abspath(sys.argv[0])
    if os.path.basename(program) == "nodemgr" and os.access(program, os.X_OK):
        return [program]
    return [sys.executable, "-m", "nodemgr"]


def _default_display(said: Said) -> str:
    """Several kernels of one environment are told apart by the names that the user gave them."""
    return f"Python 3 with GPUs ({said.env if said.name is None else f'{said.env}, {said.name}'})"


def _spec(said: Said, run_dir: str, python: str) -> Dict[str, Any]:
    place = [] if run_dir == locations.SYSTEM_RUN_DIR else ["--run-dir", run_dir]
    wishes = [
        word
        for option, value in (
            ("--gpus", said.gpus), ("--memory", said.memory), ("--wait", said.wait)
        )
        if value is not None
        for word in (option, str(value))
    ]  # fmt: skip
    kernel = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    return {
        "argv": [*_nodemgr(), "run", "--env", said.env, *place, *wishes, "--", *kernel],
        "display_name": said.display_name or _default_display(said),
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"debugger": True, "nodemgr": {"env": said.env}},
    }


def _write(directory: str, spec: Dict[str, Any]) -> None:
    """Readable for all users, whatever the umask: a server of another user may start it."""
    _make_directories(directory)
    file, path = tempfile.mkstemp(dir=directory, prefix=".kernel-")
    try:
        with open(file, "w", encoding="utf-8") as out:
            json.dump(spec, out, indent=2, ensure_ascii=False)
            out.write("\n")
            os.fchmod(out.fileno(), 0o644)
        os.replace(path, os.path.join(directory, "kernel.json"))
    except BaseException:
        os.unlink(path)
        raise


def _check_owners(directory: str) -> None:
    """Root writes through no directory or link of another user. Raises Fault."""
    path = directory
    while os.geteuid() == 0 and path != os.path.dirname(path):
        if os.path.lexists(path) and os.lstat(path).st_uid != 0:
            raise Fault(
                f"root writes no kernel below {path}, which belongs to uid {os.lstat(path).st_uid}",
                "run this as that user, or name another folder by JUPYTER_DATA_DIR",
            )
        path = os.path.dirname(path)


def _make_directories(directory: str) -> None:
    parent = os.path.dirname(directory)
    if not os.path.isdir(parent):
        _make_directories(parent)
    try:
        os.mkdir(directory)
    except FileExistsError:
        if not os.path.isdir(directory):
            raise
        return
    os.chmod(directory, 0o755)


# -- list and remove


def _found() -> List[Tuple[str, str, Dict[str, Any]]]:
    """(name, directory, kernelspec) of each one that this verb has written, in Jupyter's order."""
    found = []
    for data_directory in dict.fromkeys((user_directory(), *SYSTEM_DIRECTORIES)):
        kernels = kernels_of(data_directory)
        try:
            names = sorted(os.listdir(kernels))
        except OSError:
            continue
        for name in names:
            directory = os.path.join(kernels, name)
            spec = spec_of(directory)
            if spec is not None and env_of(spec) is not None:
                found.append((name, directory, spec))
    return found


COLUMNS = (
    Column("KERNEL", lambda k: k["name"]),
    Column("ENV", lambda k: k["env"]),
    Column("SHOWN AS", lambda k: k["display_name"], spare=1),
    Column("DIRECTORY", lambda k: k["directory"], rest=True),
)


def _list(said: Said) -> int:
    rows = [
        {
            "name": name, "env": env_of(spec), "display_name": str(spec.get("display_name", "")),
            "directory": directory, "argv": spec.get("argv", []),
        }
        for name, directory, spec in _found()
    ]  # fmt: skip
    if said.as_json:
        tables.print_json({"schema_version": 1, "kernels": rows})
    else:
        tables.show(COLUMNS, rows, empty="No kernel yet (nodemgr kernel install ENV --user).")
    return 0


def _remove(said: Said) -> int:
    known = {name: directory for name, directory, _ in reversed(_found())}
    if said.name not in known:
        raise Fault(
            f"no kernel {said.name!r} was written by nodemgr",
            "(nodemgr kernel list shows those that were)",
        )
    directory = known[said.name]
    _check_owners(directory)
    try:
        shutil.rmtree(directory)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            line = stated(f"{directory} cannot be removed ({error.strerror})", "run as root")
        else:
            line = stated(f"{directory} cannot be removed: {error.strerror}", "remove it by hand")
        raise Fault(line) from None
    say(f"kernel {said.name} is removed from {directory}")
    return 0


# -- verbs


def _bare(said: Said) -> int:
    mistake(said.verb, f"Missing command: {', '.join(UNDER)}")


NAME = ValueKind("name", _kernel_name, lambda _whom, _incomplete: [row[0] for row in _found()])
INSTALL = Verb(
    "kernel install", UNDER["install"], _install,
    (
        VerbOption("env", kind=kinds.ENV, required=True),
        VerbOption("--user", help="For you alone; else for all users of this machine."),
        VerbOption("--python", kind=kinds.FILE, metavar="PATH",
                   help="The Python that has ipykernel and your frameworks."),
        VerbOption("--name", kind=ValueKind("name", _kernel_name),
                   help="The kernel's name for Jupyter."),
        VerbOption("--display-name", kind=ValueKind("text", _display_name),
                   help="The kernel's name in the launcher."),
        VerbOption("--gpus", kind=kinds.GPUS, help="GPUs for each kernel; 0: none."),
        VerbOption("--memory", kind=_checked("size", units.parse_size),
                   help="Device memory of each kernel on each GPU, and its limit, e.g. 8GiB."),
        VerbOption("--wait", kind=_checked("duration", units.parse_duration_ms),
                   help="How long a kernel waits for GPUs at most, e.g. 10min."),
        RUN_DIR,
    ),
    text="The kernel starts at once. It asks for GPUs in the cell that first uses CUDA.",
)  # fmt: skip
LIST = Verb("kernel list", UNDER["list"], _list, (JSON,))
REMOVE = Verb(
    "kernel rm",
    UNDER["rm"],
    _remove,
    (VerbOption("name", kind=NAME, required=True),),
    text="The user's own one goes before that of all users.",
)


def _under(name: str) -> Verb:
    return {"install": INSTALL, "list": LIST, "rm": REMOVE}[name]


VERB = Verb(
    "kernel",
    VERBS["kernel"],
    _bare,
    text="Each kernel of such a kernelspec runs in the environment and is a task of its own.",
    under=UNDER,
    find=_under,
)
