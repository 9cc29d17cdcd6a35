"""Watches a script's checkpoint: a file, or the files in a directory.

Knows: files. Must not know: what a checkpoint holds. A checkpoint is new by what has changed (name,
inode, size, time of change), never by a comparison of times: the clock may be set back, and files
may come from another machine.
"""

from __future__ import annotations

import os
import stat
from typing import Callable, FrozenSet, List, Optional, Tuple

from .orders import NO_CHECKPOINT, Checkpoint

SETTLED_S = 1.0
"""A file that was written this recently may not be complete."""
Mark = Tuple[str, int, int, int]
"""Of one file: its name, inode, size and time of the last change."""


class CheckpointWatch:
    """The checkpoint at one path, as it was seen at each check."""

    def __init__(self, path: Optional[str], complain: Callable[[str], None]) -> None:
        """`complain`: called with the reason, once for each, when the path cannot be read."""
        self._path = path
        self._complain = complain
        self._said = ""
        self._files: FrozenSet[Mark] = frozenset()
        self._seen = self._complete = 0
        self._changed_s = self._written_s = 0.0

    def check(self, now_s: float, wall_s: float) -> Checkpoint:
        """`now_s`: of the monotonic clock; `wall_s`: the time of the day."""
        if self._path is None:
            return NO_CHECKPOINT
        found = self._read()
        fresh = found - self._files
        if fresh:
            self._seen += 1
            self._changed_s = now_s - _age_s(fresh, wall_s)
        self._files = found
        if self._complete < self._seen and now_s - self._changed_s >= SETTLED_S:
            self._complete, self._written_s = self._seen, self._changed_s
        return Checkpoint(self._seen, self._complete, self._written_s)

    def _read(self) -> FrozenSet[Mark]:
        """Files with contents: an empty one is a checkpoint that found no room."""
        errors: List[str] = []
        found = _files(self._path or "", errors)
        reason = errors[0] if errors else ""
        if reason and reason != self._said:
            self._complain(reason)
        self._said = reason
        return frozenset(mark for mark in found if mark[2])


def _files(path: str, errors: List[str]) -> List[Mark]:
    """The files at the path and below; an absent one is no error: the script may make it."""

    def note(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            errors.append(error.strerror or str(error))

    try:
        status = os.stat(path)
    except OSError as error:
        note(error)
        return []
    if stat.S_ISREG(status.st_mode):
        return [_mark(path, status)]
    if not stat.S_ISDIR(status.st_mode):
        errors.append("it is neither a file nor a directory")
        return []
    found = []
    for folder, _, names in os.walk(path, onerror=note):
        for name in names:
            try:
                status = os.stat(os.path.join(folder, name))
            except OSError as error:  # replaced at this moment, or not readable
                note(error)
                continue
            if stat.S_ISREG(status.st_mode):
                found.append(_mark(os.path.join(folder, name), status))
    return found


def _mark(path: str, status: os.stat_result) -> Mark:
    return path, status.st_ino, status.st_size, status.st_mtime_ns


def _age_s(files: FrozenSet[Mark], wall_s: float) -> float:
    """How long ago the newest of them was written; 0 if the clock was set back since."""
    return max(0.0, wall_s - max(mark[3] for mark in files) / 1e9)
