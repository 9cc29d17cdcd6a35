"""NVIDIA MPS on this node: whether its control daemon runs.

Knows: the pipe directory of the daemon, the table of processes. Must not know: gates, leases.

With MPS, kernels of several processes run at once, and turns would waste the GPU: a share is a
percentage of threads then, and the launch gate does priority alone. A tenant could make such a
directory or a process of this name, which would end the turns. So both must be root's or the
manager's own.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

PIPE_VARIABLE, PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"
PID_FILE = "nvidia-cuda-mps-control.pid"
PROGRAM = "nvidia-cuda-mps"
"""The kernel keeps 15 characters of a program's name."""
_PID = re.compile(rb"\s*([0-9]{1,10})\s*", re.ASCII)


def pipe_directory(environment: Mapping[str, str]) -> Path:
    """As the daemon and its clients find it."""
    return Path(environment.get(PIPE_VARIABLE) or PIPE_DIRECTORY)


def is_running(directory: Path, trusted_uids: frozenset[int], proc: Path = Path("/proc")) -> bool:
    """Whether a daemon of a trusted user runs on this pipe directory."""
    try:
        if not _is_of(os.lstat(directory), trusted_uids, stat.S_IFDIR):
            return False
        pid = _pid_in(directory / PID_FILE, trusted_uids)
        if pid is None or os.stat(proc / str(pid)).st_uid not in trusted_uids:
            return False
        return (proc / str(pid) / "comm").read_text(errors="replace").startswith(PROGRAM)
    except OSError:
        return False


def _is_of(status: os.stat_result, trusted_uids: frozenset[int], kind: int) -> bool:
    return stat.S_IFMT(status.st_mode) == kind and status.st_uid in trusted_uids


def _pid_in(path: Path, trusted_uids: frozenset[int]) -> int | None:
    """Raises OSError. A link, a pipe, or a file of another user names none."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not _is_of(os.fstat(fd), trusted_uids, stat.S_IFREG):
            return None
        found = _PID.fullmatch(os.read(fd, 32))
        return None if found is None else int(found[1])
    finally:
        os.close(fd)
