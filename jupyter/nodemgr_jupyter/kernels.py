"""The environment of a kernel, and the process of the kernel.

Knows: /proc, kernelspecs of `nodemgr kernel install`, the directories of environments. Must not
know: HTTP, the manager's answers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from nodemgr_jupyter.client import locations

VARIABLE = b"NODEMGR_ENV_DIR="
MAX_ENVIRON_BYTES = 1 << 20


class Place(NamedTuple):
    """An environment's directory, and the kernel's process if it is on this machine."""

    directory: str
    pid: int | None

    @property
    def inside(self) -> bool:
        """Whether this is the environment of a container, in which `pid` counts."""
        return bool(self.directory == locations().CONTAINER_ENV_DIR)


def place_of(kernel: Any) -> Place | None:
    """`kernel`: Jupyter's manager of one kernel, or None. None: it is in no environment."""
    pid = pid_of(kernel)
    directory = (
        _by_process(pid)
        or _by_command(getattr(getattr(kernel, "kernel_spec", None), "argv", ()))
        or locations().own_env_dir()
    )
    return None if directory is None else Place(directory, pid)


def pid_of(kernel: Any) -> int | None:
    provisioner = getattr(kernel, "provisioner", None)
    pid = getattr(provisioner, "pid", None) or getattr(
        getattr(provisioner, "process", None), "pid", None
    )
    return pid if isinstance(pid, int) and pid > 0 else None


def _by_process(pid: int | None) -> str | None:
    """By the environment variables that the kernel's program was started with."""
    if pid is None:
        return None
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read(MAX_ENVIRON_BYTES).split(b"\0")
    except OSError:
        return None
    found = next((entry for entry in entries if entry.startswith(VARIABLE)), None)
    return os.fsdecode(found[len(VARIABLE) :]) or None if found is not None else None


def _by_command(argv: Sequence[str]) -> str | None:
    """By the kernelspec's `nodemgr run --env ENV`, as long as that has not become the kernel."""
    words = list(argv[: argv.index("--")]) if "--" in argv else []
    if "run" not in words:
        return None
    options = dict(pairwise(words))
    env = options.get("--env", "")
    if not locations().is_env_name(env):
        return None
    return str(locations().env_dir(options.get("--run-dir") or locations().find_run_dir(), env))
