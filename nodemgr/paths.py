"""Where things lie: the run and state directories, an environment's directory in them, and what names are safe there.

Knows: the layout of the run directory. Must not know: who reads or writes it. Standard library only, cheap to import.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

SYSTEM_RUN_DIR = Path("/run/nodemgr")
SYSTEM_STATE_DIR = Path("/var/lib/nodemgr")
CONTAINER_ENV_DIR = Path("/run/nodemgr-env")
"""Where a container runtime mounts the directory of the container's environment."""
CONTAINER_PAYLOAD_DIR = Path("/opt/nodemgr")
"""Where it mounts the client."""

ENV_NAME_FORM = "1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit"
_ENV_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)


def is_env_name(name: str) -> bool:
    """An environment's name is a directory's name too: nothing that leads out of its parent."""
    return _ENV_NAME.fullmatch(name) is not None


def default_run_dir() -> Path:
    """NODEMGR_RUN_DIR, else as root /run/nodemgr, else the user's own."""
    if named := os.environ.get("NODEMGR_RUN_DIR"):
        return Path(named)
    if os.geteuid() == 0:
        return SYSTEM_RUN_DIR
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "nodemgr" if runtime else Path(f"/tmp/nodemgr-{os.geteuid()}")


def default_state_dir() -> Path:
    """NODEMGR_STATE_DIR, else as root /var/lib/nodemgr, else the user's own."""
    if named := os.environ.get("NODEMGR_STATE_DIR"):
        return Path(named)
    if os.geteuid() == 0:
        return SYSTEM_STATE_DIR
    state = os.environ.get("XDG_STATE_HOME")
    return Path(state) / "nodemgr" if state else Path.home() / ".local" / "state" / "nodemgr"


def find_run_dir() -> Path:
    """The run directory of the manager that a user means: his own if one was ever started there, else the node's."""
    own = default_run_dir()
    if "NODEMGR_RUN_DIR" in os.environ or own == SYSTEM_RUN_DIR or (own / "manager.lock").exists():
        return own
    return SYSTEM_RUN_DIR


def env_dir(run_dir: Path, env: str) -> Path:
    """The directory that a client of `env` is shown: `socket` and `client.conf`."""
    return run_dir / "envs" / env


def container_dir(run_dir: Path, env: str) -> Path:
    """The same for the containers of `env`, in a directory that nobody on the node may pass: to be shown it is to be let in."""
    return run_dir / "containers" / env


def payload_dir() -> Path:
    """X of the layout: what holds client_plugin/ and sitecustomize/, in a checkout as in site-packages."""
    return Path(__file__).resolve().parent.parent


@cache
def installed_version() -> str:
    """Of this package; "unknown" in a bare source tree, where nothing says."""
    from importlib.metadata import PackageNotFoundError, version  # not before somebody asks

    try:
        return version("nodemgr")
    except PackageNotFoundError:
        return "unknown"
