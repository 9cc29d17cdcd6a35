"""How far the store has come, told by a file beside it: a store that has lost commits is noticed.

Knows: that file. Must not know: SQL, what an event says.

SQLite drops all frames of its log behind a damaged one, and says nothing. So the number of the last
event, and of the last job, are written to this file after each commit. It is not synced: it tells
of this boot alone, for a power failure may cost the store its last commits by design.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from nodemgr.edge.kernel.processes import boot_id

_LINE = re.compile(
    rb"(?P<boot>[0-9a-f-]{1,64}) (?P<sequence>[0-9]{20}) (?P<jobs>[0-9]{20})\n", re.ASCII
)


class Reached(NamedTuple):
    sequence: int = 0
    """Of the last event."""
    jobs: int = 0
    """The last job's number."""


class StoreMark:
    """The file, open; without one (a full disk) nothing is noticed."""

    def __init__(self, path: Path) -> None:
        self._boot = boot_id().encode()
        self.before = Reached()
        """The mark of an earlier manager in this boot."""
        self._reached = Reached()
        self._file = -1
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            found = _LINE.fullmatch(os.pread(self._file, 256, 0))
            if found is None:
                os.ftruncate(self._file, 0)
            elif found["boot"] == self._boot:
                self.before = self._reached = Reached(int(found["sequence"]), int(found["jobs"]))

    def begin_anew(self) -> None:
        """The store is a new one, with events of its own."""
        self._reached = Reached(0, self.before.jobs)

    def write(self, sequence: int, jobs: int | None) -> None:
        """After a commit. `jobs`: None, as before. It never goes back."""
        self._reached = Reached(
            max(sequence, self._reached.sequence), max(jobs or 0, self._reached.jobs)
        )
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, b"%s %020d %020d\n" % (self._boot, *self._reached), 0)

    def close(self) -> None:
        descriptor, self._file = self._file, -1
        if descriptor >= 0:
            os.close(descriptor)


def lost(reached: Reached, there: Reached) -> str:
    """The commits that the store lacks, compared with `reached`, in one line; empty: none."""
    events = reached.sequence - there.sequence
    if events <= 0:
        return ""
    count = "its last event" if events == 1 else f"its last {events} events"
    said = (
        f"state.db lacks {count} of before this start: its log was damaged, or it is an older copy"
    )
    first, last = there.jobs + 1, reached.jobs
    if first > last:
        return said
    if first == last:
        return (
            f"{said}; job j{first} was submitted and is not known any more: submit it again, unless"
            " it runs"
        )
    return (
        f"{said}; jobs j{first} to j{last} were submitted and are not known any more: submit again"
        " those that do not run"
    )
