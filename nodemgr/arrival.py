"""Tells the user of a container without glibc (musl, Alpine) that the client cannot work in it.

The container runtime runs it on the node when a container of an env is made.

Knows: how to recognise an image without glibc, where a container's own stderr is. Must not know:
envs, the manager. It is a program of its own (`python -I -S arrival.py`, the container's state on
stdin) with the standard library alone; only where it has a line to print it loads the tables.

A line that is written before the container's program starts does not reach an attached user (tried
with podman: it stands in the log alone), and a short program is gone before a later hook would
look. So a child stays until the start. By then it has the container's end of a pipe; a terminal
exists only afterwards. Any failure here lets the container start.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # by its file's name: an isolated interpreter knows no path to us
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

GLIBC = (
    "lib/libc.so.6",
    "lib/*/libc.so.6",
    "lib64/libc.so.6",
    "usr/lib/libc.so.6",
    "usr/lib/*/libc.so.6",
    "usr/lib64/libc.so.6",
)
MUSL = "lib/ld-musl-*.so.1"
ARRIVAL_TIMEOUT_S = 60.0
ARRIVAL_CHECK_S = 0.005


def is_foreign(root: Path) -> bool:
    """An image in which the shim cannot be loaded."""
    return any(root.glob(MUSL)) and not any(any(root.glob(pattern)) for pattern in GLIBC)


def open_stderr(pid: int, terminal: bool) -> int:
    """The container's.

    Raises OSError. Nothing but a pipe or a terminal: a container's program may have put any file
    there.
    """
    descriptor = os.open(
        f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    )
    if os.isatty(descriptor) if terminal else stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(f"the container's stderr is no {'terminal' if terminal else 'pipe'}")


def program_of(pid: int) -> str | None:
    """The file that a process runs; None: it is gone.

    The file changes once the container's program has started.
    """
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return None


def musl_line() -> str:
    from nodemgr.messages import environments as messages  # few containers need the tables

    return f"nodemgr: {messages.CONTAINER_HAS_MUSL()}"


def not_checked_line(error: Exception) -> str:
    from nodemgr.messages import environments as messages  # few containers need the tables

    return f"nodemgr: {messages.CONTAINER_NOT_CHECKED(error=repr(error))}"


def say_at_start(pid: int, terminal: bool, line: str) -> None:
    """Prints the lines in a child that the runtime does not wait for."""
    before = program_of(pid)
    descriptor = None if terminal else open_stderr(pid, terminal)
    if os.fork() != 0:
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    deadline_s = time.monotonic() + ARRIVAL_TIMEOUT_S
    while program_of(pid) == before and time.monotonic() < deadline_s:
        time.sleep(ARRIVAL_CHECK_S)
    if descriptor is None:
        descriptor = open_stderr(pid, terminal)
    os.write(descriptor, (line + ("\r\n" if terminal else "\n")).encode())
    os._exit(0)


def arrive(state: dict[str, Any]) -> None:
    bundle = Path(state["bundle"])
    config = json.loads((bundle / "config.json").read_bytes())
    if is_foreign(bundle / config["root"]["path"]):
        say_at_start(int(state["pid"]), bool(config["process"].get("terminal")), musl_line())


def main() -> None:
    try:
        arrive(json.load(sys.stdin))
    except Exception as error:  # some runtimes print it; the container starts anyway
        with contextlib.suppress(Exception):
            print(not_checked_line(error), file=sys.stderr)


if __name__ == "__main__":
    main()
