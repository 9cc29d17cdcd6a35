"""Whether a process lives on the node itself, or in any kind of container.

Knows: the kernel's namespaces. Must not know: envs, the use of the answer.
"""

from __future__ import annotations

import os

from nodemgr.edge.kernel.processes import ancestors

KINDS = ("mnt", "pid", "user")


def of(pid: int | str) -> tuple[int | None, ...]:
    """The process's namespaces by KINDS; None for one that cannot be seen."""
    return tuple(_inode(f"/proc/{pid}/ns/{kind}") for kind in KINDS)


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


class NodeNamespaces:
    """The namespaces outside containers: the manager's and its ancestors'.

    The ancestors go up to the host's first process.
    """

    def __init__(self) -> None:
        seen = [of(pid) for pid in (os.getpid(), *ancestors(os.getpid()))]
        self._known = [
            {inode for inode in inodes if inode is not None} for inodes in zip(*seen, strict=True)
        ]

    def is_home_of(self, pid: int) -> bool:
        return all(inode in known for inode, known in zip(of(pid), self._known, strict=True))
