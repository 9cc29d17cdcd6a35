"""Locations: the run and state directories, an environment's directory in them, safe names.

Knows: the layout of the run directory. Must not know: its readers and writers. (The run directory
itself: client_plugin/ways.)
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from client_plugin.ways import locations
from client_plugin.ways.locations import ENV_NAME_FORM as ENV_NAME_FORM
from client_plugin.ways.locations import is_env_name as is_env_name

SYSTEM_RUN_DIR = Path(locations.SYSTEM_RUN_DIR)
SYSTEM_STATE_DIR = Path("/var/lib/nodemgr")
SYSTEM_CLIENT_DIR = Path("/var/lib/nodemgr-client")
CONTAINER_ENV_DIR = Path(locations.CONTAINER_ENV_DIR)
"""The container's directory of its environment, which a container runtime mounts."""
CONTAINER_PAYLOAD_DIR = Path("/opt/nodemgr")
"""The container's directory of the client."""


def default_run_dir() -> Path:
    """NODEMGR_RUN_DIR, else as root /run/nodemgr, else the user's own."""
    return Path(locations.default_run_dir())


def default_state_dir() -> Path:
    """NODEMGR_STATE_DIR, else as root /var/lib/nodemgr, else the user's own."""
    if named := os.environ.get("NODEMGR_STATE_DIR"):
        return Path(named)
    if os.geteuid() == 0:
        return SYSTEM_STATE_DIR
    state = os.environ.get("XDG_STATE_HOME")
    return Path(state) / "nodemgr" if state else Path.home() / ".local" / "state" / "nodemgr"


def head_dir() -> Path:
    """NODEMGR_HEAD_DIR, else as root /var/lib/nodemgr-head, else beside the user's own state."""
    if named := os.environ.get("NODEMGR_HEAD_DIR"):
        return Path(named)
    state = default_state_dir()
    return state.with_name(f"{state.name}-head")


def client_dir(state_dir: Path) -> Path:
    """The copies of the client that programs of this node load: open to all, beside the state."""
    if state_dir == SYSTEM_STATE_DIR:
        return SYSTEM_CLIENT_DIR
    return state_dir.with_name(f"{state_dir.name}-client")


def find_run_dir() -> Path:
    """The run directory of the manager that the user means.

    This is the user's own if the user ever started a manager there, else the node's.
    """
    return Path(locations.find_run_dir())


def env_dir(run_dir: Path, env: str) -> Path:
    """The directory that a client of `env` is shown: `socket` and `client.conf`."""
    return run_dir / "envs" / env


def container_dir(run_dir: Path, env: str) -> Path:
    """The same for the containers of `env`, in a directory that no user of the node may pass.

    A mount of it is the right to enter the env.
    """
    return run_dir / "containers" / env


def payload_dir() -> Path:
    """The directory that holds client_plugin/ and sitecustomize/."""
    return Path(locations.payload_dir())


def package_dir() -> Path:
    """The directory of this package, with the programs and libraries that the build puts there."""
    return Path(__file__).resolve().parent


@cache
def installed_version() -> str:
    """The version of this package; "unknown" in a bare source tree."""
    from importlib.metadata import PackageNotFoundError, version  # imported when asked for

    try:
        return version("nodemgr")
    except PackageNotFoundError:
        return "unknown"
