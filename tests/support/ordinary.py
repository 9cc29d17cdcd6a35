"""A process becomes an ordinary user's on a node as systemd makes it.

The BPF file system is mounted with mode 0700 for root.

    python -m tests.support.ordinary COMMAND [ARGUMENT]...      (as root)

Knows: mount namespaces. Must not know: nodemgr. Only the calling process and its children see the
mounts.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

UID = 65_534
BPF_FS = Path("/sys/fs/bpf")
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
CHECKOUT = Path(__file__).resolve().parents[2]


def become_ordinary() -> None:
    """OSError where the kernel refuses, e.g. in a container without CAP_SYS_ADMIN."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) < 0:
        raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())} (unshare)")
    _mount("none", Path("/"), None, MS_REC | MS_PRIVATE)
    _mount("bpf", BPF_FS, "bpf", data="mode=0700")
    _make_reachable({Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), CHECKOUT})
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)


def _make_reachable(needed: Iterable[Path]) -> None:
    """Makes an interpreter or checkout below a directory of root's, such as /root, reachable.

    An empty directory stands in its place, with only the needed directories.
    """
    hidden = {path: closed for path in needed if (closed := _closed_parent(path)) is not None}
    opened = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in hidden}
    for closed in set(hidden.values()):
        _mount("tmpfs", closed, "tmpfs", data="mode=0755")
    for path, descriptor in opened.items():
        path.mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND | MS_REC)
        os.close(descriptor)


def _closed_parent(path: Path) -> Path | None:
    return next(
        (parent for parent in reversed(path.parents) if not parent.stat().st_mode & stat.S_IXOTH),
        None,
    )


def _mount(source: str, target: Path, kind: str | None, flags: int = 0, data: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.mount(
            source.encode(),
            bytes(target),
            None if kind is None else kind.encode(),
            flags,
            data.encode(),
        )
        < 0
    ):
        raise OSError(
            ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())} (mount of {source} on {target})"
        )


if __name__ == "__main__":
    try:
        become_ordinary()
    except OSError as error:
        sys.exit(f"no process can become an ordinary user's here: {error}")
    os.execvp(sys.argv[1], sys.argv[1:])
