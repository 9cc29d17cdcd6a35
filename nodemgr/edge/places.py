"""Where a process lives, for people: its container, and the PID that it has there.

Knows: cgroups' names, and where container engines of this node write down what they called each container.
Must not know: envs, leases; nor does anything rest on this, for a container's root can rename much of it. Nothing is read that a
container could have put there: a file of its own might never end.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from nodemgr.core.model import ProcessKey
from nodemgr.edge.processes import one_line, pid_of, seen_as

SHORT_ID_CHARS = 12
MAX_CGROUP_BYTES = 8_192
MAX_NAMES_BYTES = 1 << 22
PODMAN_NAMES = Path("/var/lib/containers/storage/overlay-containers/containers.json")
DOCKER_NAMES = Path("/var/lib/docker/containers")
_CONTAINER = re.compile(r"(?:^|[/.:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Place:
    """Each None where there is none, or nobody knows."""

    pid_inside: int | None = None
    container: str | None = None
    container_name: str | None = None


NOWHERE = Place()


class Places:
    """Of the processes that hold something, looked up once each."""

    def __init__(self) -> None:
        self._known: dict[ProcessKey, Place] = {}

    def of(self, key: ProcessKey) -> Place:
        """Kept until `forget`."""
        known = self._known.get(key)
        if known is None:
            pid = pid_of(key)
            known = self._known[key] = NOWHERE if pid is None else place_of(pid)
        return known

    def forget(self, key: ProcessKey) -> None:
        self._known.pop(key, None)


def place_of(pid: int) -> Place:
    numbers = seen_as(pid)
    container = container_of(pid)
    name = None if container is None else name_of(container)
    return Place(numbers[-1] if len(numbers) > 1 else None, None if container is None else container[:SHORT_ID_CHARS], name)


def container_of(pid: int) -> str | None:
    """The id of its container; None outside of any."""
    try:
        with open(f"/proc/{pid}/cgroup", "rb", buffering=0) as file:
            return container_in(file.read(MAX_CGROUP_BYTES).decode("ascii", "replace"))
    except OSError:
        return None


def container_in(cgroups: str) -> str | None:
    """The id in the name of a cgroup: of the outermost container, the one that this node's engine has made."""
    found = _CONTAINER.search(cgroups)
    return found[1] if found else None


def name_of(container: str, podman: Path = PODMAN_NAMES, docker: Path = DOCKER_NAMES) -> str | None:
    """What its engine calls it."""
    rows = _read_json(podman)
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("id") == container and isinstance(names := row.get("names"), list) and names:
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
