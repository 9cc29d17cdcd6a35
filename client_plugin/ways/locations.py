"""Which run directory, and so which manager, a command means; where its environments are.

Knows: the layout of the run directory, the variables that name one. Must not know: the readers and
writers there.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Union

    AnyPath = Union[str, "os.PathLike[str]"]

SYSTEM_RUN_DIR = "/run/nodemgr"
CONTAINER_ENV_DIR = "/run/nodemgr-env"
"""The container's directory of its environment, which a container runtime mounts."""
CONF = "client.conf"

ENV_NAME_FORM = "1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit"
_ENV_NAME = r"[a-z0-9][a-z0-9._-]{0,62}"


def is_env_name(name: str) -> bool:
    """An environment's name is a directory's name too: nothing that leads out of its parent."""
    return re.fullmatch(_ENV_NAME, name, re.ASCII) is not None


def default_run_dir() -> str:
    """NODEMGR_RUN_DIR, else as root /run/nodemgr, else the user's own."""
    named = os.environ.get("NODEMGR_RUN_DIR")
    if named:
        return named
    if os.geteuid() == 0:
        return SYSTEM_RUN_DIR
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return os.path.join(runtime, "nodemgr") if runtime else f"/tmp/nodemgr-{os.geteuid()}"


def find_run_dir() -> str:
    """The run directory of the manager that the user means.

    This is the user's own if the user ever started a manager there, else the node's.
    """
    own = default_run_dir()
    if (
        "NODEMGR_RUN_DIR" in os.environ
        or own == SYSTEM_RUN_DIR
        or (_is_ours(own) and os.path.exists(os.path.join(own, "manager.lock")))
    ):
        return own
    return SYSTEM_RUN_DIR


def _is_ours(directory: str) -> bool:
    """In /tmp any user can make a directory of this name, whose settings would name libraries."""
    try:
        return {os.lstat(directory).st_uid, os.stat(directory).st_uid} == {os.geteuid()}
    except OSError:
        return False


def env_dir(run_dir: AnyPath, env: str) -> str:
    """The directory that a client of `env` is shown: `socket` and `client.conf`."""
    return os.path.join(run_dir, "envs", env)


def env_dirs(run_dir: AnyPath) -> List[str]:
    """The directories of all environments, by name. Raises OSError."""
    parent = os.path.join(run_dir, "envs")
    return sorted(
        path for name in os.listdir(parent) if os.path.isdir(path := os.path.join(parent, name))
    )


def payload_dir() -> str:
    """The directory of client_plugin/ and sitecustomize/.

    It is the checkout, nodemgr/_client in an installation, /opt/nodemgr in a container.
    """
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def client_library(payload: Optional[str] = None) -> str:
    """The shim, which is also the client in C."""
    return os.path.join(payload or payload_dir(), "client_plugin", "_lib", "libnodemgr.so")


def preload_entry(payload: Optional[str] = None) -> str:
    """The shim, as LD_PRELOAD and /etc/ld.so.preload name it.

    The dynamic linker puts its own directory for $LIB (csrc/build.py has them all): so 64-bit glibc
    programs get the shim, 32-bit ones one without hooks, and musl, which knows no $LIB, finds
    nothing and goes on.
    """
    return os.path.join(payload or payload_dir(), "client_plugin", "_lib", "$LIB", "libnodemgr.so")


def hook_entry(payload: Optional[str] = None) -> str:
    """The hook, as PYTHONPATH names it."""
    return os.path.join(payload or payload_dir(), "sitecustomize")


NOT_LISTABLE = " :$\t\n"
"""Letters at which ld.so splits or replaces a path in LD_PRELOAD; it knows no quoting."""
_PRELOADED = re.compile(r"[^ :]*/client_plugin/_lib/\$LIB/libnodemgr\.so[ :]?")


def lead(variables: Dict[str, str], name: str, entry: str) -> None:
    """Put an entry before the user's own entries, which stay unchanged.

    An empty entry means the working directory.
    """
    present = variables.get(name)
    if not present:
        variables[name] = entry
    elif present.split(":")[0] != entry:
        variables[name] = f"{entry}:{present}"


def preload(variables: Dict[str, str], payload: str) -> None:
    """Put the shim of this copy in the place of every other copy's."""
    present = _PRELOADED.sub("", variables.get("LD_PRELOAD", ""))
    variables["LD_PRELOAD"] = f"{preload_entry(payload)}:{present}".rstrip(":")


def show_hook(variables: Dict[str, str], payload: str) -> None:
    """The same for the hook."""
    present = variables.get("PYTHONPATH")
    others = [
        part
        for part in (present.split(":") if present else ())
        if not (part.endswith("/sitecustomize") and _is_payload(os.path.dirname(part)))
    ]
    variables["PYTHONPATH"] = ":".join([hook_entry(payload), *others])


def _is_payload(directory: str) -> bool:
    return os.path.isdir(os.path.join(directory, "client_plugin", "_lib"))


def renew_client(variables: Dict[str, str], payload: str) -> None:
    """Name this copy where another one is named: the copy of a submission may be gone since."""
    if _PRELOADED.search(variables.get("LD_PRELOAD", "")):
        preload(variables, payload)
        show_hook(variables, payload)


def around_us() -> str:
    """The directory of the environment that this process should be in, whether it exists or not."""
    return os.environ.get("NODEMGR_ENV_DIR") or CONTAINER_ENV_DIR


def own_env_dir() -> Optional[str]:
    """The directory of the environment that this process runs in, or None outside of any."""
    directory = around_us()
    return directory if os.path.isfile(os.path.join(directory, CONF)) else None


def read_conf(directory: AnyPath) -> Dict[str, str]:
    """The settings that the manager wrote for the clients of an environment. Raises OSError."""
    with open(os.path.join(directory, CONF), encoding="utf-8", errors="replace") as file:
        pairs = (line.partition("=") for line in file)
        return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def named_run_dir() -> Optional[str]:
    """NODEMGR_RUN_DIR, unless it names the manager of the environment around this process.

    That environment then comes first.
    """
    named = os.environ.get("NODEMGR_RUN_DIR")
    if not named:
        return None
    own = own_env_dir()
    envs = os.path.realpath(os.path.join(named, "envs")) + os.sep
    return None if own is not None and os.path.realpath(own).startswith(envs) else named
