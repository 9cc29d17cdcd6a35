"""Runs in a container as its root: takes a lease on each file that nodemgr mounts there.

For each line of input it takes what it can, and prints the paths with the kind of their lease as a
line of JSON. It gives no lease back.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator

held: dict[str, str] = {}


def mounted() -> Iterator[str]:
    """The regular files at and below each mount of the device."""
    with open("/proc/self/mountinfo") as file:
        places = [line.split()[4] for line in file]
    for place in places:
        if "nodemgr" not in place and "libcuda" not in place and "libnvidia" not in place:
            continue
        if os.path.isfile(place):
            yield place
        for directory, _, names in os.walk(place):
            yield from (os.path.join(directory, name) for name in names)


def lease(path: str) -> None:
    """A write lease where no other process has the file open, else a read lease."""
    if not os.path.isfile(path):
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # the same file by another path, with our own lease on it
        return
    for kind, name in ((fcntl.F_WRLCK, "write"), (fcntl.F_RDLCK, "read")):
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, kind)
        except OSError:
            continue
        held[path] = name  # the descriptor stays open
        return
    os.close(descriptor)


def main() -> None:
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    for _ in sys.stdin:
        for path in set(mounted()) - set(held):
            lease(path)
        print(json.dumps(held), flush=True)


if __name__ == "__main__":
    main()
