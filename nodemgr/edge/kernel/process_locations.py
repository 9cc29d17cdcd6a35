"""Where a process lives, for people: its container, and the PID that it has there.

Knows: cgroups' names, and where container engines of this node write down what they called each
container. Must not know: envs, leases; nor does anything rest on this, for a container's root can
rename much of it. Nothing is read that a container could have put there: a file of its own might
never end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nodemgr.core.model.entities import ProcessKey
from nodemgr.edge.kernel.processes import one_line, pid_of, seen_as

LOOKUPS_A_TURN = 16
"""A lookup takes some 100 µs: between turns the loop serves requests."""
SHORT_ID_CHARS = 12
MAX_CGROUP_BYTES = 8_192
MAX_NAMES_BYTES = 1 << 22
PODMAN_NAMES = Path("/var/lib/containers/storage/overlay-containers/containers.json")
DOCKER_NAMES = Path("/var/lib/docker/containers")
_CONTAINER = re.compile(r"(?:^|[/.:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessLocation:
    """Each field is None if it does not apply or is not known."""

    pid_inside: int | None = None
    container: str | None = None
    container_name: str | None = None


NOWHERE = ProcessLocation()


class ProcessLocations:
    """The locations of processes that hold something, looked up once each.

    Each turn of the loop looks some of them up, because many may come at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._known: dict[ProcessKey, ProcessLocation] = {}
        self._expected: set[ProcessKey] = set()
        self._due: deque[ProcessKey | Callable[[], None]] = deque()
        """Processes to look up, and callbacks that wait for those before them."""
        self._is_busy = False

    def expect(self, key: ProcessKey) -> None:
        """Has the process looked up soon; no answer waits for that."""
        self._expected.add(key)
        self._expect(key)

    def when_known(self, then: Callable[[], None]) -> None:
        """Calls back when all are known that are expected now."""
        if self._expected:
            self._expect(then)
        else:
            then()

    def _expect(self, due: ProcessKey | Callable[[], None]) -> None:
        self._due.append(due)
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._resolve_some)

    def _resolve_some(self) -> None:
        for _ in range(min(LOOKUPS_A_TURN, len(self._due))):
            due = self._due.popleft()
            if not isinstance(due, str):
                self._loop.call_soon(due)
            elif due in self._expected:
                self._expected.discard(due)
                self.of(due)
        self._is_busy = bool(self._due)
        if self._is_busy:
            self._loop.call_soon(self._resolve_some)

    def of(self, key: ProcessKey) -> ProcessLocation:
        """Kept until `forget`."""
        known = self._known.get(key)
        if known is None:
            self._expected.discard(key)
            pid = pid_of(key)
            known = self._known[key] = NOWHERE if pid is None else location_of(pid)
        return known

    def forget(self, key: ProcessKey) -> None:
        self._expected.discard(key)
        self._known.pop(key, None)


def containers_without(directory: Path) -> list[str]:
    """The containers that have mounted a part of this directory that was deleted since."""
    seen, found, part = set[int](), set[str](), f"/{_below_its_mount(directory)}/"
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            namespace = os.stat(f"/proc/{pid}/ns/mnt").st_ino
            if namespace in seen:
                continue
            mounts = Path(f"/proc/{pid}/mountinfo").read_text(errors="replace").splitlines()
            seen.add(namespace)
            roots = [mount.split(" ", 4)[3] for mount in mounts]
            if any(root.endswith("//deleted") and part in root for root in roots):
                where = location_of(pid)
                found.add(where.container_name or where.container or f"pid {pid}")
    return sorted(found)


def _below_its_mount(directory: Path) -> Path:
    """The directory as the kernel names the root of a mount: below that of its file system."""
    above = directory.parent  # the directory itself may be gone
    while not above.is_mount():
        above = above.parent
    return directory.relative_to(above)


def location_of(pid: int) -> ProcessLocation:
    numbers = seen_as(pid)
    container = container_of(pid)
    pid_inside = numbers[-1] if len(numbers) > 1 else None
    if container is None:
        return ProcessLocation(pid_inside)
    name = None
    with contextlib.suppress(LookupError):
        name = _engine_name(container)
    return ProcessLocation(pid_inside, container[:SHORT_ID_CHARS], name)


@lru_cache(maxsize=1_024)
def _engine_name(container: str) -> str:
    """`name_of`, once for each container, for what engines write down of all can be long.

    Raises LookupError where there is none yet.
    """
    name = name_of(container)
    if name is None:
        raise LookupError(container)
    return name


def container_of(pid: int) -> str | None:
    """The id of its container; None outside of any."""
    try:
        with open(f"/proc/{pid}/cgroup", "rb", buffering=0) as file:
            return container_in(file.read(MAX_CGROUP_BYTES).decode("ascii", "replace"))
    except OSError:
        return None


def container_in(cgroups: str) -> str | None:
    """The id in a cgroup's name: of the outermost container, made by this node's engine."""
    found = _CONTAINER.search(cgroups)
    return found[1] if found else None


def name_of(container: str, podman: Path = PODMAN_NAMES, docker: Path = DOCKER_NAMES) -> str | None:
    """The name that the container's engine gave it."""
    rows = _read_json(podman)
    for row in rows if isinstance(rows, list) else ():
        if (
            isinstance(row, dict)
            and row.get("id") == container
            and isinstance(names := row.get("names"), list)
            and names
        ):
            return one_line(str(names[0]))
    said = _read_json(docker / container / "config.v2.json")
    name = said.get("Name") if isinstance(said, dict) else None
    return one_line(name.lstrip("/")) if isinstance(name, str) else None


def _read_json(path: Path) -> object:
    try:
        with path.open("rb") as file:
            return json.loads(file.read(MAX_NAMES_BYTES))
    except (OSError, ValueError):
        return None
