"""The env of a process that never spoke to the manager, as far as it can be proved.

The proof comes from the kernel or from the process's own start.

Knows: /proc, the PIDs of the envs' known processes. Must not know: the consequence of the answer.

The proofs, the strongest first. A process without one of them belongs to no env, and is left alone:
1. an ancestor of it is a known process of the env;
2. it is outside of the host's mount namespace, and in its own the directory is mounted that this
   env's containers alone get: only a starter of containers can bring it there;
3. the environment that it was started with names the env's directory (NODEMGR_ENV_DIR), its user
   may enter the env (the check that the socket makes of a client), and it lives in the host's
   mount namespace: a container's root is our root by number, and may write any text into its
   environment, but the directories of others are not there;
4. it lives in the mount namespace of known processes of this env and of no other, and that is
   neither the manager's own nor the host's (as a service the manager has one of its own): they are
   in one container.
Its user alone proves nothing: one user may be in two envs, and at work beside them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from nodemgr.core.model.entities import ProcessKey
from nodemgr.edge.kernel.processes import Credentials, ancestors, credentials, pid_of, read_within
from nodemgr.paths import container_dir, env_dir

MOST_OF_ENVIRON_BYTES = 1 << 20
MOST_OF_MOUNTS_BYTES = 1 << 20
ENV_DIR_VARIABLE = b"NODEMGR_ENV_DIR="
_ROOT = Credentials(0, frozenset())
"""May enter every env that there is."""


class Belonging:
    """Answers for any process of this host."""

    def __init__(
        self,
        run_dir: Path,
        env_of_known: Callable[[int], str | None],
        known: Callable[[], Iterable[tuple[ProcessKey, str]]],
        may_enter: Callable[[str, Credentials], bool],
    ) -> None:
        """`env_of_known`: the env of a PID of a holder, a waiter or a former holder.

        `known`: all living ones of them, with their envs.
        """
        self._run_dir = run_dir
        self._env_of_known = env_of_known
        self._known = known
        self._may_enter = may_enter
        self._namespace_of: dict[ProcessKey, int | None] = {}
        self._outside = outside_namespaces()

    def env_of(self, pid: int) -> str | None:
        """The env; None: there is no proof."""
        return (
            self._by_ancestry(pid)
            or self._by_mount(pid)
            or self._by_its_start(pid)
            or self._by_container(pid)
        )

    def _by_ancestry(self, pid: int) -> str | None:
        return next(
            (env for parent in ancestors(pid) if (env := self._env_of_known(parent)) is not None),
            None,
        )

    def _by_mount(self, pid: int) -> str | None:
        if not self._outside or mount_namespace(pid) in self._outside:
            return None
        device, root = _inode_of(container_dir(self._run_dir, ""))
        names = {
            Path(at).name
            for its_device, at, _ in _mounts(pid)
            if its_device == device and os.path.dirname(at) == root
        }
        found = {name for name in names if self._may_enter(name, _ROOT)}
        return found.pop() if len(found) == 1 else None

    def _by_its_start(self, pid: int) -> str | None:
        if mount_namespace(pid) not in self._outside:
            return None
        named = env_dir_at_start(pid)
        user = credentials(pid)
        if named is None or user is None or named.parent != env_dir(self._run_dir, "any").parent:
            return None
        return named.name if self._may_enter(named.name, user) else None

    def _by_container(self, pid: int) -> str | None:
        its = mount_namespace(pid)
        if its is None or not self._outside or its in self._outside:
            return None
        known = dict(self._known())
        self._namespace_of = {
            key: inode for key, inode in self._namespace_of.items() if key in known
        }
        for key in known.keys() - self._namespace_of.keys():
            self._namespace_of[key] = mount_namespace(pid_of(key) or 0)
        envs = {known[key] for key, inode in self._namespace_of.items() if inode == its}
        return envs.pop() if len(envs) == 1 else None


def env_dir_at_start(pid: int) -> Path | None:
    """The environment's directory in the variables of its start; None: none, or unreadable."""
    try:
        variables = read_within(f"/proc/{pid}/environ", MOST_OF_ENVIRON_BYTES).split(b"\0")
    except OSError:
        return None
    said = next((line for line in variables if line.startswith(ENV_DIR_VARIABLE)), None)
    return None if said is None else Path(os.fsdecode(said[len(ENV_DIR_VARIABLE) :]))


def _mounts(pid: int | str) -> list[tuple[str, str, str]]:
    """(device, root in that file system, mount point) of each mount that a process sees.

    The root of a removed directory matches no directory.
    """
    try:
        with open(
            f"/proc/{pid}/mountinfo", "rb"
        ) as file:  # the kernel's own text: no process can delay it
            lines = file.read(MOST_OF_MOUNTS_BYTES).decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    rows = (line.split(" ", 5) for line in lines)
    return [(row[2], _plain(row[3]), _plain(row[4])) for row in rows if len(row) == 6]


def _plain(text: str) -> str:
    """The text without mountinfo's escapes of blanks and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _inode_of(directory: Path) -> tuple[str, str]:
    """(device, root) that a bind mount of this directory would have."""
    path = os.path.realpath(directory)
    device, root, point = max(
        (
            row
            for row in reversed(_mounts("self"))
            if row[2] == "/" or path == row[2] or path.startswith(row[2] + "/")
        ),
        key=lambda row: len(row[2]),
        default=("", "", "/"),
    )
    return device, f"{root.rstrip('/')}/{os.path.relpath(path, point)}"


def mount_namespace(pid: int | str) -> int | None:
    """The mount namespace of a process, or of "self"; None: it cannot be seen."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except OSError:
        return None


def outside_namespaces() -> frozenset[int]:
    """The mount namespaces outside containers: ours, and our ancestors' up to the first process."""
    seen = (mount_namespace(pid) for pid in (os.getpid(), *ancestors(os.getpid())))
    return frozenset(inode for inode in seen if inode is not None)
