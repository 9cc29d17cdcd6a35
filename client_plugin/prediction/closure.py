"""The files that a run's program consisted of, beside its own: what a second run is compared with.

Knows: loaded modules, files, the variable that names a job's run. Must not know: any framework, how
a program is recognised (verbs/launch/recognition.py), what is done with its figures.

A process of a job that loads a framework reports at its good end the modules that it loaded from
below its script's directory and its first working directory. Those of the interpreter count by the
time at which its packages changed. One that is too large says so, and nothing is kept of its run.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Sequence, Tuple

    ClosureRow = Tuple[str, int, int, str]
    """Path, size, time of change in ns, digest. Of a folder of packages: size -1, no digest."""

RUN_KEY = "NODEMGR_RUN_KEY"
"""Of a job whose program was recognised: the manager sets it."""
JOB = "NODEMGR_JOB"
MAX_FILES = 500
MAX_BYTES = 16 << 20
FOLDER = -1
DIGEST_BYTES = 16
PACKAGES = ("site-packages", "dist-packages")
SYSTEM, SYSTEM_LOCAL = "/usr", "/usr/local"
"""The system's interpreter takes the packages of both."""
REPORT_S = 5.0
_ORDER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from client_plugin.ways import locations
from client_plugin.ways.conversation import Conversation
directory = locations.own_env_dir()
if directory is not None:
    with Conversation(directory + "/socket", float(sys.argv[2])) as talk:
        talk.order("job_modules", json.load(sys.stdin))
"""


def digest(data: bytes) -> str:
    """By the module behind hashlib, whose own import costs more than the digest of a script."""
    from _blake2 import blake2b

    return str(blake2b(data, digest_size=DIGEST_BYTES).hexdigest())


def content(path: str, most_bytes: int) -> bytes:
    """Raises OSError, ValueError: the file is larger, or none that a read cannot wait for."""
    with open(
        os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb"
    ) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError
    return data


def package_folders(prefix: str) -> List[ClosureRow]:
    """The folders of an interpreter's packages: an installation changes their time."""
    found: List[ClosureRow] = []
    prefixes = [prefix]
    if not os.path.exists(os.path.join(prefix, "pyvenv.cfg")):
        prefixes += [SYSTEM_LOCAL] if prefix == SYSTEM else []
        prefixes.append(os.path.expanduser("~/.local"))
    for library in [os.path.join(each, "lib") for each in prefixes]:
        try:
            names = sorted(os.listdir(library))
        except OSError:
            continue
        for name in names:
            for packages in PACKAGES if name.startswith(("python", "pypy")) else ():
                path = os.path.join(library, name, packages)
                try:
                    found.append((path, FOLDER, os.stat(path).st_mtime_ns, ""))
                except OSError:
                    continue
    return found


def holds(rows: Sequence[Sequence[Any]]) -> bool:
    """Whether each file is what it was. It is read only where its time alone has changed."""
    try:
        return all(_holds(*row) for row in rows)
    except (OSError, ValueError, TypeError):
        return False


def _holds(path: str, size: int, changed_ns: int, known: str) -> bool:
    status = os.stat(path)
    if size == FOLDER:
        return status.st_mtime_ns == changed_ns
    if status.st_size != size or not stat.S_ISREG(status.st_mode):
        return False
    return status.st_mtime_ns == changed_ns or digest(content(path, MAX_BYTES)) == known


# -- in the program --


_is_followed = False


def follow() -> None:
    """Report at the end of this process, if its run is to be kept."""
    global _is_followed
    if _is_followed or not os.environ.get(RUN_KEY) or not os.environ.get(JOB):
        return
    import atexit

    main = getattr(sys.modules.get("__main__"), "__file__", None)  # gone at the end
    try:
        atexit.register(_ended, os.getcwd(), None if main is None else os.path.abspath(main))
        _is_followed = True
    except OSError:  # the directory is gone: the framework is loaded all the same
        return


def _ended(first_directory: str, main: Optional[str]) -> None:
    if hasattr(sys, "last_value") or hasattr(sys, "last_exc"):
        return  # an exception ends it
    try:
        _report({"job": os.environ[JOB].partition(":")[0], "files": loaded(first_directory, main)})
    except Exception:  # a run without its modules is not kept
        return


def loaded(first_directory: str, main: Optional[str]) -> Optional[List[ClosureRow]]:
    """The modules of the user, and the folders of packages; None: they are too many."""
    own = {os.path.realpath(first_directory)}
    if main is not None:
        own.add(os.path.dirname(os.path.realpath(main)))
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    foreign = {
        os.path.dirname(os.__file__),
        ours,
        os.path.join(os.path.dirname(ours), "sitecustomize"),
    }
    paths, real = set(), {}
    for name in [main, *map(_file_of, list(sys.modules.values()))]:
        if not isinstance(name, str):
            continue
        folder, base = os.path.split(os.path.abspath(name))
        if folder not in real:
            real[folder] = os.path.realpath(folder)
        path = os.path.join(real[folder], base)
        is_own = any(_is_below(path, one) for one in own) and not set(PACKAGES) & set(
            path.split("/")
        )
        if is_own and not any(_is_below(path, one) for one in foreign):
            paths.add(path)
    if len(paths) > MAX_FILES:
        return None
    rows, left = package_folders(sys.prefix), MAX_BYTES
    for path in sorted(paths):
        try:
            data = content(path, left)
            rows.append((path, len(data), os.stat(path).st_mtime_ns, digest(data)))
        except (OSError, ValueError):
            return None
        left -= len(data)
    return rows


def _file_of(module: Any) -> Any:
    """Of one that is loaded: to ask a lazy one loads it."""
    try:
        return object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:
        return None


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _report(order: Any) -> None:
    """By a process of its own: the packages of this one stay as they are."""
    import json
    import subprocess

    payload = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", _ORDER, payload, str(REPORT_S)],
        input=json.dumps(order).encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=2 * REPORT_S,
        check=False,
    )
