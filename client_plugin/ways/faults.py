"""How a verb reports a failure: one line on stderr, and an exit code from one table.

Knows: exit codes. Must not know: the work of the verbs.
"""

from __future__ import annotations

import enum
import os
import sys
import time


class Exit(enum.IntEnum):
    """The exit codes of nodemgr itself; `run` becomes its command and so has the command's own."""

    FAILED = 1
    USAGE = 2
    UNREACHABLE = 69
    WAIT_TIMED_OUT = 75
    QUOTA_REFUSES = 77
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class Fault(Exception):
    """One line: the failure, the limit that it met, the remedy."""

    refusal = ""
    """The manager's code, where it has refused an order: usage, not_found, quota and so on."""

    def __init__(self, what: str, next: str = "", code: Exit = Exit.FAILED) -> None:
        """`what`: a whole line of a table, or with `next` the parts of a line with one use."""
        from client_plugin.messages.form import as_line

        self.message = as_line(what, next)
        self.what, self.next = what, next
        super().__init__(self.message)
        self.code = code


class Away(Fault):
    """No manager answers where there was one before: asked again, it may."""

    def __init__(self, what: str, next: str = "") -> None:
        super().__init__(what, next, Exit.UNREACHABLE)


class Stopped(Away):
    """No manager answers, and its socket is there: one ran here, and may be about to come back."""

    def __init__(self, message: str, run_dir: str = "/") -> None:
        """`run_dir`: its run directory, where that can be seen; a container sees none."""
        super().__init__(message)
        self._lock = os.path.join(run_dir, "manager.lock")

    def silent_s(self) -> float:
        """The time since its last sign of life, in seconds; 0 where that cannot be seen."""
        try:
            return max(0.0, time.time() - os.stat(self._lock).st_mtime)
        except OSError:
            return 0.0


class Lost(Away):
    """The manager was asked, and went away before it answered: what it has done is not known."""


class Mute(Lost):
    """The manager's socket takes the connection or the question, and no answer comes in time."""


class Busy(Away):
    """The manager has no room for this at the moment. A moment later it may have."""


def say(what: str, next: str = "") -> None:
    """Print a message: to stderr, so that stdout carries data alone."""
    from client_plugin.messages.form import as_line

    sys.stderr.write(f"nodemgr: {as_line(what, next)}\n")
    sys.stderr.flush()
